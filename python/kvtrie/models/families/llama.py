"""Llama (LlamaForCausalLM): pre-norm blocks, grouped-query attention with RoPE, SwiGLU.

Source: Touvron et al. 2023 (arXiv 2302.13971, 2307.09288) and the Hugging Face configuration of Llama 1 to 3.
"""

from __future__ import annotations

from .. import gguf_settings
from ..attention import AttentionPlan
from ..base import Model
from ..common_settings import COMMON, WINDOWLESS
from ..config import ModelConfig, parse_config
from ..decoder import LayerPlan, MlpPlan
from ..gguf_form import GgufForm
from ..reader import Raw
from ..settings import read


class Llama(Model):
    family = "llama"
    architectures = ("LlamaForCausalLM",)
    gguf = {"llama": GgufForm(lambda d: d.dense(), settings=gguf_settings.DENSE, pairs=True, divided=True)}  # noqa: RUF012 (a ClassVar of Model's)
    settings = {**COMMON, **WINDOWLESS, "mlp_bias": read("whether the MLPs have biases")}  # noqa: RUF012 (the same)

    @classmethod
    def parse_config(cls, raw: Raw, generation: Raw | None = None, where: str = "config") -> ModelConfig:
        return parse_config(raw, model_type=cls.family, generation=generation, where=where)

    @classmethod
    def layer_plan(cls, config: ModelConfig, index: int) -> LayerPlan:  # noqa: ARG003 (all are alike)
        bias = config.attention_bias
        return LayerPlan(AttentionPlan(bias, bias), MlpPlan(config.intermediate_size, bias=config.mlp_bias))
