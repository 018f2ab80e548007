"""Qwen3 dense (Qwen3ForCausalLM): Llama's block with an RMS norm over each head of q and k before RoPE.

Source: Yang et al. 2025 (arXiv 2505.09388) and the Hugging Face configuration; its default head_dim is 128, not
hidden / heads.
"""

from __future__ import annotations

import dataclasses

from .. import gguf_settings
from ..attention import AttentionPlan
from ..base import Model
from ..config import ModelConfig, Raw, parse_config
from ..decoder import LayerPlan, MlpPlan
from ..gguf_form import GgufForm

_HEAD_DIM = 128


class Qwen3(Model):
    family = "qwen3"
    architectures = ("Qwen3ForCausalLM",)
    gguf = {"qwen3": GgufForm(lambda d: d.dense(), settings=gguf_settings.DENSE)}  # noqa: RUF012 (a ClassVar of Model's)

    @classmethod
    def parse_config(cls, raw: Raw, generation: Raw | None = None, where: str = "config") -> ModelConfig:
        raw = {**raw, "head_dim": raw.get("head_dim") or _HEAD_DIM}
        config = parse_config(raw, model_type=cls.family, generation=generation, where=where)
        return dataclasses.replace(config, mlp_bias=False)

    @classmethod
    def layer_plan(cls, config: ModelConfig, index: int) -> LayerPlan:  # noqa: ARG003 (all are alike)
        bias = config.attention_bias
        return LayerPlan(AttentionPlan(bias, bias, norms=True), MlpPlan(config.intermediate_size))
