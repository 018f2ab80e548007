"""How things end that nobody closed: interpreters, forked processes, and objects that never came into being."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest

import kvtrie as kv
from circles import SOAK
from fakes import CodingModel, make_cache, run
from kvtrie import _core
from processes import PATIENCE, run_python

TOKENS = list(range(40))

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
    for _ in range(4 if SOAK else 1):
        done = run_python(WORKER, "daemon", where)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("state", ["closed", "live", "open step", "device"])
def test_a_forked_process_is_refused_and_ends(state: str, tmp_path: Path) -> None:
    done = run_python(WORKER, "fork", state, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{['forked'] * 4}\nthe parent goes on\n"


def test_a_store_that_asks_its_cache_from_inside_its_put(tmp_path: Path) -> None:
    """On the thread that sends, what waits for that thread is refused by name; everything else is done."""
    said: dict[str, str] = {}
    asked = threading.Event()

    class Asking:
        def get(self, _: str) -> Optional[bytes]:
            return None

        def put(self, _: str, __: bytes) -> None:
            if asked.is_set():
                return
            calls: dict[str, Callable[[], object]] = {
                "flush": cache.flush,
                "save": lambda: cache.save(str(tmp_path / "tier")),
                "page_out": lambda: cache.page_out(TOKENS, to="store"),
                "set_limits": lambda: cache.set_limits(host_bytes="512KiB"),
                "stats": cache.stats,
                "begin": lambda: cache.begin([7, 8]).close(),
                "evict": lambda: cache.evict([9]),
            }
            for name, call in calls.items():
                try:
                    call()
                    said[name] = "done"
                except kv.Error as error:
                    said[name] = type(error).__name__
            asked.set()

        def delete(self, _: str) -> None:
            pass

    options: dict[str, Any] = {"host_bytes": "1MiB", "disk": tmp_path / "tier", "disk_bytes": "1MiB"}
    cache = make_cache(64, device="host", store=Asking(), fingerprint="weights", **options)
    run(cache, TOKENS, CodingModel())
    assert asked.wait(PATIENCE)
    assert said.pop("set_limits") in ("done", "BusyError")  # it waits only where something is on its way
    busy = dict.fromkeys(("flush", "save", "page_out"), "BusyError")
    assert said == {**busy, **dict.fromkeys(("stats", "begin", "evict"), "done")}
    assert cache.flush() in (True, False)
    assert cache.check() == []
    cache.close()
