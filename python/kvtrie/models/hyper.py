"""Hyper-connections: several residual streams, which each part of a layer reads mixed and writes weighed.

    n = norm(x)                                       x [rows, streams * hidden], each stream normed by itself
    h = mean over streams of sigmoid(up(silu(down(n) / streams))) * n           what a mixer or an MLP is given
    x[stream] += 2 sigmoid(inject(n) / streams)[stream] * part(h)                what becomes of what it gives

Behind the last layer stands one more mix, without a part. Source: Zhu et al. 2024 (arXiv 2409.19606) and the Hugging
Face model of Qwen4-Exp. Threads: read-only once built. Sizes in elements.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import ops
from .._core import Tensor
from .config import ModelConfig
from .decoder import Shapes
from .linear import Linear
from .step_inputs import Rows
from .weight_table import WeightTable


@dataclass(frozen=True)
class HyperPlan:
    """``streams``: how many; ``rank``: numbers between the two matrices that mix them."""

    streams: int
    rank: int

    def shapes(self, config: ModelConfig, prefix: str, injects: bool = True) -> Shapes:
        """Of one mix, below ``prefix``; ``injects``: whether a part's results go back into the streams."""
        width = self.streams * config.hidden_size
        shapes: Shapes = {
            f"{prefix}.hc_norm.weight": (width,),
            f"{prefix}.input_mix_weight_down.weight": (self.rank, width),
            f"{prefix}.input_mix_weight_up.weight": (width, self.rank),
        }
        return {**shapes, f"{prefix}.block_inject_weight.weight": (self.streams, width)} if injects else shapes


class StreamNorm:
    """RMS norm of each stream by itself, times (1 + weight): x [rows, streams * hidden]."""

    def __init__(self, plan: HyperPlan, weights: WeightTable, name: str, config: ModelConfig) -> None:
        self._streams, self._hidden, self._eps = plan.streams, config.hidden_size, config.rms_norm_eps
        self._ones: Tensor = weights.constant(np.ones(config.hidden_size))
        self._weight: Tensor = weights.vector(name, lambda weight: weight + 1)

    def __call__(self, x: Tensor) -> Tensor:
        normed = ops.rms_norm(x.reshape(x.shape[0] * self._streams, self._hidden), self._ones, self._eps)
        return ops.mul(normed.reshape(*x.shape), self._weight)


class Hyper:
    """One mix of the streams: what a part is given, and how it goes back."""

    def __init__(
        self, plan: HyperPlan, weights: WeightTable, prefix: str, config: ModelConfig, injects: bool = True
    ) -> None:
        self._streams, self._hidden = plan.streams, config.hidden_size
        self._norm = StreamNorm(plan, weights, f"{prefix}.hc_norm.weight", config)
        self._down: Linear = weights.linear(f"{prefix}.input_mix_weight_down")
        self._up: Linear = weights.linear(f"{prefix}.input_mix_weight_up")
        name = f"{prefix}.block_inject_weight"
        self._inject: Linear | None = weights.linear(name, quantise=False) if injects else None

    def mixed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [rows, streams * hidden] -> what a part is given [rows, hidden], and the streams, normed."""
        normed = self._norm(x)
        waist = ops.silu(ops.clamp(self._down(normed), scale=1 / self._streams))
        weighed = ops.mul(ops.sigmoid(self._up(waist)), normed)
        total = ops.weighted_sum(weighed.reshape(x.shape[0], self._streams, self._hidden))
        return ops.clamp(total, scale=1 / self._streams), normed

    def added(self, x: Tensor, part: Tensor, normed: Tensor, take: Rows | None = None) -> Tensor:
        """x with ``part`` [rows, hidden] in each stream by its weight. ``take``: of x and ``normed``, too."""
        assert self._inject is not None
        if take is not None:
            x, normed = take.take(x), take.take(normed)
        factors = ops.sigmoid(ops.clamp(self._inject(normed), scale=1 / self._streams))
        own = ops.scale_rows(part, ops.clamp(factors, scale=2.0))
        return ops.add(x, own.reshape(*x.shape))
