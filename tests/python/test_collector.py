"""Circles through a cache: its clock or store leads back to it. The collector ends them, and only those nobody uses."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest

import kvtrie as kv
from circles import SOAK
from fakes import CodingModel, DictStore, compute, make_cache, run
from processes import PATIENCE, run_python

WORKER = Path(__file__).with_name("collector_worker.py")


class Owner(DictStore):
    """Its method is a clock, it is itself a store, and it holds what a test puts there."""

    cache: Any = None
    kept: Any = None

    def now(self) -> float:
        return 0.0


def is_gone(watch: Callable[[], object]) -> bool:
    """After collecting; what was let go in a thread without the GIL is given back by this one soon after."""
    end = time.monotonic() + PATIENCE
    gc.collect()
    while watch() is not None and time.monotonic() < end:
        time.sleep(0.001)
        gc.collect()
    return watch() is None


def with_clock(owner: Owner, **options: Any) -> Any:
    return make_cache(64, device="host", clock=owner.now, **options)


def a_cache(owner: Owner) -> object:
    owner.cache = with_clock(owner)
    return owner.cache


def a_session(owner: Owner) -> object:
    owner.kept = with_clock(owner).begin([1, 2, 3])
    return owner.kept


def a_computed_session(owner: Owner) -> object:
    owner.cache = with_clock(owner)
    owner.kept = owner.cache.begin([1, 2, 3])
    compute(owner.kept, CodingModel())
    return owner.cache


def a_branch(owner: Owner) -> object:
    session = with_clock(owner).begin([1, 2, 3])
    owner.kept = session.branch()
    session.close()
    return owner.kept


def an_open_step(owner: Owner) -> object:
    owner.kept = with_clock(owner).begin([1, 2, 3]).decode()
    return owner.kept


def a_step_of_many(owner: Owner) -> object:
    cache = with_clock(owner)
    owner.kept = cache.batch([cache.begin([1, 2]), cache.begin([3])])
    return owner.kept


def sessions_of_a_step(owner: Owner) -> object:
    owner.kept = an_open_step(owner).sessions  # type: ignore[attr-defined]
    return owner.kept[0]


def a_loop(owner: Owner) -> object:
    owner.kept = with_clock(owner).begin([1, 2, 3]).prefill()
    next(owner.kept)
    return owner.kept


def a_store(owner: Owner) -> object:
    owner.cache = make_cache(64, device="host", host_bytes="1MiB", store=owner, fingerprint="weights")
    run(owner.cache, range(40), CodingModel())
    return owner.cache


CIRCLES = [a_cache, a_session, a_computed_session, a_branch, an_open_step, a_step_of_many, sessions_of_a_step, a_loop,
           a_store]  # fmt: skip


@pytest.mark.parametrize("circle", CIRCLES, ids=lambda each: each.__name__)
def test_a_circle_is_collected(circle: Callable[[Owner], object]) -> None:
    owner = Owner()
    watches = weakref.ref(circle(owner)), weakref.ref(owner)
    gc.collect()
    assert all(watch() is not None for watch in watches)  # it is in use
    del owner
    assert all(is_gone(watch) for watch in watches)


@pytest.mark.parametrize("circle", CIRCLES, ids=lambda each: each.__name__)
def test_what_is_used_from_outside_is_not(circle: Callable[[Owner], object]) -> None:
    owner = Owner()
    outside: Any = circle(owner)
    del owner
    for _ in range(3):
        gc.collect()
    if isinstance(outside, kv.PrefixCache):
        assert not outside.closed and outside.check() == []
        run(outside, [7, 8, 9], CodingModel())
    elif isinstance(outside, kv.Session):
        assert not outside.closed
        compute(outside, CodingModel())
    elif isinstance(outside, kv.Step):
        CodingModel()(outside)
        assert outside.complete
    else:
        assert outside.__next__ is not None  # the step of the loop was not completed


def test_a_cache_that_is_its_own_clock() -> None:
    class Clock(kv.PrefixCache):
        def __init__(self) -> None:
            super().__init__(kv.caches.CausalCache(1, 1, 8, 4, device="host"), clock=self.now)

        def now(self) -> float:
            return 1.0

    watch = weakref.ref(Clock())
    assert is_gone(watch)


class WithFinalizer(kv.PrefixCache):
    """Its finalizer takes the place of any that the class below has."""

    def __del__(self) -> None:
        pass


@pytest.mark.parametrize("made", [kv.PrefixCache, WithFinalizer])
@pytest.mark.parametrize("kept", ["cache", "session", "step"])
def test_what_the_collector_has_cleared_is_not_called(made: type[kv.PrefixCache], kept: str) -> None:
    """A function of Python that was cleared must not run: it has no closure and no globals any more."""
    watches: list[Any] = []
    for _ in range(50 if SOAK else 10):
        watches.append(weakref.ref(circle_of_functions(made, kept)))
    assert all(is_gone(watch) for watch in watches)


def circle_of_functions(made: type[kv.PrefixCache], kept: str) -> Any:
    """What is ``kept`` in a list that the clock and the store's method are closures over."""
    box: list[Any] = []

    class Store(Owner):
        def get(self, key: str) -> Optional[bytes]:
            return self.values.get(key) if box else None

    layers = kv.caches.CausalCache(2, 2, 4, 64, dtype="float32", device="host")
    options: dict[str, Any] = {"store": Store(), "fingerprint": "weights", "host_bytes": "1MiB"}
    cache = made(layers, clock=lambda: float(len(box)), **options)
    run(cache, range(40), CodingModel())
    session = cache.begin([1, 2, 3])
    box.append({"cache": cache, "session": session, "step": session.decode()}[kept])
    return box[0]


def test_finalizers_run_while_all_is_whole() -> None:
    seen: list[object] = []

    class Closing(kv.PrefixCache):
        def __del__(self) -> None:
            seen.append(self.stats()["sessions"])
            self.close()

    class Timed(Owner):
        def __del__(self) -> None:
            seen.append(self.cache.check())

    owner = Timed()
    layers = kv.caches.CausalCache(1, 1, 8, 4, device="host")
    owner.cache = Closing(layers, clock=owner.now)
    owner.kept = owner.cache.begin([1])
    watch = weakref.ref(owner)
    del owner
    assert is_gone(watch)
    assert sorted(map(str, seen)) == ["1", "[]"]
    kv.PrefixCache(layers).close()  # it belongs to nobody any more


def test_what_is_unsent_is_sent_first(tmp_path: Path) -> None:
    owner = Owner()
    values = owner.values
    begun, go_on = threading.Event(), threading.Event()

    def slow(key: str, value: bytes) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)
        values[key] = value

    owner.put = slow  # type: ignore[method-assign]
    options = {"disk": str(tmp_path / "tier"), "disk_bytes": "1MiB", "host_bytes": "1MiB", "fingerprint": "weights"}
    owner.cache = make_cache(64, device="host", store=owner, clock=owner.now, **options)
    run(owner.cache, range(40), CodingModel())
    assert begun.wait(PATIENCE)
    watch = weakref.ref(owner)
    gc.disable()  # whoever collects waits for `go_on`: not this thread before, nor the one that sets it
    try:
        del owner
        threading.Timer(0.05, go_on.set).start()
        assert is_gone(watch)
    finally:
        gc.enable()
    assert len(values) == 2  # the whole of what was offered
    again = make_cache(64, device="host", **options)  # the folder is free, and complete
    assert again.plan(range(40)).reusable == 39
    again.close()


def test_an_object_that_was_taken_apart_says_so() -> None:
    """Another finalizer may still reach it by a reference that the collector could not see."""
    owner = Owner()
    owner.cache = with_clock(owner)
    caught: list[str] = []
    watch = weakref.ref(owner.cache, lambda _: caught.append("gone"))
    del owner
    assert is_gone(watch)
    assert caught == ["gone"]


HALF_MADE = """
import gc
import kvtrie as kv

for number in range(20):
    class Mine(kv.PrefixCache):  # of which pybind11 looks up the classes at its first object, which takes memory
        pass

    caches = [kv.caches.CausalCache([0], 1, 4, 32, device="host")]
    gc.set_threshold(1)
    cache = Mine(caches, clock=lambda: 0.0)
    gc.set_threshold(700)
    cache.close()
print("made")
"""


def test_collecting_while_the_first_object_of_a_class_is_made() -> None:
    """The collector knows an object before it has any contents."""
    done = run_python("-c", HALF_MADE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "made\n", "")


@pytest.mark.parametrize("seed", range(10 if SOAK else 1))
def test_a_thousand_circles_in_threads(seed: int, tmp_path: Path) -> None:
    count = 334 if SOAK else 60  # of each of three threads
    done = run_python(WORKER, seed, count, tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), f"collector_worker.py {seed} {count}: {done.stderr}"
    made = int(done.stdout.split()[0])
    assert done.stdout == f"{made} circles, 0 left, 0 failed []\n" and made > 1.8 * count, done.stdout
