"""The amounts of a namespace's quota, from what users give."""

from __future__ import annotations

from collections.abc import Mapping

from ._arguments import shown
from ._core import PrefixCache
from ._quotas import NAMES, Amounts, Share
from .errors import ArgumentError

__all__ = ["amounts"]


def amounts(cache: PrefixCache, share: Share, name: str) -> Amounts:
    """A share of each pool and tier as they are capped now, rounded down; or amounts as they are."""
    if isinstance(share, Mapping):
        unknown = [key for key in share if key not in NAMES]
        if unknown:
            raise ArgumentError(f"[set_quota] {name}: got {shown(unknown[0])}, allowed {', '.join(NAMES)}")
        return Amounts(**share)
    if isinstance(share, bool) or not isinstance(share, (int, float)):
        raise ArgumentError(f"[set_quota] {name}: got {type(share).__name__}, allowed a number from 0 to 1, or a dict")
    if not 0 <= share <= 1:
        raise ArgumentError(f"[set_quota] {name}: got {share}, allowed 0 to 1, or a dict of amounts")
    if share == 1 and name == "most":
        return {}  # no limit, whatever the caps come to be
    now = cache.stats()
    result = Amounts(
        cells=[int(share * each["limit_cells"]) for each in now["caches"]],
        slots=[int(share * each["limit_slots"]) for each in now["recurrent"]],
        host_bytes=int(share * now["host_cap_bytes"]),
    )
    if now["disk"] is not None:
        result["disk_bytes"] = int(share * now["disk"]["cap_bytes"])
    return result
