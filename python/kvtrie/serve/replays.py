"""Answers with tool calls, as they were sampled.

A client sends a tool call back as JSON, and the template writes it as it likes: other spaces, another order of keys.
Then nothing of the answer is found in the tree. So the sampled text of an answer is kept by the ids of its calls, which
are made here, and stands in the conversation again in place of the JSON, as long as that still says the same.

Threads: any. Bounded: the oldest go first, ``MOST`` answers or ``MOST_CHARACTERS`` in all.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..models.prompts import OwnText
from .json_values import JsonView

MOST = 10_000
MOST_CHARACTERS = 64 << 20


class Sampled(NamedTuple):
    """``text``: all that was sampled but its end token. ``calls``: names and arguments (JSON) by id."""

    text: OwnText
    calls: dict[str, tuple[str, str]]


class Replays:
    """Sampled calls, by namespace and the id of the first call."""

    def __init__(self, most: int = MOST, most_characters: int = MOST_CHARACTERS) -> None:
        self._most, self._most_characters = most, most_characters
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], Sampled] = OrderedDict()
        self._characters: int | None = 0  # in all; None while that changes, or where it was interrupted

    @staticmethod
    def new_id() -> str:
        """An id for a call."""
        return "call_" + secrets.token_hex(12)

    def keep(self, namespace: str, text: OwnText, calls: Mapping[str, tuple[str, str]]) -> None:
        """An answer and its calls, in order; one or more."""
        with self._lock:
            known, self._characters = self._characters, None
            characters = self._counted() if known is None else known
            self._kept[namespace, next(iter(calls))] = Sampled(text, dict(calls))
            characters += len(text)
            while len(self._kept) > self._most or characters > self._most_characters:
                characters -= len(self._kept.popitem(last=False)[1].text)
            self._characters = characters

    def _counted(self) -> int:
        return sum(len(each.text) for each in self._kept.values())

    def find(self, namespace: str, tool_calls: Sequence[JsonView]) -> OwnText | None:
        """The sampled text of an answer with these calls, as the OpenAI API has them; None where it is not known, or
        the client changed them."""
        with self._lock:
            found = self._kept.get((namespace, str(tool_calls[0].get("id"))))
            if found is not None:
                self._kept.move_to_end((namespace, str(tool_calls[0].get("id"))))
        if found is None or [str(each.get("id")) for each in tool_calls] != list(found.calls):
            return None
        for each in tool_calls:
            name, arguments = found.calls[str(each["id"])]
            function = each.get("function") or {}
            if function.get("name") != name or not same_json(function.get("arguments"), arguments):
                return None
        return found.text


def same_json(given: object, arguments: str) -> bool:
    """Whether two texts, or a text and its value, are the same JSON."""
    try:
        left = json.loads(given) if isinstance(given, str) else given
        return bool(left == json.loads(arguments))
    except (ValueError, RecursionError):
        return given == arguments
