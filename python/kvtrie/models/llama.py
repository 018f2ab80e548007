"""Llama (LlamaForCausalLM): pre-norm blocks, grouped-query attention with RoPE, SwiGLU.

Source: Touvron et al. 2023 (arXiv 2302.13971, 2307.09288) and the Hugging Face configuration of Llama 1 to 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .base import Model, WeightTable
from .blocks import Attention, GatedMlp, Norm
from .config import ModelConfig, parse_config
from .step_inputs import Positions, Rope, Rows


class LlamaLayer:
    """One block; activations [rows, hidden]."""

    def __init__(self, config: ModelConfig, weights: WeightTable, rope: Rope, index: int) -> None:
        prefix = f"model.layers.{index}"
        with_bias = config.attention_bias
        self.input_norm = Norm(weights.vector(f"{prefix}.input_layernorm.weight"), config.rms_norm_eps)
        self.attention = Attention(
            config, weights, rope, index, f"{prefix}.self_attn", bias=with_bias, out_bias=with_bias
        )
        self.post_norm = Norm(weights.vector(f"{prefix}.post_attention_layernorm.weight"), config.rms_norm_eps)
        self.mlp = GatedMlp(weights, f"{prefix}.mlp", bias=config.mlp_bias)

    def __call__(self, step: Any, x: Any, positions: Positions, take: Rows | None) -> Any:  # noqa: ARG002 (a Layer's)
        x = self.attention(step, self.input_norm(x), take, x)
        return self.mlp(self.post_norm(x), x)


class Llama(Model):
    family = "llama"

    @classmethod
    def parse_config(
        cls, raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None, where: str = "config"
    ) -> ModelConfig:
        return parse_config(raw, model_type=cls.family, generation=generation, where=where)

    @classmethod
    def layer_shapes(cls, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        hidden, inner = config.hidden_size, config.intermediate_size
        q = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (q, hidden),
            "self_attn.k_proj.weight": (kv_width, hidden),
            "self_attn.v_proj.weight": (kv_width, hidden),
            "self_attn.o_proj.weight": (hidden, q),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }
        with_bias = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
        for name in with_bias if config.attention_bias else []:
            shapes[f"{name}.bias"] = shapes[f"{name}.weight"][:1]
        for name in ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"] if config.mlp_bias else []:
            shapes[f"{name}.bias"] = shapes[f"{name}.weight"][:1]
        return shapes

    @classmethod
    def build_layer(cls, config: ModelConfig, weights: WeightTable, rope: Rope | None, index: int) -> LlamaLayer:
        assert rope is not None
        return LlamaLayer(config, weights, rope, index)
