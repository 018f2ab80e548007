"""The K/V storage by itself: caches, their snapshots, and a trie without state."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import kvtrie as kv

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


def read_causal(cache: kv.caches.CausalCache) -> None:
    assert_type(cache.layers, list[int])
    assert_type(cache.kv_heads + cache.head_dim + cache.v_head_dim, int)
    assert_type(cache.capacity + cache.free_cells + cache.nbytes, int)
    assert_type(cache.dtype, str)
    assert_type(cache.latent_dim, int | None)
    assert_type(cache.window, int | None)
    assert_type(cache.memory, int | None)
    assert_type(cache.chunk, int | None)
    assert_type(cache.device, kv.Device | str)


def use_causal(cache: kv.caches.CausalCache, x: Floats) -> kv.caches.CausalCache:
    cache.start_forward([0, 1], np.zeros(2, np.int32), reserve=True)
    cache.set_causal([0])
    cache.put(0, x, x)
    assert_type(cache.get(0), tuple[kv.Tensor, kv.Tensor, kv.Tensor])
    assert_type(cache.attend(0, x, scale=0.5, softcap=None, sinks=None), kv.Tensor)
    cache.copy_prefix(0, 1, 2)
    cache.remove(0, 1, None)
    assert_type(cache.can_resume(0, 1), bool)
    assert_type(cache.length(0) + cache.held_from(0), int)
    cache.defrag()
    assert_type(cache.check(), list[str])
    snapshot = cache.snapshot(0, start=1)
    assert_type(cache.restore(0, snapshot, 2), bool)
    first, second = cache.split(snapshot, 1)
    assert_type(cache.merge(first, second), kv.caches.Snapshot | None)
    cache.prepare_snapshots(0, [1])
    assert_type(cache.take_snapshots(0), list[kv.caches.Snapshot | None])
    rope = {"base": 10000.0, "scaling": None}
    return kv.caches.CausalCache(
        2, 2, 16, 64, v_head_dim=8, dtype="float16", window=32, memory=48, chunk=None, rope=rope, device="host"
    )


def read_recurrent(cache: kv.caches.RecurrentCache) -> None:
    assert_type(cache.layers, list[int])
    assert_type(cache.conv_tail + cache.conv_dim + cache.v_heads + cache.v_dim + cache.k_dim, int)
    assert_type(cache.capacity + cache.free_slots + cache.nbytes, int)
    assert_type(cache.dtype, str)
    assert_type(cache.device, kv.Device | str)


def use_recurrent(cache: kv.caches.RecurrentCache, x: Floats) -> kv.caches.RecurrentCache:
    cache.start_forward([0, 1], [0, 0])
    assert_type(cache.conv(0, x, x), kv.Tensor)
    assert_type(cache.gated_delta(0, x, x, x, x, x), kv.Tensor)
    assert_type(cache.ssd(0, x, x, x, x, x, x), kv.Tensor)
    conv, delta = cache.states(0)
    assert_type(conv, kv.Tensor | None)
    cache.put_states(0, conv, delta)
    assert_type(cache.boundaries(), list[list[int]])
    assert_type(cache.row_starts(), list[int])
    cache.copy_prefix(0, 1, 2)
    cache.remove(0, 1)
    assert_type(cache.can_resume(0, 1), bool)
    assert_type(cache.length(0), int)
    assert_type(cache.check(), list[str])
    snapshot = cache.snapshot(0)
    assert_type(cache.restore(0, snapshot, 2), bool)
    first, second = cache.split(snapshot, 1)
    assert_type(cache.merge(first, second), kv.caches.RecurrentSnapshot | None)
    cache.prepare_snapshots(0, [1])
    assert_type(cache.take_snapshots(0), list[kv.caches.RecurrentSnapshot | None])
    return kv.caches.RecurrentCache([0], 3, 8, 2, 4, 4, 16, dtype="float32", device=kv.Device())


def read_encoder(cache: kv.caches.EncoderCache) -> None:
    assert_type(cache.layers, list[int])
    assert_type(cache.kv_heads + cache.head_dim + cache.capacity + cache.free_cells + cache.nbytes, int)
    assert_type(cache.dtype, str)
    assert_type(cache.device, kv.Device | str)


def use_encoder(cache: kv.caches.EncoderCache, x: Floats) -> kv.caches.EncoderCache:
    cache.start_forward([0, 1], [0, 0], items=[(0, 0, 4)])
    cache.put(0, x, x)
    assert_type(cache.get(0), tuple[kv.Tensor, kv.Tensor, kv.Tensor])
    assert_type(cache.attend(0, x), kv.Tensor)
    assert_type(cache.item(0), tuple[int, int] | None)
    cache.copy_prefix(0, 1, 2)
    cache.remove(0, 1)
    assert_type(cache.can_resume(0, 1), bool)
    assert_type(cache.length(0), int)
    cache.defrag()
    assert_type(cache.check(), list[str])
    snapshot = cache.snapshot(0)
    assert_type(cache.restore(0, snapshot, 2), bool)
    first, second = cache.split(snapshot, 1)
    assert_type(cache.merge(first, second), kv.caches.EncoderSnapshot | None)
    cache.prepare_snapshots(0, [1])
    assert_type(cache.take_snapshots(0), list[kv.caches.EncoderSnapshot | None])
    return kv.caches.EncoderCache([1], 2, 16, 64, dtype="float32", device="null")


def read_hybrid(cache: kv.caches.HybridCache) -> None:
    assert_type(cache.caches, list[kv.caches.CausalCache | kv.caches.RecurrentCache | kv.caches.EncoderCache])
    assert_type(cache.layers, list[int])
    assert_type(cache.free_cells, int | None)
    assert_type(cache.free_slots, int | None)
    assert_type(cache.nbytes, int)
    assert_type(cache.complete, bool)


def use_hybrid(cache: kv.caches.HybridCache, part: kv.caches.CausalCache, x: Floats) -> kv.caches.HybridCache:
    cache.start_forward([0, 1], [0, 0], reserve=False, items=None)
    cache.set_causal([0])
    cache.put(0, x, x)
    assert_type(cache.get(0), tuple[kv.Tensor, kv.Tensor, kv.Tensor])
    assert_type(cache.attend(0, x), kv.Tensor)
    assert_type(cache.conv(1, x, x), kv.Tensor)
    assert_type(cache.gated_delta(1, x, x, x, x, x), kv.Tensor)
    assert_type(cache.ssd(1, x, x, x, x, x, x), kv.Tensor)
    conv, delta = cache.states(1)
    cache.put_states(1, conv, delta)
    assert_type(cache.boundaries(1), list[list[int]])
    assert_type(cache.row_starts(), list[int])
    cache.copy_prefix(0, 1, 2)
    cache.remove(0, 1)
    assert_type(cache.can_resume(0, 1), bool)
    assert_type(cache.length(0), int)
    cache.defrag()
    assert_type(cache.check(), list[str])
    snapshot = cache.snapshot(0)
    assert_type(cache.restore(0, snapshot, 2), bool)
    first, second = cache.split(snapshot, 1)
    assert_type(cache.merge(first, second), kv.caches.HybridSnapshot | None)
    cache.prepare_snapshots(0, [1])
    assert_type(cache.take_snapshots(0), list[kv.caches.HybridSnapshot | None])
    return kv.caches.HybridCache([part, kv.caches.RecurrentCache([1], 3, 8, 2, 4, 4, 16)])


def read_snapshots(
    causal: kv.caches.Snapshot,
    recurrent: kv.caches.RecurrentSnapshot,
    encoder: kv.caches.EncoderSnapshot,
    hybrid: kv.caches.HybridSnapshot,
) -> None:
    assert_type(causal.start + causal.end + causal.nbytes + causal.shared_nbytes, int)
    assert_type((causal.tier, causal.consumed), tuple[str, bool])
    assert_type(recurrent.start + recurrent.end + recurrent.nbytes + recurrent.shared_nbytes, int)
    assert_type((recurrent.tier, recurrent.consumed), tuple[str, bool])
    assert_type(encoder.start + encoder.end + encoder.nbytes + encoder.shared_nbytes, int)
    assert_type((encoder.tier, encoder.consumed), tuple[str, bool])
    assert_type(hybrid.start + hybrid.end + hybrid.nbytes + hybrid.shared_nbytes, int)
    assert_type((hybrid.tier, hybrid.consumed), tuple[str, bool])


def use_trie(trie: kv.trie.PrefixTrie) -> None:
    node = trie.insert([1, 2, 3], nbytes="1KiB", namespace="anna")
    matched, found = trie.match(np.array([1, 2]))
    assert_type((matched, found), tuple[int, kv.trie.TrieNode | None])
    trie.lock(node)
    trie.touch(node)
    trie.unlock(node)
    assert_type(trie.evict(nbytes=10, count=1), list[kv.trie.Evicted])
    assert_type(trie.remove(node) + trie.token_count + trie.nbytes + len(trie), int)
    assert_type(trie.check(), list[str])
    kv.trie.PrefixTrie()


def read_trie(node: kv.trie.TrieNode, gone: kv.trie.Evicted) -> None:
    assert_type(node.alive, bool)
    assert_type(node.is_end, bool)
    assert_type(node.start + node.end + node.nbytes + node.locks + node.child_count + node.last_used, int)
    assert_type(node.namespace + gone.namespace, str)
    assert_type(node.tokens, Ints)
    assert_type(gone.tokens, Ints)
    assert_type(gone.start + gone.nbytes, int)


def read_device(device: kv.Device) -> None:
    assert_type(kv.devices(), list[kv.Device])
    assert_type(device.name + device.vendor + device.platform + device.driver + device.version + device.kind, str)
    assert_type(device.index + device.global_bytes + device.trim(), int)
    assert_type(device.unified_memory, bool)
    assert_type(device.capabilities, dict[str, Any])
    assert_type(device.memory(), dict[str, int])
    device.finish()


def use_tensor(tensor: kv.Tensor) -> None:
    assert_type(kv.tensor([[1.0, 2.0]], "float16", device=kv.Device("cpu"), copy=True), kv.Tensor)
    assert_type(tensor.shape, tuple[int, ...])
    assert_type(tensor.dtype, str)
    assert_type(tensor.ndim + tensor.size + tensor.nbytes + len(tensor), int)
    assert_type(tensor.device, kv.Device | str)
    assert_type(tensor.reshape(2, -1)[0:1], kv.Tensor)
    assert_type(tensor.astype("float32"), kv.Tensor)
    assert_type(tensor.numpy(), npt.NDArray[Any])
    with tensor.mapped(write=False) as view:
        assert_type(view, npt.NDArray[Any])
