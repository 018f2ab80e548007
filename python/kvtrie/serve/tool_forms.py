"""The forms in which families of models write tool calls; which one a model has, its chat template shows.

Concept. A form has ``openings``, which a call begins with, and a ``body``, which reads one with a cursor: the tools of
one block, or ``No`` or ``More`` (tool_cursor.py). ``FORMS`` are in the order in which they are looked for: what is
particular stands before what is general.

Threads: all of it is read-only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..thinking.harmony import CALL, CALL_END, MARKS, MESSAGE
from .call_sections import DEEPSEEK, KIMI, Section, section_of
from .function_form import Functions
from .python_calls import python_calls
from .schema_types import typed
from .tagged_values import DSML, invocations, key_value_pairs
from .tool_cursor import Cursor, Names, No, ToolCall, json_calls, quoted, valid

Body = Callable[[Cursor, Names], list[ToolCall]]
Shown = Callable[[str], bool]  # of a template's source


@dataclass(frozen=True)
class Form:
    """``marks``: texts that decoding must not skip, where they are special tokens. ``bare``: a call without an opening
    may be the whole answer. ``apart``: calls stand outside of the text that rules for an answer are about."""

    kind: str
    marks: tuple[str, ...]
    openings: tuple[str, ...]
    body: Body
    bare: bool = False
    apart: bool = False


def _between(opening: str, closing: str) -> Body:
    """<tool_call> {"name": ..., "arguments": {...}} </tool_call>"""

    def body(cursor: Cursor, names: Names) -> list[ToolCall]:
        cursor.take(opening)
        cursor.skip()
        calls = json_calls(cursor.json(), names)
        cursor.skip()
        cursor.close(closing)
        return calls

    return body


def _listed(opening: str, closing: str) -> Body:
    """<|tool_call|> [{"name": ..., "arguments": {...}}, ...], or one object behind the other, and what closes it."""

    def body(cursor: Cursor, names: Names) -> list[ToolCall]:
        cursor.take(opening)
        cursor.skip()
        calls = json_calls(cursor.json(), names)
        end = cursor.at
        cursor.skip()
        while cursor.sees("{"):
            calls += json_calls(cursor.json(), names)
            end = cursor.at
            cursor.skip()
        if not cursor.took(closing):
            cursor.at = end
        return calls

    return body


def _whole_answer(cursor: Cursor, names: Names) -> list[ToolCall]:
    """{"name": ..., "parameters": {...}}, and nothing behind it but others of its kind."""
    if cursor.text.startswith("<|python_tag|>", cursor.at):
        cursor.take("<|python_tag|>")
    calls: list[ToolCall] = []
    while True:
        cursor.skip()
        if calls and cursor.ended():
            return calls
        if calls and cursor.took(";"):
            cursor.skip()
        calls += json_calls(cursor.json(), names)


def _mistral(cursor: Cursor, names: Names) -> list[ToolCall]:
    """[TOOL_CALLS] [{...}, ...], or [TOOL_CALLS]name[ARGS]{...}, where [CALL_ID]... may stand before [ARGS]."""
    cursor.take("[TOOL_CALLS]")
    cursor.skip()
    if cursor.sees("["):
        return json_calls(cursor.json(), names)
    name = cursor.name(names)
    if cursor.text.startswith("{", cursor.at):
        return [ToolCall(name, cursor.json())]
    if cursor.took("[CALL_ID]"):
        cursor.line("[ARGS]")
    else:
        cursor.take("[ARGS]")
    cursor.skip()
    return [ToolCall(name, valid(cursor.json(), (dict,)))]


def _named(opening: str, separator: str, closing: str) -> Body:
    """<function=name>{...}</function>"""

    def body(cursor: Cursor, names: Names) -> list[ToolCall]:
        cursor.take(opening)
        name = cursor.line(separator)
        if name not in names:
            raise No
        cursor.skip()
        arguments = valid(cursor.json(), (dict,))
        cursor.skip()
        cursor.close(closing)
        return [ToolCall(name, arguments)]

    return body


def _braces(opening: str, closing: str, quote: str) -> Body:
    """<start_function_call>call:name{key:<escape>text<escape>,other:1}<end_function_call>"""
    q = re.escape(quote)
    tokens = re.compile(f"{q}(.*?){q}|([{{}}\\[\\],:])|((?:(?!{q})[^{{}}\\[\\],:])+)", re.S)

    def body(cursor: Cursor, names: Names) -> list[ToolCall]:
        cursor.take(opening)
        cursor.take("call:")
        name = cursor.name(names)
        cursor.skip()
        end = cursor.text.find(closing, cursor.at)
        while end >= 0 and cursor.text.count(quote, cursor.at, end) % 2:
            end = cursor.text.find(closing, end + 1)
        if end < 0:
            raise cursor.more(closing[-1])
        arguments = _unbraced(tokens, cursor.text[cursor.at : end])
        cursor.at = end + len(closing)
        return [ToolCall(name, valid(arguments, (dict,)))]

    return body


def _unbraced(tokens: re.Pattern[str], text: str) -> str:
    """The JSON text: keys and words without quotes get them."""
    said, at = [], 0
    while found := tokens.match(text, at):
        string, sign, word = found.groups()
        at = found.end()
        if string is not None:
            said.append(quoted(string))
        elif sign:
            said.append(sign + " " * (sign in ",:"))
        elif word.strip():
            said.append(quoted(word.strip()) if text[at : at + 1] == ":" else typed(word.strip(), set()))
    return "".join(said) if at == len(text) else ""


def _has(*words: str, without: str = "") -> Shown:
    """Whether a template has all of the words; one that is quoted in a template may have its quotes escaped."""
    return lambda template: (
        all(word in template.replace('\\"', '"') for word in words) and not (without and without in template)
    )


def _fenced(language: str) -> tuple[Shown, Form]:
    fence = f"```{language}"
    call = re.compile(fence + r'(?:\s|\\n)*\[?\{{1,2}\s*\\?"name')
    return lambda template: call.search(template) is not None, Form("fenced", (), (fence,), _between(fence, "```"))


def _braced(opening: str, closing: str, quote: str) -> tuple[Shown, Form]:
    marks = (opening, closing, quote)
    return _has(f"{opening}call:"), Form("braces", marks, (opening,), _braces(*marks))


def _section(kind: str, marks: Section) -> tuple[Shown, Form]:
    return _has(marks.begin, marks.call), Form(kind, tuple(marks), (marks.begin,), section_of(marks))


def _tagged(kind: str, opening: str, closing: str, body: Body, *words: str) -> tuple[Shown, Form]:
    """``words``: what shows it in a template, beside the opening."""
    return _has(opening, *words), Form(kind, (opening, closing), (opening,), body)


def _functions(tag: str) -> Form:
    return Form("functions", (f"<{tag}>", f"</{tag}>"), (f"<{tag}>", "<function="), Functions(tag))


def _between_tags(opening: str, closing: str) -> tuple[Shown, Form]:
    return _tagged("listed", opening, closing, _listed(opening, closing))


def _dsml(section: str) -> tuple[Shown, Form]:
    """Of DeepSeek-V3.2 and later, whose templates have the prefix in a variable."""
    opening, closing = f"<{DSML}{section}>", f"</{DSML}{section}>"
    return _has(DSML, section), Form("invocations", (opening, closing), (opening,), invocations(opening, closing, DSML))


_TAG, _END_TAG = "<tool_call>", "</tool_call>"
_PYTHON = "<|python_tag|>"
_WHOLE = Form("answer", (_PYTHON,), (_PYTHON,), _whole_answer, bare=True)
_MISTRAL = "[TOOL_CALLS]"
_HARMONY = Form("harmony", MARKS, (CALL,), _named(CALL, MESSAGE, CALL_END), apart=True)
_SEED = "seed:tool_call"
_TOOL_CALLS = ("<tool_calls>", "</tool_calls>")
_MINIMAX = ("<minimax:tool_call>", "</minimax:tool_call>")
_LFM2 = ("<|tool_call_start|>", "<|tool_call_end|>")
_LFM2_TOOLS = ("List of tools: <|tool_list_start|>[", "List of tools: [")  # what shows it where no call is written
_OLMO = ("<function_calls>", "</function_calls>")
FORMS: Sequence[tuple[Shown, Form]] = (
    (_has(_MISTRAL, "[ARGS]"), Form("mistral named", (_MISTRAL, "[CALL_ID]", "[ARGS]"), (_MISTRAL,), _mistral)),
    (_has(_MISTRAL), Form("mistral", (_MISTRAL,), (_MISTRAL,), _mistral)),
    (
        _has("<|channel|>", "<|message|>", "functions."),
        Form("harmony", MARKS, (CALL,), _named(CALL, MESSAGE, CALL_END), apart=True),
    ),
    _section("kimi", KIMI),
    _section("deepseek", DEEPSEEK),
    _dsml("function_calls"),
    _dsml("tool_calls"),
    _tagged("invocations", *_MINIMAX, invocations(*_MINIMAX), "<invoke name="),
    _braced("<start_function_call>", "<end_function_call>", "<escape>"),
    _braced("<|tool_call>", "<tool_call|>", '<|"|>'),
    *((_has(each), Form("python", _LFM2, _LFM2[:1], python_calls(*_LFM2))) for each in (_LFM2[0], *_LFM2_TOOLS)),
    _tagged("python", *_OLMO, python_calls(*_OLMO)),
    (_has(f"<{_SEED}>", "<function="), _functions(_SEED)),
    (_has("<function=", "<parameter="), _functions("tool_call")),
    (_has("<function="), Form("function", ("</function>",), ("<function=",), _named("<function=", ">", "</function>"))),
    (_has("<tool_calls>["), Form("listed", _TOOL_CALLS, _TOOL_CALLS[:1], _listed(*_TOOL_CALLS))),
    _tagged("pairs", _TAG, _END_TAG, key_value_pairs(_TAG, _END_TAG), "<arg_key>", "<arg_value>"),
    (_has(_TAG, '"name"', without="<arg_key>"), Form("tagged", (_TAG, _END_TAG), (_TAG,), _between(_TAG, _END_TAG))),
    _between_tags("<TOOLCALL>", "</TOOLCALL>"),
    _between_tags("<|START_ACTION|>", "<|END_ACTION|>"),
    _between_tags(*_TOOL_CALLS),
    _between_tags("<|tool_call|>", "<|/tool_call|>"),
    (_has(_PYTHON), _WHOLE),
    (_has('{"name": function name, "parameters": dictionary'), _WHOLE),
    _fenced("tool_call"),
    _fenced("json"),
)
