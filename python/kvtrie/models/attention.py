"""Grouped-query attention of every family, its differences as data: biases, norms of heads, rotation, gate, scale.

Where nothing stands between projection, norm, rotation and attention it is one launch for all of them
(``step.attend_qkv``), else one each; the bits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import ops
from .._core import Tensor
from .config import ModelConfig
from .decoder import Mixer, Shapes, Site, biases
from .linear import Linear, beside
from .step_inputs import Positions, Rope, Rows, StepLike

_PROJECTIONS = tuple(f"self_attn.{name}_proj" for name in ("q", "k", "v"))


@dataclass(frozen=True)
class AttentionPlan:
    """What an attention has; it rotates as its layer's group does (``Model.attention_groups``).

    ``bias``: of q, k and v; ``out_bias``: of the last projection. ``norms``: an RMS norm over each head of q and k
    before they are rotated. ``unit``: heads brought to mean square 1 after that, where they are rotated at all.
    ``gated``: what comes out is multiplied by the sigmoid of a gate, whose weights stand beside those of q, head by
    head. ``scale``: None for 1 / sqrt(head_dim). ``temperature``: (attn_scale, floor_scale in tokens), q times
    1 + attn_scale * log(1 + floor((position + 1) / floor_scale)).
    """

    bias: bool = False
    out_bias: bool = False
    norms: bool = False
    unit: bool = False
    gated: bool = False
    scale: float | None = None
    temperature: tuple[float, float] | None = None

    def shapes(self, config: ModelConfig) -> Shapes:
        hidden, q = config.hidden_size, config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        shapes: Shapes = {
            "self_attn.q_proj.weight": (2 * q if self.gated else q, hidden),
            "self_attn.k_proj.weight": (kv_width, hidden),
            "self_attn.v_proj.weight": (kv_width, hidden),
            "self_attn.o_proj.weight": (hidden, q),
        }
        if self.norms:
            shapes.update({f"self_attn.{name}_norm.weight": (config.head_dim,) for name in ("q", "k")})
        shapes.update(biases(shapes, _PROJECTIONS, self.bias))
        return {**shapes, **biases(shapes, ("self_attn.o_proj",), self.out_bias)}

    def build(self, site: Site) -> Mixer:
        if self.unit or self.temperature is not None:
            assert not self.gated, "no family has both"
            return SteppedAttention(self, site)
        return FusedAttention(self, site)


class FusedAttention:
    """Attention in the fewest launches: h, x [rows, hidden] -> [wanted rows, hidden]."""

    def __init__(self, plan: AttentionPlan, site: Site) -> None:
        prefix, weights = f"{site.prefix}.self_attn", site.weights
        names = [f"{site.prefix}.{name}" for name in _PROJECTIONS]
        self.index: int = site.index
        self.gate: Linear | None = None
        if plan.gated:
            shape = (site.config.num_attention_heads, 2, site.config.head_dim)
            heads = np.arange(np.prod(shape)).reshape(shape)
            q, self.gate = weights.linears(names[0], [heads[:, i].reshape(-1) for i in range(2)], plan.bias)
            self.qkv: Linear = beside(q, weights.joined(names[1:], plan.bias))
        else:
            self.qkv = weights.joined(names, plan.bias)
        self.o: Linear = weights.linear(f"{prefix}.o_proj", plan.out_bias)
        self.q_norm: Tensor | None = weights.optional_vector(f"{prefix}.q_norm.weight", plan.norms)
        self.k_norm: Tensor | None = weights.optional_vector(f"{prefix}.k_norm.weight", plan.norms)
        self._rest = (site.config.rms_norm_eps, site.norm_offset, plan.scale)
        self._table = None if site.rope is None else site.rope.table

    def __call__(self, step: StepLike, h: Tensor, positions: Positions, take: Rows | None, x: Tensor | None) -> Tensor:  # noqa: ARG002 (a Mixer's)
        a = step.attend_qkv(self.index, self.qkv(h), self._table, self.q_norm, self.k_norm, *self._rest)
        if take is not None:
            a = take.take(a)
            h = h if self.gate is None else take.take(h)
            x = None if x is None else take.take(x)
        return self.o(a if self.gate is None else ops.mul(a, ops.sigmoid(self.gate(h))), x)


class SteppedAttention:
    """Attention operation by operation, no gate; q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim]."""

    def __init__(self, plan: AttentionPlan, site: Site) -> None:
        prefix, config, weights = f"{site.prefix}.self_attn", site.config, site.weights
        self.config: ModelConfig = config
        self.index: int = site.index
        self.rope: Rope | None = site.rope
        self.norm_offset: float = site.norm_offset
        self.temperature: tuple[float, float] | None = plan.temperature
        self.scale: float | None = plan.scale
        self.q: Linear = weights.linear(f"{prefix}.q_proj", plan.bias)
        self.k: Linear = weights.linear(f"{prefix}.k_proj", plan.bias)
        self.v: Linear = weights.linear(f"{prefix}.v_proj", plan.bias)
        self.o: Linear = weights.linear(f"{prefix}.o_proj", plan.out_bias)
        self.q_norm: Tensor | None = weights.optional_vector(f"{prefix}.q_norm.weight", plan.norms)
        self.k_norm: Tensor | None = weights.optional_vector(f"{prefix}.k_norm.weight", plan.norms)
        unit = plan.unit and site.rope is not None
        self.ones: Tensor | None = weights.constant(np.ones(config.head_dim)) if unit else None

    def __call__(self, step: StepLike, h: Tensor, positions: Positions, take: Rows | None, x: Tensor | None) -> Tensor:
        c, rows = self.config, h.shape[0]
        q = self._tuned(self.q(h), step).reshape(rows, c.num_attention_heads, c.head_dim)
        k = self.k(h).reshape(rows, c.num_key_value_heads, c.head_dim)
        v = self.v(h).reshape(rows, c.num_key_value_heads, c.head_dim)
        q, k = self._placed(q, self.q_norm, positions), self._placed(k, self.k_norm, positions)
        a = step.attend(self.index, q, k, v, self.scale).reshape(rows, c.num_attention_heads * c.head_dim)
        if take is not None:
            a = take.take(a)
            x = None if x is None else take.take(x)
        return self.o(a, x)

    def _placed(self, heads: Tensor, norm: Tensor | None, positions: Positions) -> Tensor:
        """Normed, rotated, brought to mean square 1; a rotation keeps that, so a shift may rotate what is stored."""
        eps = self.config.rms_norm_eps
        if norm is not None:
            heads = ops.rms_norm(heads, norm, eps, self.norm_offset)
        if self.rope is not None:
            heads = self.rope(heads, positions)
        return heads if self.ones is None else ops.rms_norm(heads, self.ones, eps)

    def _tuned(self, q: Tensor, step: StepLike) -> Tensor:
        """q [rows, heads * head_dim] with the plan's temperature."""
        if self.temperature is None:
            return q
        attn_scale, floor_scale = self.temperature
        places = np.asarray(step.positions, np.float64) + 1
        factors = 1 + attn_scale * np.log1p(np.floor(places / floor_scale))
        return ops.scale_rows(q, factors.astype(np.float32)[:, None]).reshape(*q.shape)
