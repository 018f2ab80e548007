"""Qwen2 and Qwen2.5 (Qwen2ForCausalLM): Llama's block with biases on q, k and v and none on o.

Source: Yang et al. 2024 (arXiv 2407.10671) and the Hugging Face configuration. Checkpoints that switch sliding windows
on are refused when the configuration is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import kvtrie as kv

from .base import Model, Rope, Rows, WeightTable
from .config import ModelConfig, parse_config


class Qwen2Layer:
    """One block; activations [rows, hidden], q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim]."""

    def __init__(self, config: ModelConfig, weights: WeightTable, rope: Rope, index: int) -> None:
        prefix = f"model.layers.{index}"
        self.config = config
        self.index = index
        self.rope = rope
        self.input_norm = weights.vector(f"{prefix}.input_layernorm.weight")
        self.q = weights.linear(f"{prefix}.self_attn.q_proj", bias=True)
        self.k = weights.linear(f"{prefix}.self_attn.k_proj", bias=True)
        self.v = weights.linear(f"{prefix}.self_attn.v_proj", bias=True)
        self.o = weights.linear(f"{prefix}.self_attn.o_proj")
        self.post_norm = weights.vector(f"{prefix}.post_attention_layernorm.weight")
        self.gate = weights.linear(f"{prefix}.mlp.gate_proj")
        self.up = weights.linear(f"{prefix}.mlp.up_proj")
        self.down = weights.linear(f"{prefix}.mlp.down_proj")

    def __call__(self, step: Any, x: Any, positions: Any, take: Rows | None) -> Any:
        c = self.config
        rows = x.shape[0]
        h = kv.ops.rms_norm(x, self.input_norm, c.rms_norm_eps)
        q = self.rope(self.q(h).reshape(rows, c.num_attention_heads, c.head_dim), positions)
        k = self.rope(self.k(h).reshape(rows, c.num_key_value_heads, c.head_dim), positions)
        v = self.v(h).reshape(rows, c.num_key_value_heads, c.head_dim)
        a = step.attend(self.index, q, k, v).reshape(rows, c.num_attention_heads * c.head_dim)
        if take is not None:
            x, a = take.take(x), take.take(a)
        x = kv.ops.add(x, self.o(a))
        h = kv.ops.rms_norm(x, self.post_norm, c.rms_norm_eps)
        return kv.ops.add(x, self.down(kv.ops.silu_mul(self.gate(h), self.up(h))))


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
