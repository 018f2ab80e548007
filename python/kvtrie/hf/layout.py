"""Which layers a model has and what each keeps, found by a forward pass over one token rather than by its config.

Shapes in transformers' caches: K and V [batch, kv_heads, tokens, dim]; a convolution's state [batch, channels, kernel];
a recurrent state [batch, ..., rows, columns]; index keys [batch, tokens, dim]. A layer may have attention, states, both
or neither, and attention may have an index, which chooses keys. The numbers of layers in kvtrie: i for the attention of
layer i, (1 + s) * layers + i for its state s, and the same with s the most states of a layer for its index keys.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass

import torch
from transformers import cache_utils as hf

from .. import _core
from ..errors import ArgumentError, NotSupportedError

FEWEST_SLOTS, MOST_SLOTS = 8, 1024
FEWEST_CELLS = 64
_STATES_SHARE = 3  # one part in so many of the memory is for states, where a model has them
_CONTINUES = 0.02  # of the largest number: above what rounding to bfloat16 makes, far below what a lost state does
_KINDS = (
    hf.DynamicLayer,
    hf.DynamicSlidingWindowLayer,
    hf.DynamicIndexedLayer,
    hf.LinearAttentionLayer,
    hf.LinearAttentionAndFullAttentionLayer,
    hf.LinearAttentionAndSlidingWindowAttentionLayer,
    hf.DummyLayer,
)


@dataclass(frozen=True)
class Attention:
    """The attention of one layer. ``window``: keys that a query sees, its own included; ``chunk``: of its own chunk.
    Without values (``v_dim`` 0) these are its index keys."""

    number: int
    layer: int
    heads: int
    k_dim: int
    v_dim: int
    window: int | None = None
    chunk: int | None = None
    dtype: torch.dtype = torch.float32

    @property
    def shape(self) -> tuple[int, int, int, int | None, int | None]:
        return (self.heads, self.k_dim, self.v_dim, self.window, self.chunk)

    @property
    def is_index(self) -> bool:
        return self.v_dim == 0

    @property
    def reach(self) -> int | None:
        """How many tokens transformers' layer keeps, and one; None: all."""
        return self.chunk if self.window is None else self.window


@dataclass(frozen=True)
class State:
    """One state of one layer. ``conv``: (channels, kernel); ``recurrent``: its shape without the batch."""

    number: int
    layer: int
    index: int
    conv: tuple[int, int] | None
    recurrent: tuple[int, ...] | None
    conv_dtype: torch.dtype
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """conv_tail, conv_dim, v_heads, v_dim, k_dim of the ``RecurrentCache``."""
        channels, kernel = self.conv or (0, 0)
        if self.recurrent is None:
            return (kernel, channels, 0, 0, 0)
        padded = (1, 1, *self.recurrent)
        return (kernel, channels, math.prod(padded[:-2]), padded[-2], padded[-1])

    @property
    def nbytes(self) -> int:
        kernel, channels, heads, rows, columns = self.shape
        return 4 * (kernel * channels + heads * rows * columns)


@dataclass(frozen=True)
class Layout:
    """All layers of a model. ``shared``: whether some layers read K and V of others. ``stepwise``: whether its states
    go on from one pass to the next only where that has one token, as in some fallbacks of transformers."""

    attention: tuple[Attention, ...]
    states: tuple[State, ...]
    shared: bool
    stepwise: bool

    def caches(
        self, memory: int, capacity: int | None, slots: int | None, dtype: str, device: _core.Place
    ) -> list[_core.CausalCache | _core.RecurrentCache]:
        """One cache for each kind of layer, in at most ``memory`` bytes where ``capacity`` and ``slots`` are None."""
        each = sum(state.nbytes for state in self.states)
        if each and slots is None:
            slots = min(MOST_SLOTS, max(FEWEST_SLOTS, memory // _STATES_SHARE // each))
        if capacity is None:
            capacity = self._cells(memory - each * (slots or 0), dtype, memory)
        made: list[_core.CausalCache | _core.RecurrentCache] = []
        for shape in dict.fromkeys(layer.shape for layer in self.attention):
            numbers = [layer.number for layer in self.attention if layer.shape == shape]
            heads, k_dim, v_dim, window, chunk = shape
            made.append(
                _core.CausalCache(
                    numbers,
                    heads,
                    k_dim,
                    capacity,
                    v_head_dim=v_dim,
                    dtype=dtype,
                    window=window,
                    chunk=chunk,
                    device=device,
                )
            )
        for sizes in dict.fromkeys(state.shape for state in self.states):
            numbers = [state.number for state in self.states if state.shape == sizes]
            made.append(_core.RecurrentCache(numbers, *sizes, slots or FEWEST_SLOTS, dtype="float32", device=device))
        return made

    def _cells(self, room: int, dtype: str, memory: int) -> int:
        k, v = ({"float16": 2.0, "q8_0": 34 / 32, "q4h": 18 / 32}.get(each, 4.0) for each in (dtype.split("/") * 2)[:2])
        each = sum(layer.heads * (layer.k_dim * k + layer.v_dim * v) for layer in self.attention)  # bytes of a cell
        cells = int(room // each) if each else FEWEST_CELLS
        if cells < FEWEST_CELLS:
            least = memory - room + math.ceil(FEWEST_CELLS * each)
            raise ArgumentError(f"[hf.Cache] memory: got {memory} bytes, allowed {least} or more for this model")
        return cells


def cache_argument(decoder: torch.nn.Module) -> str:
    """The name under which a forward pass is given its cache: it changed in transformers 5.24."""
    names = inspect.signature(type(decoder).forward).parameters
    for name in ("cache", "past_key_values", "cache_params"):
        if name in names:
            return name
    raise NotSupportedError(
        f"[hf.Cache] model: got {type(decoder).__name__}, allowed a decoder whose forward takes a cache"
    )


def layout_of(model: torch.nn.Module, decoder: torch.nn.Module) -> Layout:
    """Runs the decoder on one token. ``NotSupportedError`` for layers that keep something else than K, V and states."""
    config = model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder:
        raise NotSupportedError(f"[hf.Cache] model: got {type(model).__name__}, allowed a model with a decoder only")
    kinds, _ = hf.get_layer_types_and_kwargs(config)
    try:
        probe = hf.DynamicCache(config=model.config)
    except KeyError as error:
        raise _refusal(str(error.args[0])) from error
    for layer, kind in zip(probe.layers, kinds):
        if type(layer) not in _KINDS:
            raise _refusal(kind)
    run = _Probe(model, decoder)
    run(probe, [0])
    attention = [_attention(i, layer, kinds[i]) for i, layer in enumerate(probe.layers) if _has_keys(layer)]
    attention += _indexes(probe.layers, kinds)
    states = [
        _state(i, layer, s, len(probe.layers))
        for i, layer in enumerate(probe.layers)
        if isinstance(layer, hf.LinearAttentionCacheLayerMixin)
        for s in range(layer.number_of_states)
    ]
    found = tuple(state for state in states if state.conv or state.recurrent)
    if not attention and not found:
        raise NotSupportedError(
            f"[hf.Cache] model: {type(model).__name__} put nothing into the cache that it was given"
        )
    idle = (type(layer) is hf.DynamicLayer and not _has_keys(layer) for layer in probe.layers)
    shared = "reuse" in (getattr(config, "kv_sharing_modes", None) or ()) or any(idle)
    return Layout(tuple(attention), found, shared, bool(found) and not run.continues())


class _Probe:
    """Passes over a few tokens, without gradients."""

    def __init__(self, model: torch.nn.Module, decoder: torch.nn.Module) -> None:
        self._model = model
        self._decoder = decoder
        self._argument = cache_argument(decoder)

    def __call__(self, cache: hf.DynamicCache, ids: list[int]) -> torch.Tensor:
        given = torch.tensor([ids], device=self._model.get_input_embeddings().weight.device)
        with torch.no_grad():
            output = self._decoder(input_ids=given, use_cache=True, **{self._argument: cache})
        hidden: torch.Tensor = output[0].float()  # hidden states, or logits where the decoder is the whole model
        return hidden

    def continues(self) -> bool:
        """Whether six tokens give the same in one pass as in two."""
        whole, halves = hf.DynamicCache(config=self._model.config), hf.DynamicCache(config=self._model.config)
        wanted = self(whole, list(range(6)))[:, 3:]
        self(halves, [0, 1, 2])
        return bool((self(halves, [3, 4, 5]) - wanted).abs().max() <= _CONTINUES * wanted.abs().max())


def _refusal(kind: str) -> NotSupportedError:
    return NotSupportedError(
        f"[hf.Cache] model: got a layer of type {kind!r}, allowed full, sliding, chunked and indexed attention, linear "
        f"attention, convolutions, and both in one layer"
    )


def _has_keys(layer: hf.CacheLayerMixin) -> bool:
    return isinstance(layer, hf.DynamicLayer) and layer.keys is not None and layer.keys.numel() > 0


def _attention(index: int, layer: hf.CacheLayerMixin, kind: str) -> Attention:
    heads, _, k_dim = layer.keys.shape[1:]
    reach = getattr(layer, "sliding_window", None)
    chunked = kind == "chunked_attention"
    return Attention(
        index,
        index,
        heads,
        k_dim,
        layer.values.shape[-1],
        window=None if chunked else reach,
        chunk=reach if chunked else None,
        dtype=layer.keys.dtype,
    )


def _indexes(layers: list[hf.CacheLayerMixin], kinds: list[str]) -> list[Attention]:
    """The index keys of layers that have some; others may attend to what an earlier one chose."""
    first = len(layers) * (1 + max(getattr(layer, "number_of_states", 0) for layer in layers))
    found = []
    for i, (layer, kind) in enumerate(zip(layers, kinds)):
        keys = getattr(layer, "indexer_keys", None)
        if getattr(layer, "indexer_position_ids", None) is not None:
            raise _refusal(f"{kind} with positions of its own")
        if keys is not None:
            found.append(Attention(first + i, i, 1, keys.shape[-1], 0, dtype=keys.dtype))
    return found


def _state(index: int, layer: hf.CacheLayerMixin, s: int, layers: int) -> State:
    conv, recurrent = layer.conv_states[s], layer.recurrent_states[s]
    return State(
        (1 + s) * layers + index,
        index,
        s,
        None if conv is None else (conv.shape[1], conv.shape[2]),
        None if recurrent is None else tuple(recurrent.shape[1:]),
        torch.float32 if conv is None else conv.dtype,
        torch.float32 if recurrent is None else recurrent.dtype,
    )
