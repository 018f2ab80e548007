"""The ends of a text: the model's end tokens, stop tokens and stop texts; and text that ends before its stop text.

What a :class:`Stopper` says follows from the tokens alone: :meth:`Stopper.read` is given all of them and takes those
that it does not know yet. Where an exception cut a reading short, the next one begins with the first token again.

Threads: everything here belongs to one sequence. Two threads may read at the same time; each has a reading of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Union, cast

import numpy as np

from ._arguments import flag, listed, refusal, shown
from ._protocols import StepModel, TextStream, text_model
from .errors import ArgumentError, ArgumentTypeError
from .sampling import is_id

__all__ = ["Stop", "Stopper", "TextUntil", "has_tokenizer"]

Stop = Union[None, int, str, Iterable[Union[int, str]]]


class TextUntil:
    """Hands out text up to the first of some stop texts, and holds back what may be the beginning of one."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """The text that is certain by now. After a stop text was ``found`` nothing more comes."""
        if self.found is not None:
            return ""
        held = self._held + text
        places = [(held.find(stop), stop) for stop in self._stops if stop in held]
        if places:
            at, self.found = min(places, key=lambda place: (place[0], -len(place[1])))
            self._held = ""
            return held[:at]
        keep = max((_overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def finish(self) -> str:
        """The text that was held back: no stop text came of it."""
        held, self._held = self._held, ""
        return held


class Stopper:
    """Says which of the tokens ends the text, and which text is certain by then.

    ``stop``: token ids and texts; a text that is one special token stands for its id. The model's own end tokens stop
    too, unless ``ignore_eos``. ``wants_text``: keep ``pieces`` even where no stop text asks for it.
    """

    def __init__(self, model: StepModel, stop: Stop, ignore_eos: bool = False, wants_text: bool = False) -> None:
        self._model = model
        flag(ignore_eos, "generate", "ignore_eos")
        ids, texts = _parsed(stop)
        if texts and not has_tokenizer(model):
            raise ArgumentError("[generate] stop: got a text, allowed token ids only: the model has no tokenizer")
        specials = {text: text_model(model).tokenizer.special_id(text) for text in texts}
        self._texts = [text for text in texts if specials[text] is None]
        self._ids = ids | {each for each in specials.values() if each is not None}
        if not ignore_eos:
            self._ids |= _end_tokens(model)
        self._tokenizer = text_model(model).tokenizer if self._texts or wants_text else None
        self._reading = self._begin()
        self._at_rest = [self._reading]  # in no call; one that an exception left does not come back
        self._ahead, self._ahead_of = self._begin(), list[int]()  # a reading of tokens that are about to come

    def for_text(self) -> Stopper:
        """Another one that stops at the same, keeps ``pieces``, and has read nothing. Any thread may call this.

        ``NotSupportedError`` or ``ArgumentTypeError`` for a model that has no tokenizer.
        """
        if not has_tokenizer(self._model):
            raise refusal(self._model, "generate", "model", "one with a tokenizer, for the text of its tokens")
        return Stopper(self._model, [*self._ids, *self._texts], ignore_eos=True, wants_text=True)

    @property
    def pieces(self) -> list[str]:
        """The text in the parts in which it became certain, without stop text and special tokens; none is empty."""
        return self._reading.pieces

    @property
    def matched(self) -> int | str | None:
        """The stop that ended the text; None: nothing did."""
        return self._reading.matched

    @property
    def ended(self) -> bool:
        """Whether no text is held back any more."""
        return self._reading.ended

    def read(self, tokens: Sequence[int], ended: bool = False) -> None:
        """``tokens``: all of the text, from its first one on. ``ended``: no more come."""
        try:
            reading = self._at_rest.pop()
        except IndexError:
            reading = self._begin()
        reading.read(tokens)
        if ended:
            reading.end()
        self._reading = reading
        self._at_rest.append(reading)

    def first_end(self, tokens: Sequence[int], more: Sequence[int]) -> int:
        """How many of ``more``, behind ``tokens``, come before the one that ends the text; all where none does."""
        if not self._texts:
            return next((count for count, token in enumerate(more) if token in self._ids), len(more))
        known = [*tokens, *more]
        if known[: len(self._ahead_of)] != self._ahead_of:
            self._ahead, self._ahead_of = self._begin(), []
        if len(self._ahead_of) > len(tokens):  # of a step that was not finished: it comes again
            self._ahead, self._ahead_of = self._begin(), []
        for count in range(len(tokens), len(known) + 1):
            self._ahead.read(known[:count])
            self._ahead_of = known[:count]
            if self._ahead.matched is not None:
                return max(0, count - len(tokens) - 1)
        return len(more)

    def text_of(self, tokens: Sequence[int], ended: bool = True) -> str:
        """The text of an answer of these ``tokens``. ``ended``: no more come."""
        self.read(tokens, ended)
        return "".join(self.pieces)

    def _begin(self) -> _Reading:
        return _Reading(self._ids, self._texts, None if self._tokenizer is None else self._tokenizer.stream())


class _Reading:
    """Tokens that were read from the first one on. Of no use once an exception left it."""

    def __init__(self, ids: AbstractSet[int], texts: Sequence[str], stream: TextStream | None) -> None:
        self._ids = ids
        self._until = TextUntil(texts)
        self._stream = stream
        self._count = 0
        self.pieces: list[str] = []
        self.matched: int | str | None = None
        self.ended = False

    def read(self, tokens: Sequence[int]) -> None:
        for token in tokens[self._count :]:
            if self.matched is not None:
                return
            self._count += 1
            if token in self._ids:
                self.matched = token
                self.end()
            elif self._stream is not None:
                self._add(self._until.feed(self._stream.feed(token)))
                self.matched = self._until.found

    def end(self) -> None:
        if self.ended:
            return
        if self._stream is not None and self._until.found is None:
            rest = self._until.feed(self._stream.finish())
            self._add(rest if self._until.found is not None else rest + self._until.finish())
        self.ended = True

    def _add(self, piece: str) -> None:
        if piece:
            self.pieces.append(piece)


def _end_tokens(model: StepModel) -> set[int]:
    """A model of the caller's own need not have more than ``config.eos_token_ids``."""
    if hasattr(model, "end_tokens"):
        return set(text_model(model).end_tokens)
    if not hasattr(getattr(model, "config", None), "eos_token_ids"):
        raise refusal(model, "generate", "model", "one with end_tokens or config.eos_token_ids, or ignore_eos=True")
    return set(text_model(model).config.eos_token_ids)


def has_tokenizer(model: StepModel) -> bool:
    if hasattr(model, "has_tokenizer"):
        return bool(model.has_tokenizer)
    return getattr(model, "tokenizer", None) is not None


def _parsed(stop: Stop) -> tuple[set[int], list[str]]:
    wanted: list[object]
    if stop is None:
        wanted = []
    elif isinstance(stop, (str, int, np.integer)):
        wanted = [stop]
    else:
        wanted = listed(cast("Iterable[object]", stop), "generate", "stop", "token ids and texts")
    ids = {int(item) for item in wanted if is_id(item)}
    texts = [item for item in wanted if isinstance(item, str)]
    if len(texts) + sum(map(is_id, wanted)) != len(wanted) or "" in texts:
        raise ArgumentTypeError(f"[generate] stop: got {shown(stop)}, allowed token ids and non-empty texts")
    return ids, texts


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of ``text`` that ``stop`` begins with."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
