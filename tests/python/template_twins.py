"""Prompts of ours beside those of transformers' ``apply_chat_template``, with one template and one conversation.

They are equal, or both refuse. Four things differ on purpose, and are counted by name:

    another form      the template does not read content, or arguments of tool calls, in the form that they have; it
                      gets them in the form that it reads. The prompt is what transformers makes of that form.
    absent content    content is None beside tool calls, which the template refuses to be absent; it gets ""
    an empty turn     transformers writes a turn without its content; it is refused
    no text           a part that is no text, or a value that is no JSON, where transformers prints what Python calls it
"""

from __future__ import annotations

import contextlib
import datetime
import json
import warnings
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import tokenizers
from tokenizers import models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

import kvtrie as kv
from kvtrie.models import template_environment
from kvtrie.models.chat_template import ChatTemplate
from kvtrie.models.template_messages import normalised
from template_conversations import Conversation

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_RAW = tokenizers.Tokenizer(models.BPE())
_THEIRS = PreTrainedTokenizerFast(tokenizer_object=_RAW, **SPECIAL)


class _Clock(datetime.datetime):
    @classmethod
    def now(cls, tz: Any = None) -> _Clock:
        return cls(2026, 11, 26, 19, 5, 47, tzinfo=tz)


@contextlib.contextmanager
def _one_time() -> Iterator[None]:
    """Within, it is the same time for both."""
    ours = SimpleNamespace(datetime=_Clock)
    theirs = mock.patch.object(chat_template_utils, "datetime", _Clock)
    with theirs, mock.patch.object(template_environment, "datetime", ours):
        yield


class Twin(NamedTuple):
    """``outcome``: "equal", "both refuse", one of those above, or "DIFFERENT"; ``ours`` and ``theirs`` are texts, or
    what was refused."""

    outcome: str
    ours: str | kv.Error
    theirs: str | Exception


class Twins:
    """One template in both."""

    def __init__(self, template: str | Mapping[str, str]) -> None:
        self.tokenizer = kv.models.Tokenizer(_RAW, special=SPECIAL, chat_template=template)
        self._template = template

    def of(self, conversation: Conversation) -> Twin:
        with _one_time():
            ours, theirs = self._ours(conversation), self._theirs(conversation.messages, conversation.options)
            return Twin(self._outcome(conversation, ours, theirs), ours, theirs)

    def _ours(self, conversation: Conversation) -> str | kv.Error:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", kv.errors.IgnoredWarning)
            try:
                return self.tokenizer.apply_chat_template(conversation.messages, tokenize=False, **conversation.options)
            except kv.Error as error:
                return error

    def _theirs(self, messages: Any, options: Mapping[str, Any]) -> str | Exception:
        _THEIRS.chat_template = self._template
        try:
            return str(_THEIRS.apply_chat_template(messages, tokenize=False, **options))
        except Exception as error:
            return error

    def _outcome(self, conversation: Conversation, ours: str | kv.Error, theirs: str | Exception) -> str:
        if isinstance(ours, str) and isinstance(theirs, str) and ours == theirs:
            return "equal"
        if isinstance(ours, kv.Error):
            return "both refuse" if isinstance(theirs, Exception) else _refused(str(ours), theirs, conversation)
        template = self.tokenizer.template(None, conversation.options.get("tools"))
        given, prepared = normalised(conversation.messages), template.prepared(conversation.messages)
        if given != prepared and self._theirs(prepared, conversation.options) == ours:
            return _why(given, prepared, theirs, template) or "DIFFERENT"
        return "DIFFERENT"


def _refused(error: str, theirs: str, conversation: Conversation) -> str:
    if "the turn would be empty" in error:
        at = int(error.split("messages[")[1].split("]")[0])
        content = conversation.messages[at]["content"]
        texts = [content] if isinstance(content, str) else [part["text"] for part in content]
        return "an empty turn" if not any(text.strip() in theirs for text in texts if text.strip()) else "DIFFERENT"
    if "got a part of type" in error or "allowed None, a number" in error:
        return "no text"
    return "DIFFERENT"


def _why(given: Any, prepared: Any, theirs: str | Exception, template: ChatTemplate) -> str:
    """The reason for which messages were passed in another form; "" if there was none."""
    changes = [(key, a.get(key), b[key]) for a, b in zip(given, prepared) for key in b if a.get(key) != b[key]]
    if all(key == "content" and old is None and new == "" for key, old, new in changes):
        return "absent content" if isinstance(theirs, Exception) else ""
    worse = isinstance(theirs, Exception) or any(_is_lost(old, theirs) for _, old, _ in changes)
    return "another form" if worse else ""


def _is_lost(value: Any, prompt: str) -> bool:
    """Whether content or calls do not stand in the prompt, or only as Python or JSON writes them."""
    if isinstance(value, str):
        return value.strip() not in prompt
    texts = [part["text"].strip() for part in value if "text" in part]
    arguments = [each["function"]["arguments"] for each in value if "function" in each]
    return any(text not in prompt or "'text': " in prompt or '"text": ' in prompt for text in texts) or any(
        _is_spoilt(each, prompt) for each in arguments
    )


def _is_spoilt(arguments: Any, prompt: str) -> bool:
    if not isinstance(arguments, str):
        return str(arguments) in prompt
    return arguments not in prompt or any(json.dumps(arguments, ensure_ascii=each) in prompt for each in (True, False))


# ---- the language ----------------------------------------------------------------------------------------------------


def same_language(source: str, values: Mapping[str, Any]) -> bool:
    """Whether a template makes the same text of variables in both, or both refuse. Ours also refuses to write where an
    object lies in memory."""
    try:
        theirs: str | None = chat_template_utils._compile_jinja_template(source).render(messages=[], **values)
    except Exception:
        theirs = None
    try:
        ours: str | None = ChatTemplate(source).render({"messages": [], **values})
    except kv.Error:
        ours = None
    return ours == theirs or (ours is None and " at 0x" in str(theirs))
