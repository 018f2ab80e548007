"""What a checkpoint's ``config.json`` says, checked and normalised.

Field names are those of Hugging Face. Two generations of files are read: ``rope_theta`` beside ``rope_scaling``, and
the newer ``rope_parameters`` that holds both. Anything a family cannot compute exactly is refused by name here, before
a single weight is read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict, cast

from ..errors import FormatError, NotSupported
from .rope_arguments import Scaling

Raw = Mapping[str, object]  # a parsed config.json or generation_config.json, of which nothing is known yet

ROPE_TYPES = ("linear", "dynamic", "yarn", "longrope", "llama3")
_ROPE_KEYS = (
    "factor",
    "attention_factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "short_factor",
    "long_factor",
)
_MOST = 2**31 - 1
_MOST_LAYERS = 10_000
_MAX_POSITIONS = 2048  # where max_position_embeddings is absent
_POSITIVE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer: sizes in elements, lengths in tokens.

    ``rope_scaling`` is the scaling in Hugging Face's form (``rope_type``, ``factor``, ...) with
    ``original_max_position_embeddings`` filled in, or None. ``eos_token_ids`` are the ids that end a text.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Scaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = field(default=())

    def digest(self) -> str:
        """SHA-256 (hex) over every field that changes what the model computes."""
        fields = dataclasses.asdict(self)
        for name in ("bos_token_id", "eos_token_ids"):
            del fields[name]
        return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()

    def position_limit(self) -> int | None:
        """The first position at which RoPE frequencies would depend on the text's length; None if they never do."""
        scaling = self.rope_scaling
        if scaling is None or scaling["rope_type"] not in ("dynamic", "longrope"):
            return None
        if scaling["rope_type"] == "longrope" and scaling.get("short_factor") == scaling.get("long_factor"):
            return None
        return min(int(cast(float, scaling["original_max_position_embeddings"])), self.max_position_embeddings)


class CommonFields(TypedDict):
    """Those of :class:`ModelConfig`, as its keyword arguments."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Scaling | None
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


def parse_config(raw: Raw, *, model_type: str, generation: Raw | None = None, where: str = "config") -> ModelConfig:
    """Reads a parsed ``config.json`` (and ``generation_config.json``) of a family without fields of its own.

    Raises ``kv.FormatError`` for a missing or impossible value and ``kv.NotSupported`` for a feature that is real but
    not computed here; both name the key. ``where`` (a file name) starts the messages.
    """
    refuse_quantised(raw, where)
    refuse_activation(raw, where)
    if raw.get("use_sliding_window"):
        raise NotSupported(f"[models.config] {where}: use_sliding_window: got true, allowed false (full attention)")
    kinds = raw.get("layer_types") or []
    check_kinds(kinds if isinstance(kinds, list) else [kinds], ("full_attention",), where)
    rope = read_rope(flat_rope(raw, where), raw, where)
    if rope.partial != 1.0:
        raise NotSupported(f"[models.config] {where}: partial_rotary_factor: got {rope.partial}, allowed 1.0")
    config = ModelConfig(**common_fields(raw, rope, model_type=model_type, generation=generation, where=where))
    check(config, where)
    return config


def common_fields(
    raw: Raw,
    rope: RopeFields,
    *,
    model_type: str,
    generation: Raw | None = None,
    where: str = "config",
) -> CommonFields:
    """The fields of :class:`ModelConfig` by name, not yet checked against each other; see :func:`check`."""
    reader = Reader(raw, where)
    heads = reader.integer("num_attention_heads")
    hidden = reader.integer("hidden_size")
    return {
        "model_type": model_type,
        "vocab_size": reader.integer("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": reader.integer("intermediate_size"),
        "num_hidden_layers": reader.layers(),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.integer("num_key_value_heads", heads),
        "head_dim": reader.integer("head_dim", hidden // max(heads, 1)),
        "max_position_embeddings": reader.integer("max_position_embeddings", _MAX_POSITIONS),
        "rms_norm_eps": reader.number("rms_norm_eps", 1e-6),
        "rope_theta": rope.theta,
        "rope_scaling": rope.scaling,
        "tie_word_embeddings": reader.flag("tie_word_embeddings"),
        "attention_bias": reader.flag("attention_bias"),
        "mlp_bias": reader.flag("mlp_bias"),
        "bos_token_id": next(iter(_token_ids(raw, generation, "bos_token_id", where)), None),
        "eos_token_ids": _token_ids(raw, generation, "eos_token_id", where),
    }


def text_part(raw: Raw, where: str = "config") -> dict[str, object]:
    """The text model's configuration: ``text_config`` of a model that also sees images, else all of ``raw``."""
    text = raw.get("text_config")
    if text is None:
        return dict(raw)
    if not isinstance(text, Mapping):
        raise FormatError(f"[models.config] {where}: text_config: got {text!r}, allowed an object")
    shared = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config")
    return {**text, **{key: raw[key] for key in shared if raw.get(key) is not None}}


class Reader:
    """Typed look-ups whose errors name the file and the key."""

    def __init__(self, raw: Raw, where: str) -> None:
        self._raw = raw
        self._where = where

    def _get(self, key: str, default: object) -> object:
        value = self._raw.get(key)
        if value is None:
            value = default
        if value is None:
            raise FormatError(f"[models.config] {self._where}: {key} is missing")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise FormatError(f"[models.config] {self._where}: {key}: got {value!r}, allowed an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise FormatError(f"[models.config] {self._where}: {key}: got {value!r}, allowed a number")
        try:
            return float(value)
        except OverflowError:
            raise FormatError(
                f"[models.config] {self._where}: {key}: got {value}, allowed a number of 64 bits"
            ) from None

    def within(self, key: str, least: int, most: int, default: int | None = None) -> int:
        value = self.integer(key, default)
        if not least <= value <= most:
            raise FormatError(f"[models.config] {self._where}: {key}: got {value}, allowed {least} to {most}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.number(key, default)
        if not 0 < value < math.inf:
            raise FormatError(f"[models.config] {self._where}: {key}: got {value}, allowed a positive finite number")
        return value

    def layers(self) -> int:
        return self.within("num_hidden_layers", 1, _MOST_LAYERS)

    def integers(self, key: str, least: int, most: int) -> tuple[int, ...] | None:
        """A list of integers from ``least`` to ``most``; None if the key is absent or null."""
        value = self._raw.get(key)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(
            isinstance(item, int) and not isinstance(item, bool) and least <= item <= most for item in value
        ):
            raise FormatError(
                f"[models.config] {self._where}: {key}: got {value!r}, allowed integers from {least} to {most}"
            )
        return tuple(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise FormatError(f"[models.config] {self._where}: {key}: got {value!r}, allowed true or false")
        return value


def refuse_quantised(raw: Raw, where: str) -> None:
    """Raises ``kv.NotSupported`` for packed weights (GPTQ, AWQ, MXFP4, bitsandbytes, ...), by their method's name."""
    quantised = raw.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method", "unknown") if isinstance(quantised, Mapping) else quantised
        raise NotSupported(
            f"[models.config] {where}: quantised weights: got quant_method {method!r}, "
            "allowed float32, float16 and bfloat16"
        )


def refuse_activation(
    raw: Raw, where: str, key: str = "hidden_act", allowed: Sequence[str] = ("silu", "swish")
) -> None:
    if raw.get(key, allowed[0]) not in allowed:
        raise NotSupported(f"[models.config] {where}: {key}: got {raw[key]!r}, allowed {allowed[0]!r}")


def check_kinds(kinds: Sequence[object], allowed: Sequence[str], where: str) -> None:
    """Raises ``kv.NotSupported`` naming the first of ``layer_types`` that is not in ``allowed``."""
    for kind in kinds:
        if kind not in allowed:
            names = ", ".join(repr(name) for name in allowed)
            raise NotSupported(f"[models.config] {where}: layer_types: got {kind!r}, allowed {names}")


def layer_kinds(raw: Raw, layers: int, allowed: Sequence[str], default: Sequence[str], where: str) -> tuple[str, ...]:
    """``layer_types``, one for each layer; ``default`` if the key is absent."""
    kinds = raw.get("layer_types")
    if kinds is None:
        kinds = list(default)
    if not isinstance(kinds, (list, tuple)) or len(kinds) != layers:
        got = f"{len(kinds)} entries" if isinstance(kinds, (list, tuple)) else repr(kinds)
        raise FormatError(f"[models.config] {where}: layer_types: got {got}, allowed a list of {layers}")
    check_kinds(kinds, allowed, where)
    return tuple(kinds)


class RopeFields(NamedTuple):
    """``scaling`` as in :class:`ModelConfig`; ``partial``: the rotated share of each head, in (0, 1]."""

    theta: float
    scaling: Scaling | None
    partial: float = 1.0


def flat_rope(raw: Raw, where: str) -> dict[str, object]:
    """``rope_scaling`` and ``rope_parameters`` as one; refuses parameters per layer type."""
    parameters: dict[str, object] = {}
    for key in ("rope_scaling", "rope_parameters"):
        value = raw.get(key) or {}
        if not isinstance(value, Mapping):
            raise FormatError(f"[models.config] {where}: {key}: got {value!r}, allowed an object")
        parameters.update(value)
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise NotSupported(f"[models.config] {where}: rope_parameters per layer type, allowed one for all layers")
    return parameters


def read_rope(
    parameters: Raw,
    raw: Raw,
    where: str,
    *,
    theta: float | None = None,
    partial: float = 1.0,
) -> RopeFields:
    """RoPE's fields from ``parameters``; ``theta`` and ``partial``: what holds where neither they nor ``raw`` say."""
    parameters = dict(parameters)
    if theta is None:
        theta = Reader(raw, where).number("rope_theta", 10000.0)
    theta = Reader(parameters, where).positive("rope_theta", theta)
    parameters.pop("rope_theta", None)
    partial = Reader(raw, where).positive("partial_rotary_factor", partial)
    partial = Reader(parameters, where).positive("partial_rotary_factor", partial)
    if partial > 1.0:
        raise FormatError(f"[models.config] {where}: partial_rotary_factor: got {partial}, allowed up to 1.0")
    kind = parameters.pop("type", "default")
    kind = parameters.pop("rope_type", kind)
    if kind == "default":
        return RopeFields(theta, None, partial)
    return RopeFields(theta, _scaling(kind, parameters, raw, where), partial)


def _scaling(kind: object, parameters: Raw, raw: Raw, where: str) -> Scaling:
    if kind not in ROPE_TYPES:
        raise NotSupported(f"[models.config] {where}: rope_type: got {kind!r}, allowed {', '.join(ROPE_TYPES)}")
    if kind != "longrope":
        Reader(parameters, where).number("factor")
    max_positions = Reader(raw, where).integer("max_position_embeddings", _MAX_POSITIONS)
    scaling: dict[str, object] = {"rope_type": kind}
    scaling.update((key, value) for key, value in parameters.items() if key in _ROPE_KEYS and value is not None)
    original = raw.get("original_max_position_embeddings") or max_positions
    scaling.setdefault("original_max_position_embeddings", original)
    scaling["max_position_embeddings"] = max_positions
    return scaling


def _token_ids(raw: Raw, generation: Raw | None, key: str, where: str) -> tuple[int, ...]:
    value = (generation or {}).get(key)
    if value is None:
        value = raw.get(key)
    values = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    for item in values:
        if isinstance(item, bool) or not isinstance(item, int):
            raise FormatError(f"[models.config] {where}: {key}: got {value!r}, allowed a token id or a list of them")
    return tuple(values)


def check(config: ModelConfig, where: str) -> None:
    """Raises ``kv.FormatError`` naming the first common field that is out of range."""
    for name in _POSITIVE:
        limit = _MOST_LAYERS if name == "num_hidden_layers" else _MOST
        if not 1 <= getattr(config, name) <= limit:
            raise FormatError(f"[models.config] {where}: {name}: got {getattr(config, name)}, allowed 1 to {limit}")
    if config.num_attention_heads % config.num_key_value_heads:
        raise FormatError(
            f"[models.config] {where}: num_key_value_heads: got {config.num_key_value_heads}, "
            f"allowed a divisor of num_attention_heads ({config.num_attention_heads})"
        )
    if config.head_dim % 2:
        raise FormatError(f"[models.config] {where}: head_dim: got {config.head_dim}, allowed an even number")
    if not 0 < config.rms_norm_eps < math.inf or not 0 < config.rope_theta < math.inf:
        raise FormatError(
            f"[models.config] {where}: rms_norm_eps {config.rms_norm_eps}, rope_theta {config.rope_theta}: "
            "allowed positive finite numbers"
        )
