"""RoPE of a configuration, merged from every place that has held it, as transformers merges them.

Files have said it in three ways: ``rope_theta`` beside ``rope_scaling`` (transformers 4), ``rope_parameters`` that
holds both (transformers 5), and either with what a user added by hand. transformers 5.24 makes one dictionary of them:

- ``rope_scaling``, where it is not empty, takes the place of ``rope_parameters``; nothing is mixed.
- ``rope_theta`` and ``partial_rotary_factor`` in that dictionary hold before those at the top of the file, those before
  the family's own. ``partial_rotary_factor: null`` at the top means the whole head.
- ``rope_type`` holds before ``type``.
- ``original_max_position_embeddings`` at the top holds before the dictionary's, that before
  ``max_position_embeddings``; only yarn, longrope and llama3 have any.
- yarn with ``factor: null`` and longrope without take max_position_embeddings / original_max_position_embeddings.
- Each type reads its own keys (``KEYS``) and no other: an ``attention_factor`` of llama3 does nothing.

Gemma 3 has a dictionary for each kind of layer; see :func:`ropes_of_kinds`.

Sources: transformers 5.24, ``RotaryEmbeddingConfigMixin.convert_rope_params_to_dict`` and ``standardize_rope_params``
and the functions of ``ROPE_INIT_FUNCTIONS`` (its modeling_rope_utils); ``Gemma3TextConfig`` for kinds of layers.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import NamedTuple, cast

from ..errors import FormatError, IgnoredWarning, NotSupportedError
from .reader import Raw, Reader
from .rope_arguments import Scaling
from .settings import Settings, neutral, read, refused

# Keys that each type reads of its dictionary, beside those that all of them read.
KEYS: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "longrope": ("factor", "attention_factor", "short_factor", "long_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
ORIGINAL = "original_max_position_embeddings"
LONG_FACTORS = ("rope_factors_short.weight", "rope_factors_long.weight")  # tensors of GGUF files
_HAVE_ORIGINAL = ("yarn", "longrope", "llama3")
PARTIAL = "partial_rotary_factor"
FULL, SLIDING = "full_attention", "sliding_attention"


class RopeFields(NamedTuple):
    """``scaling`` as in :class:`ModelConfig`; ``partial``: the rotated share of each head, in (0, 1]."""

    theta: float
    scaling: Scaling | None
    partial: float = 1.0


def rope_type_of(parameters: Mapping[str, object]) -> object:
    """``rope_type`` before ``type``, whatever it is."""
    return parameters["rope_type"] if "rope_type" in parameters else parameters.get("type", "default")


class Defaults(NamedTuple):
    """The values where a file says nothing. ``partial``: None for the whole head."""

    theta: float = 10_000.0
    max_positions: int = 2048
    partial: float | None = None


def read_rope(raw: Raw, where: str, defaults: Defaults = Defaults()) -> RopeFields:  # noqa: B008 (it is a constant)
    """The one RoPE of all layers. Raises ``kv.errors.NotSupportedError`` for parameters by kind of layer."""
    scaling, parameters = (_dictionary(raw, key, where) for key in ("rope_scaling", "rope_parameters"))
    chosen, key = (scaling, "rope_scaling") if scaling else (parameters, "rope_parameters")
    if any(isinstance(value, Mapping) for value in chosen.values()):
        raise NotSupportedError(f"[models.config] {where}: {key}: got one per layer type, allowed one for all layers")
    rope = _fields(chosen, raw, f"{where}: {key}", defaults, original=raw.get(ORIGINAL))
    if scaling and parameters and not _says_all(parameters, scaling, rope):
        warnings.warn(
            f"[models.load] {where}: rope_parameters has no effect beside rope_scaling, which takes its place: "
            f"RoPE is {_shown(rope)}",
            IgnoredWarning,
            stacklevel=2,
        )
    return rope


def _says_all(parameters: Mapping[str, object], scaling: Mapping[str, object], rope: RopeFields) -> bool:
    """Whether ``rope_parameters`` means the same as the ``rope_scaling`` that takes its place."""
    alike = all(parameters.get(key) == value for key, value in scaling.items())
    return alike and parameters.get("rope_theta", rope.theta) == rope.theta


def whole_heads(rope: RopeFields, where: str) -> RopeFields:
    """``rope`` of a family that rotates whole heads. Raises ``kv.errors.NotSupportedError`` where it is a part of
    them."""
    if rope.partial != 1.0:
        raise NotSupportedError(f"[models.config] {where}: {PARTIAL}: got {rope.partial}, allowed 1.0")
    return rope


def ropes_of_kinds(
    raw: Raw, where: str, thetas: Mapping[str, float], max_positions: int, local: str | None = "rope_local_base_freq"
) -> dict[str, RopeFields]:
    """RoPE by kind of layer, ``FULL`` and ``SLIDING``, as ``Gemma3TextConfig`` merges it.

    ``rope_parameters`` has a dictionary for each; ``rope_scaling`` is laid over that of full layers. ``rope_theta`` at
    the top is for full layers, ``local``, if there is such a key, for sliding ones; ``thetas``: where neither says it.
    """
    kinds = _dictionaries_of_kinds(raw, where)
    tops = {FULL: "rope_theta", SLIDING: local}
    ropes = {}
    for kind, parameters in kinds.items():
        top = tops[kind]
        theta = thetas[kind] if top is None else Reader(raw, where).number(top, thetas[kind])
        inside = f"{where}: rope_parameters, rope_scaling: {kind}"
        rope = _fields(parameters, {}, inside, Defaults(theta, _max_positions(raw, where, max_positions)))
        _refuse_of_kinds(kind, rope, where)
        ropes[kind] = whole_heads(rope, where)
    partial = Reader(raw, where).number(PARTIAL, 1.0)
    whole_heads(RopeFields(1.0, None, partial), where)
    return ropes


def rope_of_kind(parameters: Raw, where: str, max_positions: int) -> RopeFields:
    """Of a dictionary that one kind of layers has for itself, which no other key of the file changes."""
    rope = whole_heads(_fields(parameters, {}, where, Defaults(max_positions=max_positions)), where)
    if rope.scaling is not None and rope.scaling["rope_type"] in ("dynamic", "longrope"):
        raise NotSupportedError(
            f"[models.config] {where}: rope_type: got {rope.scaling['rope_type']!r}, "
            "allowed default, linear, yarn, llama3"
        )
    return rope


def _dictionaries_of_kinds(raw: Raw, where: str) -> dict[str, Mapping[str, object]]:
    parameters, scaling = _dictionary(raw, "rope_parameters", where), _dictionary(raw, "rope_scaling", where)
    if parameters and not {FULL, SLIDING} & parameters.keys():
        raise FormatError(
            f"[models.config] {where}: rope_parameters: got {parameters!r}, allowed one object per layer type"
        )
    kinds = {kind: _dictionary(parameters, kind, where) for kind in (FULL, SLIDING)}
    own_type = kinds[FULL].get("rope_type", None if kinds[FULL] else "default")
    if own_type is not None and "rope_type" not in scaling and scaling.get("type", own_type) != own_type:
        raise NotSupportedError(
            f"[models.config] {where}: rope_scaling: got type {scaling['type']!r}, allowed rope_type: transformers 4 "
            f"takes the one for the other, transformers 5 computes {own_type!r}"
        )
    kinds[FULL] = {**kinds[FULL], **scaling}
    for kind, own in kinds.items():
        if not own.get("truncate", True):
            raise NotSupportedError(
                f"[models.config] {where}: truncate of {kind}: got {own['truncate']!r}, allowed true: transformers "
                "reads it from rope_parameters itself, for all kinds of layers"
            )
    return kinds


def _refuse_of_kinds(kind: str, rope: RopeFields, where: str) -> None:
    if kind == SLIDING and rope.scaling is not None and rope.scaling["rope_type"] in ("dynamic", "longrope"):
        raise NotSupportedError(
            f"[models.config] {where}: rope_type of {kind}: got {rope.scaling['rope_type']!r}, "
            "allowed default, linear, yarn, llama3"
        )


def _dictionary(raw: Raw, key: str, where: str) -> Mapping[str, object]:
    value = raw.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise FormatError(f"[models.config] {where}: {key}: got {value!r}, allowed an object")
    return value


def _max_positions(raw: Raw, where: str, default: int) -> int:
    return Reader(raw, where).integer("max_position_embeddings", default)


def _fields(
    parameters: Mapping[str, object], raw: Raw, where: str, defaults: Defaults, original: object = None
) -> RopeFields:
    """Of one dictionary. ``raw``: where what it lacks may stand."""
    theta = Reader(parameters, where).positive("rope_theta", Reader(raw, where).number("rope_theta", defaults.theta))
    partial = _partial(parameters, raw, where, defaults)
    kind = rope_type_of(parameters)
    if kind == "default":
        return RopeFields(theta, None, partial)
    if not isinstance(kind, str) or kind not in KEYS:
        raise NotSupportedError(f"[models.config] {where}: rope_type: got {kind!r}, allowed default, {', '.join(KEYS)}")
    most = _max_positions(raw, where, defaults.max_positions)
    return RopeFields(theta, _scaling(kind, parameters, where, most, original), partial)


def _partial(parameters: Mapping[str, object], raw: Raw, where: str, defaults: Defaults) -> float:
    if PARTIAL in parameters:
        partial = Reader(parameters, where).positive(PARTIAL)
    elif PARTIAL in raw:
        partial = Reader(raw, where).positive(PARTIAL, 1.0)
    else:
        partial = 1.0 if defaults.partial is None else defaults.partial
    if partial > 1.0:
        raise FormatError(f"[models.config] {where}: {PARTIAL}: got {partial}, allowed up to 1.0")
    return partial


def _scaling(kind: str, parameters: Mapping[str, object], where: str, most: int, original: object) -> Scaling:
    """The scaling for ``kv.ops.RopeTable``, with its factor and its original length filled in."""
    found: dict[str, object] = {"rope_type": kind, ORIGINAL: most, "max_position_embeddings": most}
    if kind in _HAVE_ORIGINAL:
        given = {**parameters} if original is None else {ORIGINAL: original}
        given.setdefault(ORIGINAL, most)
        found[ORIGINAL] = Reader(given, where).within(ORIGINAL, 1, 2**31 - 1)
    may_lack = kind == "longrope" or (kind == "yarn" and "factor" in parameters)
    if parameters.get("factor") is not None or not may_lack:
        found["factor"] = Reader(parameters, where).positive("factor")
    elif kind == "yarn" or parameters.get("attention_factor") is None:
        found["factor"] = most / cast(int, found[ORIGINAL])
    for key in KEYS[kind][1:]:
        found.update(_value(key, parameters, where))
    return found


def _value(key: str, parameters: Mapping[str, object], where: str) -> dict[str, object]:
    """The key with its value; {} where it is the same as absent, as null is, and 0 of most."""
    value = parameters.get(key)
    if key == "truncate":
        return {key: bool(value)} if key in parameters else {}
    if key in ("short_factor", "long_factor"):
        return {key: _factors(parameters, key, where)}
    needed = key in ("low_freq_factor", "high_freq_factor") or (key == "attention_factor" and value is not None)
    return {key: Reader(parameters, where).positive(key)} if needed or value else {}


def _factors(parameters: Mapping[str, object], key: str, where: str) -> list[float]:
    values = parameters.get(key)
    if not isinstance(values, (list, tuple)):
        raise FormatError(f"[models.config] {where}: {key}: got {values!r}, allowed a list of numbers")
    return [Reader({key: value}, where).positive(key) for value in values]


def _shown(rope: RopeFields) -> str:
    return f"{'default' if rope.scaling is None else rope.scaling['rope_type']} with theta {rope.theta:g}"


# ---- the account of each key -----------------------------------------------------------------------------------------

_BOUNDS = "turns of a frequency in the original length, between which it is scaled in part"
_WAVES = "the original length divided by each is a wavelength; between them frequencies are scaled in part"
_WHAT = {
    "factor": "positions are divided by it",
    "attention_factor": "multiplies cosine and sine",
    "beta_fast": _BOUNDS,
    "beta_slow": _BOUNDS,
    "mscale": "the attention factor, where it is not given",
    "mscale_all_dim": "the attention factor, where it is not given",
    "truncate": "whether the bounds are rounded",
    "short_factor": "divides each frequency, up to the original length",
    "long_factor": "beyond the original length, where steps are refused",
    "low_freq_factor": _WAVES,
    "high_freq_factor": _WAVES,
}


def rope_settings(kind: object) -> Settings:
    """The treatment of the keys of ``rope_parameters`` or ``rope_scaling`` whose type is ``kind``."""
    own = KEYS.get(kind, ()) if isinstance(kind, str) else ()
    original = "the length that a model was trained with"
    return {
        "rope_type": read("default, or one of linear, dynamic, yarn, longrope, llama3"),
        "type": read("as rope_type, where that is absent"),
        "rope_theta": read("the base of the frequencies"),
        PARTIAL: read("the share of each head that rotates; 1.0 but in Qwen3-Next and Qwen3.5"),
        ORIGINAL: read(original) if kind in _HAVE_ORIGINAL else neutral("only yarn, longrope and llama3 have one"),
        **{key: read(what) if key in own else neutral(_other(key)) for key, what in _WHAT.items()},
        "mrope_section": neutral("of text all three axes of positions are equal"),
        "mrope_interleaved": neutral("of text all three axes of positions are equal"),
        "max_position_embeddings": neutral("that of the configuration holds"),
        "llama_4_scaling_beta": neutral("read in Ministral 3 only"),
    }


ROPES_BY_KIND: Settings = {
    FULL: read("RoPE of layers that see everything"),
    SLIDING: read("RoPE of layers with a window"),
    "truncate": refused("transformers takes it for all kinds of layers"),
}


def _other(key: str) -> str:
    return f"read with rope_type {', '.join(kind for kind, keys in KEYS.items() if key in keys)} only"
