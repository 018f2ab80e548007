"""Layers that hold ordinary tensors: transformers' own, which also remember what the last forward pass brought.

A layer's K and V are the history as one tensor, so every attention function works on them. ``fresh`` has the rows that
have not gone to a session yet, [batch, kv_heads, rows, dim].
"""

from __future__ import annotations

import torch
from transformers import cache_utils as hf

from .growing import Growing, Recording
from .layout import Attention, State


class FullLayer(Growing, hf.DynamicLayer):
    """All of the history."""


class IndexedLayer(Growing, hf.DynamicIndexedLayer):
    """All of the history, and the keys of an index. ``fresh_index``: as ``fresh``, [batch, rows, dim]."""

    fresh_index: torch.Tensor | None = None

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        self.fresh_index = indexer_key_states.detach()
        found: torch.Tensor = super().update_indexer(indexer_key_states)
        return found


class ReachLayer(Recording, hf.DynamicSlidingWindowLayer):
    """A window or a chunk: the last ``sliding_window`` - 1 tokens."""


class HybridLayer(Growing, hf.LinearAttentionAndFullAttentionLayer):
    """Full attention and states in one layer."""


class HybridReachLayer(Recording, hf.LinearAttentionAndSlidingWindowAttentionLayer):
    """A window and states in one layer."""


StateLayer = hf.LinearAttentionLayer


def make_layer(like: hf.CacheLayerMixin) -> hf.CacheLayerMixin:
    """A new layer of the kind of ``like``, a layer of a ``DynamicCache`` of the model."""
    kind = type(like)
    if kind is hf.DynamicIndexedLayer:
        return IndexedLayer()
    if kind is hf.DynamicSlidingWindowLayer:
        return ReachLayer(like.sliding_window)
    if kind is hf.LinearAttentionAndFullAttentionLayer:
        return HybridLayer(like.number_of_states)
    if kind is hf.LinearAttentionAndSlidingWindowAttentionLayer:
        return HybridReachLayer(like.sliding_window, like.number_of_states)
    if kind is hf.LinearAttentionLayer:
        return StateLayer(like.number_of_states)
    return FullLayer() if kind is hf.DynamicLayer else hf.DummyLayer()


def fill_attention(
    layer: hf.CacheLayerMixin, about: Attention, keys: torch.Tensor, values: torch.Tensor, length: int
) -> None:
    """K and V [batch, kv_heads, n, dim] of the last n of ``length`` tokens, which the layer keeps, and spare rows where
    it grows in place. Index keys come without values."""
    if isinstance(layer, IndexedLayer) and about.is_index:
        layer.lazy_initialization_indexer(keys)
        layer.indexer_keys = keys[:, 0]
        return
    if isinstance(layer, hf.LinearAttentionCacheLayerMixin) or not layer.is_initialized:
        layer.lazy_initialization(keys, values)
    if isinstance(layer, Growing):
        layer.fill((keys, values), length)
    else:
        layer.keys, layer.values = keys, values
    if about.reach is not None:
        layer.cumulative_length = length


def fresh_rows(layer: hf.CacheLayerMixin, about: Attention) -> tuple[torch.Tensor, torch.Tensor | None]:
    """K and V [batch, kv_heads, rows, dim] of the last pass; V is None of index keys."""
    if about.is_index:
        return layer.fresh_index.unsqueeze(1), None
    keys, values = layer.fresh
    return keys, values


def fill_state(
    layer: hf.CacheLayerMixin, about: State, conv: torch.Tensor | None, recurrent: torch.Tensor | None
) -> None:
    """States [batch, ...] as transformers has them."""
    if conv is not None and about.conv is not None:
        layer.lazy_initialization(conv_states=conv, state_idx=about.index, conv_kernel_size=about.conv[1])
        layer.conv_states[about.index].copy_(conv)
    if recurrent is not None:
        layer.lazy_initialization(recurrent_states=recurrent, state_idx=about.index)
        layer.recurrent_states[about.index].copy_(recurrent)
    layer.has_previous_state[about.index] = True


def kept_columns(about: Attention, length: int) -> int:
    """Of ``length`` tokens, how many transformers' layer keeps."""
    return length if about.reach is None else min(length, about.reach - 1)


def copied(layer: hf.CacheLayerMixin) -> hf.CacheLayerMixin:
    """A layer that goes on by itself. Rows of K and V are never written to again, so both have the same tensors; states
    are written to."""
    twin = object.__new__(type(layer))
    twin.__dict__.update(layer.__dict__)
    twin.__dict__.pop("room", None)
    for name, value in layer.__dict__.items():
        if isinstance(value, dict):
            twin.__dict__[name] = {
                key: item.clone() if isinstance(item, torch.Tensor) else item for key, item in value.items()
            }
    return twin


def mark(layer: hf.CacheLayerMixin) -> object:
    """The record from which :func:`go_back` undoes a forward pass; keeps no tensor of a full history alive."""
    if type(layer) is FullLayer:
        return layer.get_seq_length()
    return copied(layer).__dict__ if isinstance(layer, hf.LinearAttentionCacheLayerMixin) else dict(layer.__dict__)


def go_back(layer: hf.CacheLayerMixin, marked: object) -> None:
    """Puts a layer back to what it was when ``marked`` was made, however far a forward pass had come."""
    if isinstance(marked, dict):
        layer.__dict__.clear()
        layer.__dict__.update(marked)
    elif marked == 0:
        layer.reset()
    elif marked < layer.get_seq_length():
        layer.keys, layer.values = layer.keys[:, :, :marked], layer.values[:, :, :marked]
