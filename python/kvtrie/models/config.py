"""A checkpoint's ``config.json``, checked and normalised.

Field names are those of Hugging Face; where RoPE stands in a file, rope_config.py says. What becomes of each key is in
:attr:`Model.settings`, by which a file is judged before it is read here. Anything a family cannot compute exactly is
refused by name, before a single weight is read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, cast

from ..errors import FormatError, NotSupportedError
from .reader import Raw, Reader
from .rope_arguments import Scaling
from .rope_config import Defaults, RopeFields, read_rope, whole_heads

_MOST = 2**31 - 1
_MOST_LAYERS = 10_000
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
        if scaling["rope_type"] == "dynamic":
            return self.max_position_embeddings
        return min(int(cast(int, scaling["original_max_position_embeddings"])), self.max_position_embeddings)


DEFAULTS: Mapping[str, object] = {"max_position_embeddings": 2048}  # of Llama, and of families that say no other

# Keys that a model that also sees images has for its text model, too, beside ``text_config``.
SHARED = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config")


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


def parse_config(
    raw: Raw,
    *,
    model_type: str,
    generation: Raw | None = None,
    where: str = "config",
    defaults: Mapping[str, object] = DEFAULTS,
    fixed: Mapping[str, object] = {},
) -> ModelConfig:
    """Reads a parsed ``config.json`` (and ``generation_config.json``) of a family without fields of its own.

    ``defaults``: what holds where the file says nothing; ``fixed``: fields that the family does not read.
    Raises ``kv.errors.FormatError`` for a missing or impossible value and ``kv.errors.NotSupportedError`` for a feature
    that is real but not computed here; both name the key. ``where`` (a file name) starts the messages.
    """
    refuse_quantised(raw, where)
    refuse_activation(raw, where)
    kinds = raw.get("layer_types") or []
    check_kinds(kinds if isinstance(kinds, list) else [kinds], ("full_attention",), where)
    reader = Reader(raw, where, defaults)
    rope = whole_heads(read_rope(raw, where, rope_defaults(defaults)), where)
    fields = common_fields(reader, raw, rope, model_type, generation=generation, where=where, fixed=fixed)
    config = ModelConfig(**fields)
    check(config, where)
    return config


def rope_defaults(defaults: Mapping[str, object], **own: float) -> Defaults:
    return Defaults(max_positions=cast(int, defaults["max_position_embeddings"]), **own)


def common_fields(
    reader: Reader,
    raw: Raw,
    rope: RopeFields,
    model_type: str,
    *,
    generation: Raw | None = None,
    where: str = "config",
    fixed: Mapping[str, object] = {},
) -> CommonFields:
    """The fields of :class:`ModelConfig` by name, not yet checked against each other; see :func:`check`.

    ``fixed``: those that a family does not read.
    """
    heads = reader.integer("num_attention_heads")
    hidden = reader.integer("hidden_size")
    kv_heads = heads if reader.null("num_key_value_heads") else reader.integer("num_key_value_heads", heads)
    flags = {key: fixed[key] if key in fixed else reader.flag(key) for key in ("attention_bias", "mlp_bias")}
    inner = fixed["intermediate_size"] if "intermediate_size" in fixed else reader.integer("intermediate_size")
    return {
        "model_type": model_type,
        "vocab_size": reader.integer("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": cast(int, inner),
        "num_hidden_layers": reader.layers(),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": reader.integer("head_dim", hidden // max(heads, 1)),
        "max_position_embeddings": reader.integer("max_position_embeddings"),
        "rms_norm_eps": reader.number("rms_norm_eps", 1e-6),
        "rope_theta": rope.theta,
        "rope_scaling": rope.scaling,
        "tie_word_embeddings": reader.flag("tie_word_embeddings"),
        "attention_bias": cast(bool, flags["attention_bias"]),
        "mlp_bias": cast(bool, flags["mlp_bias"]),
        "bos_token_id": next(iter(_token_ids(raw, generation, "bos_token_id", where)), None),
        "eos_token_ids": _token_ids(raw, generation, "eos_token_id", where),
    }


def text_part(raw: Raw, where: str = "config") -> Raw:
    """The text model's configuration: ``text_config`` of a model that also sees images, else all of ``raw``."""
    text = raw.get("text_config")
    if text is None:
        return raw
    if not isinstance(text, Mapping):
        raise FormatError(f"[models.config] {where}: text_config: got {text!r}, allowed an object")
    return {**text, **{key: raw[key] for key in SHARED if raw.get(key) is not None}}


def refuse_quantised(raw: Raw, where: str, packed: Sequence[str] = ()) -> None:
    """Raises ``kv.errors.NotSupportedError`` for packed weights (GPTQ, AWQ, ...) by their method's name, if it is not
    in ``packed``."""
    quantised = raw.get("quantization_config")
    if not quantised:
        return
    method = quantised.get("quant_method", "unknown") if isinstance(quantised, Mapping) else quantised
    if method not in packed:
        raise NotSupportedError(
            f"[models.config] {where}: quantization_config: quantised weights: got quant_method {method!r}, allowed "
            f"{', '.join([*packed, 'float32', 'float16 and bfloat16'])}"
        )


def refuse_activation(
    raw: Raw, where: str, key: str = "hidden_act", allowed: Sequence[str] = ("silu", "swish")
) -> None:
    value = raw.get(key)
    if value is not None and value not in allowed:
        raise NotSupportedError(f"[models.config] {where}: {key}: got {value!r}, allowed {allowed[0]!r}")


def check_kinds(kinds: Sequence[object], allowed: Sequence[str], where: str) -> None:
    """Raises ``kv.errors.NotSupportedError`` naming the first of ``layer_types`` that is not in ``allowed``."""
    for kind in kinds:
        if kind not in allowed:
            names = ", ".join(repr(name) for name in allowed)
            raise NotSupportedError(f"[models.config] {where}: layer_types: got {kind!r}, allowed {names}")


def layer_kinds(raw: Raw, layers: int, allowed: Sequence[str], default: Sequence[str], where: str) -> tuple[str, ...]:
    """``layer_types``, one for each layer; ``default`` if the key is absent."""
    kinds = raw.get("layer_types")
    if kinds is None:
        kinds = list(default)
    if not isinstance(kinds, (list, tuple)) or len(kinds) != layers:
        got = f"{len(kinds)} entries" if isinstance(kinds, (list, tuple)) else repr(kinds)
        raise FormatError(
            f"[models.config] {where}: layer_types: got {got}, allowed a list of {layers} (num_hidden_layers)"
        )
    check_kinds(kinds, allowed, where)
    return tuple(kinds)


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
    """Raises ``kv.errors.FormatError`` naming the first common field that is out of range."""
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
