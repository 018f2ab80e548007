"""Grammars of tool calls, for answers that must be calls or whose calls must keep to their schemas.

Concept. Each form (tool_forms.py) has rules for what stands around calls, and for one call of each tool. Arguments in
JSON keep to the tool's schema; where values stand one by one between tags, strings are as they are and all others JSON.

    start: OPENING call ...      call: call_0 | call_1      call_0: "{\"name\": \"f\", ..." arguments_0 ...

Notation: Lark's, as llguidance has it. Threads: all of it is read-only.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Optional

from ..thinking import harmony
from .call_sections import DEEPSEEK, KIMI
from .schema_types import pointed_to, types_of
from .tagged_values import DSML
from .tool_calls import ToolSyntax
from .tool_forms import Form

__all__ = ["grammar_for_tools"]

SpecialId = Callable[[str], Optional[int]]

_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # as templates write JSON
_ALONE = ("answer", "harmony", "kimi", "deepseek", "listed")  # of them nothing is known beside text
_TEXT = r"TEXT: /(.|\n)*/"


class _Tags(NamedTuple):
    """What stands around values one by one: before the first of a call, before each and behind it, and at the end.
    ``{}``: the name of the tool or parameter; ``{1}``: whether the value is a string."""

    call: str
    value: str
    value_end: str
    end: str


def grammar_for_tools(
    syntax: ToolSyntax,
    tools: Sequence[Mapping[str, object]],
    one_is_required: bool,
    special_id: SpecialId | None = None,
    at_most: int = 8,
) -> str | None:
    """A grammar in Lark's notation, as llguidance has it: calls of ``tools`` whose arguments keep to their schemas.

    ``one_is_required``: 1 to ``at_most`` calls and nothing else; otherwise text and calls in any order. ``tools``: as
    the OpenAI API has them. ``special_id``: ``tokenizer.special_id``, without which marks are spelled as text, as a
    model whose marks are special tokens never does. None: the form, or a tool, cannot be expressed.
    """
    form = syntax.form
    if form.kind in ("braces", "python") or not tools or (form.kind in _ALONE and not one_is_required):
        return None
    functions = [tool.get("function", tool) for tool in tools]
    rules = [_call_rules(form, special_id, at, each) for at, each in enumerate(functions)]
    if any(each is None for each in rules):
        return None
    calls = " | ".join(f"call_{at}" for at in range(len(tools)))
    lines = [line for each in rules if each is not None for line in each]
    return "\n".join([*_frame(form, special_id, one_is_required, at_most), f"call: {calls}", *lines, ""])


def _frame(form: Form, special_id: SpecialId | None, required: bool, at_most: int) -> list[str]:
    """Rules for what stands around calls: a block is an opening, and ``block`` behind it."""
    if form.kind == "harmony":
        channel, message, end, start = (_mark(each, special_id) for each in harmony.MARKS_OF_HEADERS)
        analysis = f'analysis: {channel} "analysis" {message} TEXT {end} {start} "assistant"'
        return ["start: analysis? call", analysis, _TEXT]
    opening = _mark(form.openings[0], special_id) if form.openings else ""
    if form.kind in ("kimi", "deepseek"):
        return [f"start: {opening} call~1..{at_most} {_mark(form.marks[-1], special_id)}"]
    listed = f'"[" call (", " call)~0..{at_most - 1} "]"'
    if form.kind == "listed":
        return [f"start: {opening} {listed} {_mark(form.marks[1], special_id)}"]
    block, most = (f'" "? {listed}', 1) if form.kind == "mistral" else ("call", at_most)
    if form.bare:
        return [f"start: {block}"]
    separator = "" if form.kind.startswith("mistral") else r'"\n"'
    if required:
        return [f"start: {opening} block ({separator} {opening} block)~0..{most - 1}", f"block: {block}"]
    if opening.startswith("<["):
        return ["start: led* TEXT", f"led: TEXT {opening} block", f"block: {block}", _TEXT]
    return ["start: (led block)* TEXT", f"led[lazy]: TEXT {opening}", f"block: {block}", _TEXT]


def _call_rules(form: Form, special_id: SpecialId | None, at: int, function: object) -> list[str] | None:
    """Rules for a call of one tool, from behind the opening; ``at`` is its number."""
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        return None
    schema = function.get("parameters")
    schema = {"additionalProperties": False, **(schema if isinstance(schema, Mapping) else {}), "type": "object"}
    tags = _tags_of(form)
    if tags is not None:
        return _rules_of_values(tags, at, name, schema)
    arguments = f"arguments_{at}: {_json(schema)}"
    around = _around_arguments(form, special_id, name)
    if around is not None:
        return [f"call_{at}: {around[0]} arguments_{at} {around[1]}", arguments]
    key = "parameters" if form.kind == "answer" else "arguments"
    before, behind = f'{{"name": {_literal(name)}, "{key}": ', "}"
    if form.kind in ("tagged", "fenced"):
        before, behind = "\n" + before, behind + "\n" + ("</tool_call>" if form.kind == "tagged" else "```")
    return [f"call_{at}: {_literal(before)} arguments_{at} {_literal(behind)}", arguments]


def _around_arguments(form: Form, special_id: SpecialId | None, name: str) -> tuple[str, str] | None:
    """The rule's parts before and behind a call's arguments, where marks stand among them."""
    mark = functools.partial(_mark, special_id=special_id)
    if form.kind == "mistral named":
        return f"{_literal(name)} {mark('[ARGS]')}", ""
    if form.kind == "function":
        return _literal(f"{name}>"), _literal("</function>")
    if form.kind == "harmony":
        channel, message = map(mark, harmony.MARKS_OF_HEADERS[:2])
        return f'{channel} {_literal(f"commentary to=functions.{name} ")} {mark("<|constrain|>")} "json" {message}', ""
    if form.kind == "kimi":
        return f"{mark(KIMI.call)} {_literal(f'functions.{name}:')} /[0-9]+/ {mark(KIMI.separator)}", mark(
            KIMI.call_end
        )
    if form.kind == "deepseek":
        return f"{mark(DEEPSEEK.call)} {_literal(name)} {mark(DEEPSEEK.separator)}", mark(DEEPSEEK.call_end)
    if form.openings[0] == "<|START_ACTION|>":
        named = _literal(f'", "tool_name": {_literal(name)}, "parameters": ')
        return f'"{{\\"tool_call_id\\": \\"" /[0-9]+/ {named}', '"}"'
    return None


def _tags_of(form: Form) -> _Tags | None:
    """None: arguments are JSON."""
    if form.kind == "functions":
        ends = f"</function>\n{form.marks[1]}"
        return _Tags("\n<function={}>\n", "<parameter={}>\n", "\n</parameter>\n", ends)
    if form.kind == "pairs":
        return _Tags("{}\n", "<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>\n", form.marks[1])
    if form.kind == "invocations":
        p = DSML if DSML in form.openings[0] else ""
        string = ' string="{1}"' if p else ""
        end = f"</{p}invoke>\n{form.marks[1]}"
        return _Tags(f'\n<{p}invoke name="{{}}">\n', f'<{p}parameter name="{{0}}"{string}>', f"</{p}parameter>\n", end)
    return None


def _rules_of_values(tags: _Tags, at: int, name: str, schema: Mapping[str, object]) -> list[str] | None:
    """Parameters in the order of the schema; strings are as they are, all others JSON."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list) or not {*required} <= {*properties}:
        return None
    if any(re.search(r"[<>\"\n]", key) for key in (name, *properties)):
        return None
    uses = " ".join(f"one_{at}_{n}" + "?" * (key not in required) for n, key in enumerate(properties))
    rules = [f"call_{at}: {_literal(tags.call.format(name))} {uses} {_literal(tags.end)}"]
    for n, (key, value) in enumerate(properties.items()):
        is_string, rest = _value(value, schema, tags.value_end)
        begin = _literal(tags.value.format(key, "true" if is_string else "false"))
        rules.append(f"one_{at}_{n}: {begin} value_{at}_{n}")
        rules.append(f"value_{at}_{n}{rest}")
    return rules


def _value(schema: object, root: Mapping[str, object], end: str) -> tuple[bool, str]:
    """Whether it is a string, and the end of a rule for it: strings have no quotes, and nothing shows where others
    begin."""
    meant, types = pointed_to(schema, root), types_of(schema, root)
    if types and "string" not in types and isinstance(schema, Mapping):
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        return False, f": {_json({**schema, **shared})} {_literal(end)}"
    options = meant.get("enum") if isinstance(meant, Mapping) else None
    if isinstance(options, list) and options and all(isinstance(each, str) for each in options):
        return True, ": " + " | ".join(_literal(each + end) for each in options)
    pattern = "".join({"\n": r"\n", "/": r"\/"}.get(each, re.escape(each)) for each in end)
    return True, rf"[lazy]: /(.|\n)*{pattern}/"


def _json(schema: Mapping[str, object]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _LAYOUT})}"


def _mark(text: str, special_id: SpecialId | None) -> str:
    found = None if special_id is None else special_id(text)
    return _literal(text) if found is None else f"<[{found}]>"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
