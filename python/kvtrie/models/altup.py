"""Gemma 3n's parts around a layer: several residual streams, a low-rank shortcut, and gates of which most are zero.

AltUp (Baykal et al. 2023, arXiv 2301.13310). Of n streams a layer computes one, the *active* one; coefficients that
follow from it predict all of them before, and correct them after:

    p[i] = h[i] + sum over j of c[i, j] h[j]          c of tanh(router(norm(h[active])))
    y = layer(p[active])
    h[i] = p[i] + (1 + d[i]) (y - p[active])          d of tanh(router(norm(y)))

Streams are tensors [rows, hidden], in a list. Threads: read-only once built. Sizes in elements. Source: Google DeepMind
2025 and the Hugging Face model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from .. import ops
from .._core import Tensor
from .config import ModelConfig
from .decoder import MlpLayer, Shapes, Site, mlp_shapes
from .linear import Linear, Matrix, Norm, joined
from .weight_table import WeightTable

_TINY = 1e-30  # keeps a row of zeros from being divided by 0
_LEAST_MAGNITUDE = math.sqrt(1e-5)
EMBED, UNEMBED = "model.altup_projections", "model.altup_unembed_projections"


@dataclass(frozen=True)
class AltUpPlan:
    """``streams``: how many; ``active``: the one that layers compute; ``scaled``: whether its correction is scaled
    before a layer's own inputs see it. ``rank``: of the shortcut."""

    streams: int
    active: int
    scaled: bool
    rank: int

    def shapes(self, config: ModelConfig) -> Shapes:
        """Beside the layers."""
        names = [f"{part}.{index}.weight" for part in (EMBED, UNEMBED) for index in range(self.streams - 1)]
        return dict.fromkeys(names, (config.hidden_size, config.hidden_size))

    def layer_shapes(self, config: ModelConfig) -> Shapes:
        hidden, streams = config.hidden_size, self.streams
        return {
            "altup.correct_output_scale": (hidden,),
            "altup.correction_coefs.weight": (streams, streams),
            "altup.prediction_coefs.weight": (streams * streams, streams),
            "altup.modality_router.weight": (streams, hidden),
            "altup.router_norm.weight": (hidden,),
            "laurel.linear_left.weight": (self.rank, hidden),
            "laurel.linear_right.weight": (hidden, self.rank),
            "laurel.post_laurel_norm.weight": (hidden,),
        }


class AltUp:
    """The streams around one layer."""

    def __init__(self, plan: AltUpPlan, weights: WeightTable, prefix: str, config: ModelConfig) -> None:
        self.plan = plan
        hidden, own = config.hidden_size, f"{prefix}.altup"
        self._norm = Norm(weights.vector(f"{own}.router_norm.weight", lambda v: v / hidden), config.rms_norm_eps)
        self._router: Linear = weights.linear(f"{own}.modality_router", quantise=False)
        self._predict: Linear = weights.linear(f"{own}.prediction_coefs", quantise=False)
        self._correct: Linear = weights.linear(f"{own}.correction_coefs", quantise=False)
        self._scale: Tensor = weights.vector(f"{own}.correct_output_scale")
        self._left: Linear = weights.linear(f"{prefix}.laurel.linear_left")
        self._right: Linear = weights.linear(f"{prefix}.laurel.linear_right")
        self._laurel_norm = Norm(weights.vector(f"{prefix}.laurel.post_laurel_norm.weight"), config.rms_norm_eps)

    def predicted(self, streams: Sequence[Tensor]) -> list[Tensor]:
        (rows, hidden), count = streams[0].shape, self.plan.streams
        side_by_side = ops.concat([each.reshape(rows, 1, hidden) for each in streams], axis=1)
        coefficients = self._predict(self._routed(streams[self.plan.active]))
        parts = ops.split(coefficients, [count] * count, axis=1)
        return [ops.add(own, ops.weighted_sum(side_by_side, part)) for own, part in zip(streams, parts)]

    def corrected(self, predictions: Sequence[Tensor], y: Tensor) -> list[Tensor]:
        """``y`` [rows, hidden]: what the layer made of the active one."""
        rows, hidden = y.shape
        news = ops.add(y, ops.clamp(predictions[self.plan.active], scale=-1.0))
        factors = ops.clamp(self._correct(self._routed(y)), shift=1.0)
        parts = ops.split(ops.scale_rows(news, factors), [1] * self.plan.streams, axis=1)
        return [ops.add(own, part.reshape(rows, hidden)) for own, part in zip(predictions, parts)]

    def shown(self, streams: Sequence[Tensor]) -> Tensor:
        """The part of corrected streams that a layer's own inputs see."""
        active = streams[self.plan.active]
        return ops.mul(active, self._scale) if self.plan.scaled else active

    def shortcut(self, h: Tensor) -> Tensor:
        """h [rows, hidden], what was normed, with its low-rank change."""
        return ops.add(h, self._laurel_norm(self._right(self._left(h))))

    def _routed(self, x: Tensor) -> Tensor:
        """x [rows, hidden] -> [rows, streams] in (-1, 1): tanh(z) is 2 sigmoid(2 z) - 1."""
        return ops.clamp(ops.sigmoid(ops.clamp(self._router(self._norm(x)), scale=2.0)), scale=2.0, shift=-1.0)


class Streams:
    """How an embedding becomes several streams, and these one row again: all as long as the first."""

    def __init__(self, plan: AltUpPlan, weights: WeightTable, config: ModelConfig) -> None:
        others = range(plan.streams - 1)
        self._width = config.hidden_size
        self._embed: list[Linear] = [weights.linear(f"{EMBED}.{index}") for index in others]
        self._unembed: list[Linear] = [weights.linear(f"{UNEMBED}.{index}") for index in others]
        self._ones: Tensor = weights.constant(np.ones(config.hidden_size))
        self._sum: Matrix = weights.pack(weights.constant(np.ones((1, config.hidden_size))))

    def apart(self, x: Tensor) -> list[Tensor]:
        length = self._magnitude(x)
        return [x, *(self._as_long(project(x), length) for project in self._embed)]

    def together(self, streams: Sequence[Tensor]) -> Tensor:
        total, length = streams[0], self._magnitude(streams[0])
        for project, stream in zip(self._unembed, streams[1:]):
            total = ops.add(total, self._as_long(project(stream), length))
        return ops.clamp(total, scale=1 / len(streams))

    def _magnitude(self, x: Tensor) -> Tensor:
        """x [rows, hidden] -> sqrt(mean of squares) [rows, 1]: x times x of length 1."""
        whole = ops.matmul(ops.mul(x, ops.l2_norm(x, _TINY)), self._sum)
        return ops.clamp(whole, scale=self._width**-0.5)

    def _as_long(self, x: Tensor, length: Tensor) -> Tensor:
        """x * length / max(its own, the least): of mean square 1, times min(1, its own / the least)."""
        short = ops.clamp(self._magnitude(x), high=1.0, scale=1 / _LEAST_MAGNITUDE)
        unit = ops.rms_norm(x, self._ones, _TINY)
        return ops.scale_rows(unit, ops.mul(short, length)).reshape(*x.shape)


@dataclass(frozen=True)
class SparseMlpPlan:
    """A gated MLP that keeps of each row's gates those above a share ``sparsity`` of a normal distribution."""

    inner: int
    sparsity: float
    prefix: str = "mlp"

    def shapes(self, config: ModelConfig) -> Shapes:
        return mlp_shapes(self.prefix, config.hidden_size, self.inner)

    def build(self, site: Site) -> MlpLayer:
        return SparseGates(self, site)


class SparseGates:
    """down(gelu(max(gate(h) - cutoff, 0)) * up(h)): the cutoff is mean + std * z of each row's gates."""

    def __init__(self, plan: SparseMlpPlan, site: Site) -> None:
        weights, prefix = site.weights, f"{site.prefix}.{plan.prefix}"
        self._gate: Linear = weights.linear(f"{prefix}.gate_proj")
        self._up: Linear = weights.linear(f"{prefix}.up_proj")
        self._down: Linear = weights.linear(f"{prefix}.down_proj")
        self._z: float = NormalDist().inv_cdf(plan.sparsity)
        self._ones: Tensor = weights.constant(np.ones(plan.inner))
        self._mean: Matrix = weights.pack(weights.constant(np.full((1, plan.inner), 1 / plan.inner)))

    def __call__(self, h: Tensor, x: Tensor | None = None) -> Tensor:
        gate = self._gate(h)
        standard = ops.layer_norm(gate, self._ones, None, _TINY)
        deviation = ops.matmul(ops.mul(gate, standard), self._mean)  # as the mean of (gate - its mean) * standard is
        above = ops.scale_rows(ops.clamp(standard, low=self._z, shift=-self._z), deviation).reshape(*gate.shape)
        return self._down(joined("gelu", above, self._up(h)), x)
