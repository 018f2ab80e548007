"""The parts of an answer, reasoning and text, told apart as its tokens come.

What is said of them follows from the tokens alone: :meth:`AnswerParts.read` is given all of them and takes those that
it does not know yet. Where an exception cut a reading short, the next one begins with the first token again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...thinking.piece_reader import Piece
from ...thinking.reasoning import AnswerReader, reasoning_of

if TYPE_CHECKING:
    from kvtrie.models import Model

_LOOK = 256  # characters at the end of a prompt: more than an opening delimiter and white space


class AnswerParts:
    """``prompt``: the text in front of the answer. ``template``: the chat template that it was made by; None: by none,
    and all is text."""

    def __init__(self, model: Model, template: str | None, prompt: str) -> None:
        self._model, self._template, self._prompt_end = model, template, prompt[-_LOOK:]
        self._reading = self._begin()
        self._at_rest = [self._reading]  # in no call; one that an exception left does not come back

    @property
    def reader(self) -> AnswerReader | None:
        """One that has read nothing; None: this model does not reason."""
        return reasoning_of(self._template, self._prompt_end)

    @property
    def pieces(self) -> list[Piece]:
        """In the parts in which they became certain; none is empty, and none has special tokens."""
        return self._reading.pieces

    def of(self, kind: str) -> str:
        """All of "reasoning", or of "text"."""
        return "".join(text for each, text in self.pieces if each == kind)

    def read(self, tokens: Sequence[int], ended: bool = False) -> None:
        """``tokens``: all of the answer, from its first one on. ``ended``: no more come."""
        reading = self._at_rest.pop() if self._at_rest else self._begin()
        reading.read(tokens)
        if ended:
            reading.end()
        self._reading = reading
        self._at_rest.append(reading)

    def _begin(self) -> _Reading:
        return _Reading(self._model, self.reader)


class _Reading:
    """Tokens that were read from the first one on. Of no use once an exception left it."""

    def __init__(self, model: Model, reader: AnswerReader | None) -> None:
        tokenizer = model.tokenizer
        marks = {tokenizer.special_id(mark) for mark in (() if reader is None else reader.kept)}
        self._silent = (tokenizer.special_tokens.texts.keys() - marks) | {*model.end_tokens}
        self._reader = reader
        self._stream = tokenizer.stream(skip_special_tokens=False)
        self._count = 0
        self._ended = False
        self.pieces: list[Piece] = []

    def read(self, tokens: Sequence[int]) -> None:
        for token in tokens[self._count :]:
            self._count += 1
            if token not in self._silent:
                self._add(self._stream.feed(token))

    def end(self) -> None:
        if self._ended:
            return
        self._add(self._stream.finish())
        if self._reader is not None:
            self.pieces += self._reader.finish()
        self._ended = True

    def _add(self, text: str) -> None:
        if self._reader is not None:
            self.pieces += self._reader.feed(text)
        elif text:
            self.pieces.append(("text", text))
