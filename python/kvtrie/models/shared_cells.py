"""Attention of layers that may read another layer's cells, and then have no keys and values of their own.

    layer    0  1  2  3  4  5          cells of their own: 0 to 3
    kind     s  s  s  F  s  F          4 reads those of 2, 5 those of 3: the last before them of their kind

What is stored, restored and moved is what the layers with cells keep; a layer that reads asks the same step for the
cells of its source, after that layer has put its rows. Heads of q and k are normed before they are rotated, those of v
brought to mean square 1. Sizes in elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .. import ops
from .._core import Tensor
from .config import ModelConfig
from .decoder import Mixer, Shapes, Site, biases
from .linear import Linear
from .step_inputs import Positions, Rope, Rows, StepLike


@dataclass(frozen=True)
class SharedCellsPlan:
    """``source``: the layer whose cells are read; None: its own. ``keys_as_values``: one projection for k and v.

    ``bias``: of all projections. Scores are not scaled.
    """

    kv_heads: int
    head_dim: int
    source: int | None = None
    keys_as_values: bool = False
    bias: bool = False

    def shapes(self, config: ModelConfig) -> Shapes:
        hidden, q, kv_width = (
            config.hidden_size,
            config.num_attention_heads * self.head_dim,
            self.kv_heads * self.head_dim,
        )
        shapes: Shapes = {"self_attn.q_proj.weight": (q, hidden), "self_attn.o_proj.weight": (hidden, q)}
        shapes.update({f"self_attn.{name}_proj.weight": (kv_width, hidden) for name in self._stored})
        shapes.update(biases(shapes, tuple(name.removesuffix(".weight") for name in shapes), self.bias))
        norms = ("q_norm", "k_norm") if self._stored else ("q_norm",)
        return {**shapes, **{f"self_attn.{name}.weight": (self.head_dim,) for name in norms}}

    @property
    def _stored(self) -> tuple[str, ...]:
        if self.source is not None:
            return ()
        return ("k",) if self.keys_as_values else ("k", "v")

    def build(self, site: Site) -> Mixer:
        return SharedCells(self, site)


class SharedCells:
    """A :class:`SharedCellsPlan` on the device: h, x [rows, hidden] -> [wanted rows, hidden]."""

    def __init__(self, plan: SharedCellsPlan, site: Site) -> None:
        prefix, weights = f"{site.prefix}.self_attn", site.weights
        self.plan = plan
        self.index: int = site.index
        self.rope: Rope | None = site.rope
        self._eps: float = site.config.rms_norm_eps
        self.q: Linear = weights.linear(f"{prefix}.q_proj", plan.bias)
        self.o: Linear = weights.linear(f"{prefix}.o_proj", plan.bias)
        self.q_norm: Tensor = weights.vector(f"{prefix}.q_norm.weight")
        own = plan.source is None
        self.k: Linear | None = weights.linear(f"{prefix}.k_proj", plan.bias) if own else None
        apart = own and not plan.keys_as_values
        self.v: Linear | None = weights.linear(f"{prefix}.v_proj", plan.bias) if apart else None
        self.k_norm: Tensor | None = weights.optional_vector(f"{prefix}.k_norm.weight", own)
        self.ones: Tensor | None = weights.constant(np.ones(plan.head_dim)) if own else None
        self._precision: str = weights.precision

    def __call__(self, step: StepLike, h: Tensor, positions: Positions, take: Rows | None, x: Tensor | None) -> Tensor:
        q = self._placed(self._heads(self.q(h)), self.q_norm, positions)
        if self.k is None:
            assert self.plan.source is not None
            a = step.attend(self.plan.source, q, scale=1.0, precision=self._precision)
        else:
            assert self.k_norm is not None and self.ones is not None
            keys = self._heads(self.k(h))
            values = keys if self.v is None else self._heads(self.v(h))
            values = ops.rms_norm(values, self.ones, self._eps)
            keys = self._placed(keys, self.k_norm, positions)
            a = step.attend(self.index, q, keys, values, 1.0, precision=self._precision)
        a = a.reshape(h.shape[0], -1)
        if take is not None:
            a = take.take(a)
            x = None if x is None else take.take(x)
        return self.o(a, x)

    def _heads(self, x: Tensor) -> Tensor:
        """[rows, heads * head_dim] -> [rows, heads, head_dim]."""
        rows, width = x.shape
        return x.reshape(rows, width // self.plan.head_dim, self.plan.head_dim)

    def _placed(self, heads: Tensor, norm: Tensor, positions: Positions) -> Tensor:
        heads = ops.rms_norm(heads, norm, self._eps)
        return heads if self.rope is None else self.rope(heads, positions)


def sources_of(kinds: Sequence[str], shared: int) -> list[int | None]:
    """Of each layer, whose cells it reads: the last ``shared`` read those of the last before them of their kind.

    None: its own. Raises ``ValueError`` naming a kind of which there is no layer with cells.
    """
    first = len(kinds) - shared
    last = {kind: index for index, kind in enumerate(kinds[:first])}
    for kind in kinds[first:]:
        if kind not in last:
            raise ValueError(kind)
    return [None if index < first else last[kind] for index, kind in enumerate(kinds)]
