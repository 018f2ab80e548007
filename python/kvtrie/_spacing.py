"""How far apart spaced restore points are, where nobody says.

A point holds a state. One with matrices weighs as much as K and V of hundreds or thousands of tokens; the few rows that
a short convolution needs weigh less than those of 16, so that points can stand that close.
"""

from __future__ import annotations

from collections.abc import Sequence

from ._core import CausalCache, RecurrentCache

WIDE = 512  # tokens
NARROW = 16  # tokens


def spacing(caches: Sequence[object]) -> int:
    """Tokens from one spaced restore point to the next, by what their states take."""
    states = [cache for cache in caches if isinstance(cache, RecurrentCache)]
    if not states or any(cache.v_heads for cache in states):
        return WIDE
    nbytes = sum(cache.nbytes // cache.capacity for cache in states)
    return NARROW if is_small(nbytes, caches) else WIDE


def is_small(nbytes: int, caches: Sequence[object]) -> bool:
    """Whether a state of ``nbytes`` bytes takes no more than K and V of 16 tokens in ``caches``."""
    causal = [cache for cache in caches if isinstance(cache, CausalCache)]
    return nbytes <= NARROW * sum(cache.nbytes // cache.capacity for cache in causal)
