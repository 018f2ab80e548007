"""Predicted outputs: the text that a client expects as the answer, most of it, such as a file that is edited.

Concept. A place in the text moves with the answer: what stands behind it is drafted, and the model checks that
(docs/drafts.md). Where the answer leaves the text, the place is looked for anew, token by token, until the two agree
again:

    text      def area ( w , h ) : ...
    answer    def size              "size" stands in place of "area": "(" is drafted next, the text's next token
    answer    def size ( w          it was right, and the place moves on with the answer

After each token t that the text does not have next, the first of these that there is:

    behind the longest match of the last tokens, two or more; of those that match as well the nearest
    behind t, if that stands within 16 tokens
    one further, as if t stood in place of a token; after eight such guesses nowhere

Threads: a text is read-only once made; a prediction belongs to the thread of the batcher. Lengths are in tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_NEAR = 16
_GUESSES = 8
_CANDIDATES = 8  # places that are compared, the nearest ones
_COMPARED = 64  # tokens of a match


class PredictedText:
    """The tokens of a text, and where each pair of them stands."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self._behind: dict[tuple[int, int], list[int]] = {}  # pairs, ascending
        for end in range(2, len(self.tokens) + 1):
            self._behind.setdefault((self.tokens[end - 2], self.tokens[end - 1]), []).append(end)

    def best_match(self, said: Sequence[int], near: int) -> tuple[int, int]:
        """The place behind the longest match of the end of ``said``, among the nearest, and its length; (0, 0): none
        of two tokens or more."""
        places = self._behind.get((said[-2], said[-1]), []) if len(said) > 1 else []
        at = bisect_left(places, near)
        nearest = sorted(places[max(0, at - _CANDIDATES) : at + _CANDIDATES], key=lambda place: abs(place - near))
        matches = [(self._matched(said, place), place) for place in nearest[:_CANDIDATES]]
        length, place = max(matches, key=lambda match: match[0], default=(0, 0))
        return place, length

    def _matched(self, said: Sequence[int], place: int) -> int:
        length, most = 2, min(place, len(said), _COMPARED)
        while length < most and self.tokens[place - 1 - length] == said[-1 - length]:
            length += 1
        return length

    def nearest(self, token: int, near: int) -> int | None:
        """The place behind ``token``, where that stands close by."""
        places = range(max(1, near - _NEAR), min(len(self.tokens), near + _NEAR) + 1)
        found = [place for place in places if self.tokens[place - 1] == token]
        return min(found, key=lambda place: abs(place - near), default=None)


class _Reading:
    """An answer, read from its first token on."""

    def __init__(self, text: PredictedText) -> None:
        self._text = text
        self.said: list[int] = []
        self.place = 0  # of the text, that the answer is expected to go on with
        self._guesses = 0  # in a row, by which the place was moved
        self.appeared: set[int] = set()  # tokens of the text, by their places

    def read(self, token: int) -> None:
        """The next token of the answer."""
        self.said.append(token)
        tokens = self._text.tokens
        if not self.is_lost and self.place < len(tokens) and tokens[self.place] == token:
            self._found(self.place + 1, 1)
        else:
            self._look(token)

    @property
    def is_lost(self) -> bool:
        """Whether nothing says where it goes on."""
        return self._guesses >= _GUESSES

    def _look(self, token: int) -> None:
        near = self.place + 1
        place, length = self._text.best_match(self.said, near)
        close = None if length or self.is_lost else self._text.nearest(token, near)
        if length:
            self._found(place, length)
        elif close is not None:
            self._found(close, 1)
        elif not self.is_lost:
            self.place, self._guesses = near, self._guesses + 1

    def _found(self, place: int, length: int) -> None:
        self.place, self._guesses = place, 0
        self.appeared.update(range(place - length, place))


class Prediction:
    """A drafter for one answer, behind a prompt of ``start`` tokens."""

    def __init__(self, text: PredictedText, start: int) -> None:
        self._text, self._start = text, start
        self._reading = _Reading(text)

    def __call__(self, tokens: npt.NDArray[np.int32], most: int) -> list[int]:
        """``tokens``: the prompt and all of the answer so far."""
        said: list[int] = tokens[self._start :].tolist()
        known = len(self._reading.said)
        if said[:known] != self._reading.said:
            self._reading, known = _Reading(self._text), 0
        for token in said[known:]:
            self._reading.read(token)
        place = self._reading.place
        return [] if self._reading.is_lost else self._text.tokens[place : place + most]

    def counts(self, answer: Sequence[int]) -> tuple[int, int]:
        """How many tokens of the text the answer has, in such places, and how many it does not have. Any thread."""
        reading = _Reading(self._text)
        for token in answer:
            reading.read(token)
        appeared = len(reading.appeared)
        return appeared, len(self._text.tokens) - appeared
