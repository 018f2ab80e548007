"""Grouped-query attention of every family, its differences as data: biases, norms of heads, rotation, gate, scale.

Where nothing stands between projection, norm, rotation and attention it is one launch for all of them
(``step.attend_qkv``), else one each; the bits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .. import ops
from .._core import Tensor
from .config import ModelConfig
from .decoder import Mixer, Shapes, Site, biases
from .linear import Linear, Norm, Packed, beside
from .step_inputs import Positions, Rope, Rows, StepLike
from .weights import Array

_PROJECTIONS = tuple(f"self_attn.{name}_proj" for name in ("q", "k", "v"))


class Temperature(NamedTuple):
    """q times 1 + scale * log(1 + floor((position + first) / every)); ``every`` and ``first`` in tokens."""

    scale: float
    every: float
    first: int = 1

    def factors(self, positions: Array) -> Array:
        """Of each of ``positions`` [rows]: float32 [rows, 1], computed in float64."""
        places = positions.astype(np.float64) + self.first
        factors: Array = (1 + self.scale * np.log1p(np.floor(places / self.every))).astype(np.float32)[:, None]
        return factors


@dataclass(frozen=True)
class AttentionPlan:
    """The parts of an attention; it rotates as its layer's group does (``Model.attention_groups``).

    ``bias``: of q, k and v; ``out_bias``: of the last projection. ``norms``: an RMS norm over each head of q and k
    before they are rotated; ``late``: after that; ``wide``: over all heads of q at once, and all of k, before it.
    ``norm_names``: of the tensors of q and k. ``unit``: heads brought to mean square 1 after that, where they are
    rotated at all. ``gated``: what comes out is multiplied by the sigmoid of a gate, whose weights stand beside those
    of q, head by head. ``scale``: None for 1 / sqrt(head_dim). ``temperature``: what q is multiplied by, more with the
    position. ``sinks``: each head has a logit that only adds to its softmax's denominator.
    """

    bias: bool = False
    out_bias: bool = False
    norms: bool = False
    late: bool = False
    wide: bool = False
    norm_names: tuple[str, str] = ("q_norm", "k_norm")
    unit: bool = False
    gated: bool = False
    scale: float | None = None
    temperature: Temperature | None = None
    sinks: bool = False

    def shapes(self, config: ModelConfig) -> Shapes:
        hidden, (q, kv_width, _) = config.hidden_size, self.widths(config)
        shapes: Shapes = {
            "self_attn.q_proj.weight": (2 * q if self.gated else q, hidden),
            "self_attn.k_proj.weight": (kv_width, hidden),
            "self_attn.v_proj.weight": (kv_width, hidden),
            "self_attn.o_proj.weight": (hidden, q),
        }
        if self.norms:
            widths = (q, kv_width) if self.wide else (config.head_dim, config.head_dim)
            shapes.update({f"self_attn.{name}.weight": (width,) for name, width in zip(self.norm_names, widths)})
        shapes.update(biases(shapes, _PROJECTIONS, self.bias))
        if self.sinks:
            shapes["self_attn.sinks"] = (config.num_attention_heads,)
        return {**shapes, **biases(shapes, ("self_attn.o_proj",), self.out_bias)}

    def build(self, site: Site) -> Mixer:
        if self.unit or self.late or self.temperature is not None:
            assert not (self.gated or self.wide or self.sinks), "no family has both"
            return SteppedAttention(self, site)
        return FusedAttention(self, site)

    @staticmethod
    def widths(config: ModelConfig) -> list[int]:
        """Of q, k and v, all heads of each."""
        heads = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
        return [count * config.head_dim for count in heads]

    def norm_weights(self, site: Site) -> tuple[Tensor | None, Tensor | None]:
        """Of q and of k."""
        q, k = (f"{site.prefix}.self_attn.{name}.weight" for name in self.norm_names)
        return site.weights.optional_vector(q, self.norms), site.weights.optional_vector(k, self.norms)


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
        norms = plan.norm_weights(site)
        self._wide: tuple[Tensor | None, Tensor | None] | None = norms if plan.wide else None
        self._of_heads: tuple[Tensor | None, Tensor | None] = (None, None) if plan.wide else norms
        self._widths: list[int] = plan.widths(site.config)
        self._rest = (site.config.rms_norm_eps, site.norm_offset, plan.scale)
        self._sinks = weights.optional_vector(f"{prefix}.sinks", plan.sinks)
        self._table = None if site.rope is None else site.rope.table
        self._packed: Packed | None = None if plan.wide else self.qkv.packed
        self._precision: str = weights.precision

    def __call__(self, step: StepLike, h: Tensor, positions: Positions, take: Rows | None, x: Tensor | None) -> Tensor:  # noqa: ARG002 (a Mixer's)
        return self._mixed(step, h, None, take, x)

    def normed(
        self, step: StepLike, x: Tensor, norm: Norm, positions: Positions, take: Rows | None, residual: Tensor | None
    ) -> Tensor:
        """That of norm(x), with the same bits."""
        if self.gate is not None:
            return self(step, norm(x), positions, take, residual)
        return self._mixed(step, x, norm, take, residual)

    def _mixed(self, step: StepLike, h: Tensor, norm: Norm | None, take: Rows | None, x: Tensor | None) -> Tensor:
        """``h``: what the gate, where there is one, reads."""
        a = self._attended(step, h, norm)
        if take is not None:
            a = take.take(a)
            h = h if self.gate is None else take.take(h)
            x = None if x is None else take.take(x)
        return self.o(a if self.gate is None else ops.mul(a, ops.sigmoid(self.gate(h))), x)

    def _attended(self, step: StepLike, h: Tensor, norm: Norm | None) -> Tensor:
        """The step has the product where nothing comes between it and attention: it may need no launch behind it."""
        given = (self._table, *self._of_heads, *self._rest)
        if self._packed is None:
            qkv = self.qkv(h, norm=norm)
            if self._wide is not None:
                qkv = self._normed(qkv, self._wide)
            return step.attend_qkv(self.index, qkv, *given, sinks=self._sinks, precision=self._precision)
        normed = None if norm is None else norm.arguments
        return step.attend_qkv(
            self.index,
            h,
            *given,
            sinks=self._sinks,
            weight=self._packed,
            bias=self.qkv.bias,
            norm=normed,
            precision=self._precision,
        )

    def _normed(self, qkv: Tensor, norms: tuple[Tensor | None, Tensor | None]) -> Tensor:
        """qkv [rows, all widths] with q and k normed, each over all of its heads."""
        q, k, v = ops.split(qkv, self._widths)
        eps, offset, _ = self._rest
        parts = [part if norm is None else ops.rms_norm(part, norm, eps, offset) for part, norm in zip((q, k), norms)]
        return ops.concat([*parts, v], axis=1)


class SteppedAttention:
    """Attention operation by operation, no gate; q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim]."""

    def __init__(self, plan: AttentionPlan, site: Site) -> None:
        prefix, config, weights = f"{site.prefix}.self_attn", site.config, site.weights
        self.config: ModelConfig = config
        self.index: int = site.index
        self.rope: Rope | None = site.rope
        self.norm_offset: float = site.norm_offset
        self.temperature: Temperature | None = plan.temperature
        self.late: bool = plan.late
        self.scale: float | None = plan.scale
        self.q: Linear = weights.linear(f"{prefix}.q_proj", plan.bias)
        self.k: Linear = weights.linear(f"{prefix}.k_proj", plan.bias)
        self.v: Linear = weights.linear(f"{prefix}.v_proj", plan.bias)
        self.o: Linear = weights.linear(f"{prefix}.o_proj", plan.out_bias)
        self.q_norm, self.k_norm = plan.norm_weights(site)
        unit = plan.unit and site.rope is not None
        self.ones: Tensor | None = weights.constant(np.ones(config.head_dim)) if unit else None
        self._precision: str = weights.precision

    def __call__(self, step: StepLike, h: Tensor, positions: Positions, take: Rows | None, x: Tensor | None) -> Tensor:
        c, rows = self.config, h.shape[0]
        q = self._tuned(self.q(h), positions).reshape(rows, c.num_attention_heads, c.head_dim)
        k = self.k(h).reshape(rows, c.num_key_value_heads, c.head_dim)
        v = self.v(h).reshape(rows, c.num_key_value_heads, c.head_dim)
        q, k = self._placed(q, self.q_norm, positions), self._placed(k, self.k_norm, positions)
        a = step.attend(self.index, q, k, v, self.scale, precision=self._precision)
        a = a.reshape(rows, c.num_attention_heads * c.head_dim)
        if take is not None:
            a = take.take(a)
            x = None if x is None else take.take(x)
        return self.o(a, x)

    def _placed(self, heads: Tensor, norm: Tensor | None, positions: Positions) -> Tensor:
        """Normed, rotated, brought to mean square 1; a rotation keeps that, so a shift may rotate what is stored."""
        eps = self.config.rms_norm_eps
        if norm is not None and not self.late:
            heads = ops.rms_norm(heads, norm, eps, self.norm_offset)
        if self.rope is not None:
            heads = self.rope(heads, positions)
        if norm is not None and self.late:
            heads = ops.rms_norm(heads, norm, eps, self.norm_offset)
        return heads if self.ones is None else ops.rms_norm(heads, self.ones, eps)

    def _tuned(self, q: Tensor, positions: Positions) -> Tensor:
        """q [rows, heads * head_dim] with the plan's temperature."""
        if self.temperature is None:
            return q
        return ops.scale_rows(q, positions.factors(self.temperature)).reshape(*q.shape)
