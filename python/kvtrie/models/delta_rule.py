"""The gated delta rule as layers compute it, however their projections are stored (delta.py, delta_parts.py).

    q, k, v = silu(conv(qkv(h)));  q, k of length 1, q / sqrt(key_dim)
    y = rule(q, k, v, -exp(A_log) * softplus(decay(h) + dt_bias), beta * sigmoid(b(h)))
    out(norm(y) * activation(gate(h)))

A short causal convolution over q, k and v and one matrix per value head carry what came before. Source: Yang et al.
2024 (arXiv 2412.06464) and the Hugging Face configurations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .. import ops
from .._core import Tensor
from .decoder import Site
from .linear import Linear
from .states import States
from .step_inputs import Positions, Rows, StepLike

_L2_EPS = 1e-6  # of the norms of q and k before the rule


@dataclass(frozen=True)
class DeltaSizes:
    """Of the delta layers of a model. ``taps``: of the convolution, the present row's among them."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int

    @property
    def key_width(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def widths(self) -> list[int]:
        """Of q, k and v."""
        return [self.key_width, self.key_width, self.value_width]

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: q, k and v of all heads."""
        return sum(self.widths)

    def states(self, layers: tuple[int, ...]) -> States:
        heads = (self.value_heads, self.value_dim, self.key_dim)
        return States(layers, self.taps - 1, self.conv_width, *heads)


class RuleMaps(NamedTuple):
    """The projections of h. ``decay`` and ``gate``: one map, or two, the second of what the first gives."""

    qkv: Linear
    decay: Sequence[Linear]
    b: Linear
    gate: Sequence[Linear]


class RuleForm(NamedTuple):
    """Names below the layer's ``prefix``, and what else differs. ``by_channel``: decays are for each channel of k, else
    for each head. ``eps``: of the norm. ``beta``: what the sigmoid is multiplied by. ``sigmoid``: whether that is what
    the gate goes through, else silu."""

    prefix: str
    norm: str
    out: str
    eps: float
    by_channel: bool = False
    beta: float = 1.0
    sigmoid: bool = False


class DeltaRule:
    """h, x [rows, hidden] -> [wanted rows, hidden]."""

    def __init__(self, sizes: DeltaSizes, form: RuleForm, maps: RuleMaps, site: Site) -> None:
        prefix, weights = f"{site.prefix}.{form.prefix}", site.weights
        self.sizes, self.form, self.maps = sizes, form, maps
        self.index = site.index
        self.conv = weights.vector(f"{prefix}.conv1d.weight", lambda weight: weight[:, 0, :])
        repeats = sizes.key_dim if form.by_channel else 1
        self.decay = weights.vector(f"{prefix}.A_log", lambda a_log: np.repeat(-np.exp(a_log.reshape(-1)), repeats))
        self.decay_bias = weights.vector(f"{prefix}.dt_bias")
        self.norm = weights.vector(f"{prefix}.{form.norm}.weight")
        self.out = weights.linear(f"{prefix}.{form.out}")
        self.scale = weights.constant(np.full(sizes.key_dim, sizes.key_dim**-0.5))

    def __call__(self, step: StepLike, h: Tensor, positions: Positions, take: Rows | None, x: Tensor | None) -> Tensor:  # noqa: ARG002 (a Mixer's)
        s, rows = self.sizes, h.shape[0]
        q, k, v = ops.split(ops.silu(step.conv(self.index, self.maps.qkv(h), self.conv)), s.widths)
        q, k = (ops.l2_norm(part.reshape(rows, s.key_heads, s.key_dim), _L2_EPS) for part in (q, k))
        v = v.reshape(rows, s.value_heads, s.value_dim)
        g = self._decays(h)
        y = step.gated_delta(self.index, ops.mul(q, self.scale), k, v, g, self._beta(h)).reshape(rows, s.value_width)
        if take is not None:
            y, h = take.take(y), take.take(h)
            x = None if x is None else take.take(x)
        heads = (y.shape[0], s.value_heads, s.value_dim)
        y = ops.rms_norm(y.reshape(*heads), self.norm, self.form.eps)
        gate = _mapped(self.maps.gate, h).reshape(*heads)
        y = ops.mul(y, ops.sigmoid(gate)) if self.form.sigmoid else ops.silu_mul(gate, y)
        return self.out(y.reshape(heads[0], s.value_width), x)

    def _decays(self, h: Tensor) -> Tensor:
        """Logarithms: [rows, value_heads], or [rows, value_heads, key_dim]."""
        s = self.sizes
        g = ops.mul(ops.softplus(ops.add(_mapped(self.maps.decay, h), self.decay_bias)), self.decay)
        return g.reshape(h.shape[0], s.value_heads, s.key_dim) if self.form.by_channel else g

    def _beta(self, h: Tensor) -> Tensor:
        beta = ops.sigmoid(self.maps.b(h))
        return beta if self.form.beta == 1.0 else ops.clamp(beta, scale=self.form.beta)


def _mapped(maps: Sequence[Linear], x: Tensor) -> Tensor:
    for each in maps:
        x = each(x)
    return x
