"""Calls that are written as Python's: names of parameters, and literals.

    LFM2     <|tool_call_start|>[f(x='text', n=3), g()]<|tool_call_end|>
    OLMo 3   <function_calls>\\nf(x="text")\\ng()\\n</function_calls>

Concept. The end is the first closing delimiter outside of all strings. What stands between the two is parsed, never
run; ``true``, ``false`` and ``null`` are literals, too, as models write them.

Threads: all of it is read-only.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable

from .tool_cursor import Cursor, Names, No, ToolCall, valid

_NAMED = {"true": True, "false": False, "null": None}


def python_calls(opening: str, closing: str) -> Callable[[Cursor, Names], list[ToolCall]]:
    """The body of such a form: a list of calls, or one on each line."""
    within = re.compile(r"(?:[^'\"]|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")*?" + f"({re.escape(closing)})", re.S)
    to_the_end = re.compile(r"(?:[^'\"]|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")*", re.S)

    def body(cursor: Cursor, names: Names) -> list[ToolCall]:
        cursor.take(opening)
        found = within.match(cursor.text, cursor.at)
        if found is None and not cursor.final:
            raise cursor.more(closing[-1])
        end = len(cursor.text) if found is None else found.start(1)
        if found is None and to_the_end.fullmatch(cursor.text, cursor.at) is None:
            raise No
        calls = _parsed(cursor.text[cursor.at : end].strip(), names)
        cursor.at = end if found is None else found.end()
        return calls

    return body


def _parsed(text: str, names: Names) -> list[ToolCall]:
    try:
        lines = ast.parse(text).body
        written = [line.value for line in lines if isinstance(line, ast.Expr)]
        if len(written) != len(lines) or not written:
            raise No
        first = written[0]
        calls = first.elts if len(written) == 1 and isinstance(first, ast.List) else written
        found = [_call(each, names) for each in calls]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise No from None
    if not found:
        raise No
    return found


def _call(node: ast.expr, names: Names) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args or any(each.arg is None for each in node.keywords):
        raise No
    name = ast.unparse(node.func)
    if name not in names:
        raise No
    arguments = {str(each.arg): _literal(each.value) for each in node.keywords}
    return ToolCall(name, valid(json.dumps(arguments, ensure_ascii=False, allow_nan=False), (dict,)))


def _literal(node: ast.expr) -> object:
    if isinstance(node, ast.Name) and node.id in _NAMED:
        return _NAMED[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        return {str(ast.literal_eval(key or node)): _literal(value) for key, value in zip(node.keys, node.values)}
    value: object = ast.literal_eval(node)
    if not isinstance(value, (str, int, float, type(None))):
        raise No
    return value
