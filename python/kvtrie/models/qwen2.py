"""Qwen2 and Qwen2.5 (Qwen2ForCausalLM): Llama's block with biases on q, k and v and none on o.

Source: Yang et al. 2024 (arXiv 2407.10671) and the Hugging Face configuration. Checkpoints that switch sliding windows
on are refused when the configuration is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .base import Model, WeightTable
from .blocks import Attention, GatedMlp, Norm
from .config import ModelConfig, parse_config
from .step_inputs import Positions, Rope, Rows


class Qwen2Layer:
    """One block; activations [rows, hidden]."""

    def __init__(self, config: ModelConfig, weights: WeightTable, rope: Rope, index: int) -> None:
        prefix = f"model.layers.{index}"
        self.input_norm = Norm(weights.vector(f"{prefix}.input_layernorm.weight"), config.rms_norm_eps)
        self.attention = Attention(config, weights, rope, index, f"{prefix}.self_attn", bias=True)
        self.post_norm = Norm(weights.vector(f"{prefix}.post_attention_layernorm.weight"), config.rms_norm_eps)
        self.mlp = GatedMlp(weights, f"{prefix}.mlp")

    def __call__(self, step: Any, x: Any, positions: Positions, take: Rows | None) -> Any:  # noqa: ARG002 (a Layer's)
        x = self.attention(step, self.input_norm(x), take, x)
        return self.mlp(self.post_norm(x), x)


class Qwen2(Model):
    family = "qwen2"

    @classmethod
    def parse_config(
        cls, raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None, where: str = "config"
    ) -> ModelConfig:
        config = parse_config(raw, model_type=cls.family, generation=generation, where=where)
        return dataclasses.replace(config, attention_bias=True, mlp_bias=False)

    @classmethod
    def layer_shapes(cls, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        hidden, inner = config.hidden_size, config.intermediate_size
        q = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        return {
            "input_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (q, hidden),
            "self_attn.q_proj.bias": (q,),
            "self_attn.k_proj.weight": (kv_width, hidden),
            "self_attn.k_proj.bias": (kv_width,),
            "self_attn.v_proj.weight": (kv_width, hidden),
            "self_attn.v_proj.bias": (kv_width,),
            "self_attn.o_proj.weight": (hidden, q),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }

    @classmethod
    def build_layer(cls, config: ModelConfig, weights: WeightTable, rope: Rope | None, index: int) -> Qwen2Layer:
        assert rope is not None
        return Qwen2Layer(config, weights, rope, index)
