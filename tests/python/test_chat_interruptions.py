"""A chat after an exception at any point: answers are read on, lines have happened or not, the terminal shows keys."""

from __future__ import annotations

import io
import os
import termios
from pathlib import Path
from typing import Any, ClassVar

import pytest

import chat_ways as ways
from circles import CIRCLE
from kvtrie.cli import chat as program
from kvtrie.cli.chat import files
from kvtrie.cli.chat.answers import Answers
from kvtrie.cli.chat.conversation import Conversation
from kvtrie.cli.chat.reader import Echo
from kvtrie.cli.chat.screen import Screen
from place_sweeps import sweep

SEED = 34


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that a destructor met is nobody's."""
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    monkeypatch.setattr("threading.excepthook", lambda _: None)


def swept(what: str, chosen: Any, places: int) -> None:
    report = sweep(what, chosen, places, SEED)
    assert report.played > 0.9 * report.points and not report.wrong, report.text()


def test_answers_and_lines_go_on_after_an_exception() -> None:
    swept("errors", (ways.Shifting, ways.Lines), 2)


@pytest.mark.ci
@pytest.mark.parametrize("way", ways.WAYS, ids=lambda way: way.__name__)
def test_each_way_goes_on_after_an_exception(way: Any) -> None:
    swept("errors", (way,), 6 if CIRCLE == "ci" else 0)


@pytest.mark.ci
def test_a_cache_that_closes_and_forks_at_any_point() -> None:
    for what in ("closing", "forks"):
        swept(what, (ways.Reading,), 4 if CIRCLE == "ci" else 0)


# ---- Ctrl-C twice ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("owner", [(Conversation, "place"), (Answers, "end"), (Echo, "on")], ids=lambda each: each[1])
def test_a_second_ctrl_c_loses_no_more_than_the_first(
    owner: tuple[type, str], behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one stops an answer, the second comes while it is kept: it is there with the next line."""
    way = ways.Lines("errors")
    chat, (kind, name) = way.chat, owner
    own = getattr(kind, name)

    def interrupted(*arguments: Any) -> Any:
        if behind:
            own(*arguments)
        raise KeyboardInterrupt

    def first(*_: Any) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(kind, name, interrupted)
        raise KeyboardInterrupt

    assert chat.handle("hello")
    monkeypatch.setattr(Screen, "_write", first)
    assert chat.handle("more")
    monkeypatch.undo()
    assert chat.handle("/branch other")
    said = chat.conversation.turns
    assert [turn.question for turn in said] == ["hello", "more"]
    whole = way.wanted[1]["turns"][1]
    assert 0 < len(said[1].tokens) <= len(whole["tokens"]) and said[1].tokens == tuple(
        whole["tokens"][: len(said[1].tokens)]
    )
    assert way.shows() and way.cache.stats()["sessions"] == 0
    way.close()


# ---- files and the terminal ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["open", "replace"])
@pytest.mark.parametrize("behind", [False, True])
def test_a_file_is_whole_and_nothing_is_beside_it(
    call: str, behind: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = Conversation()
    conversation.add(None, "a", "on a")
    path = tmp_path / "chat.json"
    files.save(conversation, str(path))
    former, own = path.read_text(), getattr(os, call)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if behind:
            own(*arguments, **options)
        raise KeyboardInterrupt

    conversation.add(conversation.tip, "b", "on b")
    monkeypatch.setattr(os, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.save(conversation, str(path))
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["chat.json"]
    assert (path.read_text() == former) != (call == "replace" and behind)
    assert len(files.load(str(path)).turns) == (2 if call == "replace" and behind else 1)


def test_echo_comes_back_and_other_settings_stay() -> None:
    here, there = os.openpty()
    with os.fdopen(here, "wb", buffering=0), open(there) as keys:
        echo = Echo(keys)
        echo.off()
        echo.off()
        assert not termios.tcgetattr(keys)[3] & termios.ECHO
        changed = termios.tcgetattr(keys)
        changed[3] &= ~termios.ISIG
        termios.tcsetattr(keys, termios.TCSANOW, changed)
        echo.on()
        echo.on()
        assert termios.tcgetattr(keys)[3] & (termios.ECHO | termios.ISIG) == termios.ECHO
    assert Echo(io.StringIO()).on() is None  # type: ignore[func-returns-value]


def test_ctrl_c_between_two_lines_ends_nothing() -> None:
    class Reader:
        edits = True
        lines: ClassVar[list[Any]] = ["hello", KeyboardInterrupt(), "more", None]

        def read(self, prompt: str, text: str = "") -> Any:
            line = self.lines.pop(0)
            if isinstance(line, BaseException):
                raise line
            return line

    way = ways.Lines("errors")
    program._converse(way.chat, Reader(), way.chat.screen)
    assert [turn.question for turn in way.chat.conversation.turns] == ["hello", "more"]
    way.close()
