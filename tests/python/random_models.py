"""Small models with random weights: the dense Llama, Gemma 3 and the Qwen3-Next hybrid, one of each kind of state, and
the hybrid with experts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import kvtrie as kv

VOCAB = 97
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 4,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
_RAW: dict[str, dict[str, Any]] = {
    "dense": {"model_type": "llama", "hidden_act": "silu", "num_hidden_layers": 2},
    "window": {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": [*["sliding_attention"] * 3, "full_attention"],
        "sliding_window": 512,
        "query_pre_attn_scalar": 16,
    },
    "hybrid": {
        "model_type": "qwen3_next",
        "hidden_act": "silu",
        "layer_types": [*["linear_attention"] * 3, "full_attention"],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "mlp_only_layers": [0, 1, 2, 3],
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
        "partial_rotary_factor": 0.5,
    },
}
_RAW["experts"] = {**_RAW["hybrid"], "mlp_only_layers": [1], "num_experts": 9, "num_experts_per_tok": 3}
_INDEX = {
    "hidden_act": "silu",
    "num_key_value_heads": 4,
    "head_dim": 4,
    "num_hidden_layers": 3,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "index_topk": 48,
    "index_head_dim": 8,
    "index_n_heads": 4,
}
_RAW["indexed"] = {**_INDEX, "model_type": "deepseek_v32"}
_RAW["shared index"] = {**_INDEX, "model_type": "glm_moe_dsa", "indexer_types": ["full", "shared", "full"]}
_RAW["blocks"] = {
    **{key: value for key, value in _RAW["experts"].items() if key != "mlp_only_layers"},
    "model_type": "qwen4_exp_text",
    "layer_types": ["linear_attention", "full_attention", "indexed_attention"],
    "num_hidden_layers": 3,
    "eos_token_id": 7,
    "hc_count": 2,
    "hc_lowrank": 12,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 12,
    "indexer_budget": 40,
    "indexer_compress_ratio": 4,
}
_RAW["ngrams"] = {
    **_RAW["blocks"],
    "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
    "ple_layer_ids": [1, 3],
    "ple_embed_dim": 24,
    "ple_conv_kernel_size": 3,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 50,
    "make_ngram_vocab_size_divisible_by": 16,
}
_RAW["chunks"] = {
    "model_type": "llama4_text",
    "hidden_act": "silu",
    "layer_types": ["chunked_attention", "full_attention", "chunked_attention", "full_attention"],
    "no_rope_layers": [1, 0, 1, 0],
    "attention_chunk_size": 32,
    "floor_scale": 12,
    "intermediate_size_mlp": 40,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "interleave_moe_layer_step": 2,
}
_RAW["growing"] = {
    "model_type": "ministral3",
    "hidden_act": "silu",
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "llama_4_scaling_beta": 0.1,
    },
}
_FAMILIES = {
    "dense": "Llama",
    "window": "Gemma3",
    "hybrid": "Qwen3Next",
    "experts": "Qwen3Next",
    "indexed": "DeepseekV32",
    "shared index": "GlmMoeDsa",
    "blocks": "Qwen4Exp",
    "ngrams": "Qwen4Exp",
    "chunks": "Llama4",
    "growing": "Ministral3",
}


def random_model(kind: str, seed: int = 9, **changes: Any) -> Any:
    """A model of `kind` (a key of ``_FAMILIES``); ``changes`` go into its configuration."""
    return kv.models.from_weights(*random_weights(kind, seed, **changes), dtype="float32")


def random_weights(kind: str, seed: int = 9, **changes: Any) -> tuple[Any, dict[str, Any]]:
    """Its configuration and its weights by checkpoint name, float32."""
    raw = {**_COMMON, **_RAW[kind], **changes}
    family = getattr(kv.models, _FAMILIES[kind])
    config = family.parse_config(raw)
    random = np.random.default_rng(seed)
    plain = kind == "dense"
    return config, {name: _weight(random, name, shape, plain) for name, shape in family.tensor_shapes(config).items()}


def _weight(random: np.random.Generator, name: str, shape: tuple[int, ...], plain_norms: bool) -> Any:
    if name.endswith("A_log"):
        values = np.log(random.uniform(0.05, 3.0, shape))
    elif name.endswith("norm.weight"):
        values = (1.0 if plain_norms or "linear_attn.norm" in name else 0.0) + 0.2 * random.standard_normal(shape)
    elif len(shape) == 1:
        values = 0.3 * random.standard_normal(shape)
    elif "embed_tokens" in name:
        values = random.standard_normal(shape)
    else:
        values = random.standard_normal(shape) / math.sqrt(shape[-1])
    return values.astype(np.float32)
