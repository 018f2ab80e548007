"""Conversations to the text that the checkpoint's template makes of them, and which of it are special tokens.

Answers with tool calls stand there as they were sampled (replays.py), and volatile lines are left out of system
messages (volatile.py), so that prompts begin alike; so is the time held still (clocks.py). Messages are those of
the OpenAI API: dicts with "role" and "content", "tool_calls" and "tool_call_id".

Threads: any; a template takes its time, so not the event loop's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import ArgumentError
from ..models.chat_template import ChatTemplate
from ..models.prompts import Rendered
from ..models.template_environment import clock_at
from ..models.template_messages import parsed
from ..models.template_probe import Reads
from ..models.tokenizer import TextReading, Tokenizer, telling, template_variables
from .clocks import ADVICE, Clocks
from .generic_tools import BEGINNING, TOOL_VARIABLES, needs_generic, with_tools
from .json_values import JsonObject, JsonView
from .replays import Replays
from .volatile import VolatileLines
from .wrong_fields import FieldError

_log = logging.getLogger("kvtrie.serve")

Messages = Sequence[JsonView]


class Written(NamedTuple):
    """``parts``: of the first messages. ``times``: what in ``text`` is the time, and may be another one next time."""

    text: Rendered
    parts: list[Rendered]
    times: tuple[str, ...]


class ConversationTexts:
    """Of one tokenizer's template."""

    def __init__(self, tokenizer: Tokenizer, replays: Replays, volatile: VolatileLines, clocks: Clocks) -> None:
        self._tokenizer = tokenizer
        self._replays, self._volatile, self._clocks = replays, volatile, clocks
        self._generic = needs_generic(tokenizer)
        self._told_of_time = False

    def of(
        self,
        messages: Messages,
        namespace: str,
        tools: Sequence[object] | None = None,
        variables: JsonView | None = None,
        marks: Sequence[int] = (),
        special_tokens: TextReading = "letters",
    ) -> Written:
        """The text, and that of the first messages for each number in ``marks`` where the template takes them alone.

        A last text of the assistant's is the beginning of the answer (``begun_words``). ``special_tokens``: what those
        are that stand in messages and variables. Raises ``kv.errors.ArgumentError`` for what the template refuses.
        """
        template = self._tokenizer.template(tools=tools or None)
        values = _variables(variables or {})
        if tools and not self._generic:
            values = {**{name: list(tools) for name in self._tool_names(template)}, **values}
        shown = [self._shown(message, namespace, template.reads) for message in messages]
        ends = list(range(1, len(shown) + 1))
        if self._generic:
            shown, ends = with_tools(shown, tools or ())
        counts = sorted({ends[mark - 1] for mark in marks if 0 < mark <= len(ends)})
        with telling(_log.warning), clock_at(self._clocks.at(namespace, shown)) as times:
            text = self._rendered(messages, shown, special_tokens, values)
            parts = [self._rendered_part(shown[:count], special_tokens, values) for count in counts]
        if self._generic and tools and BEGINNING not in text.text:
            raise FieldError(
                "[serve] tools: got some, allowed none: this chat template shows neither them nor system messages",
                param="tools",
            )
        if self._clocks.has_changed(namespace, shown, tuple(times)) and not self._told_of_time:
            self._told_of_time = True
            _log.warning("a conversation is not found again: %s", ADVICE)
        return Written(text, [part for part in parts if part is not None], tuple(times) if self._clocks.runs else ())

    def _tool_names(self, template: ChatTemplate) -> frozenset[str]:
        names = template.names & TOOL_VARIABLES
        if not names:
            _log.warning("a request has tools, of which this model's chat template takes no notice")
        return names | {"tools"} if "tool_use" in self._tokenizer.chat_templates else names

    def _shown(self, message: JsonView, namespace: str, reads: Reads) -> JsonObject:
        """The messages as the template sees them."""
        shown = dict(message)
        if shown.get("role") == "developer":
            shown["role"] = "system"
        if shown.get("role") == "system":
            shown["content"] = self._without_volatile(shown.get("content"))
        calls = shown.get("tool_calls")
        if shown.get("role") != "assistant" or not calls:
            shown.pop("tool_calls", None)
            return shown
        sampled = self._replays.find(namespace, calls)
        if sampled is not None:
            return {"role": "assistant", "content": sampled}
        if reads.arguments != "text":
            shown["tool_calls"] = [_with_parsed_arguments(each) for each in calls]
        return shown

    def _without_volatile(self, content: object) -> object:
        if isinstance(content, list):
            return [{**part, "text": self._volatile.without(part["text"])} for part in content]
        return self._volatile.without(content) if isinstance(content, str) else content

    def _rendered(self, given: Messages, messages: Messages, reading: TextReading, values: JsonView) -> Rendered:
        """``messages``: what the template sees of those that were given."""
        words = begun_words(given)
        if words is None:
            return self._tokenizer.rendered(messages, True, reading, values)
        prompt = self._tokenizer.rendered(messages[:-1], True, reading, values)
        return prompt.with_words(words, self._tokenizer.special_tokens)

    def _rendered_part(self, messages: Messages, reading: TextReading, values: JsonView) -> Rendered | None:
        """The first messages; None where the template does not take them alone."""
        try:
            return self._tokenizer.rendered(messages, False, reading, values)
        except ArgumentError:
            return None


def begun_words(messages: Messages) -> str | None:
    """The beginning of the answer that the last message is; None where it is none.

    Plain text only: calls and reasoning are written as the template writes them, and a turn with them is over."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or last.get("tool_calls") or last.get("reasoning_content"):
        return None
    content = last.get("content")
    words = "".join(part["text"] for part in content) if isinstance(content, list) else content
    return words if isinstance(words, str) else None


def _variables(given: JsonView) -> JsonObject:
    """Raises ``FieldError`` for what is no variable of a template."""
    try:
        return dict(template_variables(given, "serve", "chat_template_kwargs", ()))
    except ArgumentError as error:
        raise FieldError(str(error), param="chat_template_kwargs") from error


def _with_parsed_arguments(call: JsonView) -> JsonObject:
    """Templates that can write arguments as JSON themselves get the value, as Hugging Face's own callers give it."""
    function = dict(call.get("function") or {})
    return {**call, "function": {**function, "arguments": parsed(function.get("arguments"))}}
