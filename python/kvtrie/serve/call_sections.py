"""Calls within a section of special tokens, each with a name and the JSON of its arguments.

    Kimi K2         BEGIN CALL functions.f:0 ARGUMENTS {...} END ... SECTION_END
    DeepSeek-V3.1   BEGIN CALL f SEPARATOR {...} END ... SECTION_END
    DeepSeek-V3     BEGIN CALL function SEPARATOR f\\n```json\\n{...}\\n``` END ... SECTION_END

Threads: all of it is read-only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .tool_cursor import Cursor, Names, No, ToolCall, valid


class Section(NamedTuple):
    """The special tokens. ``separator``: between a name and its arguments."""

    begin: str
    call: str
    separator: str
    call_end: str
    end: str


KIMI = Section(
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)
DEEPSEEK = Section(
    *(f"<\uff5ctool\u2581{each}\uff5c>" for each in (
        "calls\u2581begin", "call\u2581begin", "sep", "call\u2581end", "calls\u2581end"
    ))
)  # fmt: skip


def section_of(marks: Section) -> Callable[[Cursor, Names], list[ToolCall]]:
    """The body of such a form: all calls of a section."""

    def one(cursor: Cursor, names: Names) -> ToolCall:
        cursor.take(marks.call)
        name = cursor.line(marks.separator).strip()
        if name == "function" and name not in names:
            name = cursor.line("\n").strip()
            cursor.skip()
            cursor.take("```json")
        name = name if name in names else name.removeprefix("functions.").rpartition(":")[0]
        if name not in names:
            raise No
        cursor.skip()
        arguments = valid(cursor.json(), (dict,))
        cursor.skip()
        if cursor.took("```"):
            cursor.skip()
        cursor.close(marks.call_end)
        return ToolCall(name, arguments)

    def body(cursor: Cursor, names: Names) -> list[ToolCall]:
        cursor.take(marks.begin)
        cursor.skip()
        calls = [one(cursor, names)]
        cursor.skip()
        while cursor.sees(marks.call):
            calls.append(one(cursor, names))
            cursor.skip()
        cursor.close(marks.end)
        return calls

    return body
