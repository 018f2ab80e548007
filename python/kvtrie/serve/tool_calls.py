"""Tool calls within a model's text: how its family writes them, found from its chat template, and read while it writes.

Concept. A syntax (``syntax_of``) has openings, such as ``<tool_call>``, and a body that is read by a cursor. A reader
holds text back from an opening on until the cursor says that it is a call of a known tool, that it can be none, or that
more has to come. Text that is no call goes out unchanged. White space between calls, behind the last one and before one
that begins the answer belongs to the calls, and so does one line break before the first: templates write it. Quoted
calls (quotes.py) are text.

    syntax = syntax_of(tokenizer.chat_template)      None: no form of calls that is known here
    reader = syntax.reader(names)                    names, or a mapping of them to their parameters' JSON schemas
    text = reader.feed(piece) ... + reader.finish()
    reader.calls                                     those that are complete

A cursor's decision stands whatever follows: the output does not depend on how the text was cut.

Text that is fed must still have ``syntax.marks``: where they are special tokens, decoding must not skip them.
Arguments are the model's own JSON text where it wrote JSON, so that a template which says them again says the same.

Threads: a syntax is read-only; a reader belongs to one answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from .quotes import Quotes
from .reasoning import begun
from .schema_types import pointed_to, types_of
from .tool_cursor import Cursor, More, Names, No, Scanned, ToolCall, skipped
from .tool_forms import FORMS, Form

__all__ = ["ToolCall", "ToolReader", "ToolSyntax", "grammar_for_tools", "syntax_of"]

_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # as templates write JSON


@dataclass(frozen=True)
class ToolSyntax:
    """How calls are written. ``marks``: see above."""

    form: Form

    @property
    def marks(self) -> tuple[str, ...]:
        return self.form.marks

    def reader(self, names: Collection[str]) -> ToolReader:
        """A reader of one answer that may call these."""
        return ToolReader(self.form, names if isinstance(names, Mapping) else dict.fromkeys(names))


def syntax_of(template: str | None) -> ToolSyntax | None:
    """The syntax that a chat template shows; None where there is none, or none of those that are known here."""
    if template is None:
        return None
    return next((ToolSyntax(form) for shown, form in FORMS if shown(template)), None)


class ToolReader:
    """See above."""

    def __init__(self, form: Form, names: Names) -> None:
        self.calls: list[ToolCall] = []
        self._form, self._names = form, names
        self._openings = re.compile("|".join(map(re.escape, form.openings)))
        self._held = ""
        self._fed: list[str] = []  # what follows it, of which nothing can be said yet
        self._blank = False  # `_held` is white space, which may belong to a call
        self._scanned: Scanned = {}  # of `_held`
        self._awaits = ""  # nothing is decided before one of these characters comes; "": any may decide
        self._place = "start"  # or "behind" a call, or "within" text
        self._quotes = Quotes()  # has what went out, but for calls

    def feed(self, text: str) -> str:
        """The text that is certainly no part of a call, by now."""
        self._fed.append(text)
        if self._awaits and not any(character in text for character in self._awaits):
            return ""
        if self._blank and skipped(text, 0) == len(text):
            return ""
        return self._read(final=False)

    def finish(self) -> str:
        """The text that was held back and is no call: nothing more comes."""
        return self._read(final=True)

    def _read(self, final: bool) -> str:
        self._held += "".join(self._fed)
        self._fed.clear()
        said, at, self._awaits, self._blank = "", 0, "", False
        seen = 0
        while (opening := self._opening(at)) >= 0:
            lead = self._lead(at, opening)
            self._quotes.feed(self._held[seen:opening])
            seen = opening
            cursor = Cursor(self._held, opening, final, self._scanned)
            try:
                quoted = self._quotes.around()
                if quoted == "fence":
                    raise No
                calls = self._form.body(cursor, self._names)
            except More as more:
                self._awaits = more.awaits
                return said + self._say(at, lead)
            except No:
                said += self._held[at : opening + 1]
                self._place, at = "within", opening + 1
                continue
            if quoted:  # and all of it, whatever lines it has
                said += self._held[at : cursor.at]
                self._place, at = "within", cursor.at
                continue
            said += self._held[at:lead]
            self.calls += calls
            self._place, at = "behind", cursor.at
            seen = at
        end = len(self._held) - self._kept(at, final)
        self._quotes.feed(self._held[seen:end])
        return said + self._say(at, end)

    def _opening(self, at: int) -> int:
        if self._form.bare and self._place == "start":
            first = skipped(self._held, at)
            if self._held[first : first + 1] == "{":
                return first
        found = self._openings.search(self._held, at)
        return found.start() if found else -1

    def _lead(self, at: int, opening: int) -> int:
        """Where the white space begins that belongs to the call at ``opening``."""
        if self._place != "within" and skipped(self._held, at) >= opening:
            return at
        return opening - 1 if self._held[at:opening].endswith("\n") else opening

    def _say(self, at: int, end: int) -> str:
        said, self._held = self._held[at:end], self._held[end:]
        if end:
            self._scanned.clear()
        if said:
            self._place = "within"
        return said

    def _kept(self, at: int, final: bool) -> int:
        """Characters at the end that may belong to a call; there is no opening from ``at`` on."""
        rest = self._held[at:]
        if final:
            return len(rest) if self._place == "behind" and not rest.strip() else 0
        kept = begun(rest, self._form.openings)
        stable = rest[: len(rest) - kept]
        if self._place != "within" and skipped(stable, 0) == len(stable):
            self._blank = not kept
            return len(rest)
        return kept + stable.endswith("\n")


# ---- calls that are required -----------------------------------------------------------------------------------------


SpecialId = Callable[[str], Optional[int]]


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
    kind = syntax.form.kind
    if kind == "braces" or not tools or (kind == "answer" and not one_is_required):
        return None
    functions = [tool.get("function", tool) for tool in tools]
    rules = [_call_rules(syntax.form, special_id, at, each) for at, each in enumerate(functions)]
    if any(each is None for each in rules):
        return None
    calls = " | ".join(f"call_{at}" for at in range(len(tools)))
    lines = [line for each in rules if each is not None for line in each]
    return "\n".join([*_frame(syntax.form, special_id, one_is_required, at_most), f"call: {calls}", *lines, ""])


def _frame(form: Form, special_id: SpecialId | None, required: bool, at_most: int) -> list[str]:
    """Rules for what stands around calls: a block is an opening, and ``block`` behind it."""
    block, most = "call", at_most
    if form.kind == "mistral":
        block, most = f'" "? "[" call (", " call)~0..{at_most - 1} "]"', 1
    if form.bare:
        return [f"start: {block}"]
    opening, separator = _mark(form.openings[0], special_id), "" if form.kind.startswith("mistral") else r'"\n"'
    if required:
        return [f"start: {opening} block ({separator} {opening} block)~0..{most - 1}", f"block: {block}"]
    text = r"TEXT: /(.|\n)*/"
    if opening.startswith("<["):
        return ["start: led* TEXT", f"led: TEXT {opening} block", f"block: {block}", text]
    return ["start: (led block)* TEXT", f"led[lazy]: TEXT {opening}", f"block: {block}", text]


def _call_rules(form: Form, special_id: SpecialId | None, at: int, function: object) -> list[str] | None:
    """Rules for a call of one tool, from behind the opening; ``at`` is its number."""
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        return None
    schema = function.get("parameters")
    schema = {"additionalProperties": False, **(schema if isinstance(schema, Mapping) else {}), "type": "object"}
    if form.kind == "functions":
        return _function_rules(at, name, schema)
    arguments = f"arguments_{at}: {_json(schema)}"
    if form.kind == "mistral named":
        return [f"call_{at}: {_literal(name)} {_mark('[ARGS]', special_id)} arguments_{at}", arguments]
    key = "parameters" if form.kind == "answer" else "arguments"
    before, behind = f'{{"name": {_literal(name)}, "{key}": ', "}"
    if form.kind in ("tagged", "fenced"):
        before, behind = "\n" + before, behind + "\n" + ("</tool_call>" if form.kind == "tagged" else "```")
    return [f"call_{at}: {_literal(before)} arguments_{at} {_literal(behind)}", arguments]


def _function_rules(at: int, name: str, schema: Mapping[str, object]) -> list[str] | None:
    """Parameters in the order of the schema; strings are as they are, all others JSON."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list) or not {*required} <= {*properties}:
        return None
    if any(re.search(r"[>\n]", key) for key in (name, *properties)):
        return None
    uses = " ".join(f"one_{at}_{n}" + "?" * (key not in required) for n, key in enumerate(properties))
    begin, end = _literal(f"\n<function={name}>\n"), _literal("</function>\n</tool_call>")
    rules = [f"call_{at}: {begin} {uses} {end}"]
    for n, (key, value) in enumerate(properties.items()):
        begin = _literal(f"<parameter={key}>\n")
        rules.append(f"one_{at}_{n}: {begin} value_{at}_{n}")
        rules.append(f"value_{at}_{n}{_value(value, schema)}")
    return rules


def _value(schema: object, root: Mapping[str, object]) -> str:
    """The end of a rule for a parameter's value: strings have no quotes, and nothing shows where others begin."""
    meant, types = pointed_to(schema, root), types_of(schema, root)
    if types and "string" not in types and isinstance(schema, Mapping):
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        return f': {_json({**schema, **shared})} "\\n</parameter>\\n"'
    options = meant.get("enum") if isinstance(meant, Mapping) else None
    if isinstance(options, list) and options and all(isinstance(each, str) for each in options):
        return ": " + " | ".join(_literal(f"{each}\n</parameter>\n") for each in options)
    return r"[lazy]: /(.|\n)*\n<\/parameter>\n/"


def _json(schema: Mapping[str, object]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _LAYOUT})}"


def _mark(text: str, special_id: SpecialId | None) -> str:
    found = None if special_id is None else special_id(text)
    return _literal(text) if found is None else f"<[{found}]>"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
