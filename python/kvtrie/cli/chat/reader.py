"""Where a chat's lines come from: a terminal with arrow keys and history, or lines of a pipe.

A line that ends in a backslash goes on in the next one. On a terminal Alt-Enter begins a new line, too, and what is
pasted keeps its lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

from kvtrie._folders import home

from .screen import Screen

Complete = Callable[[str], Iterable[str]]  # what is typed so far -> words that its last word may become


class Reader(Protocol):
    edits: bool  # whether ``read`` shows a text to be changed

    def read(self, prompt: str, text: str = "") -> str | None:
        """The typed text; None at the end of the input. ``text`` is there to be changed. Raises KeyboardInterrupt."""


class Echo:
    """Whether a terminal shows what is typed, as it did when this was made. Without it, keys are kept for whoever reads
    next. Both calls may be made any number of times."""

    def __init__(self, source: TextIO) -> None:
        self._source = source
        self._shows = source.isatty() and bool(_local_modes(source) & _echo())

    def off(self) -> None:
        if self._shows:
            _set_local_modes(self._source, _local_modes(self._source) & ~_echo())

    def on(self) -> None:
        if self._shows and not _local_modes(self._source) & _echo():
            _set_local_modes(self._source, _local_modes(self._source) | _echo())


def _echo() -> int:
    import termios

    return termios.ECHO


def _local_modes(source: TextIO) -> int:
    import termios

    return int(termios.tcgetattr(source)[3])


def _set_local_modes(source: TextIO, modes: int) -> None:
    import termios

    attributes = termios.tcgetattr(source)
    attributes[3] = modes
    termios.tcsetattr(source, termios.TCSANOW, attributes)


class LineReader:
    """Lines of a file, or of a terminal that does nothing but lines."""

    edits = False

    def __init__(self, source: TextIO) -> None:
        self._source = source

    def read(self, prompt: str, text: str = "") -> str | None:  # noqa: ARG002 (there is no changing it)
        lines: list[str] = []
        while True:
            line = self._line(prompt if not lines else "... ")
            if line is None:
                return "\n".join(lines) if lines else None
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def _line(self, prompt: str) -> str | None:
        if self._source is sys.stdin and self._source.isatty():
            if not sys.stdout.isatty():
                print(prompt, end="", file=sys.stderr, flush=True)
                prompt = ""
            try:
                return input(prompt)
            except EOFError:
                print(file=sys.stderr)
                return None
        line = self._source.readline()
        return line.rstrip("\n") if line else None


class TerminalReader:
    """Arrow keys, history and words completed with Tab, by prompt_toolkit.

    ``history``: the file that keeps what was typed, None for none; one that cannot be written is none.
    """

    edits = True

    def __init__(self, history: Path | None, complete: Complete, in_colour: bool) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import ColorDepth
        from prompt_toolkit.shortcuts import CompleteStyle

        self._session: Any = PromptSession(
            history=_history(history),
            multiline=True,
            key_bindings=_keys(),
            completer=_completer(complete),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            reserve_space_for_menu=0,
            prompt_continuation=lambda width, *_: "... ".rjust(width)[-width:] if width else "",
            color_depth=None if in_colour else ColorDepth.DEPTH_1_BIT,
            enable_open_in_editor=False,
        )

    def read(self, prompt: str, text: str = "") -> str | None:
        try:
            typed = self._session.prompt(prompt, default=text)
        except EOFError:
            return None
        # Half of a character, which a terminal may send, is no text.
        return str(typed).replace("\\\n", "\n").encode("utf-8", "replace").decode("utf-8")


def open_reader(source: TextIO, screen: Screen, history: Path | None, complete: Complete) -> Reader:
    """The best there is for where lines come from and go to."""
    interactive = source.isatty() and screen.is_terminal and os.environ.get("TERM", "dumb") != "dumb"
    if not interactive:
        return LineReader(source)
    try:
        return TerminalReader(history, complete, screen.in_colour)
    except ImportError:
        screen.note("pip install 'kvtrie[chat]' adds arrow keys and history")
        return LineReader(source)


def history_path(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where the XDG base directories have it; None where there is no home."""
    base = environment.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        place = home()
        if place is None:
            return None
        base = str(place / ".local" / "state")
    return Path(base) / "kvtrie" / "chat_history"


def _history(path: Path | None) -> Any:
    """Readable by its owner only: it holds what people ask."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def _keys() -> Any:
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: Any) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\") and buffer.document.is_cursor_at_the_end:
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _completer(complete: Complete) -> Any:
    from prompt_toolkit.completion import Completer, Completion

    class Words(Completer):
        def get_completions(self, document: Any, complete_event: Any) -> Iterator[Any]:  # noqa: ARG002
            text = document.text_before_cursor
            word = text.rpartition(" ")[2]
            for each in complete(text):
                if each.startswith(word):
                    yield Completion(each, start_position=-len(word))

    return Words()
