"""Log-probabilities of the tokens of a prompt, collected while a batch computes it.

Concept. The row of a token says how likely each token behind it is. A batch reads the last rows of its sequences only;
with a ``PromptLogprobs`` among those that take part it has the model give all rows of that step, reads them a few at a
time, and keeps of each what is asked for. So there is never more of the logits on the host than ``ROWS`` rows, and on
the device than a step has. Rows that were reused were not computed, and have no logits: such a prompt is computed
alone, from its beginning. Rows that are computed twice, as after a failed step, say the same twice.

Units: natural logarithms. Threads: that of the batch writes; others read once the first token is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from ._core import Step
from ._protocols import Logits, StepModel
from .errors import ArgumentError
from .sampling import RankedLogprob, logprob_of, whole

ROWS = 16  # of logits that are read at once


class _RowsModel(Protocol):
    def __call__(self, step: Step, all_rows: bool) -> Logits: ...


class PromptLogprobs:
    """Of one prompt; ``top``: how many of the likeliest tokens each comes with."""

    def __init__(self, tokens: npt.NDArray[np.int32], top: int) -> None:
        self._tokens, self._top = tokens, whole("prompt_logprobs", top, 0)
        self._found: list[RankedLogprob | None] = [None] * (len(tokens) - 1)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return None not in self._found

    def judge(self, position: int, row: npt.NDArray[np.float32]) -> None:
        """``row`` [vocab]: what follows the token at ``position``."""
        if position >= len(self._found):
            return
        token = int(self._tokens[position + 1])
        rank = int(np.count_nonzero(row > row[token])) + 1
        self._found[position] = RankedLogprob(logprob_of(row, token, self._top), rank)

    def entries(self) -> list[RankedLogprob]:
        """One for each token but the first, in order. Raises ``kv.errors.ArgumentError`` where some are missing."""
        found = [each for each in self._found if each is not None]
        if len(found) < len(self._found):
            missing = len(self._found) - len(found)
            raise ArgumentError(f"[batch] prompt_logprobs: got {missing} tokens that were not computed, allowed 0")
        return found


def judged(model: StepModel, step: Step, wanting: Mapping[int, PromptLogprobs]) -> npt.NDArray[np.float32]:
    """The last rows of all sequences of a step, [sequences, vocab]; all rows go to those that are ``wanting``, which
    have the numbers of their sequences."""
    logits = cast(_RowsModel, model)(step, all_rows=True)
    sequences, positions = np.asarray(step.sequences), np.asarray(step.positions)
    lasts: dict[int, npt.NDArray[np.float32]] = {}
    for begin in range(0, len(sequences), ROWS):
        block = np.asarray(logits[begin : begin + ROWS], np.float32)
        for row, sequence, position in zip(block, sequences[begin:].tolist(), positions[begin:].tolist()):
            lasts[sequence] = row
            if sequence in wanting:
                wanting[sequence].judge(position, row)
    return np.stack([lasts[sequence] for sequence in range(len(lasts))])
