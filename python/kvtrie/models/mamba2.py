"""The layers of Mamba-2: a short convolution, a scan of matrices that decay, and a norm behind a gate.

    z, xBC, dt = in_proj(h);  x, B, C = silu(conv(xBC));  y = scan(x, softplus(dt + bias), -exp(A_log), B, C, D)
    out_proj(norm(y * silu(z)))

Source: Dao and Gu 2024 (arXiv 2405.21060) and the Hugging Face configurations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import ops
from .._core import Tensor
from .config import ModelConfig
from .decoder import Mixer, Shapes, Site, biases
from .linear import Linear
from .recurrent import RecurrentConfig
from .states import States
from .step_inputs import Positions, Rows, StepLike
from .weights import Array

BEHIND, BEFORE, NONE = "behind the gate", "before the gate", "none"  # where the norm is


@dataclass(frozen=True)
class Mamba2Plan:
    """``norm``: BEHIND, BEFORE or NONE. ``number``: under which the layer's state is kept, None for the layer's own.

    ``scale``: h is multiplied by it. ``parts``: what z, x, B, C and dt are multiplied by. None: by nothing.
    """

    config: RecurrentConfig
    norm: str = BEHIND
    prefix: str = "mamba"
    number: int | None = None
    scale: float = 1.0
    parts: tuple[float, ...] | None = None

    @property
    def widths(self) -> list[int]:
        """Of z, of x, B and C together, and of dt."""
        c = self.config
        return [c.mamba_inner, c.mamba_width, c.mamba_heads]

    def shapes(self, config: ModelConfig) -> Shapes:
        c, p, hidden = self.config, self.prefix, config.hidden_size
        shapes: Shapes = {
            f"{p}.in_proj.weight": (sum(self.widths), hidden),
            f"{p}.conv1d.weight": (c.mamba_width, 1, c.conv_width),
            f"{p}.out_proj.weight": (hidden, c.mamba_inner),
            **{f"{p}.{name}": (c.mamba_heads,) for name in ("A_log", "D", "dt_bias")},
        }
        if self.norm != NONE:
            shapes[f"{p}.norm.weight"] = (c.mamba_inner,)
        wanted = {"in_proj": c.mamba_bias, "conv1d": c.conv_bias, "out_proj": c.mamba_out_bias}
        return {**shapes, **biases(shapes, tuple(f"{p}.{name}" for name, has in wanted.items() if has))}

    def build(self, site: Site) -> Mixer:
        return Mamba2(self, site)


class Mamba2:
    """A :class:`Mamba2Plan` on the device: h, x [rows, hidden] -> [wanted rows, hidden]."""

    def __init__(self, plan: Mamba2Plan, site: Site) -> None:
        prefix, weights, c = f"{site.prefix}.{plan.prefix}", site.weights, plan.config
        self.config: RecurrentConfig = c
        self.plan: Mamba2Plan = plan
        self.index: int = site.index if plan.number is None else plan.number
        ends = np.cumsum(plan.widths)
        outputs = np.split(np.arange(ends[-1]), ends[:-1])
        self.z, self.inputs, self.step = weights.linears(f"{prefix}.in_proj", outputs, c.mamba_bias)
        self.taps: Tensor = weights.vector(f"{prefix}.conv1d.weight", lambda weight: weight[:, 0, :])
        self.shift: Tensor | None = weights.optional_vector(f"{prefix}.conv1d.bias", c.conv_bias)
        self.decay: Tensor = weights.vector(f"{prefix}.A_log", lambda a_log: -np.exp(a_log))
        self.skip: Tensor = weights.vector(f"{prefix}.D")
        self.step_bias: Tensor = weights.vector(f"{prefix}.dt_bias")
        self.out: Linear = weights.linear(f"{prefix}.out_proj", c.mamba_out_bias)
        groups = c.mamba_groups
        self.norm: Tensor | None = weights.optional_vector(f"{prefix}.norm.weight", plan.norm != NONE)
        self.ones: Tensor | None = None if groups == 1 else weights.constant(np.ones(c.mamba_inner // groups))
        self.scale: Tensor | None = (
            None if plan.scale == 1.0 else weights.constant(np.full(site.config.hidden_size, plan.scale))
        )
        factors: list[Array] = part_factors(plan)
        self.factors: list[Tensor | None] = [
            None if (each == 1.0).all() else weights.constant(each) for each in factors
        ]

    def __call__(self, step: StepLike, h: Tensor, positions: Positions, take: Rows | None, x: Tensor | None) -> Tensor:  # noqa: ARG002 (a Mixer's)
        h = _times(h, self.scale)
        y = self._scanned(step, h)
        if take is not None:
            y, h = take.take(y), take.take(h)
            x = None if x is None else take.take(x)
        return self.out(self._gated(y, _times(self.z(h), self.factors[0])), x)

    def _scanned(self, step: StepLike, h: Tensor) -> Tensor:
        """h [rows, hidden] -> [rows, heads * head_dim]."""
        c, rows = self.config, h.shape[0]
        mixed = step.conv(self.index, _times(self.inputs(h), self.factors[1]), self.taps)
        mixed = ops.silu(mixed if self.shift is None else ops.add(mixed, self.shift))
        wide = c.mamba_groups * c.mamba_state
        inputs, b, c_ = ops.split(mixed, [c.mamba_inner, wide, wide])
        dt = ops.softplus(ops.add(_times(self.step(h), self.factors[2]), self.step_bias))
        y = step.ssd(
            self.index,
            inputs.reshape(rows, c.mamba_heads, c.mamba_head_dim),
            dt,
            self.decay,
            b.reshape(rows, c.mamba_groups, c.mamba_state),
            c_.reshape(rows, c.mamba_groups, c.mamba_state),
            self.skip,
            c.step_least,
        )
        return y.reshape(rows, c.mamba_inner)

    def _gated(self, y: Tensor, z: Tensor) -> Tensor:
        """y, z [rows, heads * head_dim]; the norm is of each group's numbers."""
        if self.plan.norm == BEFORE:
            return ops.silu_mul(z, self._normed(y))
        y = ops.silu_mul(z, y)
        return y if self.plan.norm == NONE else self._normed(y)

    def _normed(self, y: Tensor) -> Tensor:
        c = self.config
        assert self.norm is not None
        if self.ones is None:
            return ops.rms_norm(y, self.norm, c.rms_norm_eps)
        parts = y.reshape(y.shape[0] * c.mamba_groups, c.mamba_inner // c.mamba_groups)
        return ops.mul(ops.rms_norm(parts, self.ones, c.rms_norm_eps).reshape(*y.shape), self.norm)


def part_factors(plan: Mamba2Plan) -> list[Array]:
    """The factors of the outputs of z, of x, B and C, and of dt."""
    c = plan.config
    z, x, b, c_, dt = plan.parts or (1.0,) * 5
    wide = c.mamba_groups * c.mamba_state
    inputs = np.repeat([x, b, c_], [c.mamba_inner, wide, wide])
    return [np.full(c.mamba_inner, z), inputs, np.full(c.mamba_heads, dt)]


def mamba2_states(layers: tuple[int, ...], c: RecurrentConfig) -> States:
    return States(layers, c.conv_width - 1, c.mamba_width, c.mamba_heads, c.mamba_head_dim, c.mamba_state)


def _times(x: Tensor, factors: Tensor | None) -> Tensor:
    return x if factors is None else ops.mul(x, factors)
