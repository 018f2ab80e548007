"""The short convolution of LFM2: a few rows of each channel, gated before and behind; all that is kept are those rows.

    b, c, x = in_proj(h);  y = out_proj(c * conv(b * x))

Source: Liquid AI 2025 and the Hugging Face configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import ops
from .._core import Tensor
from .config import ModelConfig
from .decoder import Mixer, Shapes, Site, biases
from .linear import Linear
from .step_inputs import Positions, Rows, StepLike


@dataclass(frozen=True)
class ShortConvPlan:
    """``width``: taps of the convolution. ``bias``: of it and of both projections."""

    width: int
    bias: bool = False

    def shapes(self, config: ModelConfig) -> Shapes:
        hidden = config.hidden_size
        shapes: Shapes = {
            "conv.in_proj.weight": (3 * hidden, hidden),
            "conv.conv.weight": (hidden, 1, self.width),
            "conv.out_proj.weight": (hidden, hidden),
        }
        return {**shapes, **biases(shapes, ("conv.in_proj", "conv.conv", "conv.out_proj"), self.bias)}

    def build(self, site: Site) -> Mixer:
        return ShortConv(self, site)


class ShortConv:
    """A :class:`ShortConvPlan` on the device: h, x [rows, hidden] -> [wanted rows, hidden]."""

    def __init__(self, plan: ShortConvPlan, site: Site) -> None:
        prefix, weights = f"{site.prefix}.conv", site.weights
        self.index: int = site.index
        self.width: int = site.config.hidden_size
        self.inner: Linear = weights.linear(f"{prefix}.in_proj", plan.bias)
        self.taps: Tensor = weights.vector(f"{prefix}.conv.weight", lambda weight: weight[:, 0, :])
        self.shift: Tensor | None = weights.optional_vector(f"{prefix}.conv.bias", plan.bias)
        self.out: Linear = weights.linear(f"{prefix}.out_proj", plan.bias)

    def __call__(self, step: StepLike, h: Tensor, positions: Positions, take: Rows | None, x: Tensor | None) -> Tensor:  # noqa: ARG002 (a Mixer's)
        before, behind, inputs = ops.split(self.inner(h), [self.width] * 3)
        y = step.conv(self.index, ops.mul(before, inputs), self.taps)
        if take is not None:
            y, behind = take.take(y), take.take(behind)
            x = None if x is None else take.take(x)
        if self.shift is not None:
            y = ops.add(y, self.shift)
        return self.out(ops.mul(behind, y), x)
