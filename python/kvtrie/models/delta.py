"""The gated delta rule of Qwen3-Next and Qwen3.5: recurrent layers that keep no keys.

A short causal convolution over q, k and v and one matrix per value head carry what came before. Source: Yang et al.
2024 (arXiv 2412.06464), Qwen Team 2025 and the Hugging Face configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import ops
from .._core import Tensor
from .config import ModelConfig
from .decoder import Mixer, Shapes, Site
from .experts_config import ExpertsConfig
from .linear import Linear
from .step_inputs import Positions, Rows, StepLike
from .weights import Array

_L2_EPS = 1e-6  # of the norms of q and k before the delta rule


@dataclass(frozen=True)
class HybridConfig(ExpertsConfig):
    """``rotary_dims``: rotated numbers of each head."""

    layer_types: tuple[str, ...] = ()
    rotary_dims: int = 0
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32

    @property
    def key_width(self) -> int:
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_width(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: q, k and v of all heads."""
        return 2 * self.key_width + self.value_width

    def layers(self, kind: str) -> tuple[int, ...]:
        return tuple(index for index, found in enumerate(self.layer_types) if found == kind)


@dataclass(frozen=True)
class DeltaPlan:
    """``fused``: in_proj_qkvz and in_proj_ba instead of four matrices."""

    config: HybridConfig
    fused: bool

    def shapes(self, config: ModelConfig) -> Shapes:
        c, heads = self.config, self.config.linear_num_value_heads
        outputs = (
            {"qkvz": c.conv_width + c.value_width, "ba": 2 * heads}
            if self.fused
            else {"qkv": c.conv_width, "z": c.value_width, "b": heads, "a": heads}
        )
        return {
            **{f"linear_attn.in_proj_{name}.weight": (out, config.hidden_size) for name, out in outputs.items()},
            "linear_attn.conv1d.weight": (c.conv_width, 1, c.linear_conv_kernel_dim),
            "linear_attn.A_log": (heads,),
            "linear_attn.dt_bias": (heads,),
            "linear_attn.norm.weight": (c.linear_value_head_dim,),
            "linear_attn.out_proj.weight": (config.hidden_size, c.value_width),
        }

    def build(self, site: Site) -> Mixer:
        return GatedDelta(self, site)


class GatedDelta:
    """The gated delta rule; q, k [rows, k_heads, k_dim], v and the output's gate z [rows, v_heads, v_dim]."""

    config: HybridConfig
    index: int
    qkv: Linear
    z: Linear
    b: Linear
    a: Linear
    conv: Tensor
    decay: Tensor
    decay_bias: Tensor
    norm: Tensor
    out: Linear
    scale: Tensor

    def __init__(self, plan: DeltaPlan, site: Site) -> None:
        prefix, weights = f"{site.prefix}.linear_attn", site.weights
        self.config = config = plan.config
        self.index = site.index
        if plan.fused:
            qkv, z, b, a = rows_by_part(config)
            self.qkv, self.z = weights.linears(f"{prefix}.in_proj_qkvz", [qkv, z])
            self.b, self.a = weights.linears(f"{prefix}.in_proj_ba", [b, a], quantise=False)
        else:
            self.qkv, self.z = weights.linear(f"{prefix}.in_proj_qkv"), weights.linear(f"{prefix}.in_proj_z")
            self.b, self.a = (weights.linear(f"{prefix}.in_proj_{name}", quantise=False) for name in ("b", "a"))
        self.conv = weights.vector(f"{prefix}.conv1d.weight", lambda weight: weight[:, 0, :])
        self.decay = weights.vector(f"{prefix}.A_log", lambda a_log: -np.exp(a_log))
        self.decay_bias = weights.vector(f"{prefix}.dt_bias")
        self.norm = weights.vector(f"{prefix}.norm.weight")
        self.out = weights.linear(f"{prefix}.out_proj")
        self.scale = weights.constant(np.full(config.linear_key_head_dim, config.linear_key_head_dim**-0.5))

    def __call__(self, step: StepLike, h: Tensor, positions: Positions, take: Rows | None, x: Tensor | None) -> Tensor:  # noqa: ARG002 (a Mixer's)
        c = self.config
        rows = h.shape[0]
        mixed = ops.silu(step.conv(self.index, self.qkv(h), self.conv))
        q, k, v = ops.split(mixed, [c.key_width, c.key_width, c.value_width])
        q, k = (self._unit(part.reshape(rows, c.linear_num_key_heads, c.linear_key_head_dim)) for part in (q, k))
        v = v.reshape(rows, c.linear_num_value_heads, c.linear_value_head_dim)
        g = ops.mul(ops.softplus(ops.add(self.a(h), self.decay_bias)), self.decay)
        y = step.gated_delta(self.index, ops.mul(q, self.scale), k, v, g, ops.sigmoid(self.b(h)))
        y = y.reshape(rows, c.value_width)
        if take is not None:
            y, h = take.take(y), take.take(h)
            x = None if x is None else take.take(x)
        heads = (y.shape[0], c.linear_num_value_heads, c.linear_value_head_dim)
        y = ops.rms_norm(y.reshape(*heads), self.norm, c.rms_norm_eps)
        return self.out(ops.silu_mul(self.z(h).reshape(*heads), y).reshape(heads[0], c.value_width), x)

    @staticmethod
    def _unit(x: Tensor) -> Tensor:
        return ops.l2_norm(x, _L2_EPS)


def rows_by_part(config: HybridConfig) -> tuple[Array, Array, Array, Array]:
    """Which rows of in_proj_qkvz are q, k and v (in that order) and which z; which of in_proj_ba are b and which a.

    Both are stored key head by key head: q, k, the head's values, their z; and its b, its a.
    """
    groups, size = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
    key, value = config.linear_key_head_dim, size * config.linear_value_head_dim
    wide = np.arange(groups * 2 * (key + value)).reshape(groups, -1)
    ends = np.cumsum([key, key, value])
    q, k, v, z = (part.reshape(-1) for part in np.split(wide, ends, axis=1))
    b, a = (part.reshape(-1) for part in np.split(np.arange(groups * 2 * size).reshape(groups, -1), 2, axis=1))
    return np.concatenate([q, k, v]), z, b, a
