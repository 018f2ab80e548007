"""What `stats()` and `nodes()` give is what docs/stats.md and their docstrings list, key by key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv

PAGE = Path(__file__).resolve().parents[2] / "docs" / "stats.md"
NESTED = ("caches", "recurrent", "seconds_per_byte", "disk", "store")


class Values:
    """A store of this process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


@pytest.fixture
def stats(tmp_path: Path) -> dict[str, Any]:
    """Of a cache that has everything: both kinds of caches, a disk tier and a store."""
    attention = kv.CausalCache([0], 1, 4, 32, dtype="float32", device="host")
    recurrent = kv.RecurrentCache([1], 0, 0, 1, 4, 4, 4, device="host")
    options: dict[str, Any] = {"fingerprint": "stats", "host_bytes": "1MiB", "disk": tmp_path / "disk"}
    with kv.PrefixCache([attention, recurrent], disk_bytes="1MiB", store=Values(), **options) as cache:
        return cache.stats()


def keys_of(stats: dict[str, Any]) -> dict[str, set[str]]:
    """The keys of the dict itself, under "", and of each dict in it, under its key."""
    found = {"": set(stats)}
    for key in NESTED:
        value = stats[key][0] if isinstance(stats[key], list) else stats[key]
        found[key] = set(value)
    return found


def listed_in_the_page() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for section in re.split(r"^## ", "\n" + PAGE.read_text(encoding="utf-8"), flags=re.M):
        names = re.findall(r"`(\w+)`", section.split("\n")[0]) if found else [""]
        tables = re.findall(r"(?:^\|.*\n)+", section, flags=re.M)
        rows = [[row for row in table.splitlines() if row.startswith("| `")] for table in tables]
        if names == [""]:  # one section, of several tables
            rows = [[row for table in rows for row in table]]
        for name, table in zip(names, rows, strict=True):
            keys = [key for row in table for key in re.findall(r"`(\w+)`", row.split("|")[1])]
            assert len(keys) == len(set(keys)), name
            found[name] = set(keys)
    return found


def listed_in_the_docstring() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {"": set()}
    for paragraph in (kv.PrefixCache.stats.__doc__ or "").split("\n\n"):
        title, _, text = " ".join(paragraph.split()).partition(": ")
        if title in ("Now", "Totals"):
            found[""] |= set(re.findall(r"``(\w+)``", text))
        elif match := re.fullmatch(r"``(\w+)``", title):
            found[match[1]] = set(re.findall(r"``(\w+)``", text))
    return found


def test_the_page_lists_every_key(stats: dict[str, Any]) -> None:
    assert listed_in_the_page() == keys_of(stats)


def test_the_docstring_lists_every_key(stats: dict[str, Any]) -> None:
    assert listed_in_the_docstring() == keys_of(stats)


def test_what_is_absent_is_none() -> None:
    with kv.PrefixCache(kv.CausalCache([0], 1, 4, 32, device="host"), host_bytes=0) as cache:
        stats = cache.stats()
    assert (stats["disk"], stats["store"], stats["recurrent"]) == (None, None, [])


@pytest.mark.parametrize(
    ("owner", "values"),
    [
        (kv.Node, {"device", "host", "disk"}),
        (kv.ReusePlan.tier, {"device", "host", "disk", "none"}),
        (kv.Session.tier, {"device", "host", "disk", "store", "none"}),
    ],
    ids=["Node", "ReusePlan", "Session"],
)
def test_every_tier_is_named(owner: Any, values: set[str]) -> None:
    text = " ".join((owner.__doc__ or "").split())
    if owner is kv.Node:
        text = text.split("``tier``: ")[1].split(". ")[0]
    assert set(re.findall(r'"(\w+)"', text)) == values
