"""The screen of a chat: answers wrapped at words while they come, notes and figures below them, plain text in a
pipe."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from ..._decoding import Progress
from ...thinking.piece_reader import Piece
from ...viz.words import plural, text_columns
from .answers import CHUNK, Answer

_NOTE = "  "  # before every line that is not the model's answer
_BAR = f"{_NOTE}| "  # before every line of its reasoning
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_LEAST_WIDTH = 20


class WordWrap:
    """Breaks a stream of text between words so that lines have at most ``width`` columns; 0: it breaks nothing.

    A word is held back until it is over, or longer than a line. Line breaks and blanks of the text stay, but for blanks
    at a break. Characters that would steer a terminal go.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._column = 0
        self._blanks = ""
        self._word = ""

    def feed(self, text: str) -> str:
        """The text to write now."""
        return "".join(self._character(character) for character in text)

    def finish(self) -> str:
        """The last word; the line is open."""
        return self._flush()

    def _character(self, character: str) -> str:
        if character == "\n":
            written = self._flush() + "\n"
            self._column, self._blanks = 0, ""
            return written
        if character in " \t":
            written = self._flush()
            self._blanks += " " if character == " " else "    "
            return written
        if not character.isprintable() and character not in "\u200d\ufe0f":  # joined emoji
            return ""
        self._word += character
        alone = text_columns(character) == 2  # scripts without blanks may be broken anywhere
        return self._flush() if not self._width or alone or text_columns(self._word) >= self._width else ""

    def _flush(self) -> str:
        if not self._word:
            return ""
        columns, blanks, word = text_columns(self._word), self._blanks, self._word
        self._blanks = self._word = ""
        if self._width and self._column and self._column + len(blanks) + columns > self._width:
            self._column = columns
            return "\n" + word
        self._column += len(blanks) + columns
        return blanks + word


class _Part:
    """A part of an answer, in lines of its own. ``feed`` and ``finish`` give what is to be written."""

    def __init__(self, width: int) -> None:
        self._wrap = WordWrap(width)
        self._open = False  # something was fed, and the line is not ended

    def feed(self, text: str) -> str:
        self._open = True
        return self._wrap.feed(text)

    def finish(self) -> str:
        """It may be called again."""
        ended = self._wrap.finish() + "\n" if self._open else ""
        self._open = False
        return ended


class _Barred(_Part):
    """Each line behind a bar. ``dim``, ``plain``: what is written around all that is written."""

    def __init__(self, width: int, dim: str, plain: str) -> None:
        super().__init__(width)
        self._dim, self._plain = dim, plain
        self._begins = True  # a line

    def feed(self, text: str) -> str:
        return self._barred(super().feed(text))

    def finish(self) -> str:
        return self._barred(super().finish())

    def _barred(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        begins = [self._begins, *(True for _ in lines[1:])]
        bars = (_BAR if each and line != "\n" else _BAR.rstrip() if each else "" for line, each in zip(lines, begins))
        self._begins = text.endswith("\n") if text else self._begins
        shown = "".join(bar + line for bar, line in zip(bars, lines))
        return f"{self._dim}{shown}{self._plain}" if shown else ""


class _Hidden(_Part):
    """One line in the place of what is fed."""

    def __init__(self, line: str) -> None:
        super().__init__(0)
        self._line = line

    def feed(self, text: str) -> str:  # noqa: ARG002 (it is hidden)
        line, self._line = self._line, ""
        return line

    def finish(self) -> str:
        return ""


class Screen:
    """Writes to ``out``. On a terminal lines are as wide as it is; elsewhere answers keep their own lines."""

    def __init__(self, out: TextIO, environment: Mapping[str, str] = os.environ) -> None:
        self._out = out
        self.is_terminal = out.isatty()
        dumb = environment.get("TERM", "dumb") == "dumb"
        self.in_colour = self.is_terminal and not dumb and not environment.get("NO_COLOR")
        self.is_ascii = not (getattr(out, "encoding", None) or "utf-8").lower().startswith("utf")

    @property
    def width(self) -> int:
        """Columns of a line now: one less than the terminal has, so that none breaks by itself."""
        return max(shutil.get_terminal_size((80, 24)).columns - 1, _LEAST_WIDTH) if self.is_terminal else 79

    def answer(self, answer: Iterable[Piece], reasoning: bool = True) -> None:
        """Shows an answer as it comes. An exception in the middle leaves the line in order, and passes.

        ``reasoning``: behind a bar, dim; else one line says that there is some.
        """
        kind, part = "", _Part(0)
        try:
            for now, text in answer:
                if now != kind:
                    self._write(part.finish())
                    kind, part = now, self._part(now, reasoning)
                self._write(part.feed(text))
        finally:
            self._write(part.finish())

    def _part(self, kind: str, reasoning: bool) -> _Part:
        width = self.width if self.is_terminal else 0
        if kind == "text":
            return _Part(width)
        dim = (_DIM, _PLAIN) if self.in_colour else ("", "")
        if not reasoning:
            return _Hidden(f"{dim[0]}{_NOTE}thinking ...{dim[1]}\n")
        return _Barred(width and max(width - len(_BAR), _LEAST_WIDTH), *dim)

    def note(self, text: str) -> None:
        """Words that are not the model's, indented, in lines of the terminal's width."""
        for line in text.split("\n"):
            wrap = WordWrap(max(self.width - len(_NOTE), _LEAST_WIDTH))
            shown = wrap.feed(line) + wrap.finish()
            for part in shown.split("\n"):
                self.line(_NOTE + part if part else "", dim=True)

    def line(self, text: str, dim: bool = False) -> None:
        """One line as it is."""
        self._write(f"{_DIM}{text}{_PLAIN}\n" if dim and self.in_colour and text else f"{text}\n")

    @contextmanager
    def progress(self, tokens: int) -> Iterator[Progress | None]:
        """A bar on stderr for a prompt of more than one step that somebody waits for; goes away with its end."""
        if not sys.stderr.isatty() or tokens <= CHUNK:
            yield None
            return
        from tqdm import tqdm

        bar = tqdm(total=tokens, unit="tok", desc=f"{_NOTE}reading", leave=False, ncols=self.width, file=sys.stderr)

        def show(done: int, total: int) -> None:
            if not bar.disable:
                bar.total = total
                bar.update(done - bar.n)
                if done >= total:
                    bar.close()

        with bar:
            yield show

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()


def figures(answer: Answer) -> str:
    """One line: what the prompt cost, and how fast the answer came."""
    reuse = answer.reuse
    parts = [f"reused {reuse.reused:,}, computed {reuse.computed:,}"]
    if answer.seconds_to_first is not None:
        parts.append(f"first token {_seconds(answer.seconds_to_first)}")
    count = len(answer.tokens)
    rate = answer.tokens_per_second
    speed = "" if rate is None else f" at {rate:.1f}/s" if rate < 10 else f" at {rate:.0f}/s"
    parts.append(f"{plural(count, 'token')}{speed}")
    return " | ".join(parts)


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def stderr_shows() -> bool | None:
    """The argument ``progress=`` of loading: a bar where somebody looks at stderr."""
    return True if sys.stderr.isatty() else None
