"""GLM-4 (GlmForCausalLM, Glm4ForCausalLM): half of each head rotates, in neighbouring pairs.

Gate and up are one tensor. The second form norms what attention and MLP give, too. Source: GLM Team 2024 (arXiv
2406.12793), Zhipu AI 2025, and the Hugging Face configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel
from ..common_settings import COMMON, WINDOWLESS, not_read
from ..config import ModelConfig
from ..decoder import NormNames
from ..fused import split_gate_up
from ..gguf_form import GgufForm
from ..settings import Settings, read
from ..weights import WeightSource

if TYPE_CHECKING:
    from ..gguf.metadata import Description


_GGUF: Settings = {
    **gguf_settings.DENSE,
    ".rope.dimension_sections": read("axes of positions; not two of them: rows of q and k have another order then"),
}


def _from_gguf(d: Description) -> dict[str, object]:
    axes = d.axes()
    if axes is not None:
        raise d.keys.error(".rope.dimension_sections", axes, "0 as one of the first two: rows of q and k are reordered")
    return {**d.partly(), "attention_bias": d.in_any_layer("attn_q.bias")}


class Glm(CausalModel):
    family = "glm"
    architectures = ("GlmForCausalLM",)
    settings = {**COMMON, **WINDOWLESS, **not_read("mlp_bias")}  # noqa: RUF012 (a ClassVar of Model's)
    defaults = {  # noqa: RUF012 (the same)
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rms_norm_eps": 1.5625e-7,
        "attention_bias": True,
    }
    partial = 0.5
    whole = False
    interleaved = True

    @classmethod
    def adapt(cls, config: ModelConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        return split_gate_up(super().adapt(config, sources), config)

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(config.attention_bias)


class Glm4(Glm):
    family = "glm4"
    architectures = ("Glm4ForCausalLM",)
    norms = NormNames("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
    gguf = {  # noqa: RUF012 (a ClassVar of Model's)
        "glm4": GgufForm(
            _from_gguf,
            {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"},
            _GGUF,
        )
    }
