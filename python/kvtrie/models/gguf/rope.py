"""How a GGUF file says that rotary positions are scaled, as a configuration's ``rope_scaling``.

Two places say it. Keys name a kind (none, linear, yarn) and its numbers; ``rope_freqs.weight`` holds what each
frequency is divided by, which is how Llama 3's scaling is written. llama.cpp applies both, one after the other, so of
linear scaling the factors are multiplied. Of yarn and factors together no checkpoint is known: that is refused.

``yarn_attn_factor`` is what converters make of two different settings, attention_factor, which replaces what yarn
multiplies attention by, and attn_factor, which multiplies that again; llama.cpp reads neither in these architectures.
It is taken where all three agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol, cast

import numpy as np

from ...errors import FormatError
from ..rope_config import LONG_FACTORS
from ..weights import Array
from .keys import Keys
from .reader import GgufFile
from .weights import source

_LLAMA3_ORDER = (1.0, 4.0)  # low_freq_factor and high_freq_factor of every Llama 3
_FACTORS = "rope_freqs.weight"
_KINDS = ("none", "linear", "yarn")
_FLOAT32 = 1e-6  # relative: what numbers of 32 bits may differ by that are meant to be equal


class Described(Protocol):
    """The part of a file's ``Description`` that is read here."""

    file: GgufFile
    keys: Keys
    divided: bool

    def has(self, tensor: str) -> bool: ...

    def rotated(self) -> int: ...


def rope_scaling(d: Described, theta: float) -> dict[str, object] | None:
    """None where nothing is scaled. Raises ``kv.errors.FormatError`` naming the key or tensor."""
    keys = d.keys
    kind = keys.text(".rope.scaling.type", "linear")
    if kind not in _KINDS:
        raise keys.error(".rope.scaling.type", kind, ", ".join(_KINDS))
    factor = _factor(d)
    _check_attention(d, kind, factor)
    yarn = _yarn(d, factor)
    if d.has(_FACTORS) and d.divided:
        if kind == "yarn":
            raise keys.error(".rope.scaling.type", kind, f"none or linear beside {_FACTORS}")
        return _by_factors(d, theta, factor if kind == "linear" else 1.0)
    if kind == "yarn":
        _check_bounds(d, theta, yarn)
        return yarn
    return None if kind == "none" or factor == 1.0 else {"rope_type": "linear", "factor": factor}


def long_scaling(d: Described) -> dict[str, object] | None:
    """The same of Phi-3, whose frequencies are divided by LongRoPE's factors, or as they are.

    The factor of attention is in the file; where it is what the two lengths make, the configuration is as short as a
    checkpoint's.
    """
    keys, long = d.keys, d.has(LONG_FACTORS[0]) or d.has(LONG_FACTORS[1])
    kind = keys.text(".rope.scaling.type", "linear")
    kinds = ("none", "linear", "longrope") if long else ("none", "linear")
    if kind not in kinds:
        raise keys.error(
            ".rope.scaling.type", kind, f"{', '.join(kinds)}{'' if long else f' without {LONG_FACTORS[1]}'}"
        )
    linear = _factor(d)
    if kind == "linear" and linear != 1.0:
        raise keys.error(factor_key(keys), linear, "0 or 1")
    most, original = keys.integer(".context_length"), original_length(keys)
    factor = keys.number(".rope.scaling.attn_factor", 1.0)
    _check_mixed(d, kind)
    _only(d, ".rope.scaling.yarn_attn_factor", 1.0)
    if not long:
        _only(d, ".rope.scaling.attn_factor", 1.0)
        return None
    short, far = (divisors(d, name).tolist() for name in LONG_FACTORS)
    scaling = {"rope_type": "longrope", "short_factor": short, "long_factor": far}
    usual = math.sqrt(1 + math.log(most / original) / math.log(original)) if most > original > 1 else 1.0
    return scaling if math.isclose(factor, usual, rel_tol=_FLOAT32) else {**scaling, "attention_factor": factor}


def original_length(keys: Keys) -> int:
    return keys.integer(".rope.scaling.original_context_length", 0, default=0) or keys.integer(".context_length")


def factor_key(keys: Keys) -> str:
    """The key that has the factor of linear scaling: the new one, or the old one."""
    return ".rope.scaling.factor" if keys.number(".rope.scaling.factor", 0.0) else ".rope.scale_linear"


def _factor(d: Described) -> float:
    """Of frequencies; 0 stands for 1. The key has an older name, which may not say something else."""
    keys, found = d.keys, []
    for key in (".rope.scaling.factor", ".rope.scale_linear"):
        value = keys.number(key, 0.0)
        if value < 0:
            raise keys.error(key, value, "0 or more")
        found.append(value)
    new, old = found
    if keys.has(".rope.scaling.factor") and keys.has(".rope.scale_linear") and new != old:
        raise keys.error(".rope.scale_linear", old, f"{new}, as rope.scaling.factor says")
    return new or old or 1.0


def _check_attention(d: Described, kind: str, factor: float) -> None:
    """Numbers that would scale attention, or mix yarn with another kind."""
    _only(d, ".rope.scaling.attn_factor", 1.0)
    _only(d, ".rope.scaling.yarn_attn_factor", yarn_attention(factor) if kind == "yarn" else 1.0)
    _check_mixed(d, kind)


def _check_mixed(d: Described, kind: str) -> None:
    mixed = 1.0 if kind == "yarn" else 0.0
    value = d.keys.number(".rope.scaling.yarn_ext_factor", mixed)
    if value >= 0 and value != mixed:
        raise d.keys.error(".rope.scaling.yarn_ext_factor", value, f"{mixed} with {kind}")


def _only(d: Described, key: str, allowed: float) -> None:
    value = d.keys.number(key, allowed)
    if not math.isclose(value, allowed, rel_tol=_FLOAT32):
        raise d.keys.error(key, value, f"{allowed:.7g}")


def yarn_attention(factor: float) -> float:
    """The factor of yarn for cosines and sines (arXiv 2309.00071, section 3.4)."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def _yarn(d: Described, factor: float) -> dict[str, object]:
    keys = d.keys
    original = original_length(keys)
    scaling: dict[str, object] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
    }
    for name in ("beta_fast", "beta_slow"):
        if keys.has(f".rope.scaling.yarn_{name}"):
            scaling[name] = keys.positive(f".rope.scaling.yarn_{name}")
    return scaling


def _check_bounds(d: Described, theta: float, yarn: Mapping[str, object]) -> None:
    """Between two frequencies yarn scales in part; where they stand the wrong way round, llama.cpp and transformers
    compute two things."""
    keys, rotated = d.keys, d.rotated()
    if theta <= 1:
        raise keys.error(".rope.freq_base", theta, "above 1 with yarn")
    original = cast(int, yarn["original_max_position_embeddings"])
    fast, slow = (cast(float, yarn.get(name, usual)) for name, usual in (("beta_fast", 32.0), ("beta_slow", 1.0)))

    def pair_that_turns(times: float) -> float:
        return rotated * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = max(0, math.floor(pair_that_turns(fast)))
    if min(rotated - 1, math.ceil(pair_that_turns(slow))) >= low:
        return
    if slow > fast:
        raise keys.error(".rope.scaling.yarn_beta_slow", slow, f"up to yarn_beta_fast ({fast:g})")
    raise keys.error(".rope.scaling.original_context_length", original, "a length in which some frequency turns")


def _by_factors(d: Described, theta: float, linear: float) -> dict[str, object]:
    """Frequencies divided by one factor each: Llama 3's scaling where they are its factors, else as they are."""
    factors = divisors(d, _FACTORS) * linear
    return _llama3(factors, theta) or {
        "rope_type": "longrope",
        "short_factor": factors.tolist(),
        "long_factor": factors.tolist(),
        "attention_factor": 1.0,
        "original_max_position_embeddings": d.keys.integer(".context_length"),
    }


def divisors(d: Described, name: str) -> Array:
    """What each frequency is divided by, float64 [rotated / 2]."""
    tensor, pairs = d.file.tensors.get(name), d.rotated() // 2
    if tensor is None or tensor.shape != (pairs,):
        shape = "no tensor" if tensor is None else f"shape {list(tensor.shape)}"
        raise FormatError(f"[models.load] {d.file.path}: {name}: got {shape}, expected {[pairs]}")
    factors: Array = source(tensor, tensor.name).read().astype(np.float64)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise FormatError(f"[models.load] {d.file.path}: {name}: allowed positive finite numbers")
    return factors


def _llama3(factors: Array, theta: float) -> dict[str, object] | None:
    """The parameters whose factors these are, to float32's precision; None if there are none."""
    low, high = _LLAMA3_ORDER
    frequencies = theta ** (-np.arange(len(factors)) / len(factors)) / (2 * np.pi)
    factor = float(factors.max())
    between = (factors > 1 + 1e-5) & (factors < factor * (1 - 1e-5))
    if factor <= 1 or not between.any():
        return None
    keep = (1 / factors - 1 / factor) / (1 - 1 / factor)
    original = np.rint(np.median(((keep * (high - low) + low) / frequencies)[between]))
    smooth = np.clip((original * frequencies - low) / (high - low), 0.0, 1.0)
    if not np.allclose(1 / factors, (1 - smooth) / factor + smooth, rtol=1e-5, atol=0):
        return None
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": int(original),
    }
