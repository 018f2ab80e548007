"""A conversation as a drawing in text: every turn with its words, forks, and the names of branches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...viz.words import clip, one_line, text_columns
from .conversation import Conversation, Turn


class Marks(NamedTuple):
    """The characters of forks, each of three columns."""

    fork: str
    last: str
    through: str
    none: str = "   "


LINES = Marks("\u251c\u2500 ", "\u2514\u2500 ", "\u2502  ")
ASCII = Marks("|- ", "`- ", "|  ")


def tree_text(conversation: Conversation, width: int, ascii_only: bool = False) -> str:
    """Lines of at most ``width`` columns. ``*`` marks the current branch; questions have their number in a branch."""
    marks = ASCII if ascii_only else LINES
    lines = [_clipped(f"system: {one_line(conversation.system)}", "", width)] if conversation.system else []
    start = _names(conversation, None)
    if start or not conversation.all_turns():
        lines.append(_clipped("(nothing said yet)", start, width))
    text = "\n".join([*lines, *_rows(conversation, marks, width)])
    return text.replace("\u2026", "~") if ascii_only else text


def _rows(conversation: Conversation, marks: Marks, width: int) -> Iterator[str]:
    """A turn a time, depth first; turns without a fork between them stay in one column."""
    children = conversation.children()
    waiting = [(turn, 1, lead, rest) for turn, lead, rest in _led(children.get(None, []), "", marks)][::-1]
    while waiting:
        turn, number, lead, rest = waiting.pop()
        after = children.get(turn, [])
        yield _clipped(f"{lead}{number} > {one_line(turn.question)}", "", width)
        answer = one_line(turn.answer) or "(empty)"
        yield _clipped(f"{rest}{' ' * len(str(number))}   {answer}", _names(conversation, turn), width)
        waiting += [(each, number + 1, first, below) for each, first, below in _led(after, rest, marks)][::-1]


def _led(turns: list[Turn], rest: str, marks: Marks) -> Iterator[tuple[Turn, str, str]]:
    """Each with what stands before its first line, and before all below."""
    for index, turn in enumerate(turns):
        if len(turns) == 1:
            yield turn, rest, rest
        elif index < len(turns) - 1:
            yield turn, rest + marks.fork, rest + marks.through
        else:
            yield turn, rest + marks.last, rest + marks.none


def _names(conversation: Conversation, turn: Turn | None) -> str:
    names = [f"*{name}" if name == conversation.current else name for name in conversation.names_at(turn)]
    return f"  [{', '.join(names)}]" if names else ""


def _clipped(text: str, end: str, width: int) -> str:
    """``end`` is shown whole, where there is room for it and a few words."""
    room = width - text_columns(end)
    return clip(text, room) + end if room >= 16 else clip(text + end, width)
