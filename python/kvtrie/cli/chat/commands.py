"""The lines of a chat: questions, and commands that begin with a slash."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

import kvtrie as kv

from ...viz.words import plural
from . import files
from .answers import Answer, Answers
from .conversation import Conversation, Turn
from .outline import tree_text
from .reader import Echo, Reader
from .report import explained, statistics
from .screen import Screen, figures
from .settings import SETTINGS, Settings, find
from .thinking import thinking_by


class _Asked(NamedTuple):
    """A question whose answer is being made, after ``parent``; its ``turn``, once there is something to keep."""

    answer: Answer
    parent: Turn | None
    question: str
    turn: Turn | None = None


class Chat:
    """One conversation between a reader and a model, shown on a screen.

    Ctrl-C may come at any point of :meth:`handle`, once or again: what was said by then is kept with the next line, and
    the terminal shows what is typed.
    """

    def __init__(self, answers: Answers, settings: Settings, screen: Screen, system: str = "") -> None:
        self.answers = answers
        self.settings = settings
        self.screen = screen
        self.conversation = Conversation(system)
        self.reader: Reader | None = None
        """The function that shows a question that is to be changed; None: nobody."""
        self._asked: _Asked | None = None
        self._echo = Echo(sys.stdin)

    @property
    def prompt(self) -> str:
        return f"{self.conversation.current}> "

    def handle(self, line: str) -> bool:
        """Does what one line asks for; False when the conversation is over. Errors become notes."""
        try:
            self.settle()
            if line.startswith("/") and not line.startswith("//"):
                return self._command(line.strip())
            question = line[1:] if line.startswith("//") else line
            self._ask(self.conversation.tip, question if self.answers.raw else question.strip())
        except (kv.Error, ValueError) as error:
            self.screen.note(f"error: {error}")
        except KeyboardInterrupt:
            self.screen.note("stopped")
        return True

    def complete(self, text: str) -> Iterable[str]:
        """The words that the last word of a command may become."""
        name, blank, _ = text.partition(" ")
        if not text.startswith("/"):
            return []
        if not blank:
            return [f"/{each}" for each in COMMANDS]
        own = {"/set": [setting.name for setting in SETTINGS], "/help": list(COMMANDS)}
        branches = list(self.conversation.branches) if name in ("/switch", "/delete") else []
        return own.get(name, branches) if text.count(" ") == 1 else []

    def settle(self) -> None:
        """Keeps what an answer said that was interrupted, and lets the terminal show what is typed."""
        self._echo.on()
        self._keep()

    def close(self) -> None:
        self._echo.on()
        asked, self._asked = self._asked, None
        if asked is not None:
            self.answers.end(asked.answer, None)
        self.answers.close()

    # --- questions ---------------------------------------------------------------------------------------------------

    def _ask(self, parent: Turn | None, question: str, tries: int = 0) -> None:
        """One turn after ``parent``. Where nothing comes of it, nothing has changed."""
        thinking = thinking_by(self.settings.thinking, self.answers.tokenizer, self.answers.raw)
        answer = self.answers.begin(self.conversation, parent, question, self.settings.options(tries), thinking)
        if answer.reuse.dropped:
            self._tell_dropped(answer.reuse.dropped)
        self._asked = _Asked(answer, parent, question)
        stopped = False
        try:
            self._show(answer)
        except KeyboardInterrupt:
            stopped = True
        finally:
            turn, aside = self._keep()
        self._tell(answer, stopped, turn, aside)

    def _keep(self) -> tuple[Turn | None, str]:
        """The answer so far becomes a turn, once; the second result is the branch of the turn in its place before, else
        ""."""
        asked = self._asked
        if asked is None:
            return None, ""
        answer, turn, aside = asked.answer, asked.turn, ""
        if turn is None and (answer.text or answer.reasoning or answer.finish_reason == "stop"):
            turn = Turn(asked.parent, asked.question, answer.text, tuple(answer.tokens), answer.reasoning)
            self._asked = asked._replace(turn=turn)
        if turn is not None:
            aside = self.conversation.place(turn)
        self.answers.end(answer, turn)
        self._asked = None
        return turn, aside

    def _show(self, answer: Answer) -> None:
        try:
            self._echo.off()
            with self.screen.progress(answer.reuse.computed) as progress:
                answer.watch(progress)
                self.screen.answer(answer, self.settings.reasoning == "shown")
        finally:
            self._echo.on()

    def _tell(self, answer: Answer, stopped: bool, turn: Turn | None, aside: str) -> None:
        """The lines below an answer."""
        if answer.dropped:
            self._tell_dropped(answer.dropped)
        if stopped and turn is None:
            return self.screen.note("stopped before the first word: the question is not part of the conversation")
        if not answer.text:
            more = " behind its reasoning" if answer.reasoning else ""
            self.screen.note(f"the model ended without a word{more}")
        self.screen.note(figures(answer) + (" | stopped" if stopped else ""))
        if answer.finish_reason == "length":
            self.screen.note(f"cut at max_tokens {self.settings.max_tokens}; /set max_tokens takes another number")
        if aside:
            self.screen.note(f"what stood there is now branch {aside}")

    def _tell_dropped(self, count: int) -> None:
        self.screen.note(
            f"the context of {self.answers.context:,} tokens is full: its oldest {count:,} went, the opening stays"
        )

    # --- commands ----------------------------------------------------------------------------------------------------

    def _command(self, line: str) -> bool:
        name, _, rest = line[1:].partition(" ")
        if name == "quit":
            return False
        if name not in COMMANDS:
            near = difflib.get_close_matches(name, COMMANDS, 1)
            hint = f"did you mean /{near[0]}? " if near else ""
            self.screen.note(f"there is no command /{name}; {hint}/help lists them, //{name} says it")
            return True
        COMMANDS[name].run(self, rest.strip())
        return True

    def _help(self, name: str) -> None:
        if name.lstrip("/") in COMMANDS:
            command = COMMANDS[name.lstrip("/")]
            return self.screen.note(f"{command.usage}\n{command.does.capitalize()}. {command.more}".rstrip())
        for command in COMMANDS.values():
            self.screen.note(f"{command.usage:<21} {command.does}")
        self.screen.note(KEYS)

    def _branch(self, name: str) -> None:
        before = self.conversation.current
        name = self.conversation.branch(name)
        self.screen.note(f"branch {name} goes on from here; /switch {before} goes back")

    def _switch(self, name: str) -> None:
        if not name:
            return self.screen.note(f"branches: {', '.join(self.conversation.branches)}")
        self.conversation.switch(name)
        turns = self.conversation.turns
        self.screen.note(f"branch {name}, {len(turns)} {'question' if len(turns) == 1 else 'questions'}")
        if turns:
            self.screen.note(f"> {turns[-1].question}\n{turns[-1].answer}")

    def _delete(self, name: str) -> None:
        self.conversation.delete(name)
        self.screen.note(f"branch {name} is gone")

    def _undo(self, _: str) -> None:
        turn = self.conversation.undo()
        self.screen.note(f"undone: {turn.question}")

    def _retry(self, _: str) -> None:
        turn = self.conversation.turn()
        if self.settings.sampling.temperature == 0:
            self.screen.note("at temperature 0 the answer is the same again; /set temperature 0.7 varies it")
        self._ask(turn.parent, turn.question, self.conversation.answers_to(turn))

    def _edit(self, rest: str) -> None:
        first, _, text = rest.partition(" ")
        numbered = first.isdecimal()
        turn = self.conversation.turn(int(first) if numbered else None)
        question = text.strip() if numbered else rest
        if not question:
            question = self._changed(turn.question)
        if question:
            self._ask(turn.parent, question, self.conversation.answers_to(turn) if question == turn.question else 0)

    def _changed(self, question: str) -> str:
        """The question as the reader leaves it; "" for nothing."""
        if self.reader is None or not self.reader.edits:
            raise kv.errors.ArgumentError("[edit] text: got none, allowed the new question: /edit 2 NEW QUESTION")
        try:
            return (self.reader.read("edit> ", question) or "").strip()
        except KeyboardInterrupt:
            return ""

    def _tree(self, _: str) -> None:
        self.screen.line(tree_text(self.conversation, self.screen.width, self.screen.is_ascii))

    def _explain(self, _: str) -> None:
        self.screen.note(explained(self.answers.last, self.answers.plan(), self.answers.tokenizer.decode))

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        if value and name == "thinking":
            thinking_by(value.strip(), self.answers.tokenizer, self.answers.raw)
        if value:
            self.settings.set(name, value.strip())
        if name:
            return self.screen.note(f"{name} {self.settings.shown(find(name).name)} (allowed: {find(name).allowed})")
        for setting in SETTINGS:
            self.screen.note(f"{setting.name:<18} {self.settings.shown(setting.name):<7} {setting.meaning}")

    def _save(self, path: str) -> None:
        _require(path, "save")
        files.save(self.conversation, path)
        count = len(self.conversation.all_turns())
        self.screen.note(f"saved {plural(count, 'turn')} to {path}")

    def _load(self, path: str) -> None:
        _require(path, "load")
        self.conversation = files.load(path)
        self.answers.forget()
        count, branches = len(self.conversation.all_turns()), ", ".join(self.conversation.branches)
        self.screen.note(f"loaded {plural(count, 'turn')}; branches: {branches}")

    def _cache(self, _: str) -> None:
        options = {"width": self.screen.width, "ascii_only": self.screen.is_ascii}
        self.screen.line(self.answers.cache.tree(self.answers.tokenizer.decode, **options))

    def _stats(self, _: str) -> None:
        for line in statistics(self.answers.cache.stats()).splitlines():
            self.screen.note(line)


class Command(NamedTuple):
    """``does`` in one line; ``more`` where there is more to know."""

    usage: str
    does: str
    run: Callable[[Chat, str], None]
    more: str = ""


COMMANDS = {
    command.usage[1:].partition(" ")[0]: command
    for command in (
        Command("/help [COMMAND]", "this list, or more on one of them", Chat._help),
        Command(
            "/retry", "another answer to the last question", Chat._retry,
            "The one before stays, on a branch of its own. Nothing of the question is computed again.",
        ),
        Command(
            "/edit [N] [TEXT]", "ask question N (the last) in other words", Chat._edit,
            "Without TEXT the old words are there to be changed. What came after them stays, on a branch of its own.",
        ),
        Command("/undo", "forget the last question and its answer", Chat._undo),
        Command(
            "/branch [NAME]", "go on from here on a new branch", Chat._branch,
            "The branch before stays where it is. What both have in common is stored once.",
        ),
        Command("/switch [NAME]", "go to another branch, or list them", Chat._switch),
        Command("/delete NAME", "forget a branch", Chat._delete, "What other branches have in common with it stays."),
        Command(
            "/tree", "what was said, with its branches", Chat._tree,
            "Names in brackets are branches, * is the current one, numbers are those for /edit.",
        ),
        Command(
            "/explain", "why the last prompt was reused as far as it was", Chat._explain,
            "What the cache knew of it, what had to be computed and why, and what would be reused now.",
        ),
        Command(
            "/set [NAME [VALUE]]", "how answers are made: temperature, top_p, ...", Chat._set,
            "Without a name all of them are listed, with what is allowed.",
        ),
        Command(
            "/save FILE", "write the conversation to a file, as JSON", Chat._save,
            "All branches, with the tokens of the answers, so that what is cached is found again after /load.",
        ),
        Command(
            "/load FILE", "go on with a saved conversation", Chat._load,
            "It comes in place of this one. A list of {role, content} messages loads, too.",
        ),
        Command("/cache", "what the cache holds, as a tree of tokens", Chat._cache),
        Command("/stats", "the cache in figures", Chat._stats),
        Command("/quit", "leave; so does Ctrl-D", lambda *_: None),
    )
}  # fmt: skip

KEYS = (
    "Alt-Enter begins a new line, so does Enter after a backslash; pasted text keeps its lines. Arrow-up brings back "
    "what was typed, in earlier chats, too. Ctrl-C stops an answer and keeps what was said. //text says /text."
)


def _require(path: str, command: str) -> None:
    if not path:
        raise kv.errors.ArgumentError(f"[{command}] file: got none, allowed the name of a file: /{command} chat.json")
