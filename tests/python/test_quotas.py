"""What a namespace may have at most, and what others cannot take from it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from fakes import BYTES_PER_TOKEN, CodingModel, make_cache, run, state_of

pytestmark = pytest.mark.usefixtures("nothing_left_over")


def held(cache: kv.PrefixCache, namespace: str) -> int:
    return cache.usage(namespace)["cells"][0]["used"]


def prompt(number: int, length: int = 10) -> list[int]:
    return list(range(100 * number, 100 * number + length))


def known(cache: kv.PrefixCache, numbers: Iterable[int], namespace: str) -> list[int]:
    """Of these prompts those that are known in full."""
    return [number for number in numbers if cache.plan(prompt(number), namespace).matched == 10]


# ---- the most --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["lru", "slru", "cost"])
def test_beyond_its_most_a_namespace_evicts_itself(model: CodingModel, policy: str) -> None:
    cache = make_cache(64, growth=0, policy=policy, quotas={"a": {"most": {"cells": 20}}})
    run(cache, prompt(1), model, "b")
    for number in range(2, 6):
        run(cache, prompt(number), model, "a")
        assert held(cache, "a") <= 20
    assert known(cache, range(2, 6), "a") == [4, 5]
    assert known(cache, [1], "b") == [1] and cache.stats()["caches"][0]["free_cells"] == 34
    assert cache.check() == []


def test_live_state_counts_and_is_refused_by_name(model: CodingModel) -> None:
    cache = make_cache(64, growth=0, quotas={"a": {"most": {"cells": 20}}})
    run(cache, prompt(1), model, "b")
    with cache.begin(prompt(2, 18), "a") as session:
        for step in session.prefill():
            model(step)
        other = cache.begin(prompt(3), "a")
        before = state_of(cache)
        with pytest.raises(kv.errors.CacheFullError, match="quota of namespace 'a' is 20") as info:
            next(iter(other.prefill()))
        assert (info.value.needed, info.value.free, info.value.freeable, info.value.held_live) == (10, 2, 0, 18)
        assert state_of(cache) == before
        other.close()
    run(cache, prompt(3), model, "a")  # what it holds is idle now
    assert held(cache, "a") == 20 and known(cache, [1], "b") == [1]


def test_host_memory_and_files_have_their_most(model: CodingModel, tmp_path: Path) -> None:
    each = 10 * BYTES_PER_TOKEN
    cache = make_cache(
        64, host_bytes=20 * each, disk=tmp_path / "disk", disk_bytes="1MiB", fingerprint="x", growth=0,
        quotas={"a": {"most": {"host_bytes": 2 * each, "disk_bytes": 3 * (each + 2000)}}},
    )  # fmt: skip
    for number in range(8):
        for namespace in ("a", "b"):
            run(cache, prompt(number), model, namespace)
            cache.page_out(prompt(number), namespace=namespace)
        cache.flush()
        assert cache.usage("a")["host_bytes"]["used"] <= 2 * each
        assert cache.usage("a")["disk_bytes"]["used"] <= 3 * (each + 2000)
    assert known(cache, range(8), "b") == list(range(8)), "nothing of others went for it"
    assert 0 < len(known(cache, range(8), "a")) < 8
    assert cache.usage("b")["host_bytes"]["most"] is None
    assert cache.check() == []


# ---- the floor -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["lru", "slru", "cost"])
def test_others_cannot_take_what_is_within_a_floor(model: CodingModel, policy: str) -> None:
    cache = make_cache(64, growth=0, policy=policy, quotas={"a": {"least": {"cells": 20}}})
    for number in range(3):
        run(cache, prompt(number), model, "a")  # the oldest of all
    for number in range(20):
        run(cache, prompt(number), model, "b")
    assert known(cache, range(3), "a") == [1, 2] and held(cache, "a") == 20
    assert held(cache, "b") == 44
    for number in range(3, 9):
        run(cache, prompt(number), model, "a")  # it may go beyond
    assert held(cache, "a") > 20
    cache.evict(prompt(8), namespace="a")
    cache.evict(nbytes=50 * BYTES_PER_TOKEN)  # the user asked
    assert held(cache, "a") < 20
    assert cache.check() == []


def test_room_of_a_floor_is_kept_free(model: CodingModel) -> None:
    cache = make_cache(64, growth=0, quotas={"a": {"least": {"cells": 30}}})
    session = cache.begin(prompt(0, 40), "b")
    with pytest.raises(kv.errors.CacheFullError, match="floors of other namespaces") as info:
        next(iter(session.prefill()))
    assert (info.value.needed, info.value.free) == (40, 34)
    assert cache.plan(prompt(0), "b").matched == 0
    session.rewind(34)
    for step in session.prefill():
        model(step)
    run(cache, prompt(0, 30), model, "a")  # though others are live with all the rest
    session.close()


def test_a_floor_makes_its_room_at_once_or_is_refused(model: CodingModel) -> None:
    cache = make_cache(64, growth=0, quotas={})
    for number in range(6):
        run(cache, prompt(number), model, "b")
    cache.set_quota("a", least=0.5)
    assert held(cache, "b") == 32 and cache.stats()["caches"][0]["free_cells"] == 32
    cache.remove_quota("a")
    with cache.begin(prompt(9, 50), "b") as session:
        for step in session.prefill():
            model(step)
        before = state_of(cache)
        with pytest.raises(kv.errors.CacheFullError):
            cache.set_quota("a", least=0.5)
        assert state_of(cache) == before
        assert cache.usage("a")["cells"][0] == {"used": 0, "most": None, "least": 0}
    cache.set_quota("a", least=0.5)
    assert held(cache, "b") == 32


def test_a_lower_most_evicts_at_once_or_is_refused(model: CodingModel) -> None:
    cache = make_cache(64, growth=0, quotas={"a": {}})
    for number in range(4):
        run(cache, prompt(number), model, "a")
    cache.set_quota("a", most={"cells": 25})
    assert held(cache, "a") == 25
    with cache.begin(prompt(3), "a"):
        before = state_of(cache)
        with pytest.raises(kv.errors.CacheFullError, match="'a' is 8"):
            cache.set_quota("a", most={"cells": 8})
        assert state_of(cache) == before and cache.usage("a")["cells"][0]["most"] == 25


def test_floors_and_limits_come_to_no_more_than_there_is(model: CodingModel) -> None:
    cache = make_cache(64, quotas={"a": {"least": 0.5}})
    with pytest.raises(kv.errors.ArgumentError, match="floors of other namespaces have 32 of 64"):
        cache.set_quota("b", least=0.75)
    with pytest.raises(kv.errors.ArgumentError, match="promised to namespaces"):
        cache.set_limits(held_cells=20)
    cache.set_limits(held_cells=32)
    with pytest.raises(kv.errors.CacheFullError):
        run(cache, prompt(0), model, "b")
    run(cache, prompt(0), model, "a")


# ---- arguments -------------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_named() -> None:
    cache = make_cache(64, quotas={})
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"most": 1.5}, "most: got 1.5"),
        ({"least": -0.1}, "least: got -0.1"),
        ({"most": {"cell": 3}}, "most: got 'cell' (str), allowed cells"),
        ({"most": {"cells": 3, 7: 1}}, "most: got 7 (int), allowed cells"),
        ({"most": {"cells": [1, 2]}}, "cells: got 2 entries, allowed one for each of the 1"),
        ({"most": 0.25, "least": 0.5}, "got a floor of 32, allowed 16"),
        ({"most": "half"}, "most: got str"),
    ]
    for arguments, message in wrong:
        with pytest.raises(kv.Error, match=re.escape(message)):
            cache.set_quota("a", **arguments)
    assert cache.usage("a")["cells"][0] == {"used": 0, "most": None, "least": 0}
    plain = make_cache(64)
    for call in (plain.set_quota, plain.remove_quota, plain.usage):
        with pytest.raises(kv.errors.NotSupportedError, match="make it with quotas"):
            call("a")


def test_files_of_an_earlier_process_count(model: CodingModel, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "host_bytes": "1MiB",
        "disk": tmp_path / "disk",
        "disk_bytes": "1MiB",
        "fingerprint": "x",
    }
    with make_cache(64, **options) as first:
        run(first, prompt(1), model, "a")
        assert first.flush()
    with make_cache(64, quotas={}, **options) as cache:
        used = cache.usage("a")["disk_bytes"]["used"]
        assert used == cache.stats()["disk"]["bytes"] > 10 * BYTES_PER_TOKEN
        cache.set_quota("a", most={"disk_bytes": used - 1})
        assert cache.usage("a")["disk_bytes"]["used"] == 0 and cache.plan(prompt(1), "a").matched == 0
