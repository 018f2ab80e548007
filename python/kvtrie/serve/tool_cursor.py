"""A place in text that may go on, and what is read there: words, names and JSON, for tool_forms.py.

Concept. Everything that reads ends in one of three ways: with what it read, with ``No`` (it is something else, whatever
follows), or with ``More`` (the text ends before that is decided). A decision is the same in every longer text. JSON is
found by its brackets and strings first, then parsed as a whole: so invalid text is refused early, and a bracket within
a string ends nothing.

Threads: a cursor belongs to one reader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Optional

Scanned = dict[int, tuple[int, int]]  # where JSON begins: how far its brackets are known, and how many are open there
Names = Mapping[str, Optional[Mapping[str, object]]]  # of tools, with their parameters' JSON schemas


@dataclass(frozen=True)
class ToolCall:
    """``arguments``: the JSON text of an object."""

    name: str
    arguments: str


class More(Exception):
    """The text ends before it is decided."""

    def __init__(self, awaits: str = "") -> None:
        super().__init__()
        self.awaits = awaits


class No(Exception):
    """It is no call, whatever follows."""


_DEEPEST = 256  # brackets within brackets
_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[^\s\[\]{}<>\"']*")
_SCALARS = re.compile(r'(?:[\s,:]+|"[^"\\]*(?:\\.[^"\\]*)*"|[-+.0-9Eaeflnrstu]+)*', re.S)


def skipped(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


class Cursor:
    """A place in text that may go on, unless it is ``final``. Methods move it behind what they name.

    Each raises ``No`` where something else stands there, and ``More`` where that cannot be said yet. ``scanned``: what
    was found in the same text when it was shorter; it is added to."""

    def __init__(self, text: str, at: int, final: bool, scanned: Scanned | None = None) -> None:
        self.text, self.at, self.final = text, at, final
        self._scanned: Scanned = {} if scanned is None else scanned

    def more(self, awaits: str = "") -> Exception:
        return No() if self.final else More(awaits)

    def ended(self) -> bool:
        """Whether there is nothing more."""
        if self.at < len(self.text):
            return False
        if not self.final:
            raise More
        return True

    def skip(self) -> None:
        self.at = skipped(self.text, self.at)

    def sees(self, word: str) -> bool:
        if self.text.startswith(word, self.at):
            return True
        if not self.final and word.startswith(self.text[self.at : self.at + len(word)]):
            raise More
        return False

    def took(self, word: str) -> bool:
        seen = self.sees(word)
        self.at += len(word) * seen
        return seen

    def take(self, word: str) -> None:
        if not self.took(word):
            raise No

    def close(self, word: str) -> None:
        """A closing delimiter: where the answer ends within it, or before it, the call is complete all the same."""
        rest = self.text[self.at : self.at + len(word)]
        if self.final and word.startswith(rest):
            self.at += len(rest)
        else:
            self.take(word)

    def name(self, names: Names) -> str:
        """One of the names, up to what cannot be part of one."""
        found = _WORD.match(self.text, self.at)
        end = found.end() if found else self.at
        if end == len(self.text):
            raise self.more()
        name, self.at = self.text[self.at : end], end
        if name not in names:
            raise No
        return name

    def line(self, word: str) -> str:
        """The text up to ``word``, on one line."""
        end = self.text.find(word, self.at)
        text = self.text[self.at : end if end >= 0 else len(self.text)]
        if "\n" in text:
            raise No
        if end < 0:
            raise self.more(word[-1] + "\n")
        self.at = end + len(word)
        return text

    def json(self) -> str:
        """The text of an object or an array, which is valid JSON."""
        start = self.at
        self.at, depth = self._scanned.get(start, (start, 0))
        while True:
            found = _SCALARS.match(self.text, self.at)
            self.at = found.end() if found and depth else self.at
            self._scanned[start] = self.at, depth
            if self.at == len(self.text):
                raise self.more()
            character = self.text[self.at]
            if character not in "{}[]" or depth > _DEEPEST:
                raise self.more('"') if character == '"' and depth else No()
            depth += 1 if character in "{[" else -1
            self.at += 1
            if depth <= 0:
                return valid(self.text[start : self.at])


def _refuse(constant: str) -> object:
    raise ValueError(constant)


_decoder = json.JSONDecoder(parse_constant=_refuse)


def valid(text: str, allowed: tuple[type, ...] = (dict, list)) -> str:
    """``text``, which is JSON of one of these types and can be written as UTF-8."""
    try:
        text.encode()
        if isinstance(_decoder.decode(text), allowed):
            return text
    except (ValueError, RecursionError):
        pass
    raise No


def _objects(text: str) -> Iterator[str]:
    """The texts of the objects in a valid array, or of the one object that it is."""
    at = 0 if text.startswith("{") else skipped(text, 1)
    while at < len(text) and text[at] != "]":
        if text[at] != "{":
            raise No
        _, end = _decoder.raw_decode(text, at)
        yield text[at:end]
        at = skipped(text, end)
        at = skipped(text, at + 1) if text[at : at + 1] == "," else at


def _members(text: str) -> dict[str, str]:
    """The texts of the values in a valid object."""
    members, at = {}, skipped(text, 1)
    while text[at] != "}":
        key, at = _decoder.raw_decode(text, skipped(text, at + 1) if text[at] == "," else at)
        at = skipped(text, skipped(text, at) + 1)
        _, end = _decoder.raw_decode(text, at)
        members[str(key)] = text[at:end]
        at = skipped(text, end)
    return members


def json_calls(text: str, names: Names) -> list[ToolCall]:
    calls = [_json_call(_members(each), names) for each in _objects(text)]
    if not calls:
        raise No
    return calls


def _json_call(members: Mapping[str, str], names: Names) -> ToolCall:
    name: object = json.loads(members.get("name", members.get("tool_name", "null")))
    arguments = members.get("arguments", members.get("parameters"))
    if not isinstance(name, str) or name not in names or arguments is None:
        raise No
    if arguments.startswith('"'):
        arguments = str(json.loads(arguments)).strip()
    return ToolCall(name, valid("{}" if arguments == "null" else arguments, (dict,)))


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def call_of(name: str, members: Mapping[str, str]) -> ToolCall:
    """``members``: the JSON text of each argument."""
    written = ", ".join(f"{quoted(key)}: {value}" for key, value in members.items())
    return ToolCall(name, valid("{" + written + "}", (dict,)))
