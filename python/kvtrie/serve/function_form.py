"""Calls as Qwen3-Coder writes them, whose values have neither quotes nor escapes.

    <tool_call> <function=name> <parameter=x> value </parameter> </function> </tool_call>

Seed-OSS has another name for the outer tag.

Concept. A value may be text about such calls, so what looks like its end need not be it. It counts where what follows
it goes on as a call does: with another parameter that the tool has and that was not given yet, or with all closing
delimiters and behind them no further ones; and where the value opens none that it does not close. Where nothing in
the whole answer is like that, the first end does that is followed by a parameter or by the function's end.

Threads: all of it is read-only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from .schema_types import typed, types_of_parameter
from .tool_cursor import Cursor, Names, No, ToolCall, call_of

_END, _FUNCTION_END = "</parameter>", "</function>"


class Functions:
    """The body of this form: one call. ``tag``: the name of the outer one."""

    def __init__(self, tag: str = "tool_call") -> None:
        self._tag, self._tag_end = f"<{tag}>", f"</{tag}>"
        self._delimiters = re.compile(f"<(/?)({re.escape(tag)}>|function(?(1)>|=)|parameter(?(1)>|=))")

    def __call__(self, cursor: Cursor, names: Names) -> list[ToolCall]:
        tagged = cursor.took(self._tag)
        cursor.skip()
        cursor.take("<function=")
        name = cursor.line(">")
        if name not in names:
            raise No
        properties = (names[name] or {}).get("properties")
        members: dict[str, str] = {}
        cursor.skip()
        while not cursor.took(_FUNCTION_END):
            cursor.take("<parameter=")
            key = cursor.line(">")
            known = None if not isinstance(properties, Mapping) or not properties else properties.keys()
            value = self._value(cursor, tagged, {*members, key}, known)
            members[key] = typed(value, types_of_parameter(names[name], key))
            cursor.skip()
        if tagged:
            cursor.skip()
            cursor.close(self._tag_end)
        return [call_of(name, members)]

    def _value(self, cursor: Cursor, tagged: bool, given: set[str], known: object) -> str:
        """Up to its end, behind which the cursor is then. ``given``: names of parameters so far; ``known``: of all."""
        text, first = cursor.text, -1
        opened = dict.fromkeys((self._tag[1], "f", "p"), 0)  # that the value opens, by their first letters
        for found in self._delimiters.finditer(text, cursor.at):
            kind = found[2][0]
            if found[0] == _END:
                behind = Cursor(text, found.end(), cursor.final)
                behind.skip()
                if behind.sees("<parameter=") or behind.sees(_FUNCTION_END):
                    first = found.start() if first < 0 else first
                    if not any(opened.values()) and self._goes_on(behind, tagged, given, known):
                        return _taken(cursor, found.start())
            opened[kind] = max(0, opened[kind] + (-1 if found[1] else 1))
        if first < 0 or not cursor.final:
            raise cursor.more(">")
        return _taken(cursor, first)

    def _goes_on(self, cursor: Cursor, tagged: bool, given: set[str], known: object) -> bool:
        """Whether a call goes on like this behind a value, or ends."""
        if cursor.took("<parameter="):
            try:
                key = cursor.line(">")
            except No:
                return False
            return key not in given and (known is None or key in known)  # type: ignore[operator]
        cursor.take(_FUNCTION_END)
        cursor.skip()
        if not tagged:
            return self._ends_here(cursor)
        rest = cursor.text[cursor.at :]
        if not (cursor.final and self._tag_end.startswith(rest)) and not cursor.took(self._tag_end):
            return False
        cursor.skip()
        return not any(cursor.sees(each) for each in (_END, _FUNCTION_END))

    def _ends_here(self, cursor: Cursor) -> bool:
        """Whether an untagged call does: none of its delimiters closes again before the next call opens."""
        found = self._delimiters.search(cursor.text, cursor.at)
        if found is not None and found[0] == self._tag_end:
            found = self._delimiters.search(cursor.text, found.end())
        if found is None and not cursor.final:
            raise cursor.more(">")
        return found is None or not found[1]


def _taken(cursor: Cursor, end: int) -> str:
    value = cursor.text[cursor.at : end]
    cursor.at = end + len(_END)
    return value.removeprefix("\n").removesuffix("\n") if len(value) > 1 else value.strip("\n")
