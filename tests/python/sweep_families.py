"""The families whose settings config_sweep.py changes: each as transformers has it, with a small configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bounds import LOGITS, LOGITS_OF_SETTINGS, Bound
from hf_models import DELTA, EXPERTS, VOCAB
from sweep_latent import latent_families
from sweep_qwen4 import QWEN4

Raw = dict[str, Any]

_SIZES: Raw = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
_LINEAR: Raw = {
    **DELTA,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
}
_EXPERTS: Raw = {**EXPERTS, "shared_expert_intermediate_size": 16}


@dataclass(frozen=True)
class Family:
    """One of kvtrie's, as transformers has it. ``raw``: its configuration but for names."""

    name: str  # model_type
    config: str
    architecture: str
    raw: Raw

    @property
    def bound(self) -> Bound:
        return LOGITS if self.name in ("llama", "qwen2", "qwen3") else LOGITS_OF_SETTINGS

    @property
    def file(self) -> Raw:
        return {"architectures": [self.architecture], "model_type": self.name, **self.raw}


_FAMILIES = (
    Family("llama", "LlamaConfig", "LlamaForCausalLM", {**_SIZES, "hidden_act": "silu", "mlp_bias": False}),
    Family("qwen2", "Qwen2Config", "Qwen2ForCausalLM", {**_SIZES, "hidden_act": "silu"}),
    Family("qwen3", "Qwen3Config", "Qwen3ForCausalLM", {**_SIZES, "hidden_act": "silu"}),
    Family(
        "gemma3_text",
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            **_SIZES,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": 16,
            "query_pre_attn_scalar": 8,
            "hidden_activation": "gelu_pytorch_tanh",
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 500.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    Family(
        "llama4_text",
        "Llama4TextConfig",
        "Llama4ForCausalLM",
        {
            **_SIZES,
            "hidden_act": "silu",
            "intermediate_size_mlp": 48,
            "intermediate_size": 16,
            "attention_chunk_size": 16,
            "no_rope_layers": [1, 0, 1],
            "moe_layers": [0, 2],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "attn_temperature_tuning": True,
            "floor_scale": 8,
            "attn_scale": 0.5,
            "use_qk_norm": True,
        },
    ),
    Family(
        "qwen3_next",
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        {**_SIZES, **_LINEAR, **_EXPERTS, "hidden_act": "silu", "norm_topk_prob": True, "mlp_only_layers": [1]},
    ),
    Family("qwen3_5_text", "Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {**_SIZES, **_LINEAR, "hidden_act": "silu"}),
    Family(
        "qwen3_5_moe_text",
        "Qwen3_5MoeTextConfig",
        "Qwen3_5MoeForCausalLM",
        {**_SIZES, **_LINEAR, **_EXPERTS, "hidden_act": "silu"},
    ),
    Family("qwen4_exp_text", "Qwen4ExpTextConfig", "Qwen4ExpForCausalLM", {**_SIZES, **_LINEAR, **QWEN4}),
)

_SCALED: Raw = {
    "hidden_act": "silu",
    "embedding_multiplier": 2.0,
    "attention_multiplier": 0.25,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}
_GROUPED: Raw = {
    "hidden_act": "silu",
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 16,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]

# Families of causal.py.
_CAUSAL = (
    Family(
        "qwen3_moe",
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {**_SIZES, **EXPERTS, "hidden_act": "silu", "norm_topk_prob": True, "mlp_only_layers": [1]},
    ),
    Family(
        "qwen2_moe",
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        {**_SIZES, **_EXPERTS, "hidden_act": "silu", "norm_topk_prob": False, "mlp_only_layers": [1]},
    ),
    Family("mistral", "MistralConfig", "MistralForCausalLM", {**_SIZES, "hidden_act": "silu", "sliding_window": 16}),
    Family(
        "ministral",
        "MinistralConfig",
        "MinistralForCausalLM",
        {**_SIZES, "hidden_act": "silu", "sliding_window": 16, "layer_types": _MIXED},
    ),
    Family(
        "mixtral",
        "MixtralConfig",
        "MixtralForCausalLM",
        {**_SIZES, "hidden_act": "silu", "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    Family(
        "ministral3",
        "Ministral3Config",
        "Ministral3ForCausalLM",
        {
            **_SIZES,
            "hidden_act": "silu",
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 500.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.3,
            },
        },
    ),
    Family(
        "smollm3",
        "SmolLM3Config",
        "SmolLM3ForCausalLM",
        {**_SIZES, "pad_token_id": 1, "hidden_act": "silu", "mlp_bias": False, "no_rope_layers": [1, 0, 1]},
    ),
    Family("granite", "GraniteConfig", "GraniteForCausalLM", {**_SIZES, **_SCALED, "mlp_bias": False}),
    Family(
        "granitemoe",
        "GraniteMoeConfig",
        "GraniteMoeForCausalLM",
        {**_SIZES, **_SCALED, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    Family(
        "phi3",
        "Phi3Config",
        "Phi3ForCausalLM",
        {
            **_SIZES,
            "pad_token_id": 1,
            "hidden_act": "silu",
            "partial_rotary_factor": 0.5,
        },
    ),
    Family("olmo2", "Olmo2Config", "Olmo2ForCausalLM", {**_SIZES, "hidden_act": "silu"}),
    Family(
        "olmo3",
        "Olmo3Config",
        "Olmo3ForCausalLM",
        {
            **_SIZES,
            "hidden_act": "silu",
            "layer_types": _MIXED,
            "sliding_window": 16,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 500.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    Family(
        "exaone4",
        "Exaone4Config",
        "Exaone4ForCausalLM",
        {**_SIZES, "hidden_act": "silu", "layer_types": _MIXED, "sliding_window": 16, "sliding_window_pattern": 2},
    ),
    Family("glm", "GlmConfig", "GlmForCausalLM", {**_SIZES, "pad_token_id": 1, "hidden_act": "silu"}),
    Family("glm4", "Glm4Config", "Glm4ForCausalLM", {**_SIZES, "pad_token_id": 1, "hidden_act": "silu"}),
    Family(
        "seed_oss",
        "SeedOssConfig",
        "SeedOssForCausalLM",
        {**_SIZES, "hidden_act": "silu", "mlp_bias": False, "attention_out_bias": False},
    ),
    Family("hunyuan_v1_dense", "HunYuanDenseV1Config", "HunYuanDenseV1ForCausalLM", {**_SIZES, "hidden_act": "silu"}),
    Family(
        "hunyuan_v1_moe",
        "HunYuanMoEV1Config",
        "HunYuanMoEV1ForCausalLM",
        {**_SIZES, "hidden_act": "silu", "num_experts": 4, "moe_topk": 2},
    ),
    Family("ernie4_5", "Ernie4_5Config", "Ernie4_5ForCausalLM", {**_SIZES, "hidden_act": "silu", "use_bias": False}),
    Family(
        "dots1",
        "Dots1Config",
        "Dots1ForCausalLM",
        {**_SIZES, **_GROUPED, "first_k_dense_replace": 1, "norm_topk_prob": True, "sliding_window": None},
    ),
    Family(
        "glm4_moe",
        "Glm4MoeConfig",
        "Glm4MoeForCausalLM",
        {**_SIZES, **_GROUPED, "first_k_dense_replace": 1, "norm_topk_prob": True, "use_qk_norm": True},
    ),
    Family(
        "minimax_m2",
        "MiniMaxM2Config",
        "MiniMaxM2ForCausalLM",
        {**_SIZES, "hidden_act": "silu", "num_local_experts": 6, "num_experts_per_tok": 2, "rotary_dim": 4},
    ),
    Family(
        "gemma4_text",
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        {
            **{key: value for key, value in _SIZES.items() if key != "rope_parameters"},
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": 16,
            "global_head_dim": 16,
            "num_global_key_value_heads": None,
            "attention_k_eq_v": False,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB,
            "enable_moe_block": False,
            "rope_parameters": {
                "full_attention": {"rope_type": "proportional", "rope_theta": 500.0, "partial_rotary_factor": 0.25},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    Family(
        "gemma3n_text",
        "Gemma3nTextConfig",
        "Gemma3nForCausalLM",
        {
            **_SIZES,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": 16,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB,
            "altup_num_inputs": 3,
            "laurel_rank": 8,
            "final_logit_softcapping": 30.0,
            "activation_sparsity_pattern": [0.5, 0.0, 0.9, 0.0],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 500.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    Family(
        "gpt_oss",
        "GptOssConfig",
        "GptOssForCausalLM",
        {
            **_SIZES,
            "hidden_act": "silu",
            "attention_bias": True,
            "intermediate_size": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": _MIXED,
            "sliding_window": 16,
        },
    ),
    Family(
        "ernie4_5_moe",
        "Ernie4_5_MoeConfig",
        "Ernie4_5_MoeForCausalLM",
        {
            **_SIZES,
            "hidden_act": "silu",
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_intermediate_size": 16,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_layer_interval": 1,
            "moe_layer_end_index": -1,
            "use_bias": False,
        },
    ),
)
_CONV = {
    **{key: value for key, value in _SIZES.items() if key not in ("rms_norm_eps", "attention_bias")},
    "norm_eps": 1e-6,
    "conv_L_cache": 3,
    "conv_bias": False,
    "layer_types": ["conv", "full_attention", "conv"],
}

_MAMBA = {
    **_SIZES,
    "hidden_act": "silu",
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
_MAMBA_KINDS = ["linear_attention", "full_attention", "linear_attention"]

# Families that keep states: recurrent.py.
_RECURRENT = (
    Family("lfm2", "Lfm2Config", "Lfm2ForCausalLM", {**_CONV, "block_auto_adjust_ff_dim": False}),
    Family(
        "lfm2_moe",
        "Lfm2MoeConfig",
        "Lfm2MoeForCausalLM",
        {
            **_CONV,
            **EXPERTS,
            "num_dense_layers": 1,
            "use_expert_bias": True,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
        },
    ),
    Family("bamba", "BambaConfig", "BambaForCausalLM", {**_MAMBA, "mlp_bias": False, "attn_layer_indices": [1]}),
    Family(
        "granitemoehybrid",
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {
            **_MAMBA,
            **_SCALED,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 24,
            "position_embedding_type": "rope",
            "layer_types": _MAMBA_KINDS,
        },
    ),
    Family(
        "olmo_hybrid",
        "OlmoHybridConfig",
        "OlmoHybridForCausalLM",
        {
            **{key: value for key, value in _SIZES.items() if key != "head_dim"},
            "num_hidden_layers": 4,
            "hidden_act": "silu",
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 12,
            "linear_conv_kernel_dim": 3,
            "linear_allow_neg_eigval": True,
            "pad_token_id": 0,
            "eos_token_id": 1,
        },
    ),
    Family(
        "falcon_h1",
        "FalconH1Config",
        "FalconH1ForCausalLM",
        {
            **_MAMBA,
            "mlp_bias": False,
            "mamba_d_ssm": 64,
            "mamba_rms_norm": True,
            "projectors_bias": False,
            "embedding_multiplier": 2.0,
            "lm_head_multiplier": 0.5,
            "key_multiplier": 0.7,
            "attention_out_multiplier": 0.9,
            "ssm_out_multiplier": 0.8,
            "ssm_multipliers": [0.9, 0.8, 1.2, 1.1, 0.7],
            "mlp_multipliers": [0.9, 0.6],
        },
    ),
    Family(
        "nemotron_h",
        "NemotronHConfig",
        "NemotronHForCausalLM",
        {
            **{
                key: _SIZES[key]
                for key in _SIZES
                if key not in ("rms_norm_eps", "rope_parameters", "num_hidden_layers")
            },
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe", "linear_attention"],
            "layer_norm_epsilon": 1e-6,
            "mlp_hidden_act": "relu2",
            "mlp_bias": False,
            "use_bias": False,
            "ssm_state_size": 16,
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "n_groups": 2,
            "conv_kernel": 4,
            "use_conv_bias": True,
            "chunk_size": 16,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "moe_intermediate_size": 16,
            "moe_shared_expert_intermediate_size": 24,
        },
    ),
)
_LATENT = tuple(Family(*each) for each in latent_families(VOCAB))
FAMILIES = {family.name: family for family in (*_FAMILIES, *_CAUSAL, *_RECURRENT, *_LATENT)}
CAUSAL = tuple(family.name for family in (*_CAUSAL, *_RECURRENT, *_LATENT))
