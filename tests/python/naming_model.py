"""A model for servers whose every token names the namespace and the whole text before it, and so do its K and V.

So an answer that has one token of another conversation, or that was made of a foreign row, is not the right one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

import kvtrie as kv
from fakes import DIM, KV_HEADS, LAYERS, CodingModel, prefix_codes, texts_in


class NamingModel:
    """`tokenizer` and chat template are those of a real model. One token of ``ends`` is an end token; 0: none is."""

    def __init__(self, real: Any, check: bool = True, ends: int = 0) -> None:
        self.tokenizer, self.token_texts = real.tokenizer, real.token_texts
        self.has_tokenizer = True
        self.fingerprint = self.family = "naming"
        self.nbytes = 0
        self.end_tokens = real.end_tokens
        self.config = SimpleNamespace(
            vocab_size=real.config.vocab_size, eos_token_ids=real.end_tokens, max_position_embeddings=1 << 20
        )
        self.device = SimpleNamespace(name="host")
        self._coding = CodingModel(check)
        self._ends = ends

    @cached_property
    def words(self) -> list[int]:
        """Tokens that spell letters only, so that texts can be compared."""
        texts = (bytes(self.token_texts[token]) for token in range(len(self.token_texts)))
        return [token for token, text in enumerate(texts) if text.isalpha() and len(text) > 1]

    def caches(self, capacity: int = 4096, **_: Any) -> Any:
        return [kv.caches.CausalCache(LAYERS, KV_HEADS, DIM, capacity, dtype="float32", device="host")]

    def next_token(self, namespace: str, tokens: Sequence[int]) -> int:
        code = int(prefix_codes(namespace, tokens)[-1])
        if self._ends and code % self._ends == 0:
            return int(self.end_tokens[0])
        return self.words[code % len(self.words)]

    def answer(self, namespace: str, prompt: Sequence[int], count: int) -> str:
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(self.next_token(namespace, tokens))
        return str(self.tokenizer.decode(tokens[len(prompt) :]))

    def __call__(self, step: Any, all_rows: bool = False, rows: Sequence[int] | None = None) -> Any:
        self._coding(step)
        places = list(zip(map(int, step.sequences), map(int, step.positions)))
        if rows is not None:
            return self._logits(step, [places[row] for row in rows])
        return self._logits(step, places if all_rows else list(dict(places).items()))

    def _logits(self, step: Any, places: Sequence[tuple[int, int]]) -> Any:
        """[rows, vocab]; each row is behind a position of one session of the step."""
        logits, texts = np.zeros((len(places), self.config.vocab_size), np.float32), texts_in(step)
        for row, (sequence, position) in enumerate(places):
            namespace = step.sessions[sequence].namespace
            logits[row, self.next_token(namespace, texts[sequence][: position + 1])] = 9.0
        return logits
