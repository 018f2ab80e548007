"""Calls whose arguments stand one by one between tags, without quotes or escapes.

    GLM          <tool_call>f <arg_key>x</arg_key> <arg_value>value</arg_value> </tool_call>
    MiniMax-M2   <minimax:tool_call> <invoke name="f"> <parameter name="x">value</parameter> </invoke> ...
    DeepSeek     the same with a prefix in each tag, and string="true" or "false" behind the parameter's name

Concept. A value may be text about such tags, so what looks like its end counts only where what follows it goes on as a
call does. The tool's schema says which values are strings, unless the tag does.

Threads: all of it is read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .schema_types import typed, types_of_parameter
from .tool_cursor import Cursor, Names, No, ToolCall, call_of

DSML = "\uff5cDSML\uff5c"  # the prefix in DeepSeek-V3.2's tags
_STRING = {' string="true"': {"string"}, ' string="false"': set()}


def key_value_pairs(opening: str, closing: str) -> Callable[[Cursor, Names], list[ToolCall]]:
    """The body of GLM's form: one call."""

    def body(cursor: Cursor, names: Names) -> list[ToolCall]:
        cursor.take(opening)
        cursor.skip()
        name = cursor.name(names)
        members: dict[str, str] = {}
        cursor.skip()
        while cursor.sees("<arg_key>"):
            cursor.take("<arg_key>")
            key = cursor.line("</arg_key>")
            cursor.skip()
            cursor.take("<arg_value>")
            members[key] = typed(
                _value(cursor, "</arg_value>", ("<arg_key>", closing)), types_of_parameter(names[name], key)
            )
            cursor.skip()
        cursor.close(closing)
        return [call_of(name, members)]

    return body


def invocations(opening: str, closing: str, prefix: str = "") -> Callable[[Cursor, Names], list[ToolCall]]:
    """The body of MiniMax's and DeepSeek's form: one call or more. ``prefix``: of each tag's name within."""
    call, call_end = f'<{prefix}invoke name="', f"</{prefix}invoke>"
    parameter, parameter_end = f'<{prefix}parameter name="', f"</{prefix}parameter>"

    def one(cursor: Cursor, names: Names) -> ToolCall:
        cursor.take(call)
        name = cursor.line('">')
        if name not in names:
            raise No
        members: dict[str, str] = {}
        cursor.skip()
        while cursor.sees(parameter):
            cursor.take(parameter)
            key = cursor.line('"')
            types = _STRING.get(cursor.line(">"))
            value = _value(cursor, parameter_end, (parameter, call_end))
            members[key] = typed(value, types_of_parameter(names[name], key) if types is None else types)
            cursor.skip()
        cursor.take(call_end)
        return call_of(name, members)

    def body(cursor: Cursor, names: Names) -> list[ToolCall]:
        cursor.take(opening)
        cursor.skip()
        calls = [one(cursor, names)]
        cursor.skip()
        while cursor.sees(call):
            calls.append(one(cursor, names))
            cursor.skip()
        cursor.close(closing)
        return calls

    return body


def _value(cursor: Cursor, end: str, follows: Sequence[str]) -> str:
    """Up to the first ``end`` that one of ``follows`` stands behind, or the answer's own end."""
    at = cursor.text.find(end, cursor.at)
    while at >= 0:
        behind = Cursor(cursor.text, at + len(end), cursor.final)
        behind.skip()
        if any(behind.sees(each) for each in follows) or (cursor.final and behind.at == len(cursor.text)):
            value, cursor.at = cursor.text[cursor.at : at], at + len(end)
            return value
        at = cursor.text.find(end, at + 1)
    raise cursor.more(end[-1])
