"""What `stats()`, `nodes()` and sessions report is what docs and docstrings list: each key, tier, kind and reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from fakes import DictStore
from kvtrie._values import Reason

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "stats.md"
NESTED = ("caches", "recurrent", "seconds_per_byte", "disk", "store")


@pytest.fixture
def stats(tmp_path: Path) -> dict[str, Any]:
    """Of a cache that has everything: both kinds of caches, a disk tier and a store."""
    attention = kv.CausalCache([0], 1, 4, 32, dtype="float32", device="host")
    recurrent = kv.RecurrentCache([1], 0, 0, 1, 4, 4, 4, device="host")
    options: dict[str, Any] = {"fingerprint": "stats", "host_bytes": "1MiB", "disk": tmp_path / "disk"}
    with kv.PrefixCache([attention, recurrent], disk_bytes="1MiB", store=DictStore(), **options) as cache:
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


def names_of(enumeration: str) -> set[str]:
    """What the core calls the values of an enumeration in Python, but for its absence."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "csrc" / "prefix_cache").glob("*.cpp")))
    return set(re.findall(rf'case {enumeration}::k\w+:\s+return "(\w+)";', text))


def quoted(owner: Any, field: str = "") -> set[str]:
    """The values that a docstring quotes, of one field of several where it is named."""
    text = " ".join((owner.__doc__ or "").split())
    if field:
        text = re.split(r"\. |\.$", text.split(f"``{field}``: ")[1])[0]
    return set(re.findall(r'"(\w+)"', text))


def test_every_tier_is_named() -> None:
    tiers = names_of("Tier")
    assert tiers == {"device", "host", "disk", "store"}
    assert quoted(kv.Session.tier) == {*tiers, "none"}
    assert quoted(kv.ReusePlan.tier) == {*tiers, "none"} - {"store"}  # `plan` never asks a store
    assert quoted(kv.Node, "tier") == tiers - {"store"}  # what came from there is host memory


def test_every_kind_of_restore_point_is_named() -> None:
    assert quoted(kv.Node, "point") == names_of("PointKind") != set()


def test_every_reason_is_explained() -> None:
    text = (ROOT / "docs" / "using.md").read_text(encoding="utf-8")
    paragraph = text.split("`reason.code` says why:")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`\s\(", paragraph)) == names_of("ReasonCode") != set()
    assert quoted(Reason, "code") == {*names_of("ReasonCode"), "none"}
