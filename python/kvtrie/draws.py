"""Draws of tokens on the device: rows of logits, each with its parameters, seed and edits, in one launch.

    edits       penalties and biases of one row, as a factor and a summand for some of its logits
    Draw        all that decides one row's token
    draw        one launch and one read for all rows

``kv.ops.sample`` has the arithmetic. Threads: nothing here has state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from . import ops
from .errors import ArgumentError

if TYPE_CHECKING:
    from ._protocols import Logits

NONE = -1  # in place of a token: no logit of the row was finite


class Penalties(Protocol):
    """The penalties of a ``Sampling`` for tokens that are there already."""

    @property
    def repetition_penalty(self) -> float: ...

    @property
    def presence_penalty(self) -> float: ...

    @property
    def frequency_penalty(self) -> float: ...


class Edits(NamedTuple):
    """A logit x of ``tokens`` (ascending) becomes x / divide + add, or x * divide + add where it is not above 0."""

    tokens: npt.NDArray[np.int32]
    divide: npt.NDArray[np.float32]
    add: npt.NDArray[np.float32]

    def apply(self, row: npt.NDArray[np.float32]) -> None:
        """The same on the host, in place."""
        x = row[self.tokens]
        row[self.tokens] = np.where(x > 0, x / self.divide, x * self.divide) + self.add


class Biases(NamedTuple):
    """The numbers that are added to the logits of some ``tokens``."""

    tokens: npt.NDArray[np.int64]
    add: npt.NDArray[np.float32]

    @classmethod
    def of(cls, biases: Mapping[int, float]) -> Biases:
        count = len(biases)
        return cls(np.fromiter(biases, np.int64, count), np.fromiter(biases.values(), np.float32, count))


def edits_of(
    sampling: Penalties, biases: Biases, tokens: npt.NDArray[np.int32], generated: int, vocab_size: int
) -> Edits | None:
    """Penalties and ``biases`` (the sampling's) behind ``tokens``, of which the last ``generated`` were generated.

    None: nothing changes.
    """
    divide, add = np.ones(vocab_size, np.float32), np.zeros(vocab_size, np.float32)
    touched = np.zeros(vocab_size, bool)
    if sampling.repetition_penalty != 1.0:
        seen = _known(tokens, vocab_size)
        divide[seen], touched[seen] = sampling.repetition_penalty, True
    if sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0:
        counts = np.bincount(_known(tokens[len(tokens) - generated :], vocab_size), minlength=vocab_size)
        add -= np.where(counts > 0, sampling.presence_penalty + sampling.frequency_penalty * counts, 0.0)
        touched |= counts > 0
    if biases.tokens.max(initial=0) >= vocab_size:
        most = biases.tokens.max()
        raise ArgumentError(f"[generate] logit_bias: got token id {most}, allowed 0 to {vocab_size - 1}")
    add[biases.tokens] += biases.add
    touched[biases.tokens] = True
    ids = np.flatnonzero(touched).astype(np.int32)
    return Edits(ids, divide[ids], add[ids]) if ids.size else None


def _known(tokens: npt.NDArray[np.int32], vocab_size: int) -> npt.NDArray[np.int32]:
    """Without those that stand for media."""
    return tokens[(tokens >= 0) & (tokens < vocab_size)]


class Draw(NamedTuple):
    """``temperature``, ``top_k``, ``top_p``, ``min_p``: as in :class:`kvtrie.Sampling`; ``seed``: 32 bits."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    edits: Edits | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it takes the likeliest token as the model has it."""
        return self.temperature == 0.0 and self.edits is None


def draw(logits: Logits, draws: Sequence[Draw]) -> list[int]:
    """A token for each row of ``logits`` [rows, vocab], -1 where no logit is finite. One blocking read."""
    if all(each.is_plain for each in draws):
        chosen = ops.argmax(logits)
    else:
        temperatures, ks, ps, mins, seeds, _ = map(list, zip(*draws))
        chosen = ops.sample(logits, temperatures, ks, ps, seeds, mins, _joined(draws))
    return [int(token) for token in np.asarray(chosen).reshape(-1)]


def _joined(
    draws: Sequence[Draw],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.float32]] | None:
    """The edits of all rows, in order."""
    edited = [(row, each.edits) for row, each in enumerate(draws) if each.edits is not None]
    if not edited:
        return None
    rows = [np.full(len(edits.tokens), row, np.int32) for row, edits in edited]
    parts = zip(*(edits for _, edits in edited))
    tokens, divide, add = (np.concatenate(part) for part in parts)
    return np.concatenate(rows), tokens, divide, add
