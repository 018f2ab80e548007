"""The chat in a real terminal, driven by pexpect, and in pipes."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from processes import ROOT, run_python
from terminal_program import TerminalProgram

WORKER = ROOT / "tests" / "python" / "chat_worker.py"
UP, ALT_ENTER, CTRL_C, CTRL_D = "\x1b[A", "\x1b\r", "\x03", "\x04"
FIGURES = r"reused ([\d,]+), computed ([\d,]+) \| first token [\d.]+ m?s \| [\d,]+ tokens?[^\r\n]*"


class Terminal(TerminalProgram):
    """A chat with the tiny model in a terminal. Whatever is waited for, is waited for as text."""

    def __init__(self, state: Path, *options: str, columns: int = 80, model: str = "tiny", **environment: str) -> None:
        arguments = [model, "--max-tokens", "12", "--temperature", "0", *options]
        settings = {
            "XDG_STATE_HOME": str(state),
            "PROMPT_TOOLKIT_NO_CPR": "1",  # nobody here answers where the cursor is
            "TERM": "xterm-256color",
            **environment,
        }
        super().__init__([sys.executable, str(WORKER), *arguments], settings, columns)
        self.child.expect("Ctrl-D leaves")
        self.at_prompt()

    def at_prompt(self, name: str = "main") -> str:
        """What was written until the prompt came."""
        self.child.expect(f"{re.escape(name)}>")
        return str(self.child.before)

    def say(self, keys: str, then: str = FIGURES, prompt: str = "main", enter: str = "\r") -> str:
        """Types ``keys`` and Enter; what was written from there until the next prompt, of which ``then`` is a part.

        What is typed is written, too, so ``then`` is something else.
        """
        self.child.send(keys + enter)
        self.child.expect(then)
        before = str(self.child.before) + str(self.child.after)
        return before + self.at_prompt(prompt)

    def leave(self) -> None:
        self.child.send(CTRL_D)
        assert self.end() == 0


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Any]:
    """Starts chats in terminals that share a folder of state."""
    started: list[Terminal] = []

    def start(*options: str, **rest: Any) -> Terminal:
        started.append(Terminal(tmp_path / "state", *options, **rest))
        return started[-1]

    yield start
    for each in started:
        each.close()


def plain(text: str) -> str:
    """Without what steers the terminal."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "")


def test_questions_commands_and_the_way_out(terminals: Any) -> None:
    chat = terminals()
    chat.say("hello there")
    chat.say("and more")
    chat.say("/branch other", "branch other goes on from here", "other")
    chat.say("elsewhere", prompt="other")
    chat.say("/switch main", "branch main, 2 questions")
    chat.say("/retry", "at temperature 0 the answer is the same again")
    tree = plain(chat.say("/tree", r"\[\*main\]"))
    assert "1 > hello there" in tree and "3 > elsewhere" in tree and "[other]" in tree
    chat.say("/explain", "asked again now: ")
    chat.say("/set temperature warm", "got 'warm', allowed 0 or more")
    chat.say("/set top_k 3", r"top_k 3 \(allowed")
    chat.say("/undo", "undone: and more")
    chat.say("/help", "Ctrl-C stops an answer and")
    chat.say("/stats", "reused tokens")
    chat.leave()


@pytest.mark.ci
def test_arrow_up_brings_back_what_was_typed_in_this_chat_and_the_one_before(terminals: Any, tmp_path: Path) -> None:
    chat = terminals()
    chat.say("a first question")
    chat.say(UP)
    assert plain(chat.say("/tree", r"2 > a first question")).count("1 > a first question") == 1
    chat.leave()
    history = tmp_path / "state" / "kvtrie" / "chat_history"
    assert history.stat().st_mode & 0o077 == 0
    again = terminals()
    again.say(UP + UP)
    again.say("/tree", "1 > a first question")
    again.leave()
    before = history.read_text()
    silent = terminals("--no-history")
    silent.say("a secret")
    silent.leave()
    assert history.read_text() == before


@pytest.mark.ci
def test_several_lines(terminals: Any) -> None:
    chat = terminals()
    chat.say("one" + ALT_ENTER + "two")
    chat.say("three\\\rfour")
    chat.say("\x1b[200~five\rsix\x1b[201~")
    tree = plain(chat.say("/tree", "3 > five six"))
    assert "1 > one two" in tree and "2 > three four" in tree
    chat.leave()


@pytest.mark.ci
def test_an_edit_begins_with_the_old_words(terminals: Any) -> None:
    chat = terminals()
    chat.say("old question")
    chat.child.send("/edit\r")
    chat.child.expect("edit>")
    chat.say("s of mine", "what stood there is now branch main.1")
    chat.say("/tree", "1 > old questions of mine")
    chat.child.send("/edit\r")
    chat.child.expect("edit>")
    chat.child.send(CTRL_C)  # another thought: nothing changes
    chat.at_prompt()
    chat.say("/tree", "1 > old questions of mine")
    chat.leave()


def test_ctrl_c_stops_an_answer_and_keeps_what_was_said(terminals: Any) -> None:
    chat = terminals("--max-tokens", "1000000")  # only Ctrl-C ends it; the context shifts on the way
    chat.child.send("hello\r")
    chat.child.expect(r"\w+ \w+ \w+ \w+[^\r]*\r\n[^\r]*\r\n")  # two lines of the answer
    chat.child.send(CTRL_C)
    chat.child.expect(r"tokens at [\d.]+/s \| stopped")
    chat.at_prompt()
    chat.say("/set max_tokens 5", r"max_tokens 5 \(allowed")
    chat.say("go on")
    tree = plain(chat.say("/tree", r"2 > go on"))
    assert "1 > hello" in tree and "(empty)" not in tree
    chat.leave()


@pytest.mark.ci
def test_ctrl_c_at_the_prompt_clears_the_line(terminals: Any) -> None:
    chat = terminals()
    chat.say("half a tho" + CTRL_C, "Ctrl-D or /quit leaves", enter="")
    chat.say("/tree", "nothing said yet")
    chat.leave()


@pytest.mark.parametrize("columns", [40, pytest.param(80, marks=pytest.mark.ci)])
def test_answers_are_wrapped_at_words(terminals: Any, columns: int) -> None:
    chat = terminals("--max-tokens", "60", columns=columns)
    text = plain(chat.say("Tell me about the database", "cut at max_tokens 60"))
    lines = text.split("\n")[1:]
    assert len(lines) > 2 and max(map(len, lines)) < columns
    chat.say("/help", "Ctrl-C")
    chat.leave()


@pytest.fixture
def thinker(tmp_path: Path) -> str:
    """The tiny model, whose prompts end within its reasoning; it never ends it by itself."""
    folder = tmp_path / "thinker"
    shutil.copytree(ROOT / "examples" / "tiny", folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["chat_template"] += "{% if add_generation_prompt %}<think>{# </think> #}{% endif %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return str(folder)


def test_reasoning_is_dim_behind_a_bar_and_can_be_hidden_or_left_out(terminals: Any, thinker: str) -> None:
    chat = terminals("--max-tokens", "60", model=thinker)
    text = chat.say("hello", "a word behind its reasoning")
    thoughts = [line for line in text.replace("\r", "").split("\n") if "  | " in line]
    assert len(thoughts) > 2
    assert "\x1b[2m  | " in text and max(map(len, plain(text).split("\n"))) < 80
    hidden = plain(chat.say("/set reasoning hidden", r"reasoning hidden \(allowed") + chat.say("more"))
    assert "  thinking ...\n" in hidden and "  | " not in hidden
    chat.say("/set thinking off", r"thinking off \(allowed")
    said = plain(chat.say("and now"))
    assert "thinking ..." not in said and "  | " not in said and "without a word" not in said
    chat.leave()


@pytest.mark.ci
def test_tab_completes_commands_and_branches(terminals: Any) -> None:
    chat = terminals()
    chat.say("/bra\t new", "branch new goes on from here", "new")
    chat.say("/sw\t ma\t", "branch main, 0 questions")
    chat.leave()


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, True), *(pytest.param(each, False, marks=pytest.mark.ci) for each in ({"NO_COLOR": "1"}, {"TERM": "dumb"}))],
)
def test_colour_is_where_it_is_wanted(terminals: Any, environment: dict[str, str], coloured: bool) -> None:
    chat = terminals(**environment)
    chat.say("hello")
    chat.leave()
    colours = re.findall(r"\x1b\[(?!0m)[\d;]*m", chat.log.text)
    assert bool(colours) == coloured
    assert ("\x1b" in chat.log.text) == (environment.get("TERM") != "dumb")


@pytest.mark.ci
def test_a_saved_conversation_and_a_disk_outlive_the_chat(terminals: Any, tmp_path: Path) -> None:
    chat = terminals("--disk", str(tmp_path / "disk"))
    chat.say("hello there, how are you?")
    chat.say(f"/save {tmp_path / 'chat.json'}", "saved 1 turn")
    chat.leave()
    again = terminals("--disk", str(tmp_path / "disk"))
    assert "tokens are known from before" in again.log.text
    again.say(f"/load {tmp_path / 'chat.json'}", "loaded 1 turn")
    text = again.say("and more")
    found = re.search(FIGURES, text)
    assert found is not None and int(found[1]) >= 17  # a question of six words, and twelve tokens of an answer
    again.leave()


def test_in_pipes_there_are_only_answers_and_figures() -> None:
    lines = "hello\nmore \\\nof it\n/tree\n/nothing\n"
    result = run_python(
        WORKER, "tiny", "--max-tokens", "8", input=lines, environment={"TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    )
    assert result.returncode == 0 and result.stderr == ""
    assert "\x1b" not in result.stdout and "main>" not in result.stdout
    assert len(re.findall(FIGURES, result.stdout)) == 2
    assert "2 > more of it" in result.stdout and "there is no command /nothing" in result.stdout


@pytest.mark.ci
def test_a_terminal_that_asks_and_a_pipe_that_listens(tmp_path: Path) -> None:
    """Keys from a terminal, answers into a file: the prompt does not get into the file."""
    answers = tmp_path / "answers.txt"
    command = f"{sys.executable} {WORKER} tiny --max-tokens 8 > {answers}"
    program = TerminalProgram(["/bin/sh", "-c", command], {})
    program.child.expect("main>")
    program.child.send("hello\n")
    program.child.expect("main>")
    program.child.send(CTRL_D)
    assert program.end() == 0
    program.close()
    assert re.search(FIGURES, answers.read_text(encoding="utf-8"))
    assert "main>" not in answers.read_text(encoding="utf-8")
