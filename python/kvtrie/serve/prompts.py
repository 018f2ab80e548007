"""Conversations to prompts: their text (conversation_texts.py) in the tokens that the cache knows it by.

A sampled text is found again: the whole text is matched by bytes with the tree (``PrefixCache.match_text``), whatever
tokens a tokenizer would cut it in today.

Threads: any; a template and a tokenizer take their time, so not the event loop's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from .._core import PrefixCache
from ..models.base import Model
from ..models.prompts import Rendered
from ..models.tokenizer import TextReading
from .conversation_texts import ConversationTexts, Messages, begun_words
from .json_values import JsonView
from .predictions import PredictedText
from .wrong_fields import FieldError, empty, too_long

_LONGEST_WORD = 64  # bytes of one token, where the tokenizer does not tell


@dataclass(frozen=True)
class Prompt:
    """``text``: what was rendered; "" where token ids were given. ``checkpoints``: lengths to keep state at. ``begun``:
    the end of ``text`` that is the beginning of the answer. ``begins``: an answer is a text of its own; else it goes on
    with this one. ``times``: what in ``text`` is the time, and may be another one next time."""

    tokens: npt.NDArray[np.int32]
    text: str = ""
    checkpoints: tuple[int, ...] = ()
    begun: str = ""
    begins: bool = True
    times: tuple[str, ...] = ()


class Prompts:
    """The prompts of one model and one cache; ``context``: the most tokens that one may have, less one."""

    def __init__(self, model: Model, cache: PrefixCache, context: int, texts: ConversationTexts) -> None:
        self._model, self._cache, self._context = model, cache, context
        self._texts = texts

    def of_chat(
        self,
        messages: Messages,
        namespace: str,
        tools: Sequence[object] | None = None,
        variables: JsonView | None = None,
        marks: Sequence[int] = (),
        special_tokens: TextReading = "letters",
    ) -> Prompt:
        """``marks``: how many messages there are in front of each length where state is to be kept.

        A last message of the assistant's is the beginning of the answer. Raises ``kv.errors.ArgumentError`` for what
        the template refuses and for a prompt that is too long.
        """
        prompt, parts, times = self._texts.of(messages, namespace, tools, variables, marks, special_tokens)
        tokens = self._encoded(prompt.text, lambda: self._model.tokenizer.ids_of(prompt), "messages")
        if any(message.get("role") == "assistant" for message in messages):
            tokens = self._known_tokens(tokens, namespace)
        lengths = [self._shared(tokens, part, prompt.text) for part in parts]
        points = tuple(sorted({length for length in lengths if length > 0}))
        return Prompt(tokens, prompt.text, points, begun_words(messages) or "", times=times)

    def of_text(self, text: str, namespace: str, special_tokens: TextReading = "parse") -> Prompt:
        """Plain text that is continued."""
        encode = self._model.tokenizer.encode
        tokens = self._encoded(text, lambda: encode(text, special_tokens=special_tokens))
        if tokens.size == 0:
            raise empty()
        return Prompt(self._known_tokens(tokens, namespace), text, begins=False)

    def of_tokens(self, tokens: Sequence[int]) -> Prompt:
        """Token ids as they are."""
        ids = np.asarray(tokens, np.int64)
        if ids.size == 0:
            raise empty()
        limit = self._model.config.vocab_size
        if ids.min() < 0 or ids.max() >= limit:
            raise FieldError(f"[serve] prompt: got a token id outside 0 to {limit - 1}, allowed these", param="prompt")
        self._require_room(ids.size)
        return Prompt(ids.astype(np.int32), begins=False)

    def of_prediction(self, text: str) -> PredictedText:
        """The text that an answer is expected to have. ``FieldError`` for one that no conversation has room for."""
        count, tokens = len(text) // max(self._longest_token, 1), list[int]()
        if count <= self._context:
            tokens = self._model.tokenizer.encode(text, add_special_tokens=False, special_tokens="letters")
            count = len(tokens)
        if count > self._context:
            field = "prediction.content"
            raise FieldError(f"[serve] {field}: got {count} tokens, allowed {self._context}", param=field)
        return PredictedText(tokens)

    # --- tokens -----------------------------------------------------------------------------------------------------

    @cached_property
    def _longest_token(self) -> int:
        """Bytes. Text of more than as many for each token of the context cannot fit, and need not be tokenized."""
        texts = self._model.token_texts
        return _LONGEST_WORD if texts is None else max(len(texts[token]) for token in range(len(texts)))

    def _encoded(self, text: str, encode: Callable[[], list[int]], field: str = "prompt") -> npt.NDArray[np.int32]:
        least = len(text) // max(self._longest_token, 1)
        if least >= self._context:
            self._require_room(least, field)
        tokens = np.asarray(encode(), np.int32)
        self._require_room(tokens.size, field)
        return tokens

    def _require_room(self, count: int, field: str = "prompt") -> None:
        if count >= self._context:
            raise too_long(count, self._context - 1, field)

    def _known_tokens(self, tokens: npt.NDArray[np.int32], namespace: str) -> npt.NDArray[np.int32]:
        texts = self._model.token_texts
        if texts is None or tokens.size == 0:
            return tokens
        matched = np.asarray(self._cache.match_text(tokens, texts, namespace), np.int32)
        return matched if matched.size < self._context else tokens

    def _shared(self, tokens: npt.NDArray[np.int32], part: Rendered, text: str) -> int:
        """How many tokens of the prompt are those of its first part."""
        if not text.startswith(part.text):
            return 0
        own = np.asarray(self._model.tokenizer.ids_of(part), np.int32)
        count = min(own.size, tokens.size)
        differ = np.flatnonzero(own[:count] != tokens[:count])
        return int(differ[0]) if differ.size else count
