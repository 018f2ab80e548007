"""Tools for models whose chat template knows none: described in a system message, called in the form of Hermes.

    system      what was said there, and then how tools are called, and one line of JSON for each
    assistant   <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>, behind what else was said
    user        <tool_response>\\n...\\n</tool_response>, for each result; those that follow each other are one message

Such a template would drop tools, calls and results without a word, and a model that has not seen them invents answers.
Whether a model makes use of them is its own matter; a call that is required is held to its form by a grammar.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..errors import ArgumentError
from ..models.template_messages import parsed
from ..models.tokenizer import Tokenizer
from .json_values import JsonObject, JsonView
from .tool_calls import ToolSyntax, syntax_of

TOOL_VARIABLES = frozenset(("tools", "xml_tools"))  # what templates call them
_SHOWN = '<tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>'
GENERIC = syntax_of(_SHOWN)
BEGINNING = "You can use tools."
_HOW = (
    f"{BEGINNING} To use one, answer with its name and arguments as JSON, in this form:\n"
    f"{_SHOWN}\n"
    "You are given its result between <tool_response> and </tool_response>.\n\n"
    "The tools:\n"
)


def needs_generic(tokenizer: Tokenizer) -> bool:
    """Whether its chat template knows neither tools nor calls."""
    source = tokenizer.chat_templates.get("default")
    if source is None or "tool_use" in tokenizer.chat_templates:
        return False
    try:
        knows = tokenizer.template().names & TOOL_VARIABLES or "tool_calls" in source
    except ArgumentError:  # it is no template, which whoever asks for a chat is told
        return False
    return not knows and syntax_of(source) is None


def syntax_for(tokenizer: Tokenizer) -> ToolSyntax | None:
    """The form of calls that its template has, or this one where it needs one; None where it is not known."""
    templates = tokenizer.chat_templates
    return GENERIC if needs_generic(tokenizer) else syntax_of(templates.get("tool_use", templates.get("default")))


def with_tools(messages: list[JsonObject], tools: Sequence[object]) -> tuple[list[JsonObject], list[int]]:
    """The messages as such a template can show them, and how many there are up to the end of each of the given."""
    shown: list[JsonObject] = []
    ends: list[int] = []
    if tools and not (messages and messages[0].get("role") == "system"):
        shown.append({"role": "system", "content": _described(tools)})
    for number, message in enumerate(messages):
        if number == 0 and tools and message.get("role") == "system":
            message = {**message, "content": _behind(message.get("content"), _described(tools))}
        if message.get("role") == "tool":
            _add_result(shown, message)
        else:
            shown.append(_said(message) if message.get("tool_calls") else message)
        ends.append(len(shown))
    return shown, ends


def _described(tools: Sequence[object]) -> str:
    return _HOW + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)


def _behind(content: object, text: str) -> object:
    if isinstance(content, list):
        return [*content, {"type": "text", "text": "\n\n" + text}]
    return f"{content}\n\n{text}" if content else text


def _said(message: JsonView) -> JsonObject:
    """A message of the assistant, with its calls."""
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    calls = []
    for call in message["tool_calls"]:
        function = call.get("function") or {}
        made = {"name": function.get("name"), "arguments": parsed(function.get("arguments"))}
        calls.append(f"<tool_call>\n{json.dumps(made, ensure_ascii=False)}\n</tool_call>")
    before = _text(message.get("content"))
    return {**rest, "content": "\n".join([before, *calls] if before else calls)}


def _add_result(shown: list[JsonObject], message: JsonView) -> None:
    text = f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>"
    last = shown[-1] if shown else {}
    if last.get("role") == "user" and str(last.get("content")).startswith("<tool_response>\n"):
        shown[-1] = {**last, "content": f"{last['content']}\n{text}"}
    else:
        shown.append({"role": "user", "content": text})


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return content if isinstance(content, str) else ""
