"""The messages of gpt-oss's answers: reasoning, text and calls, each in a channel of its own.

    <|channel|>analysis<|message|>reasoning<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>
    <|start|>assistant<|channel|>final<|message|>text<|return|>

Concept. A message is a header, which names its channel and to whom it goes, and a content. The prompt ends within the
first header. "analysis" is reasoning, and so is what goes to a tool of the model's own there; all else is text. A
message to one of the request's functions becomes text in one form, ``CALL``, name, ``MESSAGE``, JSON and ``CALL_END``,
wherever its header has the recipient. What begins like no header is text.

The output does not depend on how the answer was cut into pieces. Source: OpenAI 2025, the harmony response format
(github.com/openai/harmony, docs/format.md).

Threads: a reader belongs to one answer.
"""

from __future__ import annotations

import re
from typing import Literal

from .marks import begun
from .piece_reader import Piece, PieceReader

__all__ = ["CALL", "CALL_END", "MARKS", "MARKS_OF_HEADERS", "MESSAGE", "HarmonyReader", "is_harmony"]

_CHANNEL, MESSAGE, _START = "<|channel|>", "<|message|>", "<|start|>"
CALL_END = "<|call|>"
_ENDS = ("<|end|>", CALL_END, "<|return|>")
MARKS = (_CHANNEL, MESSAGE, _START, "<|constrain|>", *_ENDS)
MARKS_OF_HEADERS = (_CHANNEL, MESSAGE, _ENDS[0], _START)
CALL = f"{_CHANNEL}commentary to=functions."
_FINAL = f"<|end|>{_START}assistant{_CHANNEL}final{MESSAGE}"  # what closes reasoning
_RECIPIENT = re.compile(r"\bto=(\S+)")
_HEADS = (_CHANNEL, _START, "to=")  # what a header begins with
_HEADER = 200  # characters of a header, at most


class HarmonyReader(PieceReader):
    """An ``AnswerReader`` (reasoning.py). ``begun``: the beginning of the answer, which the prompt has already."""

    marks = (f"{_CHANNEL}analysis{MESSAGE}", _FINAL)
    closing = _ENDS[0]
    kept = MARKS
    behind = f"{_CHANNEL}final{MESSAGE}"

    def __init__(self, prompt_end: str, begun: str = "") -> None:
        self.opened = prompt_end.endswith(self.marks[0])
        super().__init__()
        self._place: Literal["reasoning", "text", "header"] = "reasoning" if self.opened else "header"
        self._first = not self.opened  # nothing was read yet
        self._end = ""  # what a message of this kind ends with in what goes out
        self.feed(begun)

    def _advance(self, final: bool) -> Piece | None:
        return self._header(final) if self._place == "header" else self._content(final)

    def _header(self, final: bool) -> Piece | None:
        text = self._held.lstrip()
        if not text.startswith(_HEADS):
            if final and not text and not self._first:
                self._held = ""
            elif final or not any(each.startswith(text) for each in _HEADS):
                self._place, self._first = "text", False
            return None
        at = self._held.find(MESSAGE)
        if 0 <= at < _HEADER:
            header, self._held = self._held[:at], self._held[at + len(MESSAGE) :]
            return self._begin(header)
        if final and not self._first:
            self._held = ""
        elif final or len(self._held) >= _HEADER + len(MESSAGE):
            self._place, self._first = "text", False
        return None

    def _begin(self, header: str) -> Piece | None:
        """The kind of the message whose header this is, and what stands for the header in what goes out."""
        recipient = _RECIPIENT.search(header)
        analysis = f"{_CHANNEL}analysis" in header
        self._first, self._end = False, ""
        if recipient is not None and recipient[1].startswith("functions."):
            name = recipient[1].removeprefix("functions.").partition("<")[0]
            self._place, self._end = "text", CALL_END
            return "text", f"{CALL}{name}{MESSAGE}"
        self._place = "reasoning" if analysis else "text"
        return None

    def _content(self, final: bool) -> Piece:
        kind = self._place
        assert kind != "header"
        found = [(at, each) for each in _ENDS if (at := self._held.find(each)) >= 0]
        if found:
            at, end = min(found)
            text, self._held = self._held[:at] + self._end, self._held[at + len(end) :]
            self._place, self._end = "header", ""
            return kind, text
        keep = 0 if final else begun(self._held, _ENDS)
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return kind, text


def is_harmony(template: str) -> bool:
    """Whether a chat template writes such messages."""
    return _CHANNEL in template and MESSAGE in template
