"""Qwen2 and Qwen2.5 (Qwen2ForCausalLM): Llama's block with biases on q, k and v and none on o.

Source: Yang et al. 2024 (arXiv 2407.10671) and the Hugging Face configuration. Checkpoints that switch sliding windows
on are refused when the configuration is read.
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

_DEFAULTS = {"max_position_embeddings": 32_768, "num_key_value_heads": 32}
_FIXED = {"attention_bias": True, "mlp_bias": False}


class Qwen2(Model):
    family = "qwen2"
    architectures = ("Qwen2ForCausalLM",)
    gguf = {"qwen2": GgufForm(lambda d: d.dense(), settings=gguf_settings.DENSE)}  # noqa: RUF012 (a ClassVar of Model's)
    settings = {**COMMON, **SWITCHED_WINDOWS, **not_read(*_FIXED)}  # noqa: RUF012 (a ClassVar of Model's)

    @classmethod
    def parse_config(cls, raw: Raw, generation: Raw | None = None, where: str = "config") -> ModelConfig:
        return parse_config(
            raw, model_type=cls.family, generation=generation, where=where, defaults=_DEFAULTS, fixed=_FIXED
        )

    @classmethod
    def layer_plan(cls, config: ModelConfig, index: int) -> LayerPlan:  # noqa: ARG003 (all are alike)
        return LayerPlan(AttentionPlan(bias=True), MlpPlan(config.intermediate_size))
