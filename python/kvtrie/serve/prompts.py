"""Conversations to prompts: the checkpoint's template, in the tokens that the cache knows its text by.

What was sampled is found again: answers with tool calls stand there as they were sampled (replays.py), and the whole
text is matched by bytes with what the tree has (``PrefixCache.respell``), whatever tokens a tokenizer would cut it in
today. Messages are those of the OpenAI API: dicts with "role" and "content", "tool_calls" and "tool_call_id".

Threads: any; a template and a tokenizer take their time, so not the event loop's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from .._core import PrefixCache
from ..errors import ArgumentError
from ..models.base import Model
from ..models.chat_template import ChatTemplate
from .json_values import JsonObject, JsonView
from .replays import Replays
from .volatile import VolatileLines

_log = logging.getLogger("kvtrie.serve")

Messages = Sequence[JsonView]
_LONGEST_WORD = 64  # bytes of one token, where the tokenizer does not tell


@dataclass(frozen=True)
class Prompt:
    """``text``: what was rendered; "" where token ids were given. ``checkpoints``: lengths to keep state at."""

    tokens: npt.NDArray[np.int32]
    text: str = ""
    checkpoints: tuple[int, ...] = ()


class Prompts:
    """The prompts of one model and one cache; ``context``: the most tokens that one may have, less one."""

    def __init__(
        self, model: Model, cache: PrefixCache, context: int, replays: Replays, volatile: VolatileLines
    ) -> None:
        self._model, self._cache, self._context = model, cache, context
        self._replays, self._volatile = replays, volatile
        self._tool_names = _tool_names(model.tokenizer.chat_template)

    def of_chat(
        self,
        messages: Messages,
        namespace: str,
        tools: Sequence[object] | None = None,
        variables: JsonView | None = None,
        marks: Sequence[int] = (),
    ) -> Prompt:
        """``marks``: how many messages there are in front of each length where state is to be kept.

        A last message of the assistant's is the beginning of the answer. Raises ``kv.ArgumentError`` for what the
        template refuses and for a prompt that is too long.
        """
        shown = [self._shown(message, namespace) for message in messages]
        if tools and not self._tool_names:
            _log.warning("a request has tools, of which this model's chat template takes no notice")
        values = {**(variables or {}), **{name: list(tools or ()) for name in self._tool_names if tools}}
        text = self._rendered(shown, values)
        checkpoints = [self._rendered_part(shown[:count], values) for count in sorted(set(marks))]
        tokens = self._encoded(text, special=False)
        if any(message.get("role") == "assistant" for message in messages):
            tokens = self._respelled(tokens, namespace)
        lengths = [self._shared(tokens, part, text) for part in checkpoints if part is not None]
        return Prompt(tokens, text, tuple(sorted({length for length in lengths if length > 0})))

    def of_text(self, text: str, namespace: str) -> Prompt:
        """Plain text that is continued."""
        tokens = self._encoded(text, special=True)
        if tokens.size == 0:
            raise ArgumentError("[serve] prompt: got no tokens, allowed 1 or more")
        return Prompt(self._respelled(tokens, namespace), text)

    def of_tokens(self, tokens: Sequence[int]) -> Prompt:
        """Token ids as they are."""
        ids = np.asarray(tokens, np.int64)
        if ids.size == 0:
            raise ArgumentError("[serve] prompt: got no tokens, allowed 1 or more")
        limit = self._model.config.vocab_size
        if ids.min() < 0 or ids.max() >= limit:
            raise ArgumentError(f"[serve] prompt: got a token id outside 0 to {limit - 1}, allowed these")
        self._require_room(ids.size)
        return Prompt(ids.astype(np.int32))

    # --- text -------------------------------------------------------------------------------------------------------

    def _shown(self, message: JsonView, namespace: str) -> JsonObject:
        """What the template sees of a message."""
        shown = dict(message)
        if shown.get("role") == "developer":
            shown["role"] = "system"
        if shown.get("role") == "system" and isinstance(shown.get("content"), str):
            shown["content"] = self._volatile.without(shown["content"])
        calls = shown.get("tool_calls")
        if shown.get("role") != "assistant" or not calls:
            shown.pop("tool_calls", None)
            return shown
        sampled = self._replays.find(namespace, calls)
        if sampled is not None:
            return {"role": "assistant", "content": sampled}
        shown["tool_calls"] = [_with_parsed_arguments(each) for each in calls]
        return shown

    def _rendered(self, messages: Messages, values: JsonView) -> str:
        begun = messages[-1].get("content") if messages and messages[-1].get("role") == "assistant" else None
        whole = messages if begun is None else messages[:-1]
        text = self._model.tokenizer.apply_chat_template(whole, add_generation_prompt=True, tokenize=False, **values)
        return text + str(begun or "")

    def _rendered_part(self, messages: Messages, values: JsonView) -> str | None:
        """The first messages; None where the template does not take them alone."""
        try:
            return self._model.tokenizer.apply_chat_template(messages, tokenize=False, **values)
        except ArgumentError:
            return None

    # --- tokens -----------------------------------------------------------------------------------------------------

    @cached_property
    def _longest_token(self) -> int:
        """Bytes. Text of more than as many for each token of the context cannot fit, and need not be tokenized."""
        texts = self._model.token_texts
        return _LONGEST_WORD if texts is None else max(len(texts[token]) for token in range(len(texts)))

    def _encoded(self, text: str, *, special: bool) -> npt.NDArray[np.int32]:
        least = len(text) // max(self._longest_token, 1)
        if least >= self._context:
            self._require_room(least)
        tokens = np.asarray(self._model.tokenizer.encode(text, add_special_tokens=special), np.int32)
        self._require_room(tokens.size)
        return tokens

    def _require_room(self, count: int) -> None:
        if count >= self._context:
            raise ArgumentError(f"[serve] prompt: got {count} tokens or more, allowed {self._context - 1}")

    def _respelled(self, tokens: npt.NDArray[np.int32], namespace: str) -> npt.NDArray[np.int32]:
        texts = self._model.token_texts
        if texts is None or tokens.size == 0:
            return tokens
        respelled = np.asarray(self._cache.respell(tokens, texts, namespace), np.int32)
        return respelled if respelled.size < self._context else tokens

    def _shared(self, tokens: npt.NDArray[np.int32], part: str, text: str) -> int:
        """How many tokens of the prompt are those of its first part."""
        if not text.startswith(part):
            return 0
        own = np.asarray(self._model.tokenizer.encode(part, add_special_tokens=False), np.int32)
        count = min(own.size, tokens.size)
        differ = np.flatnonzero(own[:count] != tokens[:count])
        return int(differ[0]) if differ.size else count


def _tool_names(template: str | None) -> list[str]:
    """What the template calls tools; SmolLM3's has two forms of them, and this is the one that is read here."""
    names = frozenset() if template is None else ChatTemplate(template).names
    return [name for name in ("tools", "xml_tools") if name in names]


def _with_parsed_arguments(call: JsonView) -> JsonObject:
    """Templates write arguments as JSON themselves, so they get the value, as Hugging Face's own callers give it."""
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments) if arguments else {}
        except (ValueError, RecursionError):
            function["arguments"] = arguments
    return {**call, "function": function}
