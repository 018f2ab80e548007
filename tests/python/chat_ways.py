"""Ways to use a chat: what goes on after an exception has the answers of a chat without one, or says what is missing.

Of the kind of ``ways.Run``. The answers themselves are read on to their very tokens, also where the context is full and
its oldest half goes. Of the lines of a chat each has happened or has not; an answer that was stopped is kept as far as
it came. Keys show on the terminal, which is a pseudo-terminal here, and a file is whole, with none beside it.
"""

from __future__ import annotations

import functools
import io
import json
import os
import sys
import tempfile
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kvtrie as kv
from kvtrie.cli import chat as program
from kvtrie.cli.chat import files
from kvtrie.cli.chat.answers import Answers
from kvtrie.cli.chat.commands import Chat
from kvtrie.cli.chat.conversation import Conversation, Turn
from kvtrie.cli.chat.screen import Screen
from kvtrie.cli.chat.settings import Settings
from random_models import random_model
from reference_llama import random_llama, save_checkpoint
from text_tokenizer import VOCAB, save_tokenizer
from ways import Run

COUNT = 5  # tokens of an answer


@functools.cache
def model_of(kind: str) -> Any:
    if kind != "llama":
        model = random_model(kind, vocab_size=VOCAB)
        model.tokenizer = model_of("llama").tokenizer
        return model
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_checkpoint(folder, *random_llama(3, vocab=VOCAB, eos_token_id=VOCAB - 1))
        return kv.models.load(save_tokenizer(folder))


class ChatWay(Run):
    """``options``: how a question is answered."""

    model_name, context, count, temperature = "llama", 512, COUNT, 0.0
    folder, closes = "cli/chat", ("cache",)

    def __init__(self, kind: str) -> None:
        self.model = model_of(self.model_name)
        self.cache: Any = kv.PrefixCache(self.model.caches(capacity=self.context, dtype="float32"), host_bytes=0)
        self.answers = Answers(self.model, self.cache, self.context)
        self.handed: list[Any] = []
        self.got: list[Any] = []
        self.begin()
        self.wanted = self.right()

    def begin(self) -> None:
        """What a run begins with."""

    @property
    def settings(self) -> Settings:
        return Settings(kv.Sampling(temperature=self.temperature, seed=1), self.count)

    @classmethod
    @functools.cache
    def right(cls) -> list[Any]:
        way = cls.undisturbed()
        way.go()
        found: list[Any] = way.tokens
        way.close()
        return found

    @classmethod
    def undisturbed(cls) -> Any:
        made = type("Undisturbed", (cls,), {"right": lambda self: []})
        return made("errors")

    @property
    def tokens(self) -> list[Any]:
        return list(self.got)

    def go(self) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        self.answers.close()
        self.open, self.got = None, []
        self.begin()


class Reading(ChatWay):
    """Answers that are read on, in one conversation."""

    questions: tuple[str, ...] = ("hello", "more", "and on")

    def begin(self) -> None:
        self.answers.forget()
        self.conversation = Conversation()
        self.turn: Any = None

    def go(self) -> None:
        while len(self.got) < len(self.questions):
            question = self.questions[len(self.got)]
            parent = self.conversation.tip if self.turn is None else self.turn.parent
            if self.turn is None:
                if self.open is None:
                    self.open = self.answers.begin(self.conversation, parent, question, self.settings.options())
                said = "".join(text for _, text in self.open)
                assert self.open.text.endswith(said)
                self.turn = Turn(parent, question, self.open.text, tuple(self.open.tokens))
            self.conversation.place(self.turn)
            self.answers.end(self.open, self.turn)
            self.open, self.turn, self.got = None, None, [*self.got, [*self.turn.tokens, self.open.dropped]]

    def leave(self) -> None:
        if self.open is not None:
            self.answers.end(self.open, None)
        super().leave()


class Shifting(Reading):
    """Where the oldest half goes, in an answer and before a question."""

    context, count, temperature = 128, 24, 2.0
    questions = ("hello", "and more of it", "x", "and on")


class Moving(Shifting):
    """Where keys cannot move, so that another session goes on."""

    model_name = "hybrid"


class Lines(ChatWay):
    """Lines of a chat, at a terminal."""

    lines = ("hello", "more", "/branch other", "elsewhere", "/retry", "/edit 1 in other words", "/switch main",
             "/undo", "/save {file}", "on", "/delete other", "/save {file}", "/load {file}", "and on")  # fmt: skip

    def begin(self) -> None:
        self.folder_of = tempfile.TemporaryDirectory()
        self.path = Path(self.folder_of.name) / "chat.json"
        self.done = 0
        self.terminal, keys = os.openpty()
        self.keys = open(keys)  # noqa: SIM115 (closed in `end`)
        self.before, sys.stdin = sys.stdin, self.keys
        self.chat = Chat(self.answers, self.settings, Screen(io.StringIO()))
        self.states: list[Any] = [self.said()]
        self.answers.forget()

    def end(self) -> None:
        sys.stdin = self.before
        self.chat.close()
        assert self.shows(), "keys do not show"
        self.keys.close()
        os.close(self.terminal)
        assert {each.name for each in self.path.parent.iterdir()} <= {"chat.json"}, "files are left"
        self.folder_of.cleanup()

    def shows(self) -> bool:
        return bool(termios.tcgetattr(self.keys)[3] & termios.ECHO)

    def said(self) -> Any:
        return json.loads(json.dumps(files.to_json(self.chat.conversation)))

    def go(self) -> None:
        wanted = self.wanted if self.wanted else None
        while self.done < len(self.lines):
            if wanted is not None:
                self.repair(wanted[self.done])
            self.play(self.lines[self.done].format(file=self.path))
            if wanted is not None and not self.happened(self.lines[self.done], wanted[self.done]):
                if self.stopped(wanted[self.done]):
                    continue  # again
                raise AssertionError(f"{self.lines[self.done]}: {self.said()}, want {wanted[self.done]}")
            self.states = [*self.states, self.said()]
            self.done += 1
        self.got = self.states[1:]

    def play(self, line: str) -> None:
        assert self.chat.handle(line)

    def saved(self) -> Any:
        """What is in the file, which is whole at any time; None: there is none yet."""
        return json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else None

    def happened(self, line: str, wanted: Any) -> bool:
        saved = not line.startswith("/save") or self.saved() == wanted
        return bool(saved and self.said() == wanted)

    def stopped(self, wanted: Any) -> bool:
        """Whether a line was stopped: the conversation is as before, or has a beginning of the answer."""
        now = self.said()
        if now == self.states[-1]:
            return True
        last, whole = (each["turns"][each["branches"][each["current"]]] for each in (now, wanted))
        question, said = last["messages"]
        begins = whole["tokens"][: len(last["tokens"])] == last["tokens"] and whole["messages"][0] == question
        if not begins or not whole["messages"][1]["content"].startswith(said["content"]):
            return False
        return now["branches"] == wanted["branches"] and len(now["turns"]) == len(wanted["turns"])

    def repair(self, wanted: Any) -> None:
        """Behind an exception: each line has happened, or has not, or has a beginning of its answer."""
        self.chat.settle()
        assert self.shows(), "keys do not show"
        if self.said() == self.states[-1]:
            return
        assert self.said() == wanted or self.stopped(wanted), f"{self.said()}, want {wanted} or a beginning"
        self.chat.conversation = files.from_json(self.states[-1])

    def leave(self) -> None:
        self.end()
        super().leave()

    def close(self) -> None:
        self.end()
        self.answers.close()
        self.cache.close()


class Talking(Lines):
    """The loop around it, that no Ctrl-C between two lines ends."""

    edits = False

    def play(self, line: str) -> None:
        self.waiting = [line, "/quit"]
        program._converse(self.chat, self, self.chat.screen)

    def read(self, prompt: str, text: str = "") -> str | None:
        return self.waiting.pop(0) if self.waiting else None


WAYS: tuple[Callable[[str], ChatWay], ...] = (Reading, Shifting, Moving, Lines, Talking)
