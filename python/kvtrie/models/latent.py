"""Multi-head latent attention (MLA): a token keeps one latent and one rotated key for all heads, and no values.

    h --kv_a--> latent [rank], k [rope]      h --q--> of each head q_nope [nope], q [rope]

What a head would have as keys and values are maps of the latent, K_nope = W_k latent and V = W_v latent. They are never
made: W_k is multiplied into the query before attention, W_v into what comes out of it, so that all heads attend to the
same rows and each latent is read once for them (the absorbed form):

    q_nope . (W_k latent) = (W_k^T q_nope) . latent        sum_i w_i (W_v latent_i) = W_v (sum_i w_i latent_i)

    a cell    [ k, rotated | latent ]      rope + rank numbers of one K/V head
    a query   [ q, rotated | W_k^T q_nope ]

Prompts are computed so, too: one arithmetic for hits and misses, so their bits are the same. Source: DeepSeek-AI 2024
(arXiv 2405.04434). Sizes in elements. Activations are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .. import ops
from .._core import Device, Tensor, tensor
from .config import ModelConfig
from .decoder import Mixer, Shapes, Site, biases
from .expert_sets import ROUTED_ROWS
from .linear import Linear
from .step_inputs import Positions, Rows, StepLike

_EPS = 1e-6  # of the norms of latents, whatever that of the others is


class LatentSizes(NamedTuple):
    """``rank``: of the latent; ``nope`` and ``rope``: of a head's key, without and with rotation; ``value``: of its
    value. ``q_rank``: of the latent that queries are made of; 0: they are made of h itself."""

    rank: int
    nope: int
    rope: int
    value: int
    q_rank: int = 0

    @property
    def cell(self) -> int:
        return self.rope + self.rank


@dataclass(frozen=True)
class LatentPlan:
    """``scale``: of scores. ``bias``: of the projections of h, and of the last one."""

    sizes: LatentSizes
    scale: float
    bias: bool = False

    def shapes(self, config: ModelConfig) -> Shapes:
        s, hidden, heads = self.sizes, config.hidden_size, config.num_attention_heads
        queries = heads * (s.nope + s.rope)
        shapes: Shapes = {
            "self_attn.kv_a_proj_with_mqa.weight": (s.rank + s.rope, hidden),
            "self_attn.kv_a_layernorm.weight": (s.rank,),
            "self_attn.kv_b_proj.weight": (heads * (s.nope + s.value), s.rank),
            "self_attn.o_proj.weight": (hidden, heads * s.value),
        }
        if s.q_rank:
            shapes["self_attn.q_a_proj.weight"] = (s.q_rank, hidden)
            shapes["self_attn.q_a_layernorm.weight"] = (s.q_rank,)
            shapes["self_attn.q_b_proj.weight"] = (queries, s.q_rank)
        else:
            shapes["self_attn.q_proj.weight"] = (queries, hidden)
        biased = ("q_a_proj", "kv_a_proj_with_mqa", "o_proj") if s.q_rank else ("kv_a_proj_with_mqa", "o_proj")
        return {**shapes, **biases(shapes, tuple(f"self_attn.{name}" for name in biased), self.bias)}

    def build(self, site: Site) -> Mixer:
        return LatentAttention(self, site)


class LatentAttention:
    """A :class:`LatentPlan` on the device: h, x [rows, hidden] -> [wanted rows, hidden]."""

    def __init__(self, plan: LatentPlan, site: Site) -> None:
        prefix, weights = f"{site.prefix}.self_attn", site.weights
        self.sizes, self.scale = plan.sizes, plan.scale
        self.index: int = site.index
        self.heads: int = site.config.num_attention_heads
        ranked = plan.sizes.q_rank > 0
        self.q_a: Linear | None = weights.linear(f"{prefix}.q_a_proj", plan.bias) if ranked else None
        self.q_norm = weights.optional_vector(f"{prefix}.q_a_layernorm.weight", ranked)
        self.q: Linear = weights.linear(f"{prefix}.q_b_proj" if ranked else f"{prefix}.q_proj")
        self.kv_a: Linear = weights.linear(f"{prefix}.kv_a_proj_with_mqa", plan.bias)
        self.kv_norm: Tensor = weights.vector(f"{prefix}.kv_a_layernorm.weight")
        keys, values = weights.heads(f"{prefix}.kv_b_proj", self.heads, (plan.sizes.nope, plan.sizes.value))
        self.keys, self.values = HeadMaps(keys, weights.device), HeadMaps(values, weights.device)
        self.o: Linear = weights.linear(f"{prefix}.o_proj", plan.bias)
        self._table = None if site.rope is None else site.rope.table

    def __call__(self, step: StepLike, h: Tensor, positions: Positions, take: Rows | None, x: Tensor | None) -> Tensor:  # noqa: ARG002 (a Mixer's)
        packed = ops.concat([self._queries(self._ranked(h)), *self._cell(h)], axis=1)
        a = step.attend_qkv(self.index, packed, self._table, scale=self.scale)
        return self._finish(a, take, x)

    def _finish(self, a: Tensor, take: Rows | None, x: Tensor | None) -> Tensor:
        """The sums of latents [rows, heads * rank] -> [wanted rows, hidden]."""
        if take is not None:
            a = take.take(a)
            x = None if x is None else take.take(x)
        return self.o(self.values(a), x)

    def _ranked(self, h: Tensor) -> Tensor:
        """The latent that queries are made of [rows, q_rank]; h itself, where there is none."""
        if self.q_a is None:
            return h
        assert self.q_norm is not None
        return ops.rms_norm(self.q_a(h), self.q_norm, _EPS)

    def _queries(self, h: Tensor) -> Tensor:
        """[rows, heads * cell], not yet rotated."""
        s, rows = self.sizes, h.shape[0]
        nope, rope = ops.split(self.q(h).reshape(rows * self.heads, s.nope + s.rope), [s.nope, s.rope], axis=1)
        latent = self.keys(nope.reshape(rows, self.heads * s.nope))
        return ops.concat([rope, latent.reshape(rows * self.heads, s.rank)], axis=1).reshape(rows, self.heads * s.cell)

    def _cell(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The key [rows, rope], not yet rotated, and the latent [rows, rank]."""
        latent, rope = ops.split(self.kv_a(h), [self.sizes.rank, self.sizes.rope], axis=1)
        return rope, ops.rms_norm(latent, self.kv_norm, _EPS)


class HeadMaps:
    """A map for each head: x [rows, heads * in] -> [rows, heads * out].

    Of a few rows all heads are one launch (``kv.ops.matmul_routed``), where products are routed and the maps fit one
    buffer; else each head is a product of its own. The bits are the same.
    """

    def __init__(self, maps: Sequence[Linear], device: Device) -> None:
        self._maps = list(maps)
        self._set: ops.PackedSet | None = None
        weights = [each.weight for each in maps]
        packed = [each for each in weights if isinstance(each, ops.PackedWeight)]
        room = device.capabilities["max_alloc_bytes"]
        if len(packed) < len(maps) or not ops.can_route(device) or packed[0].nbytes * len(packed) > room:
            return
        self._set = ops.PackedSet(packed[0], len(packed))
        for index, weight in enumerate(packed):
            self._set.put(index, weight)
            own = self._set[index]
            assert isinstance(own, ops.PackedWeight)
            self._maps[index] = Linear(own)
        self._chosen: Tensor = tensor(np.tile(np.arange(len(maps), dtype=np.int32), (ROUTED_ROWS, 1)), device=device)

    def __call__(self, x: Tensor) -> Tensor:
        (rows, width), count = x.shape, len(self._maps)
        if self._set is not None and rows <= ROUTED_ROWS:
            y = ops.matmul_routed(x.reshape(rows, count, width // count), self._set, self._chosen[:rows])
            return y.reshape(rows, -1)
        parts = ops.split(x, [width // count] * count, axis=1)
        return ops.concat([own(part) for own, part in zip(self._maps, parts)], axis=1)
