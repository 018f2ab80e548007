"""The variables that a chat template reads, found out by rendering small conversations with it.

Templates agree on messages with a role and a content, and on little else. One writes content as it is, another goes
through its parts, {"type": "text", "text": ...}, and writes nothing for a text; one writes arguments of tool calls as
JSON, another puts them together as text that is JSON already. Nothing in a checkpoint says which. So each form is tried
with words that no template has: those that come out whole were read. A list or a dict that comes out as Python writes
it was not.

A probe's conversations are tried with tools and without, with a system message and without, since templates refuse
what they have no place for. Where all are refused nothing is known of that role, and messages stay as they came.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Optional

Content = Literal["text", "parts", "either", "part", "text or part", "neither", "unknown"]
Arguments = Literal["object", "text", "either", "neither", "unknown"]
Plain = Any  # None, a boolean, a number, a text, or lists and dicts of them
Values = dict[str, Plain]
View = Mapping[str, Plain]  # that nobody changes
Render = Callable[[Mapping[str, object]], Optional[str]]  # None: the template refuses them

ROLES = ("system", "developer", "user", "assistant", "tool")
_WORDS = {role: f"kvtrie{role}word" for role in ROLES}
_SECOND = "kvtriesecond"
_NAME, _KEY, _VALUE, _THOUGHT = "kvtriename", "kvtriekey", "kvtrievalue", "kvtriethought"
_CALL = "kvtriecal"  # Mistral's ids have 9 letters and digits
_ARGUMENTS: Values = {"object": {_KEY: _VALUE}, "text": json.dumps({_KEY: _VALUE})}


class Reads(NamedTuple):
    """The parts of messages and variables that a template reads. ``content``: by role; "part": the first of the parts;
    "neither": the role is written without it, or left out.

    ``absent_content``: whether a message with tool calls may have none. ``arguments``: of tool calls; "neither": calls
    are left out. ``reasoning``: of an answer, where the next question follows. ``variables``: names that it asks for.
    """

    content: Mapping[str, Content]
    arguments: Arguments
    absent_content: bool
    tools: bool
    documents: bool
    reasoning: bool
    generation_prompt: bool
    variables: tuple[str, ...]

    def content_of(self, role: str) -> Content:
        """The form of a role that is not among them is the user's; "function" is an older name of "tool"."""
        return self.content.get("tool" if role == "function" else role, self.content["user"])

    def sentences(self) -> list[str]:
        """The same in words, each a line of a report."""
        return [*_of_content(self.content), *_of_tools(self), *_of_rest(self)]


def probe(render: Render, names: frozenset[str]) -> Reads:
    """``render``: of a template; ``names``: the variables that it asks for."""
    tried = _Tried(render, {name: "" for name in names if name.endswith("_token")})
    arguments, absent = tried.arguments()
    return Reads(
        content={role: tried.content(role) for role in ROLES},
        arguments=arguments,
        absent_content=absent,
        tools=tried.reads(tools=_tools(), xml_tools=_tools()),
        documents=tried.reads(documents=[{"title": "a", "text": "b", "doc_id": 1}]),
        reasoning=tried.reasoning(),
        generation_prompt="add_generation_prompt" in names,
        variables=tuple(sorted(names - {"messages", "tools", "documents", "add_generation_prompt"})),
    )


class _Tried:
    """A template's answers to conversations that differ in one thing."""

    def __init__(self, render: Render, special: Mapping[str, str]) -> None:
        self._render, self._special = render, special

    def _text(self, messages: Sequence[Values], **values: object) -> str | None:
        """In small letters, as some templates capitalise what they say."""
        given = {"tools": None, "documents": None, **self._special, "add_generation_prompt": True, **values}
        text = self._render({**given, "messages": list(messages)})
        return None if text is None else text.lower()

    def content(self, role: str) -> Content:
        word = _WORDS[role]
        text = self._said(role, word)
        parts = self._said(role, [{"type": "text", "text": each} for each in (word, _SECOND)])
        if text is None and parts is None:
            return "unknown"
        as_text = text is not None and word in text
        as_parts = parts is not None and word in parts and not _is_written_out(parts, word)
        if not as_parts:
            return "text" if as_text else "neither"
        if parts is not None and _SECOND in parts:
            return "either" if as_text else "parts"
        return "text or part" if as_text else "part"

    def _said(self, role: str, content: object) -> str | None:
        """By the first conversation that is not refused; None: all are."""
        texts = (
            self._text(messages, tools=tools)
            for messages in _conversations(role, content)
            for tools in (None, _tools())
        )
        return next((text for text in texts if text is not None), None)

    def arguments(self) -> tuple[Arguments, bool]:
        """Their form, and whether content may be absent beside them."""
        texts = {}
        for content in (None, ""):
            texts = {form: self._called(content, _ARGUMENTS[form]) for form in _ARGUMENTS}
            if any(text is not None for text in texts.values()):
                return _arguments_of(texts), content is None
        return "unknown", True

    def _called(self, content: str | None, arguments: object) -> str | None:
        for tools in (_tools(), None):
            for after in (True, False):
                text = self._text(_calling(content, arguments, after), tools=tools)
                if text is not None:
                    return text
        return None

    def reads(self, **values: object) -> bool:
        """Whether the prompt is another one with ``values``, or is one only then."""
        for messages in _conversations("user", "a"):
            first, without, again = (self._text(messages, **each) for each in (values, {}, values))
            if first is not None:
                return without not in (first, again)  # which differ where a template says the time
        return False

    def reasoning(self) -> bool:
        """Of the last answer."""
        answer = {"role": "assistant", "content": "a", "reasoning_content": _THOUGHT, "thinking": _THOUGHT}
        texts = [self._text([_user("a"), answer, *after], add_generation_prompt=False) for after in ([], [_user("b")])]
        return any(_THOUGHT in (text or "") for text in texts)


# ---- the conversations -----------------------------------------------------------------------------------------------


def _user(content: object) -> Values:
    return {"role": "user", "content": content}


def _conversations(role: str, content: object) -> Iterator[list[Values]]:
    """Those in which a message of that role has this content, the likeliest first."""
    own = {"role": role, "content": content}
    if role == "user":
        yield [own]
        yield [{"role": "system", "content": "a"}, own]
        yield [_user("a"), {"role": "assistant", "content": "b"}, own]
    elif role in ("system", "developer"):
        yield [own, _user("a")]
    elif role == "assistant":
        yield [_user("a"), own, _user("b")]
        yield [_user("a"), own]
    else:
        yield [*_calling(None, {"a": "b"}, False), {**own, "tool_call_id": _CALL, "name": _NAME}]
        yield [*_calling("", {"a": "b"}, False), {**own, "tool_call_id": _CALL, "name": _NAME}]
        yield [*_calling("", '{"a": "b"}', False), {**own, "tool_call_id": _CALL, "name": _NAME}]


def _calling(content: str | None, arguments: object, after: bool) -> list[Values]:
    """A question and a call; ``after``: and its result."""
    function = {"name": _NAME, "arguments": arguments}
    asked: Values = {"role": "assistant", "tool_calls": [{"id": _CALL, "type": "function", "function": function}]}
    if content is not None:
        asked["content"] = content
    result = {"role": "tool", "content": "a", "tool_call_id": _CALL, "name": _NAME}
    return [_user("a"), asked, *([result] if after else [])]


def _tools() -> list[Values]:
    described = {"type": "string", "description": "a"}
    parameters = {"type": "object", "properties": {"b": described}, "required": ["b"]}
    return [{"type": "function", "function": {"name": _NAME, "description": "a", "parameters": parameters}}]


def _is_written_out(text: str, word: str) -> bool:
    """Whether the part stands there as Python or JSON writes it."""
    return any(f"{mark}text{mark}: {mark}{word}" in text for mark in "'\"")


def _arguments_of(texts: Mapping[str, str | None]) -> Arguments:
    """``texts``: what came out for each form, None where it was refused."""
    as_object, as_text = texts["object"], texts["text"]
    reads_text = as_text is not None and _ARGUMENTS["text"] in as_text
    reads_object = as_object is not None and _KEY in as_object and _VALUE in as_object
    if reads_object and reads_text and str(_ARGUMENTS["object"]) in str(as_object):  # as Python writes it
        return "text"
    if reads_object:
        return "either" if reads_text else "object"
    return "text" if reads_text else "neither"


# ---- in words --------------------------------------------------------------------------------------------------------

_FORMS = {
    "text": "reads the content of {} messages as one text",
    "parts": "reads the content of {} messages part by part",
    "either": "reads the content of {} messages as one text or part by part",
    "part": "reads the first part of the content of {} messages",
    "text or part": "reads the content of {} messages as one text, or its first part",
    "neither": "writes no content of {} messages",
    "unknown": "refuses {} messages",
}
_CALLS = {
    "object": "reads the arguments of tool calls as an object",
    "text": "reads the arguments of tool calls as JSON text",
    "either": "reads the arguments of tool calls as an object or as JSON text",
    "neither": "takes no notice of tool calls",
    "unknown": "refuses tool calls",
}


def _of_content(content: Mapping[str, Content]) -> Iterator[str]:
    for form, words in _FORMS.items():
        roles = [role for role, each in content.items() if each == form]
        if roles:
            yield words.format(_listed(roles))


def _of_tools(reads: Reads) -> Iterator[str]:
    yield f"{'reads' if reads.tools else 'takes no notice of'} the descriptions of tools"
    yield _CALLS[reads.arguments]
    if not reads.absent_content:
        yield 'refuses tool calls without content, so content is "" there'


def _of_rest(reads: Reads) -> Iterator[str]:
    yield f"{'reads' if reads.documents else 'takes no notice of'} documents"
    yield f"{'writes' if reads.reasoning else 'leaves out'} the reasoning of an answer"
    if not reads.generation_prompt:
        yield "takes no notice of add_generation_prompt"
    if reads.variables:
        yield f"may ask for {_listed(list(reads.variables))}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
