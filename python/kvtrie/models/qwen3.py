"""Qwen3 dense (Qwen3ForCausalLM): Llama's block with an RMS norm over each head of q and k before RoPE.

Source: Yang et al. 2025 (arXiv 2505.09388) and the Hugging Face configuration; its default head_dim is 128, not
hidden / heads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import kvtrie as kv

from .base import Model, Rope, Rows, WeightTable
from .config import ModelConfig, parse_config

_HEAD_DIM = 128


class Qwen3Layer:
    """One block; activations [rows, hidden], q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim]."""

    def __init__(self, config: ModelConfig, weights: WeightTable, rope: Rope, index: int) -> None:
        prefix = f"model.layers.{index}"
        self.config = config
        self.index = index
        self.rope = rope
        self.input_norm = weights.vector(f"{prefix}.input_layernorm.weight")
        self.q = weights.linear(f"{prefix}.self_attn.q_proj", config.attention_bias)
        self.k = weights.linear(f"{prefix}.self_attn.k_proj", config.attention_bias)
        self.v = weights.linear(f"{prefix}.self_attn.v_proj", config.attention_bias)
        self.o = weights.linear(f"{prefix}.self_attn.o_proj", config.attention_bias)
        self.q_norm = weights.vector(f"{prefix}.self_attn.q_norm.weight")
        self.k_norm = weights.vector(f"{prefix}.self_attn.k_norm.weight")
        self.post_norm = weights.vector(f"{prefix}.post_attention_layernorm.weight")
        self.gate = weights.linear(f"{prefix}.mlp.gate_proj")
        self.up = weights.linear(f"{prefix}.mlp.up_proj")
        self.down = weights.linear(f"{prefix}.mlp.down_proj")

    def __call__(self, step: Any, x: Any, positions: Any, take: Rows | None) -> Any:
        c = self.config
        rows = x.shape[0]
        h = kv.ops.rms_norm(x, self.input_norm, c.rms_norm_eps)
        q = self.q(h).reshape(rows, c.num_attention_heads, c.head_dim)
        k = self.k(h).reshape(rows, c.num_key_value_heads, c.head_dim)
        v = self.v(h).reshape(rows, c.num_key_value_heads, c.head_dim)
        q = self.rope(kv.ops.rms_norm(q, self.q_norm, c.rms_norm_eps), positions)
        k = self.rope(kv.ops.rms_norm(k, self.k_norm, c.rms_norm_eps), positions)
        a = step.attend(self.index, q, k, v).reshape(rows, c.num_attention_heads * c.head_dim)
        if take is not None:
            x, a = take.take(x), take.take(a)
        x = kv.ops.add(x, self.o(a))
        h = kv.ops.rms_norm(x, self.post_norm, c.rms_norm_eps)
        return kv.ops.add(x, self.down(kv.ops.silu_mul(self.gate(h), self.up(h))))


class Qwen3(Model):
    family = "qwen3"

    @classmethod
    def parse_config(
        cls, raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None, where: str = "config"
    ) -> ModelConfig:
        raw = {**raw, "head_dim": raw.get("head_dim") or _HEAD_DIM}
        config = parse_config(raw, model_type=cls.family, generation=generation, where=where)
        return dataclasses.replace(config, mlp_bias=False)

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
            "self_attn.q_norm.weight": (config.head_dim,),
            "self_attn.k_norm.weight": (config.head_dim,),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }
        with_bias = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
        for name in with_bias if config.attention_bias else []:
            shapes[f"{name}.bias"] = shapes[f"{name}.weight"][:1]
        return shapes

    @classmethod
    def build_layer(cls, config: ModelConfig, weights: WeightTable, rope: Rope | None, index: int) -> Qwen3Layer:
        assert rope is not None
        return Qwen3Layer(config, weights, rope, index)
