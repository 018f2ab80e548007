"""What ends a text: the model's end tokens, stop tokens and stop texts; and text that ends before its stop text.

Threads: everything here belongs to one sequence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Union, cast

import numpy as np

from ._arguments import flag, listed, refusal, shown
from ._protocols import StepModel, text_model
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
        """What was held back: no stop text came of it."""
        held, self._held = self._held, ""
        return held


class Stopper:
    """Says after each token whether it ends the text, and which text is certain by then.

    ``stop``: token ids and texts; a text that is one special token stands for its id. The model's own end tokens stop
    too, unless ``ignore_eos``. ``wants_text``: keep ``text`` even where no stop text asks for it.
    """

    def __init__(self, model: StepModel, stop: Stop, ignore_eos: bool = False, wants_text: bool = False) -> None:
        flag(ignore_eos, "generate", "ignore_eos")
        ids, texts = _parsed(stop)
        if texts and not has_tokenizer(model):
            raise ArgumentError("[generate] stop: got a text, allowed token ids only: the model has no tokenizer")
        specials = {text: text_model(model).tokenizer.special_id(text) for text in texts}
        texts = [text for text in texts if specials[text] is None]
        self._ids = ids | {each for each in specials.values() if each is not None}
        if not ignore_eos:
            self._ids |= _end_tokens(model)
        self._stream = text_model(model).tokenizer.stream() if texts or wants_text else None
        self._until = TextUntil(texts)
        self.piece: str = ""  # the text that became certain with the last token
        self.matched: int | str | None = None  # what ended the text

    def __call__(self, token: int) -> bool:
        """Whether the text ends with ``token``."""
        self.piece = ""
        if token in self._ids:
            self.matched = token
            self.piece = self.finish()
            return True
        if self._stream is not None:
            self.piece = self._until.feed(self._stream.feed(token))
            self.matched = self._until.found
        return self.matched is not None

    def text_of(self, tokens: Iterable[int], ended: bool = True) -> str:
        """The text of a whole answer. REQUIRES: it had no token before. ``ended``: no more tokens come."""
        pieces = []
        for token in tokens:
            self(token)
            pieces.append(self.piece)
        return "".join([*pieces, self.finish() if ended else ""])

    def finish(self) -> str:
        """The text that was still held back: nothing more comes."""
        if self._stream is None or self._until.found is not None:
            return ""
        rest = self._until.feed(self._stream.finish())
        return rest if self._until.found is not None else rest + self._until.finish()


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
