"""A model without weights that has a text: a character for each token, or half of one."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from fakes import proposed_in
from kinds_fakes import VOCAB, History, KindsModel


class Texts:
    """One character for each token, but for those that 3 divides: they are the first half of what the next one ends."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) - 32 for letter in text]

    def special_id(self, text: str) -> int | None:
        return None

    def stream(self) -> Any:
        return _Stream()


class _Stream:
    def __init__(self) -> None:
        self._half = ""

    def feed(self, token: int) -> str:
        text, self._half = self._half + chr(32 + token), ""
        if token % 3 == 0:
            text, self._half = "", text
        return text

    def finish(self) -> str:
        text, self._half = self._half, ""
        return text


class TextModel(KindsModel):
    """With a tokenizer, and no end token."""

    def __init__(self, caches: Sequence[Any]) -> None:
        super().__init__(caches)
        self.tokenizer = Texts()
        self.end_tokens: set[int] = set()
        self.config = SimpleNamespace(vocab_size=VOCAB, eos_token_ids=())
        self.prefix_cache: Any = None

    def __call__(self, step: Any, all_rows: bool = False, rows: Sequence[int] | None = None) -> Any:
        if not all_rows and rows is None:
            return super().__call__(step)
        super().__call__(step)
        histories = [
            History(session.namespace, [*session.tokens, *drafts])
            for session, drafts in zip(step.sessions, proposed_in(step))
        ]
        logits = np.zeros((len(step.tokens), VOCAB), np.float32)
        for row, (sequence, position) in enumerate(zip(step.sequences, step.positions)):
            logits[row, histories[sequence].codes[0, position + 1] % VOCAB] = 1
        return logits if rows is None else logits[np.asarray(rows)]
