"""What keys mean that the files of most architectures have: sizes, RoPE, lists by layer. See gguf_oracle_forms.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from gguf_oracle import PER_BLOCK, File, Refused

Raw = dict[str, Any]
Reads = Callable[["Form"], Raw]
SLIDES, FULL = "sliding_attention", "full_attention"


class Given(NamedTuple):
    """The file before a key was changed. ``values``: by keys without the architecture. ``raw``: of its checkpoint."""

    values: Mapping[str, Any]
    raw: Raw


class Form(File):
    """Reads one file's own keys; those that were looked at are ``seen``."""

    def __init__(self, architecture: str, own: Mapping[str, Any], arrays: Mapping[str, Any], given: Given) -> None:
        super().__init__(architecture, own, arrays)
        self.given = given
        self.seen: set[str] = set()

    def value(self, key: str, default: Any) -> Any:
        self.seen.add(key)
        return super().value(key, default)

    def same(self, *keys: str) -> None:
        """Tensors have this size: the file says it as it did, of all blocks at once or one by one."""
        for key in keys:
            self._same(key, self.value(key, None))

    def same_if_said(self, *keys: str) -> None:
        """The same where a file that does not say it means what this one says."""
        for key in keys:
            self.seen.add(key)
            if key in self.own:
                self._same(key, self.own[key])

    def _same(self, key: str, found: Any) -> None:
        wanted = np.asarray(self.given.values[key])
        if np.ndim(found) == 0 and wanted.ndim == 0:
            if type(found) is not type(wanted.item()) or found != wanted:
                raise Refused
        else:
            self._same_list(key, np.asarray(found), wanted)

    def _same_list(self, key: str, found: Any, wanted: Any) -> None:
        blocks = self.own["block_count"]
        if found.dtype.kind not in "iu" or (found.ndim == 1 and len(found) != blocks):
            raise Refused
        if key not in PER_BLOCK and key not in _OF_LAYERS:
            raise Refused
        if (np.broadcast_to(found, blocks) != np.broadcast_to(wanted, blocks)).any():
            raise Refused

    def only(self, key: str, *allowed: Any) -> None:
        """One of these, if anything."""
        self.seen.add(key)
        found = self.own.get(key)
        if key in self.own and not any(type(found) is type(each) and found == each for each in allowed):
            raise Refused

    def any_value(self, *keys: str) -> None:
        self.seen |= {*keys}

    def flag(self, key: str, default: bool) -> bool:
        found = self.value(key, default)
        if type(found) is not bool:
            raise Refused
        return found

    def factor(self, key: str | None = None, otherwise: float = 1.0) -> float:
        """0: there is none. Without a key: of frequencies."""
        if key is None:
            self.seen |= {"rope.scaling.factor", "rope.scale_linear"}
            return super().factor()
        return self.real(key, 0.0) or otherwise

    def slides(self, every: int) -> list[bool]:
        """Each n-th layer sees everything, or as a list says."""
        key = "attention.sliding_window_pattern"
        found, layers = self.value(key, every), self.own["block_count"]
        if isinstance(found, np.ndarray):
            if len(found) != layers or found.dtype.kind not in "biu":
                raise Refused
            return [bool(each) for each in found]
        number = self.whole(key, every)
        return [number == 0 or layer % number < number - 1 for layer in range(layers)]


_OF_LAYERS = {"attention.head_count_kv", "feed_forward_length"}


# ---- what all of them say --------------------------------------------------------------------------------------------


def sizes(f: Form) -> Raw:
    f.same("embedding_length", "block_count", "attention.head_count")
    f.same_if_said("vocab_size")
    f.only("nextn_predict_layers", 0)
    f.only("embedding_length_out", 0, f.own["embedding_length"])
    return {
        "max_position_embeddings": f.whole("context_length"),
        "rms_norm_eps": f.real("attention.layer_norm_rms_epsilon"),
    }


def heads(f: Form) -> Raw:
    """Of keys and values that each head has, as large as those of queries."""
    size = f.given.values["attention.key_length"]
    f.same("attention.head_count_kv")
    by_default = size == f.given.values["embedding_length"] // f.given.values["attention.head_count"]
    (f.same_if_said if by_default else f.same)("attention.key_length", "attention.value_length")
    return {}


def scaled_by(scale: float, f: Form) -> None:
    said = f.real("attention.scale", 0.0)
    if said and not math.isclose(said, scale, rel_tol=1e-6):
        raise Refused


def usual_scale(f: Form) -> Raw:
    scaled_by(f.given.values["attention.key_length"] ** -0.5, f)
    return {}


def unit_scale(f: Form) -> Raw:
    scaled_by(1.0, f)
    return {}


def theta_of(f: Form, key: str = "rope.freq_base", default: float = 10_000.0) -> float:
    found = f.real(key, default)
    if found <= 0:
        raise Refused
    return found


_ROPE_KEYS = (
    *("rope.scaling.type", "rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor"),
    *("rope.scaling.original_context_length", "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"),
    *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
)


def frequencies(f: Form, rotated: int) -> Raw:
    """rope_parameters of numbers that rotate, each frequency with a factor of its own."""
    f.any_value(*_ROPE_KEYS)
    theta = theta_of(f)
    scaling = f.scaling(rotated, theta, f.whole("context_length"))
    return {**(scaling or {"rope_type": "default"}), "rope_theta": theta}


def yarn(f: Form, theta: float) -> Raw:
    return {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": f.factor(),
        "original_max_position_embeddings": f.whole("rope.scaling.original_context_length", 0)
        or f.whole("context_length"),
        "beta_fast": f.real("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": f.real("rope.scaling.yarn_beta_slow", 1.0),
    }


def whole(f: Form) -> Raw:
    f.same_if_said("rope.dimension_count")
    return {"rope_parameters": frequencies(f, f.given.values["rope.dimension_count"])}


def partly(f: Form) -> Raw:
    size = f.given.values["attention.key_length"]
    rotated = f.whole("rope.dimension_count", size)
    if rotated % 2 or not 2 <= rotated <= size:
        raise Refused
    share = {"partial_rotary_factor": rotated / size}
    return {**share, "rope_parameters": {**frequencies(f, rotated), **share}}


def unrotated(f: Form) -> Raw:
    f.any_value(*(key for key in f.own if key.startswith("rope.")))
    return {}


def unscaled(f: Form) -> float:
    """theta, where frequencies may be scaled by nothing."""
    found = frequencies(f, f.given.values["attention.key_length"])
    if found["rope_type"] != "default":
        raise Refused
    return float(found["rope_theta"])


def inner(f: Form) -> Raw:
    """Width of MLPs; nothing where all layers have experts of another width."""
    return {"intermediate_size": f.whole("feed_forward_length", 1)}


def unused_inner(f: Form) -> Raw:
    f.whole("feed_forward_length", 1)
    return {}
