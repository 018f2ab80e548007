"""The conversation behind ``python -m kvtrie chat``: branches of one text, each a live session.

A turn begins a session on the whole text so far; what is already computed is found in the tree and reused. ``/undo``
and ``/retry`` rewind the session, ``/branch`` branches it: neither computes or copies any key or value.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

import numpy as np

import kvtrie as kv

HELP = "/branch NAME  /switch NAME  /undo  /retry  /tree  /stats  /help  /quit"


@dataclass(frozen=True)
class Settings:
    """How answers are made; ``chunk`` in tokens."""

    raw: bool = False
    system: str = ""
    max_tokens: int = 256
    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 0.95
    seed: int = 0
    chunk: int = 512
    show_progress: bool = False


@dataclass(frozen=True)
class Turn:
    """What stood before a user's line, and where the prompt for its answer ended (in tokens).

    ``start`` is the length before the line, or None when the prompt's tokens do not extend what stood there.
    """

    messages: list[dict[str, str]]
    text: str
    start: int | None
    prompt: int
    tries: int = 0


@dataclass
class Branch:
    """One line of conversation. ``text`` is exactly what ``session.tokens`` say."""

    messages: list[dict[str, str]]
    text: str = ""
    session: Any | None = None
    turns: list[Turn] = field(default_factory=list)

    def close(self) -> None:
        if self.session is not None:
            self.session.close()


class Chat:
    """Takes the user's lines, writes answers and one line of figures per turn to ``out``."""

    def __init__(self, model: Any, cache: Any, settings: Settings, out: TextIO) -> None:
        self._model = model
        self._tokenizer = model.tokenizer
        self._cache = cache
        self._settings = settings
        self._out = out
        first = [{"role": "system", "content": settings.system}] if settings.system else []
        self._branches = {"main": Branch(first)}
        self._current = "main"

    @property
    def prompt(self) -> str:
        return f"{self._current}> "

    @property
    def branch(self) -> Branch:
        return self._branches[self._current]

    def close(self) -> None:
        for branch in self._branches.values():
            branch.close()

    def handle(self, line: str) -> bool:
        """Does what one line asks for; False when the conversation is over. Errors become messages."""
        try:
            if line.startswith("/"):
                return self._command(*line[1:].split())
            self._say(line)
        except (kv.Error, ValueError) as error:
            self._print(f"  error: {error}")
        except KeyboardInterrupt:
            self._print("\n  stopped")
        return True

    def _command(self, name: str = "help", *arguments: str) -> bool:
        commands = {"undo": self._undo, "retry": self._retry, "tree": self._tree, "stats": self._stats}
        if name == "quit":
            return False
        if name == "branch":
            self._branch(arguments[0] if arguments else f"branch{len(self._branches)}")
        elif name == "switch":
            self._switch(arguments[0] if arguments else "main")
        elif name in commands:
            commands[name]()
        else:
            self._print(HELP)
        return True

    def _say(self, line: str) -> None:
        """One turn: the user's line, then the model's answer."""
        branch = self.branch
        messages = [*branch.messages, {"role": "user", "content": line}]
        said = self._said(branch)
        tokens, text = self._next_prompt(branch, said, messages, line)
        session = self._cache.begin(np.asarray(tokens, np.int32))
        start = len(said) if tokens[: len(said)] == said else None
        turn = Turn(branch.messages, branch.text, start, len(tokens))
        branch.close()
        branch.session, branch.text, branch.messages = session, text, messages
        branch.turns.append(turn)
        self._answer(branch, turn, session.reused, session.reason)

    @staticmethod
    def _said(branch: Branch) -> list[int]:
        return [] if branch.session is None else [int(token) for token in branch.session.tokens]

    def _next_prompt(
        self, branch: Branch, said: list[int], messages: list[dict[str, str]], line: str
    ) -> tuple[list[int], str]:
        """(tokens, text) of the next prompt.

        Where its text extends what was said, so do its tokens: the tokenizer need not cut what the model wrote into the
        same tokens again.
        """
        if self._settings.raw:
            text = branch.text + line
        else:
            text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        if said and text.startswith(branch.text):
            return said + self._tokenizer.encode(text[len(branch.text) :], add_special_tokens=False), text
        return self._tokenizer.encode(text, add_special_tokens=self._settings.raw), text

    def _answer(self, branch: Branch, turn: Turn, reused: int, reason: Any = "") -> None:
        session = branch.session
        assert session is not None
        computed = len(session.remaining)
        begin = time.perf_counter()
        answer = self._write(branch, computed, self._settings.seed + turn.tries)
        first = answer.seconds_to_first or 0.0
        seconds, count = max(time.perf_counter() - begin - first, 1e-9), len(answer.tokens)
        rate = max(count - 1, 0) / seconds
        self._print(
            f"  prompt {turn.prompt} | reused {reused} | computed {computed} in {first * 1e3:.0f} ms | "
            f"{count} tokens at {rate:.1f}/s" + (f" | {reason}" if reason and computed > 1 else "")
        )

    def _write(self, branch: Branch, computed: int, seed: int) -> kv.Generation:
        """Streams the answer; whatever ends it, the branch says what was written."""
        settings = self._settings
        assert branch.session is not None
        stream = self._tokenizer.stream()
        pieces: list[str] = []
        bar = self._bar(computed)
        answer = kv.generate(
            self._model,
            branch.session,
            settings.max_tokens,
            settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            seed=seed,
            chunk=settings.chunk,
            progress=None if bar is None else lambda done, _: bar.update(done - bar.n),
        )
        try:
            for token in answer:
                if bar is not None:
                    bar.close()
                pieces.append(stream.feed(token))
                self._print(pieces[-1], end="")
            pieces.append(stream.finish())
            self._print(pieces[-1])
        finally:
            if bar is not None:
                bar.close()
            branch.text += self._tokenizer.decode(answer.tokens)
            branch.messages = [*branch.messages, {"role": "assistant", "content": "".join(pieces)}]
        return answer

    def _bar(self, tokens: int) -> Any:
        """A bar for a prompt that is more than one step; None where there is nothing to wait for."""
        if not self._settings.show_progress or tokens <= self._settings.chunk:
            return None
        from tqdm import tqdm

        return tqdm(total=tokens, unit="tok", desc="prefill", leave=False)

    def _undo(self) -> None:
        branch = self.branch
        if not branch.turns:
            return self._print("  nothing to undo")
        turn = branch.turns.pop()
        assert branch.session is not None
        branch.messages, branch.text = turn.messages, turn.text
        if turn.start is None:
            branch.close()
            branch.session, branch.text = None, ""
            return self._print("  undone; the text before is laid out anew")
        begin = time.perf_counter()
        self._go_back(branch, turn.start)
        micros = (time.perf_counter() - begin) * 1e6
        self._print(f"  rewound to {turn.start} tokens in {micros:.0f} us")

    def _go_back(self, branch: Branch, length: int) -> Any:
        """To the first ``length`` tokens; by a new session from the nearest state where none is kept at that length."""
        session = branch.session
        assert session is not None
        try:
            session.rewind(length)
        except kv.NotRestorable:
            branch.session = self._cache.begin(session.tokens[:length])
            session.close()
        return branch.session

    def _retry(self) -> None:
        """The last answer again, with the next seed: all but the prompt's last token is still there."""
        branch = self.branch
        if not branch.turns:
            return self._print("  nothing to retry")
        turn = replace(branch.turns[-1], tries=branch.turns[-1].tries + 1)
        session = branch.session
        assert session is not None
        tokens = session.tokens
        session = self._go_back(branch, turn.prompt - 1)
        session.append(int(tokens[turn.prompt - 1]))
        answered = self._tokenizer.decode([int(token) for token in tokens[turn.prompt :]])
        branch.turns[-1] = turn
        branch.messages = branch.messages[:-1]
        branch.text = branch.text.removesuffix(answered)
        self._answer(branch, turn, session.length)

    def _branch(self, name: str) -> None:
        if name in self._branches:
            return self._print(f"  there is a branch {name!r}; /switch {name} goes there")
        here = self.branch
        begin = time.perf_counter()
        session = here.session.branch() if here.session is not None else None
        micros = (time.perf_counter() - begin) * 1e6
        self._branches[name] = Branch(list(here.messages), here.text, session, list(here.turns))
        self._current = name
        self._print(f"  branched in {micros:.0f} us")

    def _switch(self, name: str) -> None:
        if name not in self._branches:
            return self._print(f"  no branch {name!r}; there are: {', '.join(self._branches)}")
        self._current = name

    def _tree(self) -> None:
        self._print(self._cache.tree())

    def _stats(self) -> None:
        stats = self._cache.stats()
        pools = {
            f"{name} {i}: {key}": value
            for name, part in (("cache", "caches"), ("recurrent", "recurrent"))
            for i, pool in enumerate(stats.pop(part, ()))
            for key, value in pool.items()
        }
        for name, part in list(stats.items()):
            if isinstance(part, dict):
                stats.update({f"{name}: {key}": value for key, value in stats.pop(name).items()})
        for name, value in {**pools, **stats}.items():
            if isinstance(value, (int, float)):
                self._print(f"  {name.replace('_', ' '):<24} {value:>14,}")

    def _print(self, text: str, end: str = "\n") -> None:
        print(text, end=end, file=self._out, flush=True)
