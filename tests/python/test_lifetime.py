"""Who keeps whom alive, what the end of the interpreter does, and what a fork does."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from fakes import DIM, KV_HEADS, CodingModel, compute, make_cache
from processes import PATIENCE, run_python
from test_tensor import aligned

pytestmark = pytest.mark.usefixtures("nothing_left_over")


class Tracked(np.ndarray):
    """An array that can be watched."""


def tracked(shape: tuple[int, ...]) -> Any:
    return aligned(shape, np.float32).view(Tracked)


def in_python(script: str) -> str:
    """Runs `script` in a new interpreter; nothing may be printed to stderr."""
    result = run_python("-c", script)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


# ---- who keeps whom --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["device", "host"])
def test_a_tensor_without_a_copy_keeps_its_array(place: str, device: Any) -> None:
    if place == "device" and not device.unified_memory:
        pytest.skip("needs memory that host and device share")
    array = tracked((4, 4))
    array[:] = 3
    watch = weakref.ref(array)
    x = kv.tensor(array, device=device if place == "device" else "host", copy=False)
    part = x[1:2].reshape(-1)
    del array, x
    gc.collect()
    assert watch() is not None
    np.testing.assert_array_equal(part.numpy(), [3, 3, 3, 3])
    del part
    gc.collect()
    assert watch() is None


def test_an_array_is_let_go_from_a_thread_without_the_gil(device: Any) -> None:
    array = tracked((1, KV_HEADS, DIM))
    watch = weakref.ref(array)
    x = kv.tensor(array, device="host", copy=False)
    del array
    thread = threading.Thread(target=lambda holder: holder.clear(), args=([x],))
    del x
    thread.start()
    thread.join(PATIENCE)
    del thread
    gc.collect()
    assert watch() is None


def test_a_tensor_without_a_copy_is_no_leak_when_it_is_refused() -> None:
    array = tracked((3,))
    before = sys.getrefcount(array)
    for _ in range(3):
        with pytest.raises(kv.errors.NotSupportedError):
            kv.tensor(array, "float16", copy=False)
    gc.collect()
    assert sys.getrefcount(array) == before


def test_conversions_leave_no_references() -> None:
    token = 123456789
    tokens = [token, 5]
    array = np.arange(4, dtype=np.int64)
    cache = make_cache(64, device="host")
    before = (sys.getrefcount(tokens), sys.getrefcount(array), sys.getrefcount(token))
    for _ in range(50):
        cache.plan(tokens)
        cache.plan(array)
        cache.plan(array.astype(np.int32))
        with pytest.raises(TypeError):
            cache.plan([token, 1.5])
    assert (sys.getrefcount(tokens), sys.getrefcount(array), sys.getrefcount(token)) == before


def test_a_dlpack_view_keeps_the_tensor() -> None:
    x = kv.tensor(np.arange(8, dtype=np.float32), device="host")
    view = np.from_dlpack(x)
    del x
    gc.collect()
    np.testing.assert_array_equal(view, np.arange(8))


def test_a_mapped_view_that_is_kept_is_not_dangling(device: Any) -> None:
    x = kv.tensor(np.arange(8, dtype=np.float32))
    with x.mapped() as view:
        pass
    del x
    gc.collect()
    assert view.shape == (8,)
    assert view.sum() == 28 or not device.unified_memory


def test_a_session_keeps_its_cache() -> None:
    session = make_cache(64, device="host").begin([1, 2, 3])
    gc.collect()
    model = CodingModel()
    compute(session, model)
    assert session.length == 3
    session.close()


def test_a_session_that_is_forgotten_closes() -> None:
    cache = make_cache(64, device="host")
    session = cache.begin([1, 2, 3])
    step = session.decode()
    del session
    assert cache.stats()["sessions"] == 1  # the step holds it
    del step
    gc.collect()
    assert cache.stats()["sessions"] == 0
    assert cache.stats()["caches"][0]["held_cells"] == 0


def test_a_clock_is_let_go_with_its_cache() -> None:
    class Clock:
        def __call__(self) -> float:
            return 1.0

    clock = Clock()
    watch = weakref.ref(clock)
    cache = make_cache(64, device="host", clock=clock)
    cache.begin([1]).close()
    del clock
    assert watch() is not None
    del cache
    gc.collect()
    assert watch() is None


def test_snapshots_outlive_their_cache() -> None:
    cache = kv.caches.CausalCache(1, KV_HEADS, DIM, 8, device="host")
    cache.start_forward([0, 1], [0, 0])
    cache.put(0, np.ones((2, KV_HEADS, DIM)), np.ones((2, KV_HEADS, DIM)))
    snapshot = cache.snapshot(0)
    assert snapshot is not None
    del cache
    gc.collect()
    assert (snapshot.start, snapshot.end, snapshot.nbytes) == (0, 2, 0)


def test_device_memory_does_not_outlive_its_owner(device: Any) -> None:
    before = device.memory()
    cache = make_cache(256)
    with cache.begin(range(100)) as session:
        compute(session, CodingModel(), chunk=30)
    during = device.memory()
    assert during["live_bytes"] >= before["live_bytes"] + cache.caches[0].nbytes
    del cache, session
    gc.collect()
    after = device.memory()
    assert {name: after[name] for name in ("live_bytes", "live_buffers")} == {
        name: before[name] for name in ("live_bytes", "live_buffers")
    }
    device.trim()
    assert device.memory()["buffers"] <= before["buffers"]


# ---- the end of the interpreter --------------------------------------------------------------------------------------

PREAMBLE = """
import numpy as np
import kvtrie as kv
layers = kv.caches.CausalCache(1, 1, 8, 64)
cache = kv.PrefixCache(layers, host_bytes="1MiB", clock=lambda: 0.0)
session = cache.begin(list(range(20)))
rows = np.ones((20, 1, 8), np.float32)
step = session.decode()
out = step.attend(0, rows, rows, rows)
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "import builtins; builtins.keep = [cache, session, step, out, kv]",
        "import atexit; atexit.register(lambda: (session.append(1), cache.check(), out.numpy()))",
        *(
            pytest.param(end, marks=pytest.mark.ci)
            for end in (
                "session.append(1); step = session.decode()",
                "cache.evict(nbytes=0); raise SystemExit(0)",
                "view = out.mapped().__enter__()",
                "cycle = [cache, session, step, out]; cycle.append(cycle)",
                "import threading; t = threading.Thread(target=lambda: out.numpy()); t.start()",
                "import logging; logging.getLogger('kvtrie').setLevel(10)",
            )
        ),
    ],
)
def test_the_interpreter_ends_with_live_objects(end: str) -> None:
    assert in_python(PREAMBLE + end) == ""


def test_an_interrupt_between_steps_leaves_everything_valid() -> None:
    script = (
        PREAMBLE
        + """
import _thread, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a program in the background ignores it
try:
    threading.Timer(0.3, _thread.interrupt_main).start()
    while True:
        session.append(1)
        one = np.ones((1, 1, 8), np.float32)
        session.decode().attend(0, one, one, one)
        session.rewind(20)
except KeyboardInterrupt:
    pass
assert cache.check() == []
session.rewind(20)
session.append(2)
one = np.ones((1, 1, 8), np.float32)
session.decode().attend(0, one, one, one)
print(session.length)
"""
    )
    assert in_python(script) == "21\n"


# ---- fork ------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_refused_and_does_not_hang() -> None:
    script = (
        PREAMBLE
        + """
import os, sys
child = os.fork()
if child == 0:
    try:
        out.numpy()
    except kv.errors.NotSupportedError as error:
        print("refused" if "fork" in str(error) else error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(out.numpy().shape)
"""
    )
    assert in_python(script) == "refused\n(20, 1, 8)\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_was_forked_first_may_use_a_device() -> None:
    script = """
import os
import kvtrie as kv
child = os.fork()
if child == 0:
    print(kv.tensor([1.0, 2.0]).numpy(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    assert in_python(script) == "[1. 2.]\n"
