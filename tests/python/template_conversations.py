"""Conversations in all the shapes that clients send, fixed ones and random ones, and templates of our own with the
traits that published ones have."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

Message = dict[str, Any]

TOOLS: list[Message] = [
    {
        "type": "function",
        "function": {
            "name": "find_flights",
            "description": "Flights between two towns.",
            "parameters": {
                "type": "object",
                "properties": {
                    "from": {"type": "string", "description": "Z\u00fcrich, say", "enum": ["Oslo", "Z\u00fcrich"]},
                    "legs": {
                        "type": "array",
                        "items": {"type": "object", "properties": {"day": {"type": ["integer", "null"]}}},
                    },
                    "direct": {"type": "boolean", "default": False},
                },
                "required": ["from"],
            },
        },
    },
    {"type": "function", "function": {"name": "clock", "description": "", "parameters": {"type": "object"}}},
]
DOCUMENTS = [{"title": "A title", "text": "A text.", "doc_id": 1}, {"title": "Another", "text": "More \u2603"}]


class Conversation(NamedTuple):
    """``options``: tools, documents, add_generation_prompt and variables."""

    messages: list[Message]
    options: dict[str, Any]


def parts(*texts: str) -> list[Message]:
    return [{"type": "text", "text": text} for text in texts]


def call(name: str, arguments: object, number: int = 0) -> Message:
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _user(content: object = "Where to?", **more: object) -> Message:
    return {"role": "user", "content": content, **more}


def _answer(content: object = "To the sea.", **more: object) -> Message:
    return {"role": "assistant", "content": content, **more}


def _result(content: object = "12 flights", number: int = 0) -> Message:
    return {"role": "tool", "tool_call_id": f"call{number:05}", "name": "find_flights", "content": content}


_SYSTEM = {"role": "system", "content": "Be brief."}
_ARGUMENTS = {"from": "Z\u00fcrich", "legs": [{"day": 3}, {"day": None}], "direct": True}
_TEXT = json.dumps(_ARGUMENTS)

SHAPES: dict[str, list[Message]] = {
    "a question": [_user()],
    "system": [_SYSTEM, _user()],
    "turns": [_SYSTEM, _user(), _answer(), _user("When?"), _answer("At noon."), _user("Why?")],
    "an answer last": [_user(), _answer()],
    "parts": [{**_SYSTEM, "content": parts("Be brief.")}, _user(parts("Where to?", " Say it.")), _answer(), _user("b")],
    "parts of answers": [_user(), _answer(parts("To the sea.")), _user(parts("When?"))],
    "no content": [_user(), _answer(None, tool_calls=[call("find_flights", _ARGUMENTS)]), _result(), _user("b?")],
    "empty content": [_user(), _answer("", tool_calls=[call("find_flights", _ARGUMENTS)]), _result()],
    "content and calls": [_user(), _answer("I look.", tool_calls=[call("find_flights", _ARGUMENTS)]), _result()],
    "arguments as text": [_user(), _answer(None, tool_calls=[call("find_flights", _TEXT)]), _result(), _answer("So.")],
    "no arguments": [_user(), _answer("", tool_calls=[call("clock", {})]), _result('{"now": "12:00"}')],
    "two calls": [
        _user(),
        _answer("", tool_calls=[call("find_flights", _ARGUMENTS), call("clock", {"zone": "UTC+1"}, 1)]),
        _result('{"flights": [1, 2]}'),
        _result("noon", 1),
        _answer("At noon."),
        _user("Thanks"),
    ],
    "results in parts": [_user(), _answer("", tool_calls=[call("clock", {"a": 1})]), _result(parts("noon"))],
    "reasoning": [
        _user(),
        _answer("So.", reasoning_content="It is late."),
        _user("And?"),
        _answer("No.", thinking="x"),
    ],
    "thoughts in content": [_user(), _answer("<think>\nIt is late.\n</think>\n\nSo."), _user("And?")],
    "names": [_user(name="Ann"), _answer(name="Bob"), _user(name="Cy")],
    "unicode and spaces": [
        _user("  \u00e9\u4e2d\n\t\u2603 <b>&amp;\"' \\n {x} {{ y }}  "),
        _answer(" \n"),
        _user("\u202e ok \r\n"),
    ],
    "nothing": [_user(""), _answer(""), _user("b")],
    "None everywhere": [{**_SYSTEM, "name": None}, _user(tool_calls=None), _answer(None), _user("b")],
    "developer": [{"role": "developer", "content": "Be brief."}, _user()],
    "two questions": [_user(), _user("When?")],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "an answer begins": {"add_generation_prompt": True},
    "tools": {"tools": TOOLS, "add_generation_prompt": True},
    "documents": {"documents": DOCUMENTS},
    "no thinking": {"add_generation_prompt": True, "enable_thinking": False},
}


def fixed() -> Iterator[tuple[str, Conversation]]:
    """Every shape with every set of options."""
    for shape, messages in SHAPES.items():
        for name, options in OPTIONS.items():
            yield f"{shape}, {name}", Conversation(messages, options)


# ---- random ones -----------------------------------------------------------------------------------------------------

_WORDS = (
    "sea",
    "noon",
    "Z\u00fcrich",
    "\u4e2d\u6587",
    "12",
    "{x}",
    "<b>",
    "\u2603",
    "a\nb",
    "don't",
    '"so"',
    "\\",
    "None",
)


class _Dice:
    """``simple``: content is always one text, and arguments are objects, which all templates read. Each text has a
    number that no other has."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._simple = dice.random() < 0.5
        self._numbers = itertools.count(1)

    def conversation(self) -> Conversation:
        messages = list(self._turns())
        if messages[-1]["role"] == "assistant" and self._in(0.8):
            messages.append(_user(self._content()))
        if self._in(0.03):
            other = {"role": self._dice.choice(("system", "critic")), "content": self._text()}
            messages.insert(self._dice.randrange(len(messages)), other)
        options: dict[str, Any] = {"add_generation_prompt": self._in(0.7)}
        if self._in(0.5):
            options["tools"] = self._dice.choice((TOOLS, TOOLS[1:], []))
        if self._in(0.1):
            options["documents"] = DOCUMENTS
        if self._in(0.2):
            options["enable_thinking"] = self._in(0.5)
        return Conversation(messages, options)

    def _turns(self) -> Iterator[Message]:
        if self._in(0.4):
            yield {"role": self._dice.choice(("system",) * 9 + ("developer",)), "content": self._content()}
        called = 0
        for _ in range(self._dice.randrange(1, 5)):
            yield _user(self._content(), **({"name": "Ann"} if self._in(0.05) else {}))
            thought = {"reasoning_content": self._text()} if self._in(0.2) else {}
            while self._in(0.25):
                calls = self._calls(called)
                content = self._dice.choice((None, "", self._content()))
                yield _answer(content, tool_calls=calls, **(thought if not content else {}))
                for number in range(called, called + len(calls)):
                    yield _result(self._dice.choice((self._content(), json.dumps(self._value()))), number)
                called += len(calls)
            if self._in(0.95):
                yield _answer(self._answered(), **thought)

    def _in(self, share: float) -> bool:
        return self._dice.random() < share

    def _text(self) -> str:
        words = " ".join([f"n{next(self._numbers)}.", *self._dice.choices(_WORDS, k=self._dice.randrange(8))])
        before, behind = self._dice.choice((("", ""), ("", ""), ("", ""), (" ", "\n"), ("\n\n", "  ")))
        return f"{before}{words}{behind}"

    def _content(self) -> object:
        if self._in(0.03):
            return self._dice.choice(("", " "))
        if self._simple or self._in(0.7):
            return self._text()
        return parts(*(self._text() for _ in range(self._dice.randrange(1, 3))))

    def _answered(self) -> object:
        answer = self._content()
        thinks = isinstance(answer, str) and self._in(0.1)
        return f"<think>\n{self._text()}\n</think>\n{answer}" if thinks else answer

    def _value(self, depth: int = 0) -> object:
        if depth < 2 and self._in(0.3):
            values = [self._value(depth + 1) for _ in range(self._dice.randrange(3))]
            return values if self._in(0.5) else {f"k{at}": value for at, value in enumerate(values)}
        number = self._dice.randrange(-5, 999)
        return self._dice.choice((self._text(), number, number / 4, number > 500, None))

    def _calls(self, first: int) -> list[Message]:
        made = []
        for number in range(first, first + self._dice.choice((1, 1, 1, 2, 3))):
            arguments: object = {f"key{at}": self._value() for at in range(self._dice.randrange(3))}
            if not self._simple and self._in(0.5):
                arguments = json.dumps(arguments, ensure_ascii=self._in(0.5))
            made.append(call(self._dice.choice(("find_flights", "clock")), arguments, number))
        return made


def random_conversation(dice: random.Random) -> Conversation:
    """One to four questions with answers, calls and results; some are of no shape that a template allows."""
    return _Dice(dice).conversation()
