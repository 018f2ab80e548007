"""An answer's reasoning and its text, told apart while they are written.

Concept. Models that reason write it between two delimiters at the very start of an answer, ``<think> ... </think>``;
the chat template has them too, or has written the first one already. Delimiters anywhere else are text like any other,
and so is everything where the template knows none. Line breaks on the inner side of a delimiter, and those behind the
last one, belong to the delimiters: templates put them there, and take them off when they say an answer again.

    reader = reasoning_of(template, prompt, begun)   None: this model does not reason
    for piece in pieces:
        for kind, text in reader.feed(piece): ...    "reasoning" or "text", never empty
    for kind, text in reader.finish(): ...

gpt-oss has channels instead (harmony.py). The output does not depend on how the answer was cut into pieces. Reasoning
that was cut off is reasoning.

Threads: a reader belongs to one answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from .harmony import HarmonyReader, is_harmony
from .marks import begun
from .piece_reader import Piece, PieceReader

NAMES = ("reasoning_content", "thinking", "reasoning")  # that messages have for it, the usual one first
DELIMITERS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)


class AnswerReader(Protocol):
    """What tells the parts of one answer apart.

    ``marks``: how reasoning begins, and what is written to close it for a model that has had its tokens. ``closing``:
    what ends it, whoever writes it. ``kept``: what the text that is fed must still have: where these are special
    tokens, decoding must not skip them. ``opened``: the prompt ends within it. ``behind``: what the model says before
    rules for an answer begin; None: nothing."""

    @property
    def marks(self) -> tuple[str, str]: ...

    @property
    def closing(self) -> str: ...

    @property
    def kept(self) -> Sequence[str]: ...

    @property
    def opened(self) -> bool: ...

    @property
    def behind(self) -> str | None: ...

    def feed(self, text: str) -> list[Piece]:
        """The parts that are certain by now, in order."""
        ...

    def finish(self) -> list[Piece]:
        """The rest: nothing more comes."""
        ...


class ReasoningReader(PieceReader):
    """``marks``: the two delimiters. ``said``: the prompt ends with more than white space of the part that it is in."""

    def __init__(self, opening: str, closing: str, opened: bool, said: bool = False) -> None:
        self.marks = (opening, closing)
        self.closing = closing
        self.kept = (opening.removesuffix("thought"), closing)  # of Gemma 4's a word follows the special token
        self.opened = opened
        super().__init__()
        self._place: Callable[[bool], Piece | None] = self._inside if opened else self._behind if said else self._before
        self._said = said  # whether anything came out of the part that it is in

    @property
    def behind(self) -> str | None:
        return self.closing if self.opened else None

    def _advance(self, final: bool) -> Piece | None:
        return self._place(final)

    def _before(self, final: bool) -> Piece | None:
        """Nothing but white space so far."""
        opening, text = self.marks[0], self._held.lstrip()
        if text.startswith(opening):
            self._held = text[len(opening) :]
            self._place = self._inside
        elif final or not opening.startswith(text):
            self._place, self._said = self._behind, True
        return None

    def _inside(self, final: bool) -> Piece | None:
        closing = self.marks[1]
        self._skip_line_breaks()
        at = self._held.find(closing)
        if at >= 0:
            reasoning, self._held = self._held[:at].rstrip("\n"), self._held[at + len(closing) :]
            self._place, self._said = self._behind, False
            return "reasoning", reasoning
        certain = self._held[: len(self._held) - begun(self._held, (closing,))]
        keep = len(self._held) if final else len(certain.rstrip("\n"))
        return self._taken("reasoning", keep)

    def _behind(self, _final: bool) -> Piece | None:
        self._skip_line_breaks()
        return self._taken("text", len(self._held))

    def _skip_line_breaks(self) -> None:
        if not self._said:
            self._held = self._held.lstrip("\n")

    def _taken(self, kind: Literal["reasoning", "text"], characters: int) -> Piece:
        text, self._held = self._held[:characters], self._held[characters:]
        self._said = self._said or bool(text)
        return kind, text


def reasoning_of(template: str | None, prompt_end: str, begun: str = "") -> AnswerReader | None:
    """A reader for one answer, or None where the template knows no reasoning.

    ``prompt_end``: how the rendered prompt ends in front of the answer, a few characters or all of it. Only white space
    may stand behind an opening delimiter there: one that a message brought along opens nothing. ``begun``: the
    beginning of the answer, which the prompt has already.
    """
    marks = None if template is None else delimiters_of(template)
    if template is None or marks is None:
        return None
    if is_harmony(template):
        return HarmonyReader(prompt_end, begun)
    opening, closing = marks
    opened = _ends_with(prompt_end, opening)
    if not opened and begun.lstrip().startswith(opening):
        opened, begun = True, begun.lstrip()[len(opening) :]
    if opened and closing in begun:
        return ReasoningReader(opening, closing, False, said=True)
    return ReasoningReader(opening, closing, opened, said=bool(begun.strip()))


def delimiters_of(template: str) -> tuple[str, str] | None:
    """The words that a template knows; None: none."""
    if is_harmony(template):
        return HarmonyReader.marks
    return next((marks for marks in DELIMITERS if marks[1] in template), None)


def _ends_with(prompt_end: str, opening: str) -> bool:
    return re.search(re.escape(opening) + r"\s*\Z", prompt_end) is not None
