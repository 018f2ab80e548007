"""Every public call of the core whose allocations are made to fail: a line for each, here and in what this gathers.

A line (allocation_table.py) names the call as ``Class.method``, the worlds that it is made in (allocation_worlds.py),
and how it is prepared. ``LEFT_OUT`` names what has no line, with the reason; properties are read by themselves
(``read``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from allocation_caches import PREFIX_CACHE
from allocation_table import Call
from allocation_values import alone, values
from allocation_worlds import KNOWN, World
from kvtrie import _core

# How a world makes an object of a class whose properties are read.
EXAMPLES: dict[str, tuple[str, Callable[[World], Any]]] = {
    "PrefixCache": ("dense host", lambda w: w.cache),
    "Session": ("dense host", lambda w: w.live),
    "Step": ("dense host", lambda w: w.with_step()),
    "ReusePlan": ("dense host", lambda w: w.cache.plan([*KNOWN, 9])),
    "CausalCache": ("causal", lambda w: w.cache),
    "RecurrentCache": ("recurrent", lambda w: w.cache),
    "EncoderCache": ("encoder", lambda w: w.cache),
    "HybridCache": ("hybrid", lambda w: w.cache),
    "Snapshot": ("causal", lambda w: w.cache.snapshot(0)),
    "RecurrentSnapshot": ("recurrent", lambda w: w.cache.snapshot(0)),
    "EncoderSnapshot": ("encoder", lambda w: w.cache.snapshot(0)),
    "HybridSnapshot": ("hybrid", lambda w: w.cache.snapshot(0)),
    "Tensor": ("values", lambda w: w.x),
    "PrefixTrie": ("values", lambda w: w.trie),
    "TrieNode": ("values", lambda w: w.leaf),
    "Evicted": ("values", lambda w: w.trie.evict(count=1)[0]),
    "StepGraphs": ("values", lambda w: w.graphs),
}
UNREAD = {
    "Tensor.cl_mem": "of tensors on a device",
    "Tensor.cl_offset": "of tensors on a device",
}


def properties_of(owner: type) -> list[str]:
    return [name for name, value in vars(owner).items() if isinstance(value, property)]


def read(owner: str) -> Iterator[Call]:
    """A call for each property of a class."""
    world, example = EXAMPLES[owner]
    for name in properties_of(getattr(_core, owner)):
        if f"{owner}.{name}" not in UNREAD:
            yield Call(
                f"{owner}.{name}", (world,), lambda w, name=name: (lambda o: lambda: getattr(o, name))(example(w))  # type: ignore[misc]
            )  # fmt: skip


CALLS: list[Call] = [
    *PREFIX_CACHE,
    *alone(),
    *values(),
    *(call for owner in EXAMPLES for call in read(owner)),
]

# What a sweep is to find: the process ends where there is no memory.
ENDS_BY_ITSELF = Call("ends by itself", ("values",), lambda w: os.abort)

_ON_A_DEVICE = "needs a device, whose driver allocates for itself: swept in C++ (cl_fault_test, ops_launch_graph_test)"
_DEVICE_ONLY = """
    Device devices MappedTensor Tensor.mapped Tensor.from_opencl Step.attend_qkv Step.choose_keys Step.choose_blocks
    Step.attend_chosen CausalCache.choose_keys CausalCache.choose_blocks CausalCache.attend_chosen
    StepGraphs.compute ops.PackedWeight ops.PackedPair ops.PackedSet ops.RopeTable ops.can_route ops.pack
    ops.pack_blocks ops.pack_pair ops.pack_pair_blocks ops.integer_units ops.matmul_gated ops.matmul_routed
    ops.vector_width ops.warm_up
"""
LEFT_OUT: dict[str, str] = {
    **dict.fromkeys(_DEVICE_ONLY.split(), _ON_A_DEVICE),
    "_log_from": "set once, while the package is imported",
    "_inspect_folder": "reads what is on a disk, for people: a list of what it found",
    "_SharedTier": "for tests",
    "_Ending": "made by a cache, which is swept",
}
