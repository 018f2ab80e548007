"""Models from GGUF files: weights, configuration, tokenizer and chat template from the one file that llama.cpp reads.

``reader`` parses the header, ``kinds`` says what a file is that is no model, ``keys`` looks values up, ``metadata`` and
``rope`` make a configuration of them, ``names`` finds the tensors of a checkpoint, ``weights`` reads them,
``tokenizer`` builds the tokenizer. What becomes of each key: ``models/gguf_settings.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import NotSupportedError
from ..base import Model
from ..config import ModelConfig
from ..decoder import Shapes
from ..families import FAMILIES
from ..gguf_form import GgufForm
from ..gguf_settings import file_settings
from ..settings import Settled, settle
from ..tokenizer import Tokenizer
from ..weights import WeightSource
from .keys import Keys
from .kinds import refuse_other_kinds
from .metadata import Description
from .names import checkpoint_sources
from .reader import read_gguf, shown
from .tokenizer import read_text, vocabulary_kind

_MOST_LISTED = 1024  # entries of a list that the account keeps: more than any model has layers

# By general.architecture: the family that computes it, and how it stands in these files. Some have another family for
# certain files (_OF_SOME): "llama/experts".
ARCHITECTURES: dict[str, tuple[type[Model], GgufForm]] = {
    name: (family, form) for family in FAMILIES.values() for name, form in family.gguf.items()
}

# Which files those are, by their keys. A file is of the first kind that it is.
_OF_SOME: dict[str, Callable[[Keys], bool]] = {
    "experts": lambda keys: keys.integer(".expert_count", 0, default=0) > 0,
    "softmax": lambda keys: keys.integer(".expert_gating_func", 0, default=0) in (0, 1),
    "windows": lambda keys: keys.integer(".attention.sliding_window", 0, default=0) > 0,
    "growth": lambda keys: keys.number(".attention.temperature_scale", 0.0) != 0,
    "partly": lambda keys: (
        keys.has(".rope.dimension_count") and keys.integer(".rope.dimension_count", 0) < _size_of_heads(keys)
    ),
}

__all__ = ["ARCHITECTURES", "Parts", "read"]


class Parts(NamedTuple):
    """The parts that a model is built from. ``settled``: what became of the file's keys."""

    family: type[Model]
    config: ModelConfig
    sources: dict[str, WeightSource]
    tokenizer: Tokenizer | None
    settled: Settled


def read(path: Path, mtp: bool = False) -> Parts:
    """Reads everything but the weights; ``mtp``: those of the prediction head are among them.

    Raises ``kv.errors.FormatError`` or ``kv.errors.NotSupportedError`` naming the file and the key or tensor; warns
    once of keys that no list names.
    """
    file = read_gguf(path)
    refuse_other_kinds(file)
    keys = Keys(file)
    if keys.architecture not in ARCHITECTURES:
        raise keys.error(
            "general.architecture",
            keys.architecture,
            ", ".join(sorted(each for each in ARCHITECTURES if "/" not in each)),
        )
    family, form = _form(keys)
    settings = file_settings(keys.architecture, form, *vocabulary_kind(keys))
    settled = settle(_without_vocabulary(file.values), settings, str(path))
    text = read_text(keys)
    ends = {} if text is None else {"bos_token_id": text.bos_id, "eos_token_id": text.end_ids}
    config = family.parse_config({**form.read(Description(file, keys, form.divided)), **ends}, None, str(path))
    head = _head_shapes(family, config, keys) if mtp else {}
    sources = checkpoint_sources(file, form, config, family.tensor_shapes(config), head)
    if text is None:
        return Parts(family, config, sources, None, settled)
    if text.tokenizer.vocab_size > config.vocab_size:
        raise keys.error(
            "tokenizer.ggml.tokens", text.tokenizer.vocab_size, f"up to {config.vocab_size}, the rows of token_embd"
        )
    return Parts(family, config, sources, text.tokenizer, settled)


def _without_vocabulary(values: Mapping[str, object]) -> dict[str, object]:
    """For the account, which outlives the loading: how many entries a long list has. The tokenizer has them itself."""
    return {key: shown(value) if _is_long(value) else value for key, value in values.items()}


def _is_long(value: object) -> bool:
    return isinstance(value, (list, np.ndarray)) and len(value) > _MOST_LISTED


def _head_shapes(family: type[Model], config: ModelConfig, keys: Keys) -> Shapes:
    """Of the prediction head; {} where there is none, or none that is computed."""
    blocks, plan = keys.integer(".nextn_predict_layers", 0, default=0), family.mtp_plan(config)
    if blocks == 0 or plan is None:
        return {}
    if blocks > 1:
        raise NotSupportedError(
            f"[models.load] {keys.path}: {keys.architecture}.nextn_predict_layers: got {blocks}, allowed 1 with mtp"
        )
    return {**plan.shapes(config), **plan.tables(config)}


def _size_of_heads(keys: Keys) -> int:
    key = ".attention.key_length"
    return (
        keys.integer(key)
        if keys.has(key)
        else keys.integer(".embedding_length") // keys.integer(".attention.head_count")
    )


def _form(keys: Keys) -> tuple[type[Model], GgufForm]:
    for kind, is_one in _OF_SOME.items():
        found = ARCHITECTURES.get(f"{keys.architecture}/{kind}")
        if found is not None and is_one(keys):
            return found
    return ARCHITECTURES[keys.architecture]
