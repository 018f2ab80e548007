"""Load or recompute: what the clock measured decides whether state comes back from the host or is computed again.

The clock is a number. The model moves it on for each step; a page-in takes what each look at the clock takes.
"""

from __future__ import annotations

from typing import Any

import pytest

import kvtrie as kv
from fakes import BYTES_PER_TOKEN, CodingModel, make_cache, run

pytestmark = pytest.mark.usefixtures("nothing_left_over")


class Clock:
    """Seconds; every look at it takes ``tick``."""

    def __init__(self) -> None:
        self.now = 1.0
        self.tick = 0.0

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


class TimedModel(CodingModel):
    """The model that checks every byte, one second a step."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def __call__(self, step: Any) -> None:
        self.clock.now += 1
        super().__call__(step)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def model(clock: Clock) -> TimedModel:
    return TimedModel(clock)


def prompt(number: int) -> list[int]:
    return [1000 * number + i for i in range(40)]


def measure(cache: Any, model: TimedModel, clock: Clock, seconds: float) -> None:
    """Ten prefills of a second, and as many page-ins of about ``2 * seconds``."""
    for number in range(1, 11):
        run(cache, prompt(number), model)
        assert cache.page_out(prompt(number)) > 0
        clock.tick = seconds
        assert cache.restore(prompt(number)) == 40
        clock.tick = 0
        cache.evict(prompt(number))


def test_what_is_slow_to_load_is_computed_again(clock: Clock, model: TimedModel) -> None:
    cache = make_cache(256, host_bytes=256 * BYTES_PER_TOKEN, clock=clock)
    measure(cache, model, clock, 50)
    run(cache, prompt(20), model)
    cache.page_out(prompt(20))
    plan = cache.plan(prompt(20))
    assert (plan.matched, plan.reusable, plan.bytes_moved, plan.reason.code) == (40, 0, 0, "recompute")
    loads, rows = cache.stats()["page_ins"], model.rows
    session = run(cache, prompt(20), model)
    assert (session.matched, session.reused, session.reason.code) == (40, 0, "recompute")
    assert model.rows == rows + 40
    assert cache.stats()["page_ins"] == loads
    assert cache.stats()["recomputed_instead"] == 39
    assert run(cache, prompt(20), model).reused == 39  # what was computed is on the device now
    assert cache.check() == []


def test_what_is_fast_to_load_is_loaded(clock: Clock, model: TimedModel) -> None:
    cache = make_cache(256, host_bytes=256 * BYTES_PER_TOKEN, clock=clock)
    measure(cache, model, clock, 0.01)
    run(cache, prompt(20), model)
    cache.page_out(prompt(20))
    assert run(cache, prompt(20), model).reused == 39
    assert cache.stats()["recomputed_instead"] == 0


def test_always_and_restore_load(clock: Clock, model: TimedModel) -> None:
    cache = make_cache(256, host_bytes=256 * BYTES_PER_TOKEN, clock=clock, load="always")
    measure(cache, model, clock, 50)
    run(cache, prompt(20), model)
    cache.page_out(prompt(20))
    assert cache.plan(prompt(20)).reusable == 39
    assert run(cache, prompt(20), model).reused == 39
    with pytest.raises(ValueError, match="load: got 'never', allowed auto, always"):
        kv.PrefixCache(kv.caches.CausalCache(1, 1, 8, 4, device="host"), load="never")


def test_stats_say_what_was_measured(clock: Clock, model: TimedModel) -> None:
    cache = make_cache(256, host_bytes=256 * BYTES_PER_TOKEN, clock=clock)
    before = cache.stats()
    assert before["seconds_per_token"] is None
    assert before["seconds_per_byte"] == {"host": None, "disk": None, "store": None}
    measure(cache, model, clock, 50)
    stats = cache.stats()
    assert stats["seconds_per_token"] == pytest.approx(1 / 40)
    assert stats["seconds_per_byte"]["host"] == pytest.approx(100 / (40 * BYTES_PER_TOKEN))
    assert stats["seconds_per_byte"]["disk"] is None
    assert stats["seconds_per_decoded_token"] is None


def test_a_few_measurements_decide_nothing(clock: Clock, model: TimedModel) -> None:
    cache = make_cache(256, host_bytes=256 * BYTES_PER_TOKEN, clock=clock)
    for number in range(1, 4):
        run(cache, prompt(number), model)
        cache.page_out(prompt(number))
        clock.tick = 1000
        assert run(cache, prompt(number), model).reused == 39
        clock.tick = 0
