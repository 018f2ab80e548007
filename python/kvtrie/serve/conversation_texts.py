"""Conversations to the text that the checkpoint's template makes of them, and which of it are special tokens.

Answers with tool calls stand there as they were sampled (replays.py), and volatile lines are left out of system
messages (volatile.py), so that prompts begin alike. Messages are those of the OpenAI API: dicts with "role" and
"content", "tool_calls" and "tool_call_id".

Threads: any; a template takes its time, so not the event loop's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from ..errors import ArgumentError
from ..models.chat_template import ChatTemplate
from ..models.prompts import Rendered
from ..models.tokenizer import TextReading, Tokenizer
from .json_values import JsonObject, JsonView
from .replays import Replays
from .volatile import VolatileLines

_log = logging.getLogger("kvtrie.serve")

Messages = Sequence[JsonView]


class ConversationTexts:
    """Of one tokenizer's template."""

    def __init__(self, tokenizer: Tokenizer, replays: Replays, volatile: VolatileLines) -> None:
        self._tokenizer = tokenizer
        self._replays, self._volatile = replays, volatile
        self._tool_names = _tool_names(tokenizer.chat_template)

    def of(
        self,
        messages: Messages,
        namespace: str,
        tools: Sequence[object] | None = None,
        variables: JsonView | None = None,
        marks: Sequence[int] = (),
        special_tokens: TextReading = "letters",
    ) -> tuple[Rendered, list[Rendered]]:
        """The text, and that of the first messages for each number in ``marks`` where the template takes them alone.

        A last message of the assistant's is the beginning of the answer. ``special_tokens``: what those are that stand
        in messages and variables. Raises ``kv.ArgumentError`` for what the template refuses.
        """
        shown = [self._shown(message, namespace) for message in messages]
        if tools and not self._tool_names:
            _log.warning("a request has tools, of which this model's chat template takes no notice")
        values = {**(variables or {}), **{name: list(tools or ()) for name in self._tool_names if tools}}
        text = self._rendered(shown, special_tokens, values)
        parts = [self._rendered_part(shown[:count], special_tokens, values) for count in sorted(set(marks))]
        return text, [part for part in parts if part is not None]

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

    def _rendered(self, messages: Messages, reading: TextReading, values: JsonView) -> Rendered:
        begun = messages[-1].get("content") if messages and messages[-1].get("role") == "assistant" else None
        whole = messages if begun is None else messages[:-1]
        prompt = self._tokenizer.rendered(whole, True, reading, values)
        return prompt.with_words(begun, self._tokenizer.special_tokens) if isinstance(begun, str) else prompt

    def _rendered_part(self, messages: Messages, reading: TextReading, values: JsonView) -> Rendered | None:
        """The first messages; None where the template does not take them alone."""
        try:
            return self._tokenizer.rendered(messages, False, reading, values)
        except ArgumentError:
            return None


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
