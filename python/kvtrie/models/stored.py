"""Stored tensors that a model does not take as they are: each is used, compared, ignored for a reason, or refused.

A file may hold more than its configuration asks for: a head beside a tied embedding, RoPE frequencies that follow from
the configuration, the parts of a larger model that see images. A tensor that no rule here names is an error
(:func:`weights.check_table`), as dropping it would compute another model.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

import numpy as np

from ..errors import FormatError, IgnoredWarning
from .config import ModelConfig
from .rope_arguments import RopeArguments
from .weights import STORED, Array, WeightSource, to_float32

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
FREQUENCIES = "*inv_freq"

# Patterns of names, below "model." where they stand there, and why these tensors change nothing.
IMAGES: Mapping[str, str] = {
    "vision_tower.*": "sees images, which are not computed",
    "vision_model.*": "sees images, which are not computed",
    "visual.*": "sees images, which are not computed",
    "multi_modal_projector.*": "brings images among the tokens; images are not computed",
}
FURTHER: Mapping[str, str] = {
    "mtp.*": "predicts further tokens, also as layers with eh_proj behind the last; the next one is the same without "
    "(`mtp=True` reads those of DeepSeek-V3 and V3.2, GLM-4.5, GLM-4.7-Flash, GLM-5, Qwen3-Next and Qwen3.5)"
}

Config = TypeVar("Config", bound=ModelConfig)


def ignores(patterns: Mapping[str, str]) -> Callable[[str], bool]:
    """Whether a stored tensor of that name is not used, and known."""
    known = (*patterns, FREQUENCIES)
    return lambda name: any(fnmatchcase(name.removeprefix("model."), pattern) for pattern in known)


def settle_head(config: Config, sources: Mapping[str, WeightSource]) -> tuple[Config, dict[str, WeightSource]]:
    """``config`` and ``sources`` of a model whose head is tied to the embedding, as they are stored.

    As in transformers 5 (``PreTrainedModel.tie_weights``): of two that are stored and differ each is used, whatever the
    configuration says, and a warning tells so; the one that is stored stands for both where the other is missing.
    """
    found = dict(sources)
    if not config.tie_word_embeddings or HEAD not in found:
        return config, found
    if EMBEDDING not in found:
        found[EMBEDDING] = dataclasses.replace(found.pop(HEAD), name=EMBEDDING)
        return config, found
    if same_numbers(found[HEAD], found[EMBEDDING]):
        del found[HEAD]
        return config, found
    warnings.warn(
        f"[models.load] {found[HEAD].origin}: tie_word_embeddings: got true, and {HEAD} with other numbers than "
        f"{EMBEDDING}: the head that is stored is used",
        IgnoredWarning,
        stacklevel=2,
    )
    return dataclasses.replace(config, tie_word_embeddings=False), found


_CHUNK = 2**22  # numbers that are compared at a time


def same_numbers(one: WeightSource, other: WeightSource) -> bool:
    """Whether two tensors hold the same numbers; False as well where either is no plain tensor."""
    if one.shape != other.shape or not {one.dtype, other.dtype} <= STORED.keys():
        return False
    return all(np.array_equal(a, b) for a, b in zip(_chunks(one), _chunks(other)))


def _chunks(source: WeightSource) -> Iterator[Array]:
    rows = max(_CHUNK // max(int(np.prod(source.shape[1:])), 1), 1)
    for begin in range(0, source.shape[0], rows):
        yield to_float32(source.rows(begin, min(begin + rows, source.shape[0])), source.dtype)


_ROUNDED = 0.01  # of a frequency that was stored in bfloat16
_SMALLEST = 1e-7  # float16's step near zero


def compare_frequencies(sources: Mapping[str, WeightSource], head_dim: int, ropes: Iterable[RopeArguments]) -> None:
    """Warns once where stored RoPE frequencies are not those of the configuration, before they are scaled.

    Files of transformers up to 4.30 hold them; transformers 5 computes them from the configuration, as is done here.
    Raises ``kv.errors.FormatError`` for a tensor that cannot be frequencies.
    """
    possible = [_plain(head_dim, rope) for rope in ropes]
    for name in filter(lambda name: fnmatchcase(name, FREQUENCIES), sources):
        source = sources[name]
        if source.dtype not in STORED or len(source.shape) != 1:
            raise FormatError(f"[models] {source.origin}: {name}: got {source.dtype} {list(source.shape)}, allowed [n]")
        stored = to_float32(source.read(), source.dtype)
        if not any(_alike(stored, each) for each in possible):
            warnings.warn(
                f"[models.load] {source.origin}: {name} holds other frequencies than the configuration says, and is "
                "not used, as in transformers",
                IgnoredWarning,
                stacklevel=2,
            )
            return


def _plain(head_dim: int, rope: RopeArguments) -> Array:
    dims, base = rope.get("dims", head_dim), rope.get("base", 10_000.0)
    return np.asarray(base ** (-np.arange(0, dims, 2) / dims), np.float32)


def _alike(stored: Array, wanted: Array) -> bool:
    return stored.shape == wanted.shape and np.allclose(stored, wanted, rtol=_ROUNDED, atol=_SMALLEST)
