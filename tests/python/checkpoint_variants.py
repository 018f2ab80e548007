"""Settings of the random checkpoints of test_checkpoints.py: three of each family, and what a GGUF file of one says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Raw = dict[str, Any]


class Variant(NamedTuple):
    """``changes``: of the family's configuration in sweep_families.py."""

    family: str
    changes: Raw


class Form(NamedTuple):
    """A variant as a GGUF file. ``keys``: the architecture's own, of the parsed configuration."""

    family: str
    architecture: str
    changes: Raw
    keys: Callable[[Any], Raw]


_YARN: Raw = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
_LLAMA3: Raw = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def _experts(c: Any) -> Raw:
    return {
        "expert_count": c.num_experts,
        "expert_used_count": c.num_experts_per_tok,
        "expert_feed_forward_length": c.moe_intermediate_size,
    }


def _experts_alone(c: Any) -> Raw:
    """Their width is that of MLPs."""
    return {"expert_count": c.num_experts, "expert_used_count": c.num_experts_per_tok}


def _shared(c: Any) -> Raw:
    return {**_experts(c), "expert_shared_feed_forward_length": c.shared_expert_intermediate_size}


def _none(c: Any) -> Raw:
    return {}


VARIANTS: dict[str, Variant] = {
    "qwen3_moe-normed": Variant("qwen3_moe", {"rope_parameters": _YARN, "num_experts_per_tok": 3}),
    "qwen3_moe-of-all": Variant("qwen3_moe", {"norm_topk_prob": False, "attention_bias": True, "mlp_only_layers": []}),
    "qwen3_moe-every-second": Variant(
        "qwen3_moe",
        {"decoder_sparse_step": 2, "mlp_only_layers": [], "tie_word_embeddings": True, "num_key_value_heads": 1},
    ),
    "qwen2_moe-plain": Variant("qwen2_moe", {"mlp_only_layers": [], "num_key_value_heads": 4}),
    "qwen2_moe-normed": Variant("qwen2_moe", {"norm_topk_prob": True, "qkv_bias": False, "rope_parameters": _LLAMA3}),
    "qwen2_moe-every-second": Variant(
        "qwen2_moe", {"decoder_sparse_step": 2, "shared_expert_intermediate_size": 24, "tie_word_embeddings": True}
    ),
    "mistral-window": Variant("mistral", {"sliding_window": 9, "num_key_value_heads": 1}),
    "mistral-full": Variant("mistral", {"sliding_window": None, "head_dim": 16, "rope_parameters": _LLAMA3}),
    "mistral-tied": Variant("mistral", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3, "rope_parameters": _YARN}),
    "ministral-mixed": Variant("ministral", {"sliding_window": 7}),
    "ministral-all": Variant("ministral", {"layer_types": None, "head_dim": 16}),
    "ministral-tied": Variant("ministral", {"sliding_window": 30, "tie_word_embeddings": True}),
    "mixtral-plain": Variant("mixtral", {"num_experts_per_tok": 1}),
    "mixtral-window": Variant("mixtral", {"sliding_window": 8, "head_dim": 16, "num_local_experts": 5}),
    "mixtral-tied": Variant("mixtral", {"tie_word_embeddings": True, "rope_parameters": _YARN}),
    "ministral3-growth": Variant("ministral3", {"rope_parameters": {**_YARN, "llama_4_scaling_beta": 0.5}}),
    "ministral3-window": Variant("ministral3", {"sliding_window": 11, "tie_word_embeddings": True}),
    "ministral3-llama3": Variant("ministral3", {"rope_parameters": {**_LLAMA3, "llama_4_scaling_beta": 0.1}}),
}
GGUF: dict[str, Form] = {
    "qwen3moe": Form("qwen3_moe", "qwen3moe", {"mlp_only_layers": []}, _experts),
    "qwen2moe": Form("qwen2_moe", "qwen2moe", {"mlp_only_layers": []}, _shared),
    "llama/experts": Form("mixtral", "llama", {}, _experts_alone),
}
