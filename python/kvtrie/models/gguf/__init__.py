"""Models from GGUF files: weights, configuration, tokenizer and chat template from the one file that llama.cpp reads.

``reader`` parses the header, ``keys`` looks values up, ``metadata`` makes a configuration of them, ``names`` finds the
tensors of a checkpoint, ``weights`` reads them, ``tokenizer`` builds the tokenizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..base import Model
from ..config import ModelConfig
from ..families import FAMILIES
from ..gguf_form import GgufForm
from ..tokenizer import Tokenizer
from ..weights import WeightSource
from .keys import Keys
from .metadata import Description
from .names import checkpoint_sources
from .reader import read_gguf
from .tokenizer import read_text

# By general.architecture: the family that computes it, and how it stands in these files.
ARCHITECTURES: dict[str, tuple[type[Model], GgufForm]] = {
    name: (family, form) for family in FAMILIES.values() for name, form in family.gguf.items()
}

__all__ = ["ARCHITECTURES", "Parts", "read"]


class Parts(NamedTuple):
    """What a model is built from."""

    family: type[Model]
    config: ModelConfig
    sources: dict[str, WeightSource]
    tokenizer: Tokenizer | None


def read(path: Path) -> Parts:
    """Reads everything but the weights. Raises ``kv.FormatError`` naming the file and the key or tensor."""
    file = read_gguf(path)
    keys = Keys(file)
    if keys.architecture not in ARCHITECTURES:
        raise keys.error("general.architecture", keys.architecture, ", ".join(sorted(ARCHITECTURES)))
    family, form = ARCHITECTURES[keys.architecture]
    text = read_text(keys)
    ends = {} if text is None else {"bos_token_id": text.bos_id, "eos_token_id": text.end_ids}
    config = family.parse_config({**form.read(Description(file, keys)), **ends}, None, str(path))
    sources = checkpoint_sources(file, form, config, family.tensor_shapes(config))
    if text is None:
        return Parts(family, config, sources, None)
    if text.tokenizer.vocab_size > config.vocab_size:
        raise keys.error(
            "tokenizer.ggml.tokens", text.tokenizer.vocab_size, f"up to {config.vocab_size}, the rows of token_embd"
        )
    return Parts(family, config, sources, text.tokenizer)
