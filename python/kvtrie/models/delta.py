"""The gated delta rule of Qwen3-Next and Qwen3.5: recurrent layers that keep no keys.

A short causal convolution over q, k and v and one matrix per value head carry what came before. Source: Yang et al.
2024 (arXiv 2412.06464), Qwen Team 2025 and the Hugging Face configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .config import ModelConfig
from .decoder import Mixer, Shapes, Site
from .delta_rule import DeltaRule, DeltaSizes, RuleForm, RuleMaps
from .experts_config import ExpertsConfig
from .weights import Array


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
    def sizes(self) -> DeltaSizes:
        heads = (self.linear_num_key_heads, self.linear_num_value_heads)
        return DeltaSizes(*heads, self.linear_key_head_dim, self.linear_value_head_dim, self.linear_conv_kernel_dim)

    def layers(self, kind: str) -> tuple[int, ...]:
        return tuple(index for index, found in enumerate(self.layer_types) if found == kind)


@dataclass(frozen=True)
class DeltaPlan:
    """``fused``: in_proj_qkvz and in_proj_ba instead of four matrices. ``sigmoid``: what the gate goes through, instead
    of silu."""

    config: HybridConfig
    fused: bool
    sigmoid: bool = False

    def shapes(self, config: ModelConfig) -> Shapes:
        c, sizes = self.config, self.config.sizes
        outputs = (
            {"qkvz": sizes.conv_width + sizes.value_width, "ba": 2 * sizes.value_heads}
            if self.fused
            else {
                "qkv": sizes.conv_width,
                "z": sizes.value_width,
                "b": sizes.value_heads,
                "a": sizes.value_heads,
            }
        )
        return {
            **{f"linear_attn.in_proj_{name}.weight": (out, config.hidden_size) for name, out in outputs.items()},
            "linear_attn.conv1d.weight": (sizes.conv_width, 1, c.linear_conv_kernel_dim),
            "linear_attn.A_log": (sizes.value_heads,),
            "linear_attn.dt_bias": (sizes.value_heads,),
            "linear_attn.norm.weight": (sizes.value_dim,),
            "linear_attn.out_proj.weight": (config.hidden_size, sizes.value_width),
        }

    def build(self, site: Site) -> Mixer:
        form = RuleForm("linear_attn", "norm", "out_proj", self.config.rms_norm_eps, sigmoid=self.sigmoid)
        return DeltaRule(self.config.sizes, form, self._maps(site), site)

    def _maps(self, site: Site) -> RuleMaps:
        prefix, weights = f"{site.prefix}.linear_attn", site.weights
        if self.fused:
            rows = rows_by_part(self.config)
            qkv, z = weights.linears(f"{prefix}.in_proj_qkvz", rows[:2])
            b, a = weights.linears(f"{prefix}.in_proj_ba", rows[2:], quantise=False)
        else:
            qkv, z = weights.linear(f"{prefix}.in_proj_qkv"), weights.linear(f"{prefix}.in_proj_z")
            b, a = (weights.linear(f"{prefix}.in_proj_{name}", quantise=False) for name in ("b", "a"))
        return RuleMaps(qkv, [a], b, [z])


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
