"""An allocation that fails in a call of the core: MemoryError, our own error or the answer, and all works after that.

A sample of what `allocation_sweep.py` plays in full; it says what has to hold of each. Memory is the host's, and a
device's from CI on.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import WrapperDescriptorType
from typing import Any

import pytest

from allocation_calls import CALLS, LEFT_OUT, UNREAD
from allocation_worlds import WORLDS
from kvtrie import _core
from processes import run_python

OWN_DUNDERS = {"__init__", "__enter__", "__exit__", "__len__", "__iter__", "__next__", "__eq__", "__copy__"}
OWN_DUNDERS |= {"__getitem__", "__array__", "__dlpack__", "__dlpack_device__"}
SWEEP = Path(__file__).with_name("allocation_sweep.py")
SEED = int(os.environ.get("KVTRIE_SEED", "34"))

needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or shutil.which("cc") is None, reason="a malloc for glibc is compiled and loaded"
)


def swept(*arguments: Any) -> dict[str, Any]:
    ended = run_python(SWEEP, "--seed", SEED, *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counted: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return counted


@needs_glibc
def test_some_allocations_of_all_calls() -> None:
    counted = swept("--count", 150, "--host")
    assert counted["operations"] > 60
    assert counted["ended"]["MemoryError"] > counted["operations"] / 2  # most of them are seen by the caller


@needs_glibc
@pytest.mark.ci
def test_more_allocations_of_all_calls() -> None:
    assert swept("--count", 1200)["operations"] > 500


@needs_glibc
@pytest.mark.ci
def test_the_sweep_sees_a_process_that_ends() -> None:
    ended = run_python(SWEEP, "ends by itself")
    assert ended.returncode == 1
    assert "died of SIGABRT" in ended.stdout


def members_of(name: str, value: Any) -> Iterator[str]:
    if not isinstance(value, type):
        yield name
        return
    for member, each in vars(value).items():
        ours = not member.startswith(("__", "_pybind11")) or member in OWN_DUNDERS
        if (
            ours
            and not isinstance(each, WrapperDescriptorType)
            and (callable(each) or isinstance(each, (property, staticmethod)))
        ):
            yield f"{name}.{member}"


def everything() -> Iterator[tuple[str, str]]:
    """Each function, method and property of the core, with the class that it is of."""
    for prefix, module in (("", _core), ("ops.", _core.ops)):
        for name, value in vars(module).items():
            if not name.startswith("__") and callable(value):
                yield from ((member, prefix + name) for member in members_of(prefix + name, value))


def test_every_public_call_is_in_the_table_or_left_out_with_a_reason() -> None:
    named = {call.name for call in CALLS} | set(UNREAD)
    missing = [
        name for name, owner in everything() if not {name, owner} & (named | set(LEFT_OUT)) and name not in named
    ]
    assert missing == []
    there = {name for name, _ in everything()} | {owner for _, owner in everything()}
    assert [name for name in (*LEFT_OUT, *UNREAD) if name not in there] == []


def test_every_world_is_used() -> None:
    assert {world for call in CALLS for world in call.worlds} == set(WORLDS)
