"""What GGUF files say of families that differ from Llama in more than names: see checkpoint_variants.Form."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

from sweep_latent import latent_keys

Raw = dict[str, Any]
_Form = tuple[str, str, Raw, Callable[[Any], Raw]]

_YARN: Raw = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
# Of experts that no layer has: what is taken where a file says nothing.
_NO_EXPERTS: Raw = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
}
_KINDS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]


def _none(c: Any) -> Raw:
    return {}


def _yarn(c: Any) -> Raw:
    scaling = c.rope_scaling
    return {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": scaling["factor"],
        "rope__scaling__original_context_length": scaling["original_max_position_embeddings"],
        "rope__scaling__yarn_log_multiplier": scaling.get("mscale_all_dim", 0.0),
    }


def _long(c: Any) -> Raw:
    original, most = c.rope_scaling["original_max_position_embeddings"], c.max_position_embeddings
    usual = math.sqrt(1 + math.log(most / original) / math.log(original))
    return {
        "rope__scaling__type": "longrope",
        "rope__scaling__attn_factor": c.rope_scaling.get("attention_factor", usual),
        "rope__scaling__original_context_length": original,
        "attention__sliding_window": c.sliding_window,
    }


def _slides(c: Any) -> list[bool]:
    return [kind == "sliding_attention" for kind in c.layer_types]


def _windows(c: Any) -> Raw:
    return {
        "attention__sliding_window": c.sliding_window,
        "attention__sliding_window_pattern": _slides(c),
        "rope__freq_base_swa": c.sliding_theta,
    }


def _growing(c: Any) -> Raw:
    return {**_yarn(c), "attention__temperature_scale": c.growth}


def _shared_cells(c: Any) -> Raw:
    return {
        **_windows(c),
        "attention__shared_kv_layers": sum(source is not None for source in c.sources),
        **({} if c.cap is None else {"final_logit_softcapping": c.cap}),
        "embedding_length_per_layer_input": 0 if c.per_layer is None else c.per_layer.width,
    }


def _gemma3n(c: Any) -> Raw:
    """A share of gates that are zero, as standard deviations above their mean."""
    return {
        **_shared_cells(c),
        "feed_forward_length": list(c.inner),
        "altup__num_inputs": c.altup.streams,
        "altup__active_idx": c.altup.active,
        "activation_sparsity_scale": [NormalDist().inv_cdf(each) if each else -math.inf for each in c.sparsity],
    }


def _gemma4(c: Any) -> Raw:
    heads, size = c.global_heads
    kv_heads = [c.num_key_value_heads if slides else heads for slides in _slides(c)]
    widths = [c.intermediate_size * (2 if c.wide_readers and source is not None else 1) for source in c.sources]
    return {
        **_shared_cells(c),
        "attention__head_count_kv": kv_heads,
        "attention__key_length": size,
        "attention__value_length": size,
        "attention__key_length_swa": c.head_dim,
        "attention__value_length_swa": c.head_dim,
        "rope__dimension_count": size,
        "rope__dimension_count_swa": c.head_dim,
        "feed_forward_length": widths,
    }


def _gemma4_experts(c: Any) -> Raw:
    return {**_gemma4(c), **experts_of(c)}


def scales(c: Any) -> Raw:
    return {
        "embedding_scale": c.embedding_multiplier,
        "attention__scale": c.attention_multiplier,
        "residual_scale": c.residual_multiplier,
        "logit_scale": 1 / c.logits_multiplier,
    }


def experts_alone(c: Any) -> Raw:
    """Their width is that of MLPs."""
    return {"expert_count": c.num_experts, "expert_used_count": c.num_experts_per_tok}


def experts_of(c: Any) -> Raw:
    return {**experts_alone(c), "expert_feed_forward_length": c.moe_intermediate_size}


def shared_of(c: Any) -> Raw:
    return {**experts_of(c), "expert_shared_feed_forward_length": c.shared_expert_intermediate_size}


def _granite_hybrid(c: Any) -> Raw:
    return {**_mamba(c, {}), **scales(c), "rope__scaling__finetuned": not c.still_layers}


def _ssm(c: Any) -> Raw:
    return {
        "ssm__conv_kernel": c.conv_width,
        "ssm__state_size": c.mamba_state,
        "ssm__group_count": c.mamba_groups,
        "ssm__time_step_rank": c.mamba_heads,
        "ssm__inner_size": c.mamba_inner,
    }


def _mamba(c: Any, inner: Raw) -> Raw:
    """``inner``: widths of MLPs, by the kind of a layer."""
    attends = [kind == "full_attention" for kind in c.layer_types]
    return {
        **_ssm(c),
        "attention__head_count_kv": [c.num_key_value_heads if each else 0 for each in attends],
        **({"feed_forward_length": [inner.get(kind, 0) for kind in c.layer_types]} if inner else {}),
    }


def _nemotron(c: Any) -> Raw:
    return {**_mamba(c, {"mlp": c.intermediate_size}), "attention__layer_norm_epsilon": 1e-5}


def _nemotron_moe(c: Any) -> Raw:
    return {
        **_mamba(c, {"mlp": c.intermediate_size, "moe": c.moe_intermediate_size}),
        "attention__layer_norm_epsilon": 1e-5,
        **shared_of(c),
        "expert_weights_norm": c.norm_topk_prob,
        "expert_weights_scale": c.routed_scale,
        "expert_group_count": c.expert_groups,
        "expert_group_used_count": c.kept_groups,
    }


def _bamba(c: Any) -> Raw:
    return {**_mamba(c, {}), "rope__scaling__finetuned": True}


def _hunyuan(c: Any) -> Raw:
    return {**shared_of(c), "expert_shared_count": 1}


def _kimi(c: Any, scored: Raw) -> Raw:
    latent = {key: value for key, value in latent_keys(c).items() if key != "attention__value_length"}
    return {
        **{key: value for key, value in scored.items() if key != "expert_weights_norm"},
        **latent,
        "rope__dimension_count": c.latent.rope,
        "attention__head_count_kv": [int(kind == "full_attention") for kind in c.layer_types],
        "ssm__conv_kernel": c.delta.taps,
        "kda__head_dim": c.delta.key_dim,
    }


def more_forms(scored: Callable[[Any], Raw]) -> dict[str, _Form]:
    """By name. ``scored``: what a file says of experts that are scored."""
    long = {
        "rope_type": "longrope",
        "rope_theta": 500.0,
        "partial_rotary_factor": 0.5,
        "short_factor": [1.125, 1.75],
        "long_factor": [2.0, 6.0],
    }
    windows = {
        "sliding_window": 5,
        "rope_parameters": {
            "full_attention": _YARN,
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    }
    growing = {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.1}
    narrow = {
        "altup_num_inputs": 4,
        "altup_active_idx": 1,
        "intermediate_size": [16, 32, 48, 64],
        "sliding_window": 6,
        "activation_sparsity_pattern": [0.5, 0.0, 0.95, 0.123456],
    }
    readers = {
        "num_hidden_layers": 5,
        "layer_types": _KINDS,
        "num_kv_shared_layers": 2,
        "sliding_window": 7,
        "final_logit_softcapping": 5.0,
        "num_key_value_heads": 1,
    }
    keys_as_values = {
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "use_double_wide_mlp": False,
        "tie_word_embeddings": True,
    }
    experts = {
        "enable_moe_block": True,
        "num_experts": 5,
        "top_k_experts": 2,
        "moe_intermediate_size": 16,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
        "hidden_size_per_layer_input": 0,
    }
    of_one_part = {
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
        "mlp_bias": True,
        **_NO_EXPERTS,
    }
    return {
        "phi3": ("phi3", "phi3", {"tie_word_embeddings": True}, _none),
        "phi3-long": (
            "phi3",
            "phi3",
            {"rope_parameters": long, "original_max_position_embeddings": 48, "sliding_window": 9},
            _long,
        ),
        "phi3-attention": (
            "phi3",
            "phi3",
            {
                "rope_parameters": {**long, "attention_factor": 1.25},
                "original_max_position_embeddings": 48,
                "sliding_window": 30,
            },
            _long,
        ),
        "olmo2/windows": ("olmo3", "olmo2", windows, lambda c: {**_windows(c), **_yarn(c)}),
        "mistral3": (
            "mistral",
            "mistral3",
            {"sliding_window": None, "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.5}},
            _yarn,
        ),
        "mistral3/growth": ("ministral3", "mistral3", {"rope_parameters": growing}, _growing),
        "gemma3n": ("gemma3n_text", "gemma3n", narrow, _gemma3n),
        "gemma3n-uncapped": ("gemma3n_text", "gemma3n", {"num_kv_shared_layers": 0, "altup_num_inputs": 2}, _gemma3n),
        "gemma4": ("gemma4_text", "gemma4", readers, _gemma4),
        "gemma4-keys-as-values": ("gemma4_text", "gemma4", keys_as_values, _gemma4),
        "gemma4-experts": ("gemma4_text", "gemma4", experts, _gemma4_experts),
        "nemotron_h": ("nemotron_h", "nemotron_h", of_one_part, _nemotron),
        "nemotron_h_moe": ("nemotron_h", "nemotron_h_moe", {"use_bias": True}, _nemotron_moe),
        "granitehybrid/partly": ("bamba", "granitehybrid", {"attn_layer_indices": [0, 2]}, _bamba),
        "granitehybrid": (
            "granitemoehybrid",
            "granitehybrid",
            {"intermediate_size": 16},
            lambda c: {
                **_granite_hybrid(c),
                **experts_alone(c),
                "expert_shared_feed_forward_length": c.shared_expert_intermediate_size,
            },
        ),
        "granitehybrid-dense": (
            "granitemoehybrid",
            "granitehybrid",
            {
                "num_local_experts": 0,
                "shared_intermediate_size": 48,
                "position_embedding_type": None,
                "mamba_proj_bias": True,
                "mamba_n_groups": 1,
            },
            _granite_hybrid,
        ),
        "falcon-h1": (
            "falcon_h1",
            "falcon-h1",
            {
                "mamba_norm_before_gate": False,
                **{f"{name}_multiplier": 1.0 for name in ("embedding", "lm_head", "key", "attention_out", "ssm_out")},
                "ssm_multipliers": [1.0] * 5,
                "mlp_multipliers": [1.0] * 2,
            },
            _ssm,
        ),
        "hunyuan-moe": ("hunyuan_v1_moe", "hunyuan-moe", {}, _hunyuan),
        "kimi-linear": ("kimi_linear", "kimi-linear", {}, lambda c: _kimi(c, scored(c))),
        "kimi-linear-ranked": ("kimi_linear", "kimi-linear", {"q_lora_rank": 16}, lambda c: _kimi(c, scored(c))),
    }
