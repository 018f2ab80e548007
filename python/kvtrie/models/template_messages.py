"""Messages as a chat template gets them: plain values, in the forms that it reads.

Two steps. :func:`normalised` is what transformers does with any messages: objects become dicts, a key whose value is
None is left out, and reasoning stands under each of its names. :func:`fitted` gives a template what it reads
(template_probe.py): content as text or as parts, arguments of tool calls as an object or as JSON text. What a template
reads either way stays as it came.

A template sees nothing but None, booleans, numbers, texts, lists, tuples and dicts. An image or an array within a part
of a message is a text with its type's name there; anything else is refused, as its text would stand in the prompt.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from .._arguments import converting, refusal, shown
from ..errors import ArgumentError
from ..thinking.reasoning import NAMES
from .prompts import OwnText
from .template_probe import Plain, Reads, Values, View

# Arguments of its apply_chat_template that are none here: what they ask for would be missing without a word.
_OF_TRANSFORMERS = frozenset(
    (
        *("continue_final_message", "max_length", "padding", "return_assistant_tokens_mask", "return_dict"),
        *("return_tensors", "sanitize_control_tokens", "tokenizer_kwargs", "truncation"),
    )
)
_ALLOWED = "None, a number, a text, or lists and dicts of them"


def plain(value: object, name: str, media: bool = False) -> Plain:
    """A copy of plain values. ``name``: what is refused, if it is; ``media``: whether anything else may stand there."""
    if value is None or type(value) in (str, int, float, bool, OwnText):
        return value
    if isinstance(value, str):  # of an enumeration, or numpy's
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, np.generic):
        return plain(value.item(), name, media)
    fields = _fields(value)
    if fields is not None:
        return {plain(key, name): plain(each, f"{name}.{key}", media) for key, each in fields.items()}
    if isinstance(value, (list, tuple)):
        items = (plain(each, f"{name}[{at}]", media) for at, each in enumerate(value))
        return tuple(items) if isinstance(value, tuple) else list(items)
    if media:
        return f"<{type(value).__name__}>"
    raise refusal(value, "tokenizer", name, _ALLOWED)


@contextmanager
def _trees(name: str) -> Iterator[None]:
    try:
        yield
    except RecursionError as error:
        raise ArgumentError(f"[tokenizer] {name}: got some that contain themselves, allowed trees") from error


def _fields(value: object) -> Mapping[object, object] | None:
    """Of a mapping, a data class or a model of pydantic's."""
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    dump = None if isinstance(value, type) else getattr(value, "model_dump", None)
    return dump() if callable(dump) else None


def normalised(messages: Sequence[object]) -> list[Values]:
    """Each message as a dict of plain values. Raises ``kv.errors.ArgumentTypeError`` naming what is none."""
    return [_normalised(message, f"messages[{at}]") for at, message in enumerate(messages)]


def _normalised(message: object, name: str) -> Values:
    with converting(message, "tokenizer", name, "a message: a dict, a data class or a model of pydantic's"):
        fields = _fields(message)
    if fields is None:
        raise refusal(message, "tokenizer", name, "a message: a dict, a data class or a model of pydantic's")
    with converting(message, "tokenizer", name, _ALLOWED), _trees("messages"):
        kept: Values = {
            plain(key, name): _plain_field(key, value, name) for key, value in fields.items() if value is not None
        }
    thought = next((kept[each] for each in NAMES if each in kept), None)
    return kept if thought is None else {"thinking": thought, **kept, "reasoning_content": thought}


def _plain_field(key: object, value: object, name: str) -> Plain:
    if key == "content" and isinstance(value, (list, tuple)):
        parts = (plain(part, f"{name}.content[{at}]", media=_fields(part) is not None) for at, part in enumerate(value))
        return list(parts)
    return plain(value, f"{name}.{key}")


def variables_of(given: Mapping[str, object], names: frozenset[str]) -> Values:
    """Variables in plain values; ``names``: those that the template asks for. Raises naming what is not allowed."""
    for name in ("tools", "documents"):
        for at, each in enumerate(_listed(given.get(name), name)):
            if not isinstance(each, Mapping) and _fields(each) is None:
                raise refusal(each, "tokenizer", f"{name}[{at}]", "an object, as JSON has it")
    kept = {name: value for name, value in given.items() if name not in _OF_TRANSFORMERS or name in names}
    for name in given.keys() - kept.keys():
        if given[name] is not None and given[name] is not False:
            got = f"[tokenizer] {name}: got {shown(given[name])}, allowed nothing"
            raise ArgumentError(f"{got}: it is an argument of transformers', and no variable of this chat template")
    with _trees("variables"):
        return {name: plain(value, name) for name, value in kept.items()}


def _listed(value: object, name: str) -> Iterable[object]:
    if value is not None and not isinstance(value, (list, tuple)):
        raise refusal(value, "tokenizer", name, "a list, or None")
    return value or ()


def fitted(messages: Sequence[View], reads: Reads) -> list[Values]:
    """The messages in the forms that a template reads. Raises ``kv.errors.ArgumentError`` where content has parts that
    are no text and the template reads content as one text."""
    return [_fitted(message, reads, f"messages[{at}]") for at, message in enumerate(messages)]


def _fitted(message: View, reads: Reads, name: str) -> Values:
    made = dict(message)
    calls = made.get("tool_calls")
    content, form = made.get("content"), reads.content_of(str(made.get("role")))
    if isinstance(content, (list, tuple)):
        _require_texts(content, f"{name}.content")
        if form == "text" or (form in ("part", "text or part") and len(content) > 1):
            content = made["content"] = "".join(text_parts(content, f"{name}.content"))
    if isinstance(content, str) and form in ("parts", "part"):
        made["content"] = [{"type": "text", "text": content}]
    elif content is None and calls and not reads.absent_content:
        made["content"] = ""
    if isinstance(calls, (list, tuple)) and reads.arguments in ("object", "text"):
        made["tool_calls"] = [_with_arguments(call, reads.arguments) for call in calls]
    return made


def _require_texts(parts: Iterable[object], name: str) -> None:
    """Raises ``kv.errors.ArgumentError`` naming a part of the type "text" that has none, which a template would
    print."""
    for at, part in enumerate(parts):
        if isinstance(part, Mapping) and part.get("type") == "text" and not isinstance(part.get("text"), str):
            raise ArgumentError(f"[tokenizer] {name}[{at}].text: got {shown(part.get('text'))}, allowed a str")


def text_parts(parts: Iterable[object], name: str) -> list[str]:
    """Their texts. Raises ``kv.errors.ArgumentError`` naming a part that is no text."""
    texts = []
    for at, part in enumerate(parts):
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else None
            got = f"a part of type {str(kind)[:40]!r}" if kind else f"{type(part).__name__}"
            allowed = "texts: this chat template reads one text there"
            raise ArgumentError(f"[tokenizer] {name}[{at}]: got {got}, allowed {allowed}")
        texts.append(text)
    return texts


def _with_arguments(call: object, form: str) -> object:
    """A call in the form of the OpenAI API, or its function alone."""
    if not isinstance(call, Mapping):
        return call
    function = call.get("function")
    if isinstance(function, Mapping):
        return {**call, "function": _with_arguments(function, form)}
    if "arguments" not in call:
        return call
    arguments = call["arguments"]
    return {**call, "arguments": parsed(arguments) if form == "object" else _written(arguments)}


def parsed(arguments: object) -> object:
    """The value of JSON text; what is none stays as it is, and no text is no arguments."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments


def _written(arguments: object) -> str:
    """As ``tojson`` writes it in a template."""
    if isinstance(arguments, str):
        return arguments
    return json.dumps({} if arguments is None else arguments, ensure_ascii=False)
