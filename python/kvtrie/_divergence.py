"""How far logits are from other logits of the same positions: sums over a text, in bounded memory.

Concept. Two sides compute the same positions; of each, the distribution of the next token is compared with that of the
reference, and with the token that came. Nothing of a position stays but three numbers, so a text may be as long as it
likes. Softmax is computed in float64, a few rows at a time.

Threads: one. Units: nats (natural logarithms).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float32]  # [rows, vocab]

_TOGETHER = 16  # rows in float64 at once, so that they stay in the processor's cache
_TAIL = 0.999  # of the positions are below the figure for the tail


class Sums:
    """Figures of one side so far. ``add`` takes rows as they come, with those of the reference."""

    def __init__(self) -> None:
        self._divergence: list[Floats] = []  # KL(reference || side) of each position
        self._surprise: list[Floats] = []  # -log p of the token that came
        self._same: list[npt.NDArray[np.bool_]] = []  # whether the likeliest token is the reference's

    def add(self, reference: Rows, own: Rows, came: npt.NDArray[np.int32]) -> None:
        """Both [rows, vocab]; ``came`` [rows]: the token that stands behind each position."""
        for at in range(0, len(came), _TOGETHER):
            few = slice(at, at + _TOGETHER)
            self._add(log_softmax_rows(reference[few]), log_softmax_rows(own[few]), came[few])

    def _add(self, reference: Floats, own: Floats, came: npt.NDArray[np.int32]) -> None:
        probability = np.exp(reference)
        with np.errstate(invalid="ignore"):  # 0 * (inf - inf) is 0: what the reference excludes costs nothing
            parts = np.where(probability > 0, probability * (reference - own), 0.0)
        self._divergence.append(np.maximum(parts.sum(1), 0.0))  # below 0 only by rounding
        self._surprise.append(-own[np.arange(len(came)), came])
        self._same.append(reference.argmax(1) == own.argmax(1))

    @property
    def positions(self) -> int:
        return sum(map(len, self._surprise))

    @property
    def divergence(self) -> Floats:
        """KL of every position so far."""
        return np.concatenate(self._divergence)

    @property
    def surprise(self) -> Floats:
        """-log p of the token that came, of every position so far."""
        return np.concatenate(self._surprise)

    @property
    def agreement(self) -> float:
        """The share of positions with the same likeliest token."""
        return float(np.concatenate(self._same).mean())

    @property
    def perplexity(self) -> float:
        """exp of the mean surprise; infinite where a token came that was impossible."""
        mean = float(self.surprise.mean())
        return math.exp(mean) if mean < 700 else math.inf

    def tail(self) -> float:
        """The KL that 99.9 % of the positions do not exceed."""
        return float(np.quantile(self.divergence, _TAIL))

    def change(self, reference: Sums) -> tuple[float, float]:
        """By how much the perplexity is above the reference's, and the standard error of that.

        Both sides read the same positions, so the error is that of their differences, to first order.
        """
        apart = self.surprise - reference.surprise
        error = float(apart.std(ddof=1)) / math.sqrt(len(apart)) if len(apart) > 1 else 0.0
        return self.perplexity - reference.perplexity, reference.perplexity * error


def log_softmax_rows(logits: Rows) -> Floats:
    """log of the softmax of each row, float64 [rows, vocab]."""
    numbers = logits.astype(np.float64)
    numbers -= numbers.max(1, keepdims=True)
    with np.errstate(divide="ignore"):
        numbers -= np.log(np.exp(numbers).sum(1, keepdims=True))
    return numbers
