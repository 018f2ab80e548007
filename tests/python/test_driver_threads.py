"""The threads of a CPU device's driver: each on a processor of its own, all of them or none, and nobody else's."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

import kvtrie as kv
from processes import run_python

# The threads that opening the device has begun or moved, and where each of all may run.
CHILD = """
import json, os, sys
if len(sys.argv) > 1:
    os.sched_setaffinity(0, {int(sys.argv[1])})
import kvtrie as kv
at_first = os.sched_getaffinity(0)
device = kv.Device()
tasks = {int(each): sorted(os.sched_getaffinity(int(each))) for each in os.listdir("/proc/self/task")}
other = {}
if os.environ.get("ANOTHER"):
    device.finish()
    other = {"answer": kv.ops.add(kv.tensor([1.0], device=device), kv.tensor([2.0], device=device)).numpy().tolist()}
print(json.dumps({
    "kind": device.kind, "units": device.capabilities["compute_units"], "all": sorted(at_first), "main": os.getpid(),
    "tasks": tasks, **other,
}))
"""


def threads(*arguments: str, **environment: str) -> dict[str, Any]:
    """What a process finds of its own threads once it has opened the device."""
    done = run_python("-c", CHILD, *arguments, environment={"POCL_AFFINITY": None, **environment})
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    found["main"] = found["tasks"][str(found["main"])]
    found["bound"] = sorted(each[0] for each in found["tasks"].values() if len(each) == 1)
    return found


@pytest.fixture(scope="module", autouse=True)
def pocl() -> None:
    if "Portable Computing Language" not in kv.Device().platform or os.uname().machine != "x86_64":
        pytest.skip("needs PoCL on an x86-64 processor")


def test_each_thread_has_a_processor_of_its_own_and_the_callers_have_all() -> None:
    for _ in range(20):  # on a busy machine they may not meet in time, and then none is bound
        found = threads(ANOTHER="1")
        assert found["main"] == found["all"] and found["answer"] == [3.0]
        if len(found["all"]) < 2 or found["units"] != len(found["all"]):
            assert found["bound"] == []
            return
        if found["bound"]:
            break
    assert found["bound"] == found["all"]


def test_a_process_that_asks_for_fewer_threads_stays_where_the_system_puts_it() -> None:
    count = len(os.sched_getaffinity(0))
    if count > 1:
        few = {name: str(count - 1) for name in ("POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT")}
        assert threads(**few)["bound"] == []
    own = min(os.sched_getaffinity(0))
    assert set(map(tuple, threads(str(own))["tasks"].values())) == {(own,)}


def test_pocls_own_variable_has_the_last_word() -> None:
    found = threads(POCL_AFFINITY="0")
    assert set(map(tuple, found["tasks"].values())) == {tuple(found["all"])}


@pytest.mark.ci  # it compiles for a GPU
def test_a_device_that_emulates_a_gpu_binds_nothing() -> None:
    found = threads(KVTRIE_EMULATED_DEVICE="gpu")
    assert found["kind"] == "gpu" and set(map(tuple, found["tasks"].values())) == {tuple(found["all"])}


def test_threads_that_others_have_bound_stay_there() -> None:
    """All of the driver's threads are on one processor before: that is no fit, and the device works."""
    code = """
import os, kvtrie as kv
own = {int(each) for each in os.listdir("/proc/self/task")}
kv.devices()
drivers = {int(each) for each in os.listdir("/proc/self/task")} - own
one = {min(os.sched_getaffinity(0))}
for each in drivers:
    os.sched_setaffinity(each, one)
device = kv.Device()
print(kv.ops.add(kv.tensor([1.0], device=device), kv.tensor([2.0], device=device)).numpy())
print(all(os.sched_getaffinity(each) == one for each in drivers))
"""
    done = run_python("-c", code, environment={"POCL_AFFINITY": None})
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "[3.]\nTrue\n")
