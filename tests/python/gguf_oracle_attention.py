"""What keys mean in architectures that attend in ways of their own: latents, indexes, windows, Gemma's layers.

See gguf_oracle_forms.py.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from gguf_oracle import Refused
from gguf_oracle_form import FULL, SLIDES, Form, Raw, frequencies, scaled_by, theta_of, unscaled, yarn

_STILL = 1e29  # frequencies that are divided by more do not rotate

# ---- latents ---------------------------------------------------------------------------------------------------------


def latent(f: Form) -> Raw:
    """A deepseek2 file says sizes in one of two ways (sweep_latent.py); this one, as it did."""
    sizes = ("head_count_kv", "key_length", "value_length", "kv_lora_rank")
    f.same(*(f"attention.{key}" for key in sizes), "rope.dimension_count")
    (f.same if f.given.values["attention.q_lora_rank"] else f.same_if_said)("attention.q_lora_rank")
    newer = [key for key in ("attention.key_length_mla", "attention.value_length_mla") if key in f.given.values]
    f.same(*newer)
    key = f.given.values[newer[0] if newer else "attention.key_length"]
    scaled_by(key**-0.5, f)
    return {"rope_parameters": _latent_frequencies(f)}


def _latent_frequencies(f: Form) -> Raw:
    """With yarn llama.cpp scales scores by the square of 1 + 0.1 mscale log(factor), and no cosine."""
    found = frequencies(f, f.given.values["rope.dimension_count"])
    share = f.real("rope.scaling.yarn_log_multiplier", 0.0)
    if f.own.get("rope.scaling.type") != "yarn":
        if share and f.value("rope.scaling.type", "linear") == "linear" and f.factor() != 1:
            raise Refused  # llama.cpp scales scores then, too
        return found
    both = {"mscale": 10 * share, "mscale_all_dim": 10 * share} if share else {"attention_factor": 1.0}
    return {**yarn(f, found["rope_theta"]), **both}


def indexed(f: Form) -> Raw:
    f.only("expert_gating_func", 0, 2)
    f.same("attention.indexer.head_count", "attention.indexer.key_length")
    return {"index_topk": f.whole("attention.indexer.top_k")}


def types(f: Form) -> Raw:
    """Which layers have an index. GLM-5.2, which takes 2^20 tokens and more, need not say it."""
    layers, later = f.own["block_count"], f.whole("context_length") >= 2**20
    found = f.value("attention.indexer.types", -1)
    if isinstance(found, np.ndarray):
        if len(found) != layers or found.dtype.kind not in "biu" or not np.isin(found, (0, 1)).all():
            raise Refused
        full = [bool(each) for each in found]
    elif "attention.indexer.types" in f.own:
        full = [f.whole("attention.indexer.types") == 1] * layers
    else:
        full = [not later or layer < 2 or layer % 4 == 2 for layer in range(layers)]
    wanted = [f"blk.{layer}.indexer.attn_k.weight" in f.arrays for layer in range(layers)]
    if full != wanted:
        raise Refused
    return {}


# ---- windows ---------------------------------------------------------------------------------------------------------


def _windows(f: Form, slides: list[bool]) -> Raw:
    size = f.given.values["attention.key_length"]
    for key in ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"):
        f.only(key, size)
    return {"layer_types": [SLIDES if each else FULL for each in slides], "sliding_window": _window(f)}


def _window(f: Form) -> int:
    found = f.whole("attention.sliding_window")
    if found < 1:
        raise Refused
    return found


def olmo(f: Form) -> Raw:
    """Layers that slide rotate without any scaling."""
    f.same_if_said("rope.dimension_count")
    full = frequencies(f, f.given.values["rope.dimension_count"])
    local = theta_of(f, "rope.freq_base_swa", full["rope_theta"])
    f.only("rope.scaling.yarn_log_multiplier", 0.0)
    ropes = {FULL: full, SLIDES: {"rope_type": "default", "rope_theta": local}}
    return {**_windows(f, f.slides(4)), "rope_parameters": ropes}


def exaone(f: Form) -> Raw:
    """Only files of 64 layers have windows; those layers alone rotate then, and all by one theta."""
    if f.own["block_count"] != 64:
        f.any_value("attention.sliding_window")
        if "attention.sliding_window" in f.own:
            _window(f)
        return {}
    theta = theta_of(f)
    if theta_of(f, "rope.freq_base_swa", theta) != theta:
        raise Refused
    f.own = {"attention.sliding_window": 4096, **f.own}
    return _windows(f, f.slides(4))


def growing(f: Form) -> Raw:
    """q grows with the position, in steps of the original length."""
    found = _yarned(f)
    steps = f.whole("attention.temperature_length", 0)
    scale = f.real("attention.temperature_scale")
    if found["rope_type"] != "yarn" or steps not in (0, found["original_max_position_embeddings"]) or not scale:
        raise Refused
    return {"rope_parameters": {**found, "llama_4_scaling_beta": scale}}


def _yarned(f: Form) -> Raw:
    f.same_if_said("rope.dimension_count")
    found = frequencies(f, f.given.values["rope.dimension_count"])
    share = f.real("rope.scaling.yarn_log_multiplier", 0.0)
    if f.own.get("rope.scaling.type") != "yarn" or "rope_freqs.weight" in f.arrays:
        raise Refused
    return {**yarn(f, found["rope_theta"]), **({"mscale": 1.0, "mscale_all_dim": share} if share else {})}


def long(f: Form) -> Raw:
    """Of rope_factors_short.weight and rope_factors_long.weight, whatever kind of scaling has a name."""
    rotated, size = f.whole("rope.dimension_count", f.given.values["attention.key_length"]), 8
    kind, factor = f.value("rope.scaling.type", "linear"), f.factor()
    if kind not in ("none", "linear", "longrope") or (kind == "linear" and factor != 1) or rotated != 4:
        raise Refused
    if f.real("rope.scaling.yarn_ext_factor", 0.0) > 0 or f.real("rope.scaling.yarn_attn_factor", 1.0) != 1:
        raise Refused
    f.any_value("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow")
    original = f.whole("rope.scaling.original_context_length", 0) or f.whole("context_length")
    factors = {
        f"{name}_factor": f.arrays[f"rope_factors_{name}.weight"].astype(float).tolist() for name in ("short", "long")
    }
    rope = {
        "rope_type": "longrope",
        "rope_theta": theta_of(f),
        "partial_rotary_factor": rotated / size,
        "attention_factor": f.real("rope.scaling.attn_factor", 1.0),
        **factors,
    }
    window = f.whole("attention.sliding_window", 0) or None
    return {"rope_parameters": rope, "original_max_position_embeddings": original, "sliding_window": window}


# ---- Gemma -----------------------------------------------------------------------------------------------------------


def _cap(f: Form, default: float) -> float | None:
    found = f.real("final_logit_softcapping", default)
    if found < 0:
        raise Refused
    return found or None


def gemma3n(f: Form) -> Raw:
    f.same("embedding_length_per_layer_input")
    f.same_if_said("rope.dimension_count", "altup.num_inputs")
    f.any_value(*(key for key in f.own if key.startswith("altup.")))
    theta, local = unscaled(f), theta_of(f, "rope.freq_base_swa")
    streams = f.given.values["altup.num_inputs"]
    active = f.whole("altup.active_idx", 0)
    shared = f.whole("attention.shared_kv_layers", 0)
    if active >= streams or shared >= f.own["block_count"]:
        raise Refused
    f.same("feed_forward_length")
    return {
        **_windows(f, f.slides(5)),
        "altup_active_idx": active,
        "num_kv_shared_layers": shared,
        "activation_sparsity_pattern": _sparsity(f),
        "final_logit_softcapping": _cap(f, 30.0),
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": theta},
            SLIDES: {"rope_type": "default", "rope_theta": local},
        },
    }


def _sparsity(f: Form) -> list[float] | None:
    """Of each layer, the share of gates below a multiple of their deviation; none without the key."""
    found = f.value("activation_sparsity_scale", 0.0)
    if "activation_sparsity_scale" not in f.own:
        return None
    if not isinstance(found, np.ndarray) or found.dtype.kind != "f" or len(found) != f.own["block_count"]:
        raise Refused
    return [round(NormalDist().cdf(float(each)), 6) for each in found]


def gemma4(f: Form) -> Raw:
    """A list says which layers slide: a number llama.cpp takes for what all layers are."""
    f.same("attention.key_length", "attention.value_length", "attention.head_count_kv", "feed_forward_length")
    f.same("attention.key_length_swa", "attention.shared_kv_layers")
    f.same_if_said("attention.value_length_swa", "rope.dimension_count", "rope.dimension_count_swa")
    pattern = f.value("attention.sliding_window_pattern", None)
    if not isinstance(pattern, np.ndarray) or f.slides(6) != [bool(e) for e in f.given.values[_PATTERN]]:
        raise Refused
    (f.same if f.given.values["embedding_length_per_layer_input"] else f.same_if_said)(
        "embedding_length_per_layer_input"
    )
    divided = f.arrays["rope_freqs.weight"]
    f.arrays = {key: each for key, each in f.arrays.items() if key != "rope_freqs.weight"}
    rotated = int((divided < _STILL).sum())
    if (divided[:rotated] != divided[0]).any() or (divided[rotated:] < _STILL).any():
        raise Refused
    ropes = {name: {**each} for name, each in f.given.raw["rope_parameters"].items()}
    ropes[FULL]["rope_theta"], ropes[SLIDES]["rope_theta"] = unscaled(f), theta_of(f, "rope.freq_base_swa")
    return {"sliding_window": _window(f), "final_logit_softcapping": _cap(f, 0.0), "rope_parameters": ropes}


_PATTERN = "attention.sliding_window_pattern"
