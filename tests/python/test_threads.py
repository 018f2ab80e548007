"""Threads: any thread may call a cache; a session takes one call at a time; the GIL is free while others work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from fakes import CodingModel, compute, make_cache, run
from processes import PATIENCE

pytestmark = pytest.mark.usefixtures("nothing_left_over")

SEED = 4242


def together(*works: Callable[[], Any]) -> None:
    """Runs all at once, each in a thread of its own; raises what the first one raised."""
    barrier = threading.Barrier(len(works))
    errors: list[BaseException] = []

    def body(work: Callable[[], Any]) -> None:
        try:
            barrier.wait(PATIENCE)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


class Gate:
    """A clock that can be held: a call that reads it then waits, without the GIL's owner or the cache's lock."""

    def __init__(self) -> None:
        self.armed = threading.Event()
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self) -> float:
        if self.armed.is_set():
            self.armed.clear()
            self.reached.set()
            assert self.open.wait(PATIENCE)
        return 0.0


@pytest.mark.parametrize("call", ["append", "decode", "branch", "rewind", "checkpoint", "prefill", "batch"])
def test_two_threads_in_one_session(call: str) -> None:
    gate = Gate()
    cache = make_cache(64, device="host", clock=gate)
    session = cache.begin([1, 2, 3, 4])
    compute(session, CodingModel())
    other = cache.begin([7, 8, 9])
    second: dict[str, Callable[[], Any]] = {
        "append": lambda: session.append(5),
        "decode": lambda: session.decode(),
        "branch": lambda: session.branch(),
        "rewind": lambda: session.rewind(1),
        "checkpoint": lambda: session.checkpoint(),
        "prefill": lambda: next(iter(session.prefill())),
        "batch": lambda: cache.batch([other, session]),
    }
    gate.armed.set()
    first = threading.Thread(target=lambda: session.append(9))
    first.start()
    assert gate.reached.wait(PATIENCE)
    with pytest.raises(kv.errors.BusyError, match="another thread"):
        second[call]()
    other.append(10)  # other sessions of the cache are free
    gate.open.set()
    first.join(PATIENCE)
    assert list(session.tokens) == [1, 2, 3, 4, 9]
    session.close()
    other.close()
    assert cache.check() == []


def test_conversations_in_many_threads(device: Any) -> None:
    """Threads share prompts, branch, run short of cells and page; every history is checked by the model."""
    cache = make_cache(96, host_bytes="64KiB", growth=4)
    prompts = [[*range(20), *range(base, base + 12)] for base in (100, 200, 300, 400)]

    def talk(seed: int) -> None:
        random = np.random.default_rng([SEED, seed])
        model = CodingModel()
        for _ in range(12):
            prompt = prompts[random.integers(len(prompts))]
            try:
                with cache.begin(prompt, "ab"[random.integers(2)]) as session:
                    compute(session, model, chunk=int(random.integers(1, 20)))
                    with session.branch() as branch:
                        branch.append([int(random.integers(1000)), 5])
                        model(branch.decode())
                        branch.rewind(int(random.integers(33)))
                    session.append(int(random.integers(1000)))
                    model(session.decode())
            except kv.errors.CacheFullError:
                continue
            if random.integers(4) == 0:
                cache.page_out(prompt)
            if random.integers(6) == 0:
                cache.evict(prompt)

    together(*(lambda seed=seed: talk(seed) for seed in range(4)))  # type: ignore[misc]
    assert cache.check() == []
    assert cache.stats()["sessions"] == 0
    assert cache.stats()["checksum_failures"] == 0


def test_a_cache_is_closed_while_others_use_it() -> None:
    cache = make_cache(64, device="host")
    started = threading.Event()

    def talk() -> None:
        model = CodingModel(check=False)
        while True:
            try:
                run(cache, range(10), model)
            except kv.errors.ClosedError:
                return
            started.set()

    def close() -> None:
        assert started.wait(PATIENCE)
        cache.close()

    together(talk, talk, close)
    assert cache.caches[0].free_cells == 64


def test_operations_from_many_threads(device: Any) -> None:
    x = kv.tensor(np.arange(12, dtype=np.float32).reshape(3, 4))

    def work() -> None:
        for _ in range(20):
            np.testing.assert_array_equal(np.asarray(kv.ops.add(x, x)), 2 * np.arange(12).reshape(3, 4))

    together(work, work, work)


def test_waiting_releases_the_gil() -> None:
    """A call that waits in C++ (here: for a clock that another thread holds) lets Python threads run."""
    gate = Gate()
    cache = make_cache(64, device="host", clock=gate)
    gate.armed.set()
    thread = threading.Thread(target=lambda: cache.begin([1, 2]).close())
    thread.start()
    assert gate.reached.wait(PATIENCE)
    assert cache.plan([1]).matched == 0  # not even the cache's lock is held
    gate.open.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_clock_that_raises_is_logged_and_harmless(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> float:
        raise RuntimeError("no time today")

    cache = make_cache(64, device="host", clock=broken)
    with caplog.at_level(logging.INFO, "kvtrie"):
        run(cache, [1, 2, 3], CodingModel())
        for _ in range(1000):  # messages are delivered when the main thread next runs Python code
            if caplog.records:
                break
    assert cache.plan([1, 2, 3]).matched == 3
    assert any("no time today" in record.getMessage() and record.name == "kvtrie" for record in caplog.records)
