"""Whether a prompt has what the messages say.

A template may go through the parts of a content that is a text, or read another key: then a turn is written that is
empty, and the model answers nobody. So a message whose content cannot be found in the prompt is looked at. Its content
is changed: if the prompt is another one then, it was read, whatever became of it (trimmed, escaped, split). Else the
message stands there twice: if the prompt is longer then, its turn was written without its content, which is refused.

What a template leaves out whole is the template's own rule, as is old reasoning, or what a model says beside its calls.
The prompt is then what it is anywhere else, and a message that is left out is told, once for each role, as a
``kv.errors.IgnoredWarning``.

A content that is so short that it stands somewhere else in the prompt counts as found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from ..errors import ArgumentError
from .template_probe import Reads, View

Render = Callable[[Mapping[str, object]], str]  # raises ``kv.errors.ArgumentError``


class _Place(NamedTuple):
    """A text of a message: its content, or one of its parts."""

    message: int
    part: Optional[int]
    text: str

    def __str__(self) -> str:
        return f"messages[{self.message}].content{'' if self.part is None else f'[{self.part}]'}"

    @property
    def word(self) -> str:
        """That may stand in the place of the text, and nowhere else."""
        return f"kvtrie{self.message}content{self.part or 0}x"


def left_out(render: Render, values: View, prompt: str, reads: Reads) -> set[str]:
    """The parts of ``values["messages"]`` that the template took no notice of: roles, and "tool_calls".

    ``prompt``: what ``render`` made of the values. Raises ``kv.errors.ArgumentError`` naming a message whose turn is
    written without its content, or without a part of it.
    """
    messages: Sequence[View] = values["messages"]
    missing = _not_found(messages, prompt, reads)
    missing = [each for each in _not_renamed(render, values, missing) if not _is_read(render, values, prompt, each)]
    for place in missing:
        if not _is_left_out(render, values, prompt, place.message):
            role = str(messages[place.message].get("role"))[:40]
            got = f"what the chat template writes no word of in a {role!r} message"
            raise ArgumentError(f"[tokenizer] {place}: got {got}, allowed what it reads: the turn would be empty")
    found = {str(messages[place.message].get("role")) for place in missing}
    if reads.arguments == "neither" and any(message.get("tool_calls") for message in messages):
        found.add("tool_calls")
    return found


def _not_found(messages: Sequence[View], prompt: str, reads: Reads) -> list[_Place]:
    """Texts that do not stand in the prompt as they are, each behind the one before or anywhere."""
    missing, behind = [], 0
    for at, message in enumerate(messages):
        known = reads.content_of(str(message.get("role"))) != "neither"
        for place in _places(at, message):
            found = prompt.find(place.text, behind)
            found = prompt.find(place.text) if found < 0 else found
            if found < 0 or not known:
                missing.append(place)
            else:
                behind = max(behind, found + len(place.text))
    return missing


def _places(at: int, message: View) -> Iterator[_Place]:
    """All that has letters; what a model says beside its calls is the template's own affair."""
    content = message.get("content")
    if message.get("role") == "assistant" and message.get("tool_calls"):
        return
    if isinstance(content, str) and content.strip():
        yield _Place(at, None, content.strip())
    for number, part in enumerate(content if isinstance(content, (list, tuple)) else ()):
        text = part.get("text") if isinstance(part, Mapping) else part
        if isinstance(text, str) and text.strip():
            yield _Place(at, number, text.strip())


def _not_renamed(render: Render, values: View, missing: list[_Place]) -> list[_Place]:
    """Those of ``missing`` that, if they were words, would not stand in the prompt: all are tried at once."""
    text = _rendered(render, _renamed(values, missing)) if missing else None
    return [place for place in missing if text is None or place.word not in text]


def _is_read(render: Render, values: View, prompt: str, place: _Place) -> bool:
    """Whether another text makes another prompt, or none."""
    return _rendered(render, _renamed(values, [place])) != prompt


def _renamed(values: View, places: Iterable[_Place]) -> View:
    messages = list(values["messages"])
    for place in places:
        content = messages[place.message]["content"]
        if place.part is None:
            content = place.word
        else:
            part = content[place.part]
            word = place.word if isinstance(part, str) else {**part, "text": place.word}
            content = [*content[: place.part], word, *content[place.part + 1 :]]
        messages[place.message] = {**messages[place.message], "content": content}
    return {**values, "messages": messages}


def _is_left_out(render: Render, values: View, prompt: str, at: int) -> bool:
    """Whether a second one like it, or none, changes nothing but white space: then no turn of it was written."""
    before, behind = values["messages"][:at], values["messages"][at + 1 :]
    one = values["messages"][at]
    for messages in ([*before, one, one, *behind], [*before, *behind]):
        text = _rendered(render, {**values, "messages": messages})
        if text is not None:
            return _written(text) == _written(prompt)
    return False


def _written(prompt: str) -> int:
    return sum(map(len, prompt.split()))


def _rendered(render: Render, values: Mapping[str, object]) -> str | None:
    try:
        return render(values)
    except ArgumentError:
        return None
