"""Delta rules whose projections are stored one by one: OLMo Hybrid's and Kimi Linear's.

    q, k, v = silu(conv(q_proj(h), k_proj(h), v_proj(h)));  q, k of length 1, q / sqrt(key_dim)
    y = delta(q, k, v, -exp(A_log) * softplus(decay(h) + dt_bias), beta * sigmoid(b_proj(h)))
    o_proj(norm(y) * activation(gate(h)))

                     decay(h)            gate(h)                 activation    beta
    OLMo Hybrid      one for each head   one matrix              silu          1, or 2 (negative eigenvalues)
    Kimi Linear      for each channel    two, through a waist    sigmoid       1

Source: Yang et al. 2024 (arXiv 2412.06464), Grazzi et al. 2024 (arXiv 2411.12537) for beta up to 2, Kimi Team 2025
(arXiv 2510.26692), and the Hugging Face configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .. import ops
from .._core import Tensor
from .config import ModelConfig
from .decoder import Mixer, Shapes, Site
from .linear import Linear
from .states import States
from .step_inputs import Positions, Rows, StepLike
from .weight_table import WeightTable
from .weights import WeightSource, concatenated

_L2_EPS = 1e-6  # of the norms of q and k before the delta rule
_CONVS = ("q_conv1d", "k_conv1d", "v_conv1d")


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

    def states(self, layers: tuple[int, ...]) -> States:
        heads = (self.value_heads, self.value_dim, self.key_dim)
        return States(layers, self.taps - 1, sum(self.widths), *heads)


NO_DELTA = DeltaSizes(1, 1, 1, 1, 2)


@dataclass(frozen=True)
class DeltaPartsPlan:
    """``by_channel``: decays are for each channel of k, else for each head, and come, like the gate, through a waist of
    one head's width. ``eps``: of the norm behind the rule. ``beta``: what the sigmoid is multiplied by."""

    sizes: DeltaSizes
    prefix: str
    by_channel: bool
    eps: float
    beta: float = 1.0

    @property
    def decay(self) -> tuple[str, ...]:
        return ("f_a_proj", "f_b_proj") if self.by_channel else ("a_proj",)

    @property
    def gate(self) -> tuple[str, ...]:
        return ("g_a_proj", "g_b_proj") if self.by_channel else ("g_proj",)

    def shapes(self, config: ModelConfig) -> Shapes:
        s, hidden = self.sizes, config.hidden_size
        decays = s.value_heads * s.key_dim if self.by_channel else s.value_heads
        named = {
            **{f"{name}.weight": (width, hidden) for name, width in zip(("q_proj", "k_proj", "v_proj"), s.widths)},
            "conv1d.weight": (sum(s.widths), 1, s.taps),
            **_through(self.decay, hidden, s.key_dim, decays),
            **_through(self.gate, hidden, s.value_dim, s.value_width),
            "A_log": (1, 1, s.value_heads, 1) if self.by_channel else (s.value_heads,),
            "dt_bias": (decays,),
            "b_proj.weight": (s.value_heads, hidden),
            "o_norm.weight": (s.value_dim,),
            "o_proj.weight": (hidden, s.value_width),
        }
        return {f"{self.prefix}.{name}": shape for name, shape in named.items()}

    def build(self, site: Site) -> Mixer:
        return DeltaParts(self, site)


def _through(names: tuple[str, ...], given: int, waist: int, out: int) -> Shapes:
    """The matrices of a map from ``given`` to ``out`` numbers, through ``waist`` where there are two."""
    widths = [given, out] if len(names) == 1 else [given, waist, out]
    return {f"{name}.weight": (widths[i + 1], widths[i]) for i, name in enumerate(names)}


class DeltaParts:
    """h, x [rows, hidden] -> [wanted rows, hidden]."""

    def __init__(self, plan: DeltaPartsPlan, site: Site) -> None:
        prefix, weights, s = f"{site.prefix}.{plan.prefix}", site.weights, plan.sizes
        self.plan, self.index = plan, site.index
        self.qkv = weights.joined([f"{prefix}.{name}" for name in ("q_proj", "k_proj", "v_proj")])
        self.conv = weights.vector(f"{prefix}.conv1d.weight", lambda weight: weight[:, 0, :])
        self.decay_parts = _maps(weights, prefix, plan.decay, quantise=False)
        self.gate_parts = _maps(weights, prefix, plan.gate, quantise=not plan.by_channel)
        repeats = s.key_dim if plan.by_channel else 1
        self.decay = weights.vector(f"{prefix}.A_log", lambda a_log: np.repeat(-np.exp(a_log.reshape(-1)), repeats))
        self.decay_bias = weights.vector(f"{prefix}.dt_bias")
        self.b = weights.linear(f"{prefix}.b_proj", quantise=False)
        self.norm = weights.vector(f"{prefix}.o_norm.weight")
        self.out = weights.linear(f"{prefix}.o_proj")
        self.scale = weights.constant(np.full(s.key_dim, s.key_dim**-0.5))

    def __call__(self, step: StepLike, h: Tensor, positions: Positions, take: Rows | None, x: Tensor | None) -> Tensor:  # noqa: ARG002 (a Mixer's)
        s, rows = self.plan.sizes, h.shape[0]
        q, k, v = ops.split(ops.silu(step.conv(self.index, self.qkv(h), self.conv)), s.widths)
        q, k = (ops.l2_norm(part.reshape(rows, s.key_heads, s.key_dim), _L2_EPS) for part in (q, k))
        v = v.reshape(rows, s.value_heads, s.value_dim)
        beta = ops.clamp(ops.sigmoid(self.b(h)), scale=self.plan.beta)
        y = step.gated_delta(self.index, ops.mul(q, self.scale), k, v, self._decays(h), beta)
        if take is not None:
            y, h = take.take(y.reshape(rows, s.value_width)), take.take(h)
            x = None if x is None else take.take(x)
        heads = (h.shape[0], s.value_heads, s.value_dim)
        y = ops.rms_norm(y.reshape(*heads), self.norm, self.plan.eps)
        return self.out(self._gated(_mapped(self.gate_parts, h).reshape(*heads), y).reshape(heads[0], s.value_width), x)

    def _decays(self, h: Tensor) -> Tensor:
        """Logarithms: [rows, value_heads], or [rows, value_heads, key_dim]."""
        s = self.plan.sizes
        g = ops.mul(ops.softplus(ops.add(_mapped(self.decay_parts, h), self.decay_bias)), self.decay)
        return g.reshape(h.shape[0], s.value_heads, s.key_dim) if self.plan.by_channel else g

    def _gated(self, gate: Tensor, y: Tensor) -> Tensor:
        return ops.mul(y, ops.sigmoid(gate)) if self.plan.by_channel else ops.silu_mul(gate, y)


def _maps(weights: WeightTable, prefix: str, names: tuple[str, ...], *, quantise: bool) -> list[Linear]:
    return [weights.linear(f"{prefix}.{name}", quantise=quantise) for name in names]


def _mapped(maps: list[Linear], x: Tensor) -> Tensor:
    for each in maps:
        x = each(x)
    return x


def join_convs(sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
    """``sources`` with one ``conv1d`` where a file has the convolutions of q, k and v one by one.

    However they are cut: transformers writes three parts of one size.
    """
    found, first = dict(sources), f".{_CONVS[0]}.weight"
    for prefix in [name.removesuffix(first) for name in sources if name.endswith(first)]:
        names = [f"{prefix}.{each}.weight" for each in _CONVS]
        if all(name in sources for name in names):
            parts = [found.pop(name) for name in names]
            found[f"{prefix}.conv1d.weight"] = concatenated(f"{prefix}.conv1d.weight", parts)
    return found
