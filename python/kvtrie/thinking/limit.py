"""Closes a model's reasoning when it has had its tokens.

Concept. ``ThinkingLimit`` is a ``kv.LogitsProcessor``: it lets a model write up to ``most`` tokens behind the opening
delimiter, and then nothing but the closing one, token by token. The answer goes on behind it as if the model had closed
its reasoning by itself. An answer that opens none, or closes it earlier, is left alone. Its decisions follow from the
tokens that it is shown, so a token may be chosen twice, or a request go on after it gave its room back.

Units: tokens. Threads: a limit belongs to one request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..sampling import Logits, Tokens
from .reasoning import AnswerReader

if TYPE_CHECKING:
    from ..models.tokenizer import Tokenizer

_SPELLED = 32  # tokens that spell a delimiter, at most


class ThinkingLimit:
    """``reader``: of the answer, which knows its delimiters, and whether the prompt ends within the reasoning."""

    def __init__(self, tokenizer: Tokenizer, reader: AnswerReader, most: int) -> None:
        self._tokenizer, self._opened, self._most = tokenizer, reader.opened, most
        self._opening, forced = reader.marks
        self._closing = reader.closing
        self._closed_by = tokenizer.encode(forced, add_special_tokens=False)
        self._prompt: int | None = None  # its tokens
        self._closed_at: tuple[int, ...] | None = None  # the tokens of the answer up to the closing delimiter

    def __call__(self, tokens: Tokens, logits: Logits) -> None:
        if self._prompt is None or len(tokens) < self._prompt:
            self._prompt = len(tokens)
        forced = self._forced(tuple(tokens[self._prompt :].tolist()))
        if forced is not None:
            kept = logits[forced]
            logits[:] = -np.inf
            logits[forced] = kept if np.isfinite(kept) else 0.0

    def _forced(self, generated: tuple[int, ...]) -> int | None:
        """The one token that may come next; None: any."""
        closed = self._closed_at
        if closed is not None and generated[: len(closed)] == closed:
            return None
        start = 0 if self._opened else self._start(generated)
        if start is None or len(generated) < start + self._most:
            return None
        if self._is_closed(generated[: start + self._most], start):
            return None
        done = len(generated) - start - self._most
        return self._closed_by[done] if done < len(self._closed_by) else None

    def _start(self, generated: tuple[int, ...]) -> int | None:
        """Tokens up to the end of the opening delimiter, which nothing but white space is in front of."""
        for end in range(1, min(len(generated), _SPELLED) + 1):
            text = self._tokenizer.decode(generated[:end]).lstrip()
            if text.startswith(self._opening):
                return end
            if not self._opening.startswith(text):
                return None
        return None

    def _is_closed(self, generated: tuple[int, ...], start: int) -> bool:
        """Remembers where, so that nothing is looked at again behind it."""
        whole = self._tokenizer.decode(generated[start:])
        if self._closing not in whole:
            return False
        self._closed_at = generated
        return True
