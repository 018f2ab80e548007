"""Settings of the random checkpoints of test_checkpoints.py: three of each family, and what a GGUF file of one says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gguf_forms import experts_alone, experts_of, more_forms, scales, shared_of
from sweep_latent import LATENT_VARIANTS, latent_forms
from sweep_qwen4 import QWEN4_VARIANTS

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


_LONG: Raw = {  # of two pairs, as half of a head of 8 has
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.1, 1.7],
    "long_factor": [2.0, 6.0],
}


_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]


def _yarn(c: Any) -> Raw:
    scaling = c.rope_scaling
    return {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": scaling["factor"],
        "rope__scaling__original_context_length": scaling["original_max_position_embeddings"],
        "rope__scaling__yarn_beta_fast": scaling["beta_fast"],
    }


def _none(c: Any) -> Raw:
    return {}


_LINEAR_KINDS = ["linear_attention"] * 2


def _short_convolutions(c: Any) -> Raw:
    heads = [c.num_key_value_heads if kind == "full_attention" else 0 for kind in c.layer_types]
    return {"attention__head_count_kv": heads, "shortconv__l_cache": c.conv_width}


_SWITCHED: dict[str, Raw] = {  # windows, as each family switches them on
    "qwen2": {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    "qwen3": {"use_sliding_window": True, "sliding_window": 9, "layer_types": _MIXED},
    "qwen2_moe": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3},
    "qwen3_moe": {"use_sliding_window": True, "sliding_window": 11},
    "smollm3": {"use_sliding_window": True, "sliding_window": 8},
    "dots1": {"sliding_window": 7, "max_window_layers": 2},
}
VARIANTS: dict[str, Variant] = {
    **{name: Variant(*each) for name, each in LATENT_VARIANTS.items()},
    **{name: Variant(*each) for name, each in QWEN4_VARIANTS.items()},
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
    **{f"{name}-windows": Variant(name, changes) for name, changes in _SWITCHED.items()},
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
    "smollm3-bias": Variant("smollm3", {"attention_bias": True, "mlp_bias": True, "no_rope_layers": [0, 1, 0]}),
    "smollm3-every-second": Variant("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 2}),
    "smollm3-tied": Variant("smollm3", {"tie_word_embeddings": True, "head_dim": 16, "rope_parameters": _YARN}),
    "granite-plain": Variant("granite", {"num_key_value_heads": 1, "residual_multiplier": 0.22}),
    "granite-bias": Variant("granite", {"attention_bias": True, "mlp_bias": True, "logits_scaling": 1.0}),
    "granite-tied": Variant("granite", {"tie_word_embeddings": True, "attention_multiplier": 0.0078125}),
    "granitemoe-plain": Variant("granitemoe", {"num_experts_per_tok": 3, "residual_multiplier": 1.0}),
    "granitemoe-bias": Variant("granitemoe", {"attention_bias": True, "embedding_multiplier": 12.0}),
    "granitemoe-tied": Variant("granitemoe", {"tie_word_embeddings": True, "num_local_experts": 5}),
    "phi3-long": Variant("phi3", {"rope_parameters": _LONG, "original_max_position_embeddings": 48}),
    "phi3-su": Variant(
        "phi3",
        {
            "rope_parameters": None,
            "rope_scaling": {**_LONG, "rope_type": "su", "original_max_position_embeddings": 48},
            "sliding_window": 9,
        },
    ),
    "phi3-tied": Variant("phi3", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "olmo2-plain": Variant("olmo2", {"num_key_value_heads": 4, "rms_norm_eps": 1e-3}),
    "olmo2-bias": Variant("olmo2", {"attention_bias": True, "rope_parameters": _LLAMA3}),
    "olmo2-tied": Variant("olmo2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "olmo3-window": Variant("olmo3", {"sliding_window": 5, "attention_bias": True}),
    "olmo3-long": Variant(
        "olmo3",
        {
            "layer_types": None,
            "num_hidden_layers": 4,
            "rope_parameters": None,
            "rope_scaling": {key: value for key, value in _YARN.items() if key != "rope_theta"},
        },
    ),
    "olmo3-tied": Variant("olmo3", {"tie_word_embeddings": True, "layer_types": ["full_attention"] * 3}),
    "exaone4-window": Variant("exaone4", {"sliding_window": 6, "num_key_value_heads": 1}),
    "exaone4-full": Variant(
        "exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3, "rope_parameters": _LLAMA3}
    ),
    "exaone4-tied": Variant("exaone4", {"tie_word_embeddings": True, "layer_types": None, "head_dim": 16}),
    "glm-plain": Variant("glm", {"attention_bias": True, "head_dim": 16}),
    "glm-whole": Variant("glm", {"partial_rotary_factor": 1.0}),
    "glm-tied": Variant("glm", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "glm4-plain": Variant("glm4", {"attention_bias": True, "head_dim": 16}),
    "glm4-whole": Variant("glm4", {"partial_rotary_factor": 1.0}),
    "glm4-tied": Variant("glm4", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "seed_oss-bias": Variant("seed_oss", {"attention_bias": True, "head_dim": 16}),
    "seed_oss-all-bias": Variant("seed_oss", {"attention_out_bias": True, "mlp_bias": True}),
    "seed_oss-tied": Variant("seed_oss", {"tie_word_embeddings": True, "rope_parameters": _YARN}),
    "hunyuan_v1_dense-alpha": Variant(
        "hunyuan_v1_dense",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "alpha": 50.0, "factor": 1.0}},
    ),
    "hunyuan_v1_dense-bias": Variant("hunyuan_v1_dense", {"attention_bias": True, "head_dim": 16}),
    "hunyuan_v1_dense-tied": Variant("hunyuan_v1_dense", {"tie_word_embeddings": True, "rope_parameters": _LLAMA3}),
    "hunyuan_v1_moe-alpha": Variant(
        "hunyuan_v1_moe",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "alpha": 50.0, "factor": 1.0}},
    ),
    "hunyuan_v1_moe-list": Variant("hunyuan_v1_moe", {"moe_topk": [3, 3, 3], "attention_bias": True, "head_dim": 16}),
    "hunyuan_v1_moe-tied": Variant("hunyuan_v1_moe", {"tie_word_embeddings": True, "num_experts": 5}),
    "ernie4_5-bias": Variant("ernie4_5", {"use_bias": True}),
    "ernie4_5-plain": Variant("ernie4_5", {"head_dim": 16, "num_key_value_heads": 1}),
    "ernie4_5-tied": Variant("ernie4_5", {"tie_word_embeddings": True, "rope_parameters": _YARN}),
    "dots1-groups": Variant("dots1", {"topk_group": 3, "num_experts_per_tok": 4}),
    "dots1-of-all": Variant("dots1", {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, "attention_bias": True}),
    "dots1-tied": Variant("dots1", {"tie_word_embeddings": True, "first_k_dense_replace": 0}),
    "glm4_moe-groups": Variant("glm4_moe", {"n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.5}),
    "glm4_moe-of-all": Variant("glm4_moe", {"n_group": 1, "topk_group": 1, "use_qk_norm": False, "head_dim": 16}),
    "glm4_moe-tied": Variant("glm4_moe", {"tie_word_embeddings": True, "norm_topk_prob": False}),
    "minimax_m2-plain": Variant("minimax_m2", {"num_experts_per_tok": 4}),
    "minimax_m2-whole": Variant("minimax_m2", {"partial_rotary_factor": 1.0, "num_key_value_heads": 1}),
    "minimax_m2-tied": Variant("minimax_m2", {"tie_word_embeddings": True, "head_dim": 16}),
    "gemma4_text-readers": Variant(
        "gemma4_text",
        {
            "num_hidden_layers": 6,
            "layer_types": [*_MIXED, "sliding_attention", "sliding_attention", "full_attention"],
            "num_kv_shared_layers": 3,
            "sliding_window": 7,
            "final_logit_softcapping": 5.0,
            "num_key_value_heads": 1,
        },
    ),
    "gemma4_text-keys-as-values": Variant(
        "gemma4_text",
        {
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 0,
            "tie_word_embeddings": True,
            "attention_bias": True,
        },
    ),
    "gemma4_text-experts": Variant(
        "gemma4_text",
        {
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 16,
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 0,
            "layer_types": None,
            "num_hidden_layers": 3,
        },
    ),
    "gemma3n_text-streams": Variant(
        "gemma3n_text",
        {"altup_num_inputs": 4, "altup_active_idx": 1, "intermediate_size": [16, 32, 48, 64], "sliding_window": 6},
    ),
    "gemma3n_text-unscaled": Variant(
        "gemma3n_text",
        {
            "altup_correct_scale": False,
            "num_kv_shared_layers": 0,
            "vocab_size_per_layer_input": 40,
            "final_logit_softcapping": 5.0,
            "attention_bias": True,
        },
    ),
    "gemma3n_text-tied": Variant(
        "gemma3n_text",
        {
            "tie_word_embeddings": True,
            "num_key_value_heads": 1,
            "activation_sparsity_pattern": None,
            "num_kv_shared_layers": 1,
            "altup_num_inputs": 2,
        },
    ),
    "gpt_oss-yarn": Variant(
        "gpt_oss",
        {
            "rope_parameters": {**_YARN, "beta_fast": 8.0, "truncate": False},
            "swiglu_limit": 0.3,
            "num_key_value_heads": 1,
            "num_experts_per_tok": 3,
        },
    ),
    "gpt_oss-unbiased": Variant("gpt_oss", {"attention_bias": False, "swiglu_alpha": 0.7, "sliding_window": 5}),
    "gpt_oss-tied": Variant(
        "gpt_oss", {"tie_word_embeddings": True, "layer_types": None, "head_dim": 16, "num_local_experts": 6}
    ),
    "ernie4_5_moe-plain": Variant("ernie4_5_moe", {"moe_k": 3}),
    "ernie4_5_moe-unshared": Variant("ernie4_5_moe", {"moe_num_shared_experts": 0, "moe_layer_start_index": 0}),
    "ernie4_5_moe-tied": Variant("ernie4_5_moe", {"tie_word_embeddings": True, "moe_layer_interval": 2}),
    "olmo_hybrid-still": Variant("olmo_hybrid", {"rope_parameters": {"rope_type": "default", "rope_theta": None}}),
    "olmo_hybrid-plain": Variant(
        "olmo_hybrid",
        {"linear_allow_neg_eigval": False, "linear_num_value_heads": 2, "attention_bias": True, "layer_types": None},
    ),
    "olmo_hybrid-tied": Variant("olmo_hybrid", {"tie_word_embeddings": True, "rope_parameters": _YARN}),
    "lfm2-plain": Variant("lfm2", {"conv_L_cache": 4, "num_key_value_heads": 1, "norm_eps": 1e-3}),
    "lfm2-bias": Variant(
        "lfm2",
        {
            "conv_bias": True,
            "layer_types": None,
            "full_attn_idxs": [0, 2],
            "block_ff_dim": 60,
            "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.5,
            "block_multiple_of": 16,
        },
    ),
    "lfm2-tied": Variant("lfm2", {"tie_embedding": True, "conv_L_cache": 2, "rope_parameters": _YARN}),
    "lfm2_moe-plain": Variant("lfm2_moe", {"num_experts_per_tok": 3, "conv_bias": True}),
    "lfm2_moe-of-all": Variant("lfm2_moe", {"norm_topk_prob": False, "use_expert_bias": False, "num_dense_layers": 0}),
    "lfm2_moe-tied": Variant(
        "lfm2_moe", {"tie_word_embeddings": True, "layer_types": ["full_attention", "conv", "conv"], "num_experts": 5}
    ),
    "bamba-plain": Variant("bamba", {"mamba_n_groups": 1, "mamba_d_conv": 3, "num_key_value_heads": 1}),
    "bamba-bias": Variant(
        "bamba",
        {"attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True},
    ),
    "bamba-tied": Variant(
        "bamba",
        {
            "tie_word_embeddings": True,
            "mamba_conv_bias": False,
            "mamba_n_heads": 4,
            "mamba_d_head": "auto",
            "attn_layer_indices": [0, 2],
            "rope_parameters": _YARN,
        },
    ),
    "granitemoehybrid-still": Variant(
        "granitemoehybrid", {"position_embedding_type": None, "mamba_n_groups": 1, "residual_multiplier": 1.0}
    ),
    "granitemoehybrid-dense": Variant(
        "granitemoehybrid",
        {"num_local_experts": 0, "mamba_proj_bias": True, "attention_bias": True},
    ),
    "granitemoehybrid-tied": Variant(
        "granitemoehybrid",
        {"tie_word_embeddings": True, "layer_types": ["full_attention", *_LINEAR_KINDS], "mamba_conv_bias": False},
    ),
    "falcon_h1-plain": Variant("falcon_h1", {"mamba_n_groups": 1, "ssm_in_multiplier": 1.3}),
    "falcon_h1-bias": Variant(
        "falcon_h1",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_proj_bias": True,
            "projectors_bias": True,
            "mamba_norm_before_gate": False,
            "attention_in_multiplier": 1.4,
            "ssm_in_multiplier": 1.3,
        },
    ),
    "falcon_h1-tied": Variant(
        "falcon_h1",
        {"tie_word_embeddings": True, "mamba_rms_norm": False, "mamba_d_ssm": 96, "mamba_d_head": 12},
    ),
    "nemotron_h-pattern": Variant(
        "nemotron_h", {"layers_block_type": None, "hybrid_override_pattern": "M-*M-", "n_groups": 1}
    ),
    "nemotron_h-bias": Variant("nemotron_h", {"mlp_bias": True, "use_bias": True, "norm_topk_prob": False}),
    "nemotron_h-experts": Variant(
        "nemotron_h",
        {"layers_block_type": ["moe", "full_attention", "moe"], "n_group": 1, "topk_group": 1, "head_dim": 16},
    ),
}


def _scored(c: Any) -> Raw:
    return {
        **experts_of(c),
        "expert_shared_count": c.shared_expert_intermediate_size // c.moe_intermediate_size,
        "expert_weights_scale": c.routed_scale,
        "expert_weights_norm": c.norm_topk_prob,
        "expert_gating_func": 2,
        "expert_group_count": c.expert_groups,
        "expert_group_used_count": c.kept_groups,
        "leading_dense_block_count": c.expert_layers[0],
    }


GGUF: dict[str, Form] = {
    "lfm2": Form("lfm2", "lfm2", {}, _short_convolutions),
    "lfm2moe": Form(
        "lfm2_moe",
        "lfm2moe",
        {"routed_scaling_factor": 1.0, "tie_word_embeddings": True},
        lambda c: {
            **_short_convolutions(c),
            **experts_of(c),
            "expert_gating_func": 2,
            "leading_dense_block_count": c.expert_layers[0],
        },
    ),
    **{name: Form(*each) for name, each in {**latent_forms(_scored), **more_forms(_scored)}.items()},
    "dots1": Form("dots1", "dots1", {"attention_bias": True}, _scored),
    "glm4moe": Form("glm4_moe", "glm4moe", {"attention_bias": True, "routed_scaling_factor": 2.5}, _scored),
    "minimax-m2": Form("minimax_m2", "minimax-m2", {}, lambda c: {**experts_of(c), "expert_gating_func": 2}),
    "ernie4_5-moe": Form(
        "ernie4_5_moe", "ernie4_5-moe", {}, lambda c: {**shared_of(c), "leading_dense_block_count": c.expert_layers[0]}
    ),
    "gpt-oss": Form(
        "gpt_oss",
        "gpt-oss",
        {"rope_parameters": {**_YARN, "beta_fast": 8.0}},
        lambda c: {**experts_of(c), "attention__sliding_window": c.sliding_window, **_yarn(c)},
    ),
    "qwen3moe": Form("qwen3_moe", "qwen3moe", {"mlp_only_layers": []}, experts_of),
    "qwen2moe": Form("qwen2_moe", "qwen2moe", {"mlp_only_layers": []}, shared_of),
    "llama/experts": Form("mixtral", "llama", {}, experts_alone),
    "smollm3": Form("smollm3", "smollm3", {"no_rope_layers": None, "num_hidden_layers": 4}, _none),
    "granite": Form("granite", "granite", {"attention_bias": True, "mlp_bias": True}, scales),
    "granitemoe": Form("granitemoe", "granitemoe", {}, lambda c: {**scales(c), **experts_alone(c)}),
    "olmo2": Form("olmo2", "olmo2", {}, _none),
    "exaone4": Form("exaone4", "exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}, _none),
    "exaone4-windows": Form(  # which files have that are as deep as the greatest published one
        "exaone4",
        "exaone4",
        {"sliding_window": 7, "sliding_window_pattern": 4, "layer_types": None, "num_hidden_layers": 64},
        lambda c: {"attention__sliding_window": c.sliding_window},
    ),
    "glm4": Form("glm4", "glm4", {"attention_bias": True}, _none),
    "seed_oss": Form("seed_oss", "seed_oss", {"attention_bias": True}, _none),
    "hunyuan-dense": Form("hunyuan_v1_dense", "hunyuan-dense", {}, _none),
    "ernie4_5": Form("ernie4_5", "ernie4_5", {}, _none),
}
