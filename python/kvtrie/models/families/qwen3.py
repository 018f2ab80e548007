"""Qwen3 dense (Qwen3ForCausalLM): Llama's block with an RMS norm over each head of q and k before RoPE.

Source: Yang et al. 2025 (arXiv 2505.09388) and the Hugging Face configuration; its default head_dim is 128, not
hidden / heads.
"""

from __future__ import annotations

from .. import gguf_settings
from ..attention import AttentionPlan
from ..base import Model
from ..common_settings import COMMON, SWITCHED_WINDOWS, not_read
from ..config import ModelConfig, parse_config
from ..decoder import LayerPlan, MlpPlan
from ..gguf_form import GgufForm
from ..reader import Raw

_DEFAULTS = {"head_dim": 128, "max_position_embeddings": 32_768, "num_key_value_heads": 32}
_FIXED = {"mlp_bias": False}


class Qwen3(Model):
    family = "qwen3"
    architectures = ("Qwen3ForCausalLM",)
    gguf = {"qwen3": GgufForm(lambda d: d.dense(), settings=gguf_settings.DENSE)}  # noqa: RUF012 (a ClassVar of Model's)
    settings = {**COMMON, **SWITCHED_WINDOWS, **not_read(*_FIXED)}  # noqa: RUF012 (a ClassVar of Model's)

    @classmethod
    def parse_config(cls, raw: Raw, generation: Raw | None = None, where: str = "config") -> ModelConfig:
        return parse_config(
            raw, model_type=cls.family, generation=generation, where=where, defaults=_DEFAULTS, fixed=_FIXED
        )

    @classmethod
    def layer_plan(cls, config: ModelConfig, index: int) -> LayerPlan:  # noqa: ARG003 (all are alike)
        bias = config.attention_bias
        return LayerPlan(AttentionPlan(bias, bias, norms=True), MlpPlan(config.intermediate_size))
