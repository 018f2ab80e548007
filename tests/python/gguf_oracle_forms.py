"""What the keys of a GGUF file mean in architectures whose files are held against a checkpoint of their own.

:func:`meaning_of_form` gives the configuration of the checkpoint that the file was made of (gguf_forms.py), with what a
changed key says written into it; None where the file must be refused. As in gguf_oracle.py nothing uses what
``kvtrie.models.gguf`` thinks of a key. Sources: ``load_arch_hparams`` and the graph of each architecture in llama.cpp
(0.3.35 of llama-cpp-python), and gguf-py's constants.

A key that is in no list here must be absent, mean nothing, or have the value by which llama.cpp writes "off".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gguf_oracle import Refused, means_nothing
from gguf_oracle_attention import exaone, gemma3n, gemma4, growing, indexed, latent, long, olmo, types
from gguf_oracle_form import (
    Form,
    Given,
    Raw,
    Reads,
    heads,
    inner,
    partly,
    scaled_by,
    sizes,
    unit_scale,
    unrotated,
    unused_inner,
    usual_scale,
    whole,
)

# ---- experts ---------------------------------------------------------------------------------------------------------


def _routed(into: str = "num_experts_per_tok", width: str | None = "expert_feed_forward_length") -> Reads:
    """Of experts that are chosen by their share, or as the architecture does it anyway."""

    def reads(f: Form) -> Raw:
        f.same("expert_count")
        if width is not None:
            f.same(width)
        used = f.whole("expert_used_count")
        if not 1 <= used <= f.given.values["expert_count"]:
            raise Refused
        return {into: used}

    return reads


def _shared(f: Form) -> Raw:
    f.same("expert_shared_feed_forward_length")
    return {}


def _hunyuan(f: Form) -> Raw:
    f.same_if_said("expert_feed_forward_length", "expert_shared_feed_forward_length")
    return {}


def _ernie(f: Form) -> Raw:
    f.same_if_said("leading_dense_block_count")
    f.any_value("expert_shared_count")
    return {}


def _scored(f: Form) -> Raw:
    """Of experts that are chosen by their sigmoid and a bias."""
    f.only("expert_gating_func", 0, 2)
    f.same("expert_shared_count")
    return {**_graded(f), "norm_topk_prob": f.flag("expert_weights_norm", False)}


def _graded(f: Form) -> Raw:
    f.same_if_said("leading_dense_block_count")
    return _grades(f)


def _grades(f: Form) -> Raw:
    return {
        "routed_scaling_factor": f.factor("expert_weights_scale"),
        "n_group": f.whole("expert_group_count", 0) or 1,
        "topk_group": f.whole("expert_group_used_count", 0) or 1,
    }


def _shares(f: Form) -> Raw:
    """Of groups that are chosen by their best expert."""
    f.only("expert_gating_func", 0, 1)
    f.only("expert_weights_norm", False)
    f.same("expert_shared_count")
    found = _graded(f)
    return {**found, "topk_method": "greedy" if found["n_group"] == 1 else "group_limited_greedy"}


def _sigmoids_alone(*funcs: int) -> Reads:
    def reads(f: Form) -> Raw:
        f.only("expert_gating_func", *funcs)
        return {}

    return reads


def _one_shared(f: Form) -> Raw:
    f.only("expert_shared_count", 0, 1)
    return {}


def _not_normed(f: Form) -> Raw:
    f.only("expert_weights_norm", False)
    return {}


def _kimi(f: Form) -> Raw:
    f.same("attention.head_count_kv", "attention.key_length", "attention.kv_lora_rank", "rope.dimension_count")
    f.same("attention.key_length_mla", "attention.value_length_mla", "ssm.conv_kernel", "kda.head_dim")
    (f.same if f.given.values["attention.q_lora_rank"] else f.same_if_said)("attention.q_lora_rank")
    f.same("expert_shared_count")
    f.only("expert_gating_func", 2)
    f.only("expert_weights_norm", True)
    f.any_value("attention.value_length")
    scaled_by(f.given.values["attention.key_length_mla"] ** -0.5, f)
    return {**_graded(f), **unrotated(f)}


# ---- states ----------------------------------------------------------------------------------------------------------


def _mamba(f: Form) -> Raw:
    f.same(*(f"ssm.{key}" for key in ("conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size")))
    return {}


def _convolutions(f: Form) -> Raw:
    f.same("shortconv.l_cache")
    return {"norm_eps": f.real("attention.layer_norm_rms_epsilon")}


def _first_dense(f: Form) -> Raw:
    f.same("leading_dense_block_count")
    f.only("expert_gating_func", 0, 2)
    return {}


def _nemotron(f: Form) -> Raw:
    f.same("feed_forward_length")
    return {"layer_norm_epsilon": f.real("attention.layer_norm_rms_epsilon")}


def _nemotron_experts(f: Form) -> Raw:
    f.any_value("expert_shared_count")
    f.only("expert_gating_func", 0, 2)
    f.only("leading_dense_block_count", 0)
    return {**_grades(f), "norm_topk_prob": f.flag("expert_weights_norm", False)}


# ---- Granite ---------------------------------------------------------------------------------------------------------


def _multipliers(f: Form) -> Raw:
    """Of Granite. Its files switch the rotation of layers that attend on and off; absent, it is on."""
    return {
        "embedding_multiplier": f.factor("embedding_scale"),
        "residual_multiplier": f.factor("residual_scale"),
        "logits_scaling": f.factor("logit_scale"),
        "attention_multiplier": f.factor("attention.scale", f.given.values["attention.key_length"] ** -0.5),
    }


def _always_rotates(f: Form) -> Raw:
    if not f.flag("rope.scaling.finetuned", True):
        raise Refused
    return {}


def _may_rotate(f: Form) -> Raw:
    return {"position_embedding_type": "rope" if f.flag("rope.scaling.finetuned", True) else None}


def _same_inner(f: Form) -> Raw:
    f.same("feed_forward_length")
    return {}


def _bamba(f: Form) -> Raw:
    return {"rope_parameters": partly(f)["rope_parameters"]}


def _no_axes(f: Form) -> Raw:
    """Files of GLM-4 with axes of positions have rows of q and k in another order."""
    if _has_axes(f) is not None:
        raise Refused
    return {}


def _axes_of_texts(f: Form) -> Raw:
    """What the fourth axis turns does not rotate: a text has position 0 there."""
    axes = _has_axes(f)
    if axes is not None and axes[3]:
        raise Refused
    return {}


def _has_axes(f: Form) -> list[int] | None:
    """The numbers of pairs of each axis; None where positions have one."""
    key = "rope.dimension_sections"
    found = f.value(key, 0)
    if key not in f.own:
        return None
    axes = found.tolist() if isinstance(found, np.ndarray) else [found] * 4
    if any(type(each) is not int for each in axes) or len(axes) != 4:
        raise Refused
    return axes if axes[0] > 0 and axes[1] > 0 else None


_DENSE: tuple[Reads, ...] = (heads, usual_scale, whole, inner)
_PARTIAL: tuple[Reads, ...] = (heads, usual_scale, partly, inner)
_GRANITE: tuple[Reads, ...] = (heads, _multipliers, whole, _always_rotates)
_HYBRID: tuple[Reads, ...] = (heads, _multipliers, _mamba, whole, _may_rotate)
_SCORED: tuple[Reads, ...] = (heads, usual_scale, inner, _routed(), _scored)
_LATENT: tuple[Reads, ...] = (inner, latent, _routed())
_GEMMA_4: tuple[Reads, ...] = (unit_scale, gemma4)

# By name of gguf_forms.py: what is read, one after the other.
FORMS: dict[str, tuple[Reads, ...]] = {
    **dict.fromkeys(("smollm3", "olmo2", "seed_oss", "hunyuan-dense", "ernie4_5"), _DENSE),
    **dict.fromkeys(("exaone4", "exaone4-windows"), (*_DENSE, exaone)),
    "glm4": (*_PARTIAL, _no_axes),
    "granite": (*_GRANITE, inner),
    "granitemoe": (*_GRANITE, inner, _routed(width=None)),
    "granitehybrid": (*_HYBRID, inner, _routed(width=None), _shared, _one_shared),
    "granitehybrid-dense": (*_HYBRID, _same_inner),
    "granitehybrid/partly": (heads, usual_scale, _mamba, _same_inner, _bamba, _always_rotates),
    "falcon-h1": (*_DENSE, _mamba),
    "lfm2": (*_DENSE, _convolutions),
    "lfm2moe": (*_DENSE, _convolutions, _routed(), _first_dense),
    "nemotron_h": (heads, usual_scale, unrotated, _mamba, _nemotron),
    "nemotron_h_moe": (heads, usual_scale, unrotated, _mamba, _nemotron, _routed(), _shared, _nemotron_experts),
    "llama/experts": (heads, usual_scale, whole, inner, _routed(width=None)),
    "qwen3moe": (*_DENSE, _routed()),
    "qwen2moe": (*_DENSE, _routed(), _shared, _one_shared, _not_normed),
    "hunyuan-moe": (*_DENSE, _hunyuan, _routed("moe_topk", None), _one_shared),
    "minimax-m2": (heads, usual_scale, partly, unused_inner, _routed(), _sigmoids_alone(2)),
    "ernie4_5-moe": (*_DENSE, _routed("moe_k"), _shared, _ernie),
    "dots1": (*_SCORED, whole),
    "glm4moe": (*_SCORED, partly, _axes_of_texts),
    "deepseek2": (*_LATENT, _scored),
    "deepseek2-yarn": (*_LATENT, _scored),
    "deepseek2-kimi": (*_LATENT, _scored),
    **dict.fromkeys(("deepseek2/softmax", "deepseek2-lite"), (*_LATENT, _shares)),
    "deepseek32": (*_LATENT, _scored, indexed),
    **dict.fromkeys(("glm-dsa", "glm-dsa-types", "glm-dsa-later"), (*_LATENT, _scored, indexed, types)),
    **dict.fromkeys(("kimi-linear", "kimi-linear-ranked"), (inner, _routed(), _kimi)),
    "phi3-long": (heads, usual_scale, inner, long),
    "phi3-attention": (heads, usual_scale, inner, long),
    "olmo2/windows": (heads, usual_scale, inner, olmo),
    "mistral3/growth": (heads, usual_scale, inner, growing),
    "gemma3n": (heads, unit_scale, gemma3n),
    "gemma3n-uncapped": (heads, unit_scale, gemma3n),
    "gemma4": _GEMMA_4,
    "gemma4-keys-as-values": _GEMMA_4,
    "gemma4-experts": (*_GEMMA_4, _routed("top_k_experts")),
}


def meaning_of_form(
    name: str, architecture: str, values: Mapping[str, Any], arrays: Mapping[str, Any], given: Given
) -> Raw | None:
    """The file as a ``config.json``; None where it must be refused. ``name``: of the form."""
    start = f"{architecture}."
    own = {key.removeprefix(start): each for key, each in values.items() if key.startswith(start)}
    others = {key: each for key, each in values.items() if not key.startswith(start)}
    others.pop("general.architecture")
    form = Form(architecture, own, arrays, given)
    try:
        raw = {**given.raw, **sizes(form)}
        for reads in FORMS[name]:
            raw |= reads(form)
    except (Refused, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    experts = "expert_count" in form.seen
    left = {key: each for key, each in own.items() if key not in form.seen}
    if not all(means_nothing(key, each, own=True, experts=experts) for key, each in left.items()):
        return None
    return raw if all(means_nothing(key, each, own=False, experts=experts) for key, each in others.items()) else None
