"""Qwen4-Exp in the sweep of settings and as random checkpoints: texts of 40 tokens have more blocks than are chosen."""

from __future__ import annotations

from typing import Any

Raw = dict[str, Any]

_KINDS = ["linear_attention", "full_attention", "linear_attention"]

QWEN4: Raw = {
    "hidden_act": "silu",
    "layer_types": _KINDS,
    "num_hidden_layers": 3,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "norm_topk_prob": True,
    "eos_token_id": 7,
    "hc_count": 3,
    "hc_lowrank": 12,
    "ple_layer_ids": [1, 3],
    "ple_embed_dim": 24,
    "ple_conv_kernel_size": 3,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 50,
    "make_ngram_vocab_size_divisible_by": 16,
    "split_ngram_parts": 4,
    "indexer_n_heads": 16,  # of fewer some scores are 0 for all, and which of a tie are chosen is not said
    "indexer_kv_heads": 1,
    "indexer_head_dim": 12,
    "indexer_budget": 12,
    "indexer_compress_ratio": 4,
}

QWEN4_VALUES: dict[str, list[Any]] = {
    "hc_count": [1, 2, 5],
    "hc_lowrank": [1, 40],
    "ple_layer_ids": [None, [], [1], [3, 3, 1], [2], [0], [9]],
    "ple_embed_dim": [8, 30, None],
    "ple_conv_kernel_size": [1, 2, 5],
    "ngram_size": [1, 2, 4],
    "heads_per_ngram": [1, 3, 5],
    "ngram_vocab_size_base": [1, 1000],
    "make_ngram_vocab_size_divisible_by": [4, 128],
    "split_ngram_parts": [1, 2, 8],
    "seed": [0, 77],
    "indexer_n_heads": [12, 20, 0],
    "indexer_kv_heads": [2],
    "indexer_head_dim": [4, 2, 16],
    "indexer_budget": [4, 6, 400],
    "indexer_compress_ratio": [1, 2, 6, 12],
    "output_gate_type": [None, "silu", "sigmoid", "tanh"],
}

_YARN: Raw = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "partial_rotary_factor": 0.5,
}

# By name: the family, and what is changed.
QWEN4_VARIANTS: dict[str, tuple[str, Raw]] = {
    "qwen4_exp_text-yarn": (
        "qwen4_exp_text",
        {"rope_parameters": _YARN, "indexer_budget": 10, "indexer_compress_ratio": 2, "output_gate_type": "sigmoid"},
    ),
    "qwen4_exp_text-ngrams": (
        "qwen4_exp_text",
        {"ngram_size": 4, "heads_per_ngram": 1, "ple_layer_ids": [3], "hc_count": 2, "attention_bias": True},
    ),
    "qwen4_exp_text-layers": (
        "qwen4_exp_text",
        {
            "ple_layer_ids": None,
            "num_hidden_layers": 4,
            "layer_types": ["indexed_attention", "linear_attention"] * 2,
            "indexer_compress_ratio": 6,
            "norm_topk_prob": False,
            "tie_word_embeddings": True,
        },
    ),
}
