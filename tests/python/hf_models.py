"""Tiny models of transformers with random weights, of each kind of layer and many families, and what they generate."""

from __future__ import annotations

import functools
from typing import Any

import torch
import transformers

import bounds

# OpenMP's threads spin while they wait for each other, which is most of what they do in models of this size. With one,
# sums have the same order on every machine.
torch.set_num_threads(1)

VOCAB, PAD, WINDOW = 96, 95, 16
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": PAD,
    "bos_token_id": 0,
    "eos_token_id": None,
}
_HEADS = {"head_dim": 8}
_MIXED = {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_MIXED_WINDOW = {**_MIXED, "sliding_window": WINDOW}
DELTA = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

DENSE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _HEADS),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", _HEADS),
    "phi3": ("Phi3Config", {}),
    "gpt_neox": ("GPTNeoXConfig", {}),
    "olmo2": ("Olmo2Config", {}),
    "cohere": ("CohereConfig", {}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": ("Qwen3MoeConfig", {**_HEADS, **EXPERTS}),
}
REACH: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("MistralConfig", {"sliding_window": WINDOW}),
    "gemma2": ("Gemma2Config", {**_HEADS, **_MIXED_WINDOW, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0}),
    "gemma3": ("Gemma3TextConfig", {**_HEADS, **_MIXED_WINDOW, "query_pre_attn_scalar": 8}),
    "gpt_oss": ("GptOssConfig", {**_HEADS, **_MIXED_WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "llama4": (
        "Llama4TextConfig",
        {
            **_HEADS,
            "num_hidden_layers": 3,
            "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
            "attention_chunk_size": WINDOW,
            "num_local_experts": 2,
            "intermediate_size_mlp": 48,
        },
    ),
}
STATES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3NextConfig", {**_HEADS, **DELTA, **EXPERTS, "shared_expert_intermediate_size": 16}),
    "qwen3_5": ("Qwen3_5TextConfig", {**_HEADS, **DELTA}),
    "lfm2": ("Lfm2Config", {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}),
    "falcon_h1": (
        "FalconH1Config",
        {**_HEADS, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_state": 8, "mamba_d_head": 8},
    ),
    "mamba": ("MambaConfig", {"state_size": 8}),
    "mamba2": ("Mamba2Config", {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1}),
}
# A latent and a rotated key in the places of keys and values, which these models make of them behind the cache.
_RANKS = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
}
LATENT: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v2": ("DeepseekV2Config", _RANKS),
    "deepseek_v3": ("DeepseekV3Config", _RANKS),
}
_INDEX = {
    **_RANKS,
    "num_hidden_layers": 3,
    "index_topk": 12,
    "index_n_heads": 16,
    "index_head_dim": 8,
}  # no scores of 0
# The same, and index keys, which choose what a row attends to; in one layer of GLM-5 an earlier one chose.
INDEXED: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v32": ("DeepseekV32Config", _INDEX),
    "glm_moe_dsa": ("GlmMoeDsaConfig", {**_INDEX, "indexer_types": ["full", "shared", "full"]}),
}
ALL = {**DENSE, **REACH, **STATES, **LATENT, **INDEXED}
IN_CELLS = [*DENSE, *REACH]  # form "cells" is for these


@functools.cache
def tiny(name: str) -> Any:
    """The model, in eval mode, always with the same weights. Norms and biases are random, too."""
    kind, own = ALL[name]
    config = getattr(transformers, kind)(**{**COMMON, **own})
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.25 if parameter.ndim > 1 else 0.5)
    return model


def prompt(length: int, seed: int = 1, rows: int = 1) -> torch.Tensor:
    return torch.randint(1, PAD, (rows, length), generator=torch.Generator().manual_seed(seed))


def answer(model: Any, ids: torch.Tensor, cache: Any = None, tokens: int = 8, **options: Any) -> Any:
    """What ``generate`` gives, with the logits of each step. The pad token counts as any other without a mask."""
    options.setdefault("attention_mask", torch.ones_like(ids))
    chosen = {"do_sample": False, "max_new_tokens": tokens, "min_new_tokens": tokens, "pad_token_id": PAD, **options}
    return model.generate(ids, cache=cache, output_logits=True, return_dict_in_generate=True, **chosen)


def close(got: Any, wanted: Any) -> None:
    """The same tokens, and nearly the same logits at every step."""
    assert torch.equal(got.sequences, wanted.sequences)
    bounds.close(torch.stack(got.logits), torch.stack(wanted.logits), bounds.LOGITS_OF_TORCH)


def same_bits(got: Any, wanted: Any) -> bool:
    return torch.equal(torch.stack(got.logits), torch.stack(wanted.logits))
