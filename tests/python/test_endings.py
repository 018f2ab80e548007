"""How things end that nobody closed: interpreters, forked processes, and objects that never came into being."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from kvtrie import _core
from processes import run_python

WORKER = Path(__file__).with_name("ending_worker.py")

CLASSES = sorted(
    name
    for name, value in vars(_core).items()
    if inspect.isclass(value)
    and not issubclass(value, (BaseException, tuple))
    and value.__module__.startswith("kvtrie")
)


def test_there_are_classes() -> None:
    assert {"PrefixCache", "Session", "Step", "CausalCache", "Tensor", "Device"} <= set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_an_object_whose_init_never_ran(name: str) -> None:
    """What would use its contents says so: memory that was never written is not read, which would end this process."""
    cls: Any = getattr(_core, name)
    try:
        made = cls.__new__(cls)
    except TypeError:
        return
    refused = 0
    for attribute in dir(cls):
        if attribute.startswith("__") and attribute not in ("__len__", "__repr__", "__enter__", "__exit__", "__next__"):
            continue
        try:
            value = getattr(made, attribute)
            if callable(value):
                value()
        except (TypeError, RuntimeError) as error:  # or for want of arguments
            refused += "did not run" in str(error)
    assert refused > 0


def test_a_subclass_that_closes_what_was_never_made() -> None:
    seen: list[str] = []

    class Closing(kv.PrefixCache):
        def __del__(self) -> None:
            try:
                self.close()
            except TypeError as error:
                seen.append(str(error))

    with pytest.raises(ValueError, match="policy"):
        Closing([], policy="no such policy")
    assert len(seen) == 1 and "did not run, or failed" in seen[0]


@pytest.mark.parametrize("where", ["clock", "store", "anywhere"])
def test_the_interpreter_ends_with_daemon_threads_in_calls(where: str) -> None:
    for _ in range(4):
        done = run_python(WORKER, "daemon", where)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("state", ["closed", "live", "open step", "device"])
def test_a_forked_process_is_refused_and_ends(state: str, tmp_path: Path) -> None:
    done = run_python(WORKER, "fork", state, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{['forked'] * 4}\nthe parent goes on\n"
