"""Gemma 3n and Gemma 4 in GGUF files, as a ``config.json``.

Files have the keys and values of layers that read others' cells, too; they stay unread, as in checkpoints. What
checkpoints have in other forms:

    Gemma 3n    activation_sparsity_scale    standard deviations above the mean; the share of a normal distribution
                altup_proj [streams - 1, hidden, hidden]    one matrix for each stream but the first
    Gemma 4     rope_freqs [head / 2]        1 of frequencies that rotate, 1e30 of those that do not
                key_length, key_length_swa   heads of layers that see everything, and of those with a window
                no attn_v                    keys are values, too

Numbers that llama.cpp takes for granted in Gemma 3n (4 streams, 20 layers with cells of their own, 10 sparse ones,
logits that level off at 30) are read from the file where it has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

from . import gguf_settings
from .per_layer import NORM, PROJECTION, TABLE
from .rope_config import FULL, SLIDING
from .settings import Settings, neutral, read

if TYPE_CHECKING:
    from .gguf.metadata import Description

_FACTORS = "rope_freqs.weight"
_LOCAL_THETA = 10_000.0
_SLIDES = ".attention.sliding_window_pattern"
_CAP = 30.0  # of Gemma 3n, where a file has none
_STILL = 1e30  # what frequencies that do not rotate are divided by
_CELLS = ("attn_k.weight", "attn_k.bias", "attn_v.weight", "attn_v.bias", "attn_k_norm.weight")

SANDWICH_LEAVES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_LEAVES = {
    **SANDWICH_LEAVES,
    TABLE: "per_layer_token_embd.weight",
    f"{PROJECTION}.weight": "per_layer_model_proj.weight",
    NORM: "per_layer_proj_norm.weight",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
}
LEAVES_3N = {
    **_LEAVES,
    "model.altup_projections": "altup_proj.weight",
    "model.altup_unembed_projections": "altup_unembd_proj.weight",
    "altup.correct_output_scale": "altup_correct_scale.weight",
    "altup.correction_coefs": "altup_correct_coef",
    "altup.prediction_coefs": "altup_predict_coef",
    "altup.modality_router": "altup_router",
    "altup.router_norm": "altup_router_norm",
    "laurel.linear_left": "laurel_l",
    "laurel.linear_right": "laurel_r",
    "laurel.post_laurel_norm": "laurel_post_norm",
}
LEAVES_4 = {
    **_LEAVES,
    "layer_scalar": "layer_output_scale.weight",
    "mlp.router.proj": "ffn_gate_inp",
    "mlp.router.scale": "ffn_gate_inp.scale",
    "mlp.router.per_expert_scale": "ffn_down_exps.scale",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
}
_SHARED: Settings = {
    ".attention.shared_kv_layers": read("last layers, which read cells of earlier ones"),
    ".embedding_length_per_layer_input": read("numbers of each layer's own inputs"),
    ".attention.sliding_window": read("keys that a sliding layer sees"),
    ".rope.freq_base_swa": read("theta of layers that slide; 10000 if absent"),
    ".feed_forward_length": read("width of the MLPs: of all, or of each layer"),
    ".final_logit_softcapping": read("where logits level off; 0: nowhere"),
    ".rope.scaling.type": read("none, or linear by a factor of 1"),
}
SETTINGS_3N: Settings = {
    **gguf_settings.DENSE,
    **_SHARED,
    **{key: gguf_settings.WINDOWED[key] for key in gguf_settings.SLIDING_SIZES},
    _SLIDES: read("each n-th layer sees everything; 5 if absent. Or a list, one by one"),
    ".altup.active_idx": read("the residual stream that layers compute"),
    ".altup.num_inputs": read("residual streams; allowed if it is those of altup_proj"),
    ".altup.*": neutral("the tensors say it"),
    ".activation_sparsity_scale": read("standard deviations above the mean from which on gates of each layer are kept"),
    ".final_logit_softcapping": read("where logits level off; 30 if absent, 0: nowhere"),
}
SETTINGS_4: Settings = {
    **gguf_settings.ROUTED,
    **_SHARED,
    _SLIDES: read("a list: which layers slide; not the last"),
    ".attention.head_count_kv": read("heads of k and v; a list with two numbers, one for each kind of layers"),
    ".attention.key_length": read("size of a head in layers that see everything"),
    ".attention.key_length_swa": read("size of a head in layers that slide"),
    ".attention.value_length_swa": read("allowed if it is key_length_swa"),
    ".rope.dimension_count": read("allowed if it is key_length: rope_freqs.weight says what rotates"),
    ".rope.dimension_count_swa": read("allowed if it is key_length_swa"),
}


def unread_cells(sources: Sequence[int | None]) -> list[str]:
    """Tensors of keys and values of layers that read others'. ``sources``: whose; None: their own."""
    readers = [layer for layer, source in enumerate(sources) if source is not None]
    return [f"blk.{layer}.{name}" for layer in readers for name in _CELLS]


def tensors_apart_4(sources: Sequence[int | None]) -> list[str]:
    return [_FACTORS, *unread_cells(sources)]


def gemma3n_from_gguf(d: Description) -> dict[str, object]:
    """Raises ``kv.errors.FormatError`` naming the key or tensor."""
    keys, streams = d.keys, d.rows_of("altup_proj.weight") + 1
    d.unscaled()
    d.check_sliding_sizes()
    if d.rows_of("altup_unembd_proj.weight") != streams - 1:
        raise keys.error(".altup.num_inputs", streams, "the matrices of altup_unembd_proj.weight and 1")
    return {
        **d.attending(1.0),
        **_windows(d, d.slides(5)),
        "rope_local_base_freq": keys.positive(".rope.freq_base_swa", _LOCAL_THETA),
        "intermediate_size": d.each(".feed_forward_length", 1),
        "final_logit_softcapping": _cap(d, _CAP),
        "hidden_size_per_layer_input": keys.integer(".embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": d.rows_of("per_layer_token_embd.weight"),
        "altup_num_inputs": keys.integer(".altup.num_inputs", streams, streams, streams),
        "altup_active_idx": keys.integer(".altup.active_idx", 0, streams - 1, 0),
        "altup_correct_scale": True,
        "laurel_rank": d.rows_of("blk.0.laurel_l.weight"),
        "activation_sparsity_pattern": _sparsity(d),
    }


def gemma4_from_gguf(d: Description) -> dict[str, object]:
    """The same."""
    keys, size = d.keys, d.head_dim()
    d.unscaled()
    sliding = keys.integer(".attention.key_length_swa", 2)
    for key, own in ((".attention.value_length_swa", sliding), (".rope.dimension_count_swa", sliding)):
        keys.integer(key, own, own, own)
    keys.integer(".rope.dimension_count", size, size, size)
    keys.integer(".nextn_predict_layers", 0, 0, 0)
    slides = keys.flags(_SLIDES, d.layers, "layer")  # a number would stand for all layers
    if slides[-1]:
        raise keys.error(_SLIDES, "a last layer that slides", "one that sees everything")
    windows = _windows(d, slides)
    return {
        **d.sized(1.0),
        **windows,
        **_heads(d, slides, sliding, size),
        **_widths(d),
        **(_experts(d) if d.has("blk.0.ffn_gate_inp.weight") else _no_experts(d)),
        "rope_parameters": {
            FULL: _proportional(d, size),
            SLIDING: {"rope_type": "default", "rope_theta": keys.positive(".rope.freq_base_swa", _LOCAL_THETA)},
        },
        "final_logit_softcapping": _cap(d, 0.0),
        **_inputs(d),
    }


def _windows(d: Description, slides: Sequence[bool]) -> dict[str, object]:
    return {
        "layer_types": [SLIDING if each else FULL for each in slides],
        "sliding_window": d.keys.integer(".attention.sliding_window", 1),
        "num_kv_shared_layers": d.keys.integer(".attention.shared_kv_layers", 0, d.layers - 1, 0),
    }


def _cap(d: Description, default: float) -> float | None:
    cap = d.keys.number(".final_logit_softcapping", default)
    if cap < 0:
        raise d.keys.error(".final_logit_softcapping", cap, "0 or more")
    return cap or None


# ---- Gemma 3n --------------------------------------------------------------------------------------------------------


def _sparsity(d: Description) -> list[float] | None:
    key = ".activation_sparsity_scale"
    if not d.keys.has(key):
        return None
    return [_share(float(each)) for each in d.keys.numbers(key, d.layers, "layer", finite=False)]


def _share(multiplier: float) -> float:
    """Of a normal distribution, what lies below its mean and so many standard deviations. Six decimals, where a float32
    cannot tell them from more: 0.95, as checkpoints have it."""
    share = NormalDist().cdf(multiplier)
    near = round(share, 6)
    if 0 < near < 1 and math.isclose(NormalDist().inv_cdf(near), multiplier, rel_tol=3e-7, abs_tol=3e-7):
        return near
    return share


# ---- Gemma 4 ---------------------------------------------------------------------------------------------------------


def _heads(d: Description, slides: Sequence[bool], sliding: int, full: int) -> dict[str, object]:
    """Of both kinds of layers, one number each of heads of k and v."""
    counts = d.each(".attention.head_count_kv", 1, d.heads)
    of_kind = {kind: {count for count, own in zip(counts, slides) if own == kind} for kind in (True, False)}
    if any(len(found) > 1 for found in of_kind.values()):
        raise d.keys.error(".attention.head_count_kv", counts, "the same number in all layers of a kind")
    of_full = of_kind[False].pop()
    of_sliding = of_kind[True].pop() if of_kind[True] else of_full
    own = d.layers - d.keys.integer(".attention.shared_kv_layers", 0, d.layers - 1, 0)
    keys_as_values = any(not d.has(f"blk.{layer}.attn_v.weight") for layer in range(own) if not slides[layer])
    apart = not keys_as_values and of_full != of_sliding
    by_layer = {
        str(layer): {"num_key_value_heads": of_full, "head_dim": full} for layer in range(d.layers) if not slides[layer]
    }
    return {
        "num_key_value_heads": of_sliding,
        "num_global_key_value_heads": of_full,
        "head_dim": sliding,
        "global_head_dim": full,
        "attention_k_eq_v": keys_as_values,
        **({"per_layer_config": by_layer} if apart else {}),
    }


def _widths(d: Description) -> dict[str, object]:
    """Of MLPs: one, of which layers that read others' cells may have twice as much."""
    widths, own = (
        d.each(".feed_forward_length", 1),
        d.layers - d.keys.integer(".attention.shared_kv_layers", 0, d.layers - 1, 0),
    )
    wide = own < d.layers and widths[own] == 2 * widths[0]
    wanted = [widths[0] * (2 if wide and layer >= own else 1) for layer in range(d.layers)]
    if widths != wanted:
        raise d.keys.error(".feed_forward_length", widths, f"{wanted}, of layers with cells of their own and of others")
    return {"intermediate_size": widths[0], "use_double_wide_mlp": wide}


def _experts(d: Description) -> dict[str, object]:
    count = d.rows_of("blk.0.ffn_gate_inp.weight")
    return {
        "enable_moe_block": True,
        "num_experts": d.keys.integer(".expert_count", count, count),
        "top_k_experts": d.per_block(".expert_used_count", 1, count),
        "moe_intermediate_size": d.per_block(".expert_feed_forward_length"),
    }


def _no_experts(d: Description) -> dict[str, object]:
    for key in (".expert_count", ".expert_used_count"):
        d.keys.integer(key, 0, 0, 0)
    d.keys.integer(".expert_feed_forward_length", 0, default=0)
    return {"enable_moe_block": False}


def _proportional(d: Description, size: int) -> dict[str, object]:
    """RoPE of layers that see everything: a factor for the first frequencies, none of the others rotates."""
    factors = d.divisors(_FACTORS)
    rotated = sum(each < _STILL / 10 for each in factors)
    first = factors[0] if rotated else 1.0
    if factors != [first] * rotated + [factors[-1]] * (len(factors) - rotated):
        raise d.keys.error(_FACTORS, factors, "one number for those that rotate, then 1e30 for those that do not")
    return {
        "rope_type": "proportional",
        "rope_theta": d.keys.positive(".rope.freq_base", 10_000.0),
        "partial_rotary_factor": min((2 * rotated + 0.5) / size, 1.0),  # so that rounding it down gives ``rotated``
        "factor": first,
    }


def _inputs(d: Description) -> dict[str, object]:
    width = d.keys.integer(".embedding_length_per_layer_input", 0, default=0)
    rows = d.rows_of("per_layer_token_embd.weight") if width else 0
    return {"hidden_size_per_layer_input": width, "vocab_size_per_layer_input": rows}
