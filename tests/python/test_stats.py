"""`stats()` of a cache that has everything, and of one that has nothing. docs/stats.md lists what is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kvtrie as kv
from fakes import DictStore


def test_all_of_it_is_plain_numbers_and_texts(tmp_path: Path) -> None:
    attention = kv.caches.CausalCache([0], 1, 4, 32, dtype="float32", device="host")
    recurrent = kv.caches.RecurrentCache([1], 0, 0, 1, 4, 4, 4, device="host")
    options: dict[str, Any] = {"fingerprint": "stats", "host_bytes": "1MiB", "disk": tmp_path / "disk"}
    with kv.PrefixCache([attention, recurrent], disk_bytes="1MiB", store=DictStore(), **options) as cache:
        stats = cache.stats()
    assert json.loads(json.dumps(stats)) == stats
    assert stats["disk"]["cap_bytes"] == stats["host_cap_bytes"] == 1 << 20
    assert [each["capacity_cells"] for each in stats["caches"]] == [32] and len(stats["recurrent"]) == 1
    assert stats["store"]["gets"] == 0 and set(stats["seconds_per_byte"]) == {"host", "disk", "store"}


def test_what_is_absent_is_none() -> None:
    with kv.PrefixCache(kv.caches.CausalCache([0], 1, 4, 32, device="host"), host_bytes=0) as cache:
        stats = cache.stats()
    assert (stats["disk"], stats["store"], stats["recurrent"]) == (None, None, [])
