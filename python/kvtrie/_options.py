"""Keyword arguments that several calls share, as type checkers see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from ._core import PrefixCache as _Cache
from ._decoding import Progress
from .draft import Draft
from .errors import ArgumentTypeError
from .sampling import LogitsProcessor, Sampling
from .stopping import Stop

__all__ = ["SamplingOptions", "TextOptions", "checked_sampling"]


class SamplingOptions(TypedDict, total=False):
    """Those of :class:`kvtrie.Sampling`, as keyword arguments."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    logits_processors: LogitsProcessor | Sequence[LogitsProcessor]
    seed: int | None
    logprobs: int | None


class TextOptions(SamplingOptions, total=False):
    """Keywords of ``model.chat`` and ``model.complete``: the parameters of the choice, and these.

    ``max_tokens``: 256 unless given. ``stop``, ``ignore_eos``, ``chunk`` (512), ``progress``, ``draft``: those of
    ``kv.generate``; a stop text is not part of the answer. ``cache``: the model's own unless given; ``namespace``:
    "default".
    """

    max_tokens: int
    stop: Stop
    cache: _Cache | None
    namespace: str
    ignore_eos: bool
    chunk: int
    progress: Progress | None
    draft: Draft


def checked_sampling(options: SamplingOptions) -> Sampling:
    """Raises for what is no parameter, or out of its range."""
    unknown = sorted(set(options) - set(SamplingOptions.__annotations__))
    if unknown:
        allowed = ", ".join(SamplingOptions.__annotations__)
        raise ArgumentTypeError(f"[generate] {unknown[0]}: there is no such parameter, allowed {allowed}")
    return Sampling(**options)  # type: ignore[arg-type]  # any iterable of processors
