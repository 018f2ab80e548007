"""Caps that change while everything runs, pins and state with a time to live."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from fakes import BYTES_PER_TOKEN, CodingModel, make_cache, run, state_of
from kinds_fakes import KindsModel, make_caches, words

pytestmark = pytest.mark.usefixtures("nothing_left_over")


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 5000.0

    def __call__(self) -> float:
        return self.now


# ---- caps ------------------------------------------------------------------------------------------------------------


def test_a_lower_cap_of_cells_moves_state_to_the_host(place: Any, model: CodingModel) -> None:
    cache = make_cache(64, device=place, host_bytes=100 * BYTES_PER_TOKEN, growth=0)
    first, second = list(range(20)), list(range(100, 120))
    run(cache, first, model)
    run(cache, second, model)
    cache.set_limits(held_cells=25)
    cells = cache.stats()["caches"][0]
    assert (cells["capacity_cells"], cells["limit_cells"], cells["held_cells"], cells["free_cells"]) == (64, 25, 25, 0)
    assert cache.stats()["host_tokens"] == 15
    for prompt in (first, second) * 2:
        assert run(cache, prompt, model).reused == 19  # and the model checks the bytes
        assert cache.stats()["caches"][0]["held_cells"] <= 25
    cache.set_limits(held_cells=0)
    assert cache.stats()["caches"][0]["limit_cells"] == 64
    assert cache.check() == []


def test_refused_caps_change_nothing(model: CodingModel) -> None:
    cache = make_cache(64, host_bytes=100 * BYTES_PER_TOKEN, growth=0)
    run(cache, range(100, 120), model)
    cache.page_out(list(range(100, 120)))
    with cache.begin(list(range(20))) as session:
        for step in session.prefill():
            model(step)
        before = state_of(cache)
        with pytest.raises(kv.errors.CacheFullError) as info:
            cache.set_limits(held_cells=[19], host_bytes=1)
        assert (info.value.needed, info.value.held_live) == (45, 20)
        assert state_of(cache) == before
        cache.set_limits(held_cells=20, host_bytes="100KiB")
    assert (cache.host_bytes, cache.stats()["host_cap_bytes"]) == (102400, 102400)
    cache.set_limits()
    assert cache.stats()["caches"][0]["limit_cells"] == 20


def test_caps_that_make_no_sense(model: CodingModel) -> None:
    cache = make_cache(64)
    for wrong in ({"held_cells": -1}, {"held_cells": [1, 2]}, {"held_slots": [1]}, {"host_bytes": -1}):
        with pytest.raises(kv.Error):
            cache.set_limits(**wrong)
    for none in ({"host_bytes": 1}, {"disk_bytes": 1}):
        with pytest.raises(kv.errors.NotSupportedError, match="there is no"):
            cache.set_limits(**none)
    with pytest.raises(TypeError):
        cache.set_limits(held_cells="many")
    with pytest.raises(TypeError):
        cache.set_limits(64)
    assert cache.check() == []


def test_slots_have_a_cap_too() -> None:
    caches = make_caches("hybrid", 512, slots=24)
    cache, model = kv.PrefixCache(caches, host_bytes=0, checkpoint_every=16), KindsModel(caches)
    text = words(1, 200)
    run(cache, text, model)
    before = cache.stats()["restore_points"]
    cache.set_limits(held_slots=4)
    now = cache.stats()
    assert now["recurrent"][0]["limit_slots"] == 4
    assert now["restore_points"] <= 4 < before
    assert run(cache, text, model).reused == 199, "the end goes last"
    assert cache.check() == []


@pytest.mark.parametrize("kind", ["dense", "all"])
def test_random_caps_under_random_work(kind: str, tmp_path: Path) -> None:
    """Sessions of every kind while caps move: nothing wrong is read, no cap is exceeded, and what was known returns."""
    caches = make_caches(kind, 400, slots=30, window=16, chunk=16)
    cache = kv.PrefixCache(
        caches, fingerprint="w", host_bytes="64KiB", disk=tmp_path / "disk", disk_bytes="1MiB", checkpoint_every=16
    )
    model = KindsModel(caches)
    dice = random.Random(4)
    changed = 0
    for turn in range(150):
        text = words(dice.randrange(8), 40 + dice.randrange(60))
        try:
            run(cache, text, model, dice.choice("ab"))
        except kv.errors.CacheFullError:
            cache.set_limits(held_cells=0, held_slots=0)
        if turn % 3:
            continue
        try:
            cache.set_limits(
                held_cells=[dice.choice([None, 0, 60, 150, 400]) for _ in cache.stats()["caches"]],
                held_slots=dice.choice([None, 0, 6, 12]),
                host_bytes=dice.choice([None, 1, "4KiB", "64KiB"]),
                disk_bytes=dice.choice([None, 0, "10KiB", "1MiB"]),
            )
            changed += 1
        except kv.errors.CacheFullError:
            pass
        now = cache.stats()
        assert all(each["held_cells"] <= each["limit_cells"] for each in now["caches"])
        assert now["host_bytes"] <= now["host_cap_bytes"]
        assert now["disk"]["bytes"] <= now["disk"]["cap_bytes"]
        assert cache.check() == []
    assert changed > 30
    cache.close()


# ---- time to live ----------------------------------------------------------------------------------------------------


def test_a_pin_goes_when_its_time_is_over(model: CodingModel) -> None:
    clock = Clock()
    cache = make_cache(64, growth=0, clock=clock)
    run(cache, range(20), model)
    assert cache.pin(list(range(20)), ttl=60) == 20
    run(cache, range(100, 140), model)
    run(cache, range(200, 240), model)
    assert cache.plan(list(range(20))).matched == 20
    clock.now += 60
    assert (cache.stats()["pins"], cache.stats()["pinned_tokens"], cache.stats()["expired_pins"]) == (0, 0, 1)
    assert cache.unpin(list(range(20))) == 0
    run(cache, range(300, 360), model)
    assert cache.plan(list(range(20))).matched < 20
    assert cache.check() == []


def test_times_that_make_no_sense(model: CodingModel) -> None:
    cache = make_cache(64)
    run(cache, range(20), model)
    for wrong in (0, -1, 0.0, float("nan"), 10**400):
        with pytest.raises(kv.Error, match="ttl"):
            cache.pin(list(range(20)), ttl=wrong)
        with pytest.raises(kv.Error, match="ttl"):
            make_cache(64, ttl=wrong)
    for strange in ("1", True, [1]):
        with pytest.raises(TypeError, match="ttl"):
            cache.pin(list(range(20)), ttl=strange)
    assert cache.stats()["pins"] == 0


@pytest.mark.parametrize("policy", ["lru", "slru", "cost"])
def test_unused_state_goes(policy: str, model: CodingModel, tmp_path: Path) -> None:
    clock = Clock()
    options: dict[str, Any] = {"fingerprint": "w", "disk": tmp_path / "disk", "policy": policy}
    cache = make_cache(64, host_bytes="1MiB", growth=0, clock=clock, ttl=100, **options)
    for base in (0, 100, 200):
        run(cache, range(base, base + 20), model)
        clock.now += 40
    cache.page_out(list(range(100, 120)))
    known = [cache.plan(list(range(base, base + 20))).matched for base in (0, 100, 200)]
    assert known == [0, 20, 20], "the first is 120 seconds old"
    clock.now += 45  # the others 125 and 85
    assert [cache.plan(list(range(base, base + 20))).matched for base in (0, 100, 200)] == [0, 0, 20]
    clock.now += 200
    assert cache.stats()["nodes"] == 0
    assert cache.stats()["expired_tokens"] == 60
    assert cache.check() == []
    cache.close()
    with make_cache(64, host_bytes="1MiB", **options) as again:
        assert again.stats()["tokens"] == 0, "nor are there files"


def test_what_is_used_stays(model: CodingModel) -> None:
    clock = Clock()
    cache = make_cache(64, growth=0, clock=clock, ttl=10)
    run(cache, range(20), model)
    for _ in range(20):
        clock.now += 8
        assert run(cache, range(20), model).reused == 19
    with cache.begin(list(range(20))):
        clock.now += 1000
        assert cache.plan(list(range(20))).matched >= 19
    clock.now += 11
    assert cache.stats()["nodes"] == 0
