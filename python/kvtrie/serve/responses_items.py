"""Items of the Responses API to messages of the chat API, which is what templates know.

    message                     a message; images and files in it are refused
    reasoning                   ``reasoning_content`` of what the assistant says or calls next
    function_call, custom_..    a call of the message that the assistant is at
    .._call_output              a message of the role "tool"

Words, thoughts and calls of the assistant without anybody else in between are one message, as they were sampled as one.

``encrypted_content`` of reasoning is for clients that keep the conversation themselves and send it back: the text in
base64 behind a mark, and no secret, as they have the text anyway. Answers become items in responses_output.py.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Collection, Mapping, Sequence

from pydantic import TypeAdapter, ValidationError

from .failures import Refusal
from .json_values import JsonObject, JsonView
from .openai_schema import Text
from .responses_namespaces import shown_name

_MARK = "kvtrie1."
_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_text = TypeAdapter(Text)


def items_of(given: str | Sequence[JsonObject] | None) -> list[JsonObject]:
    """``input`` as items."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    return [{"type": "message", **item} if "role" in item else dict(item) for item in given or ()]


def messages_of(items: Sequence[JsonView], where: str = "input") -> list[JsonObject]:
    """Their messages. Raises ``Refusal`` (400) with the item and the field that is wrong or not supported."""
    said = _Said()
    for at, item in enumerate(items):
        place = f"{where}[{at}]"
        kind = item.get("type")
        reader = _READERS.get(kind) if isinstance(kind, str) else None
        if reader is None:
            allowed = ", ".join(_READERS)
            raise _refusal(f"{place}.type", f"got {str(kind)[:100]!r}, allowed {allowed}")
        reader(said, item, place)
    return said.messages


class _Said:
    """The messages so far; the last one may be the assistant's, and go on."""

    def __init__(self) -> None:
        self.messages: list[JsonObject] = []
        self._goes_on = False

    def add(self, message: JsonObject) -> None:
        """One of somebody else."""
        self.messages.append(message)
        self._goes_on = False

    def assistant(self, *, before: Collection[str]) -> JsonObject:
        """The message that the assistant is at: a new one where it has any of those fields."""
        if not self._goes_on or any(self.messages[-1].get(name) for name in before):
            self.messages.append({"role": "assistant", "content": ""})
            self._goes_on = True
        return self.messages[-1]


def _message(said: _Said, item: JsonView, place: str) -> None:
    role = item.get("role")
    if role not in _ROLES:
        raise _refusal(f"{place}.role", f"got {str(role)[:100]!r}, allowed {', '.join(_ROLES)}")
    text = _content(item.get("content"), f"{place}.content")
    if role == "assistant":
        said.assistant(before=("content", "tool_calls"))["content"] = text
    else:
        said.add({"role": role, "content": text})


def _reasoning(said: _Said, item: JsonView, place: str) -> None:
    text = _decoded(item.get("encrypted_content"))
    if text is None:
        parts = item.get("content") or item.get("summary") or []
        text = _content(parts, f"{place}.content")
    if text:
        said.assistant(before=("content", "tool_calls", "reasoning_content"))["reasoning_content"] = text


def _function_call(said: _Said, item: JsonView, place: str) -> None:
    _call(said, item, place, _string(item, "arguments", place))


def _custom_call(said: _Said, item: JsonView, place: str) -> None:
    _call(said, item, place, json.dumps({"input": _string(item, "input", place)}, ensure_ascii=False))


def _call(said: _Said, item: JsonView, place: str, arguments: str) -> None:
    function = {"name": shown_name(item.get("namespace"), _string(item, "name", place)), "arguments": arguments}
    message = said.assistant(before=())
    calls = message.setdefault("tool_calls", [])
    calls.append({"id": _string(item, "call_id", place), "type": "function", "function": function})


def _call_output(said: _Said, item: JsonView, place: str) -> None:
    output = _content(item.get("output"), f"{place}.output")
    said.add({"role": "tool", "tool_call_id": _string(item, "call_id", place), "content": output})


_READERS: Mapping[str, Callable[[_Said, JsonView, str], None]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _call_output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _call_output,
}


def _string(item: JsonView, name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _refusal(f"{place}.{name}", "missing" if value is None else "got no text, allowed a text")
    return value


def _content(given: object, place: str) -> str:
    """Its text: one, or in parts."""
    if isinstance(given, list):
        return "".join(_part(part, f"{place}[{at}]") for at, part in enumerate(given))
    try:
        return _text.validate_python(given, strict=True)
    except ValidationError:
        raise _refusal(place, "missing" if given is None else "allowed a text or a list of parts") from None


def _part(part: object, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "refusal":
        return _string(part, "refusal", place)  # type: ignore[arg-type]  # a dict, as it has a type
    if kind not in _TEXTS:
        raise _refusal(f"{place}.type", f"got {str(kind)[:100]!r}, allowed input_text, output_text and refusal")
    return _string(part, "text", place)  # type: ignore[arg-type]


def encrypted(reasoning: str) -> str:
    """The ``encrypted_content`` of a text."""
    return _MARK + base64.b64encode(reasoning.encode("utf-8", "surrogatepass")).decode()


def _decoded(given: object) -> str | None:
    """None: nothing of ours."""
    if not isinstance(given, str) or not given.startswith(_MARK):
        return None
    try:
        return base64.b64decode(given[len(_MARK) :], validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, UnicodeDecodeError):
        return None


def _refusal(param: str, message: str) -> Refusal:
    return Refusal(400, f"{param}: {message}", code="invalid_value", param=param)
