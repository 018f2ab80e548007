"""Quotas of namespaces: what users give, and what they are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Union

Amount = Union[int, Sequence[Union[int, None]], None]
NAMES = ("cells", "slots", "host_bytes", "disk_bytes")


class Amounts(TypedDict, total=False):
    """The room of a namespace: of each attention cache, of each recurrent one, and of the tiers."""

    cells: Amount
    slots: Amount
    host_bytes: int | str | None
    disk_bytes: int | str | None


Share = Union[float, Amounts]


class Quota(TypedDict, total=False):
    """The arguments of ``PrefixCache.set_quota``."""

    most: Share
    least: Share


class Holding(TypedDict):
    """The use of a pool or tier by a namespace, the most it may have (None: no limit), and its floor."""

    used: int
    most: int | None
    least: int


class NamespaceUsage(TypedDict):
    """The result of ``PrefixCache.usage``."""

    cells: list[Holding]
    slots: list[Holding]
    host_bytes: Holding
    disk_bytes: Holding
