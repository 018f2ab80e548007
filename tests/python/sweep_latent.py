"""Families with latent attention: values of their keys (config_values.py), small configurations, and variants.

Sizes in elements: a latent of 24 numbers and a rotated key of 4 for 4 heads of 8 numbers, of which values have 12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Raw = dict[str, Any]

LATENT_VALUES: dict[str, list[Any]] = {
    "kv_lora_rank": [8, 33],
    "q_lora_rank": [None, 8, 20],
    "qk_nope_head_dim": [4, 9],
    "qk_rope_head_dim": [2, 8],
    "v_head_dim": [4, 7],
    "qk_head_dim": [12, 5],
    "rope_interleave": [False, True],
    "topk_method": ["greedy", "group_limited_greedy", "noaux_tc"],
    "scoring_func": ["softmax", "sigmoid"],
    "mlp_layer_types": [["sparse"] * 3, ["dense", "sparse", "dense"], ["dense"], ["mlp"] * 3],
    "num_mtp_layers": [0, 2],
    "num_nextn_predict_layers": [0, 2],
    "moe_layer_freq": [1, 2],
    "index_topk": [1, 5, 64],
    "index_head_dim": [4, 9],
    "index_n_heads": [12, 20],  # of few heads scores are 0 and tie
    "indexer_types": [["full", "shared", "full"], ["full"] * 4, ["shared", "full", "full"], ["full"], ["F"] * 3],
    "index_topk_pattern": ["FSF", "FSSF", "SFF", "FF", "FXF", ["full", "shared", "shared"]],
    "index_topk_freq": [2, 3, 0],
    "index_skip_topk_offset": [0, 1, 3],
    "indexer_rope_interleave": [False, True],
    "index_share_for_mtp_iteration": [False, True],
    "moe_router_dtype": ["bfloat16", "float32"],
}
LATENT_OTHERS = ("scoring_func", "topk_method", "moe_layer_freq", "qk_head_dim")

_SIZES: Raw = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "hidden_act": "silu",
    "kv_lora_rank": 24,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 16,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
}
# Texts have 40 tokens, so rows choose. Of 16 heads some give a score other than 0: zeros would tie, and transformers
# does not define who wins a tie.
_INDEXED: Raw = {
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "index_topk": 9,
    "index_head_dim": 8,
    "index_n_heads": 16,
}
_KIMI: Raw = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "q_lora_rank": None,
    "num_experts": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "linear_conv_kernel_dim": 3,
}


def latent_families(vocab: int) -> list[tuple[str, str, str, Raw]]:
    """Of sweep_families.Family: name, configuration's class, architecture, configuration."""
    own: dict[str, Raw] = {
        "V2": {"first_k_dense_replace": 1, "topk_method": "group_limited_greedy"},
        "V3": {"first_k_dense_replace": 1, "norm_topk_prob": True, "rope_interleave": True},
    }
    families = [
        (f"deepseek_{version.lower()}", f"Deepseek{version}Config", f"Deepseek{version}ForCausalLM", changes)
        for version, changes in own.items()
    ]
    layers = {"norm_topk_prob": True, "rope_interleave": True, "mlp_layer_types": ["dense", "sparse", "sparse"]}
    families.append(("glm4_moe_lite", "Glm4MoeLiteConfig", "Glm4MoeLiteForCausalLM", layers))
    found = [(*names, {"vocab_size": vocab, **_SIZES, **changes}) for *names, changes in families]
    found.append(
        ("deepseek_v32", "DeepseekV32Config", "DeepseekV32ForCausalLM", {"vocab_size": vocab, **_SIZES, **_INDEXED})
    )
    # Every second layer chooses: the first and the third.
    shared = {
        **_INDEXED,
        "index_topk_freq": 2,
        "index_skip_topk_offset": 1,
        "index_topk_pattern": None,
        "indexer_rope_interleave": True,
        "index_share_for_mtp_iteration": True,
        "moe_router_dtype": "float32",
    }
    found.append(("glm_moe_dsa", "GlmMoeDsaConfig", "GlmMoeDsaForCausalLM", {"vocab_size": vocab, **_SIZES, **shared}))
    sizes = {key: value for key, value in _SIZES.items() if key not in ("n_routed_experts", "rope_parameters")}
    kimi = {"vocab_size": vocab, **sizes, **_KIMI}
    return [*found, ("kimi_linear", "KimiLinearConfig", "KimiLinearForCausalLM", kimi)]


_YARN: Raw = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 0.707,
    "mscale_all_dim": 0.9,
}

# By name: the family, and what is changed.
LATENT_VARIANTS: dict[str, tuple[str, Raw]] = {
    "deepseek_v2-lite": ("deepseek_v2", {"q_lora_rank": None, "topk_method": "greedy", "rope_parameters": _YARN}),
    "deepseek_v2-limited": ("deepseek_v2", {"routed_scaling_factor": 16.0, "first_k_dense_replace": 0}),
    "deepseek_v2-bias": ("deepseek_v2", {"attention_bias": True, "tie_word_embeddings": True, "v_head_dim": 7}),
    "deepseek_v3-yarn": ("deepseek_v3", {"rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}),
    "deepseek_v3-halves": ("deepseek_v3", {"rope_interleave": False, "q_lora_rank": None, "norm_topk_prob": False}),
    "deepseek_v3-bias": ("deepseek_v3", {"attention_bias": True, "n_group": 1, "topk_group": 1, "kv_lora_rank": 33}),
    "kimi_linear-published": (
        "kimi_linear",
        {
            "layer_types": None,
            "mlp_layer_types": None,
            "linear_attn_config": {
                "full_attn_layers": [2],
                "kda_layers": [1, 3],
                "head_dim": 16,
                "num_heads": 2,
                "short_conv_kernel_size": 4,
            },
            "first_k_dense_replace": 1,
        },
    ),
    "kimi_linear-ranked": ("kimi_linear", {"q_lora_rank": 16, "attention_bias": True, "norm_topk_prob": False}),
    "kimi_linear-odd": ("kimi_linear", {"linear_head_dim": 12, "kv_lora_rank": 33}),
    "deepseek_v32-yarn": (
        "deepseek_v32",
        {"rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0}, "index_topk": 5, "index_head_dim": 12},
    ),
    "deepseek_v32-bias": ("deepseek_v32", {"attention_bias": True, "n_group": 1, "topk_group": 1, "index_topk": 17}),
    "deepseek_v32-layers": (
        "deepseek_v32",
        {"mlp_layer_types": ["sparse", "dense", "sparse"], "index_head_dim": 4, "norm_topk_prob": False},
    ),
    "glm_moe_dsa-yarn": (
        "glm_moe_dsa",
        {
            "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
            "index_topk": 5,
            "index_head_dim": 12,
            "indexer_types": ["full", "shared", "shared"],
        },
    ),
    "glm_moe_dsa-bias": (
        "glm_moe_dsa",
        {"attention_bias": True, "n_group": 1, "topk_group": 1, "index_topk": 17, "index_topk_pattern": "FFS"},
    ),
    "glm_moe_dsa-published": (
        "glm_moe_dsa",
        {"index_topk_freq": 1, "index_skip_topk_offset": 2, "norm_topk_prob": False, "index_head_dim": 4},
    ),
    "glm4_moe_lite-plain": ("glm4_moe_lite", {"n_group": 1, "topk_group": 1}),
    "glm4_moe_lite-layers": ("glm4_moe_lite", {"mlp_layer_types": ["sparse", "dense", "sparse"], "q_lora_rank": None}),
    "glm4_moe_lite-tied": ("glm4_moe_lite", {"tie_word_embeddings": True, "qk_rope_head_dim": 8}),
}


def latent_keys(c: Any) -> Raw:
    """What a GGUF file says of a parsed configuration: the sizes of what attention computes, and of the heads."""
    sizes = c.latent
    keys = {
        "attention__head_count_kv": 1,
        "attention__key_length": sizes.cell,
        "attention__value_length": sizes.rank,
        "attention__key_length_mla": sizes.nope + sizes.rope,
        "attention__value_length_mla": sizes.value,
        "attention__kv_lora_rank": sizes.rank,
        "attention__q_lora_rank": sizes.q_rank,
    }
    if c.rope_scaling is not None:
        keys |= {
            "rope__scaling__type": "yarn",
            "rope__scaling__factor": float(c.rope_scaling["factor"]),
            "rope__scaling__original_context_length": c.rope_scaling["original_max_position_embeddings"],
            "rope__scaling__yarn_log_multiplier": 0.1 * c.rope_scaling["mscale_all_dim"],
        }
    return keys


def older_keys(c: Any) -> Raw:
    """The same as files of the first months have it."""
    keys = {key: value for key, value in latent_keys(c).items() if not key.endswith("_mla")}
    return {
        **keys,
        "attention__head_count_kv": c.num_attention_heads,
        "attention__key_length": c.latent.nope + c.latent.rope,
        "attention__value_length": c.latent.value,
    }


def latent_forms(scored: Callable[[Any], Raw]) -> dict[str, tuple[str, str, Raw, Callable[[Any], Raw]]]:
    """Of checkpoint_variants.Form. ``scored``: what a file says of experts that are scored."""
    limited = {**LATENT_VARIANTS["deepseek_v2-limited"][1], "q_lora_rank": None}
    yarn = {**_YARN, "mscale": 0.9, "mscale_all_dim": 0.9, "beta_fast": 8.0}

    def indexed(c: Any) -> Raw:
        sizes = {"head_count": c.index.heads, "key_length": c.index.dim, "top_k": c.index.most}
        return {
            **scored(c),
            **latent_keys(c),
            **{f"attention__indexer__{key}": value for key, value in sizes.items()},
        }

    types = ["full", "shared", "full"]
    return {
        "deepseek32": ("deepseek_v32", "deepseek32", {}, indexed),
        "glm-dsa": ("glm_moe_dsa", "glm-dsa", {"indexer_types": ["full"] * 3}, indexed),
        "glm-dsa-types": (
            "glm_moe_dsa",
            "glm-dsa",
            {"indexer_types": types, "q_lora_rank": 16},
            lambda c: {**indexed(c), "attention__indexer__types": [each == "full" for each in types]},
        ),
        "glm-dsa-later": (  # GLM-5.2, whose files need not say which layers have an index
            "glm_moe_dsa",
            "glm-dsa",
            {
                "num_hidden_layers": 6,
                "max_position_embeddings": 2**20,
                "indexer_types": ["full", "full", "full", "shared", "shared", "shared"],
            },
            indexed,
        ),
        "deepseek2": ("deepseek_v3", "deepseek2", {}, lambda c: {**scored(c), **latent_keys(c)}),
        "deepseek2-yarn": (
            "deepseek_v3",
            "deepseek2",
            {"rope_parameters": yarn},
            lambda c: {**scored(c), **latent_keys(c), "rope__scaling__yarn_beta_fast": 8.0},
        ),
        "deepseek2-kimi": (  # Kimi K2: its experts are in no groups
            "deepseek_v3",
            "deepseek2",
            {"n_group": 1, "topk_group": 1, "rope_parameters": {**yarn, "mscale": 1.0, "mscale_all_dim": 1.0}},
            lambda c: {
                **{key: value for key, value in scored(c).items() if not key.startswith("expert_group")},
                **latent_keys(c),
                "rope__scaling__yarn_beta_fast": 8.0,
            },
        ),
        "deepseek2-lite": (  # its experts are in no groups
            "deepseek_v2",
            "deepseek2",
            {"q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1},
            lambda c: {**scored(c), **latent_keys(c), "expert_gating_func": 1},
        ),
        "deepseek2/softmax": (
            "deepseek_v2",
            "deepseek2",
            limited,
            lambda c: {**scored(c), **older_keys(c), "expert_gating_func": 1},
        ),
    }
