"""Caches of single groups of layers, and their snapshots: what a prefix cache manages, also to be driven by hand.

    CausalCache      keys and values of attention          Snapshot
    RecurrentCache   states of recurrent layers            RecurrentSnapshot
    EncoderCache     keys and values of cross-attention    EncoderSnapshot
    HybridCache      a CausalCache and a RecurrentCache    HybridSnapshot

``PrefixCache(caches)`` takes those that ``model.caches`` makes, or your own. Capacities are in cells (tokens of one
sequence) or in states, ``nbytes`` in bytes. Threads: every method may be called from any thread.
"""

from __future__ import annotations

from ._core import (
    CausalCache,
    EncoderCache,
    EncoderSnapshot,
    HybridCache,
    HybridSnapshot,
    RecurrentCache,
    RecurrentSnapshot,
    Snapshot,
)

__all__ = [
    "CausalCache",
    "EncoderCache",
    "EncoderSnapshot",
    "HybridCache",
    "HybridSnapshot",
    "RecurrentCache",
    "RecurrentSnapshot",
    "Snapshot",
]
