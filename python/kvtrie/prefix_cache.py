"""The prefix cache: every conversation's tokens in one tree, every common token stored and computed once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Optional, Union

from . import _core
from ._values import Node, make_nodes
from .errors import ArgumentError

Cache = Union[_core.CausalCache, _core.RecurrentCache, _core.HybridCache]
Caches = Union[Cache, Sequence[Cache]]
Bytes = Union[None, int, str]
Decode = Callable[[list[int]], str]

_HOST_SHARE = 0.25  # of the machine's memory, for host_bytes="auto"
_HOST_POOLS = 4  # times the device pools, for host_bytes="auto"


class PrefixCache(_core.PrefixCache):
    """Every conversation's tokens in one tree; the K/V of common tokens is stored and computed once.

    ``caches``: the caches of the model's layers, one or a list: CausalCache, also with a window or chunks,
    RecurrentCache, and HybridCache, which stands for its parts. Each belongs to one PrefixCache at a time. An empty
    list is for models without state.
    ``fingerprint``: which weights the K/V come from. ``host_bytes``: cap of the host tier: bytes, a text such as
    "512MiB", 0 or None for no host tier, or "auto": a quarter of the machine's memory, at most four times the device
    pools. ``policy``: which state goes first when room is needed; "lru". ``checkpoint_every``: distance of spaced
    restore points in tokens, for caches whose state exists only at restore points. ``growth``: cells reserved ahead of
    a growing session. ``clock``: a callable that returns seconds, for ages only; None: the system's steady clock.

    Any thread may call; calls take turns. Nothing is shared across namespaces. Raises ``ArgumentError`` for no caches,
    a layer in two caches, or a cache that belongs to another PrefixCache.
    """

    def __init__(
        self,
        caches: Caches,
        *,
        fingerprint: str = "",
        host_bytes: Bytes = "auto",
        policy: str = "lru",
        checkpoint_every: int = 512,
        growth: int = 256,
        clock: Optional[Callable[[], float]] = None,
    ) -> None:
        if policy != "lru":
            raise ArgumentError(f"[PrefixCache] policy: got {policy!r}, allowed 'lru'")
        held = caches if isinstance(caches, (list, tuple)) else (caches,)
        if host_bytes is None:
            host_bytes = 0
        elif isinstance(host_bytes, str) and host_bytes == "auto":
            host_bytes = _automatic_host_bytes(held)
        super().__init__(
            caches,
            fingerprint=fingerprint,
            host_bytes=host_bytes,
            checkpoint_every=checkpoint_every,
            growth=growth,
            clock=clock,
        )
        self._caches = list(held)
        self._policy = policy

    @property
    def caches(self) -> list[Cache]:
        """The caches it drives, in the order they were given."""
        return list(self._caches)

    @property
    def policy(self) -> str:
        """Which state goes first when room is needed."""
        return self._policy

    def nodes(self) -> list[Node]:
        """The nodes of the tree now, parents before their children."""
        return make_nodes(self._nodes())

    def tree(self, decode: Optional[Decode] = None, **options: Any) -> str:
        """The tree as text, one line a node. ``decode`` turns token ids into text for the labels.

        Further ``options``: those of ``kvtrie.viz.tree_text``.
        """
        from .viz import tree_text

        return tree_text(self, decode, **options)

    def to_dot(self, decode: Optional[Decode] = None, **options: Any) -> str:
        """The tree in DOT, for Graphviz. ``options``: those of ``kvtrie.viz.tree_dot``."""
        from .viz import tree_dot

        return tree_dot(self, decode, **options)

    def to_svg(self, decode: Optional[Decode] = None, **options: Any) -> str:
        """The tree as an SVG picture. ``options``: those of ``kvtrie.viz.tree_svg``."""
        from .viz import tree_svg

        return tree_svg(self, decode, **options)

    def _repr_html_(self) -> str:
        from .viz import tree_html

        return "<p>a closed kvtrie.PrefixCache</p>" if self.closed else tree_html(self)

    def __enter__(self) -> PrefixCache:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], where: Optional[TracebackType]
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "<kvtrie.PrefixCache, closed>"
        now = self.stats()
        return (
            f"<kvtrie.PrefixCache {now['nodes']} nodes, {now['tokens']} tokens, {now['sessions']} sessions, "
            f"{now['device_bytes']} device bytes, {now['host_bytes']} host bytes>"
        )


def _automatic_host_bytes(caches: Sequence[Cache]) -> int:
    """A quarter of the machine's memory, but no more than four times the pools."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    pools = sum(cache.nbytes for cache in caches if hasattr(cache, "nbytes"))
    return min(int(_HOST_SHARE * memory), _HOST_POOLS * pools)
