"""Answers of a model to a conversation, over one prefix cache.

Every answer has a session of its own: what earlier ones computed is found in the tree, whichever branch they belong
to. Where a conversation meets the limit of its context, its oldest half goes (``session.shift``). What is computed from
then on belongs to that session alone, so it stays open for the next question in the same place.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import kvtrie as kv

from ...generate import Progress
from .conversation import Conversation, Turn, line_of
from .layout import Laid, Layout

CHUNK = 512  # tokens of a prefill step

Options = dict[str, Any]  # arguments of kv.generate, as the settings have them


@dataclass(frozen=True)
class Reuse:
    """How much of a prompt need not be computed, in tokens, and why not more; ``dropped`` went before it began."""

    tokens: list[int]
    matched: int
    reused: int
    reason: str
    tier: str
    bytes_moved: int
    dropped: int = 0
    in_place: bool = False  # went on in the session of the answer before
    explanation: kv.Explanation | None = None  # as it was before the prompt began; None: it followed from no match

    @property
    def computed(self) -> int:
        return len(self.tokens) - self.reused


class Answer(Iterator[str]):
    """Pieces of one answer, in whole characters, made as they are asked for. It can be left at any of them."""

    def __init__(self, answers: Answers, laid: Laid, session: kv.Session, reuse: Reuse, options: Options) -> None:
        self._answers = answers
        self._laid = laid
        self._options = options
        self._progress: Progress | None = None
        self._stream = answers.tokenizer.stream()
        self.reuse = reuse
        self.text = ""
        self.tokens: list[int] = []
        self.dropped = 0
        """Tokens that went while it was made."""
        self.seconds_to_first: float | None = None
        self._generation = self._begin(session)
        self._began = time.perf_counter()
        self._last = self._began

    def __iter__(self) -> Answer:
        return self

    def __next__(self) -> str:
        while True:
            self._make_room()
            token = next(self._generation, None)
            if token is None:
                piece: str = self._stream.finish()
                self.text += piece
                if piece:
                    return piece
                raise StopIteration
            self.tokens.append(token)
            self._last = time.perf_counter()
            if self.seconds_to_first is None:
                self.seconds_to_first = self._last - self._began
            piece = self._stream.feed(token)
            if piece:
                self.text += piece
                return piece

    def watch(self, progress: Progress | None) -> None:
        """Calls ``progress`` with (tokens of the prompt that are computed, and to be computed)."""
        self._progress = progress

    @property
    def session(self) -> kv.Session:
        return self._generation.live

    @property
    def finish_reason(self) -> str | None:
        """ "stop", "length", or None for an answer that was left."""
        return self._generation.finish_reason

    @property
    def tokens_per_second(self) -> float | None:
        """After the first one; None for fewer than two."""
        if len(self.tokens) < 2:
            return None
        return (len(self.tokens) - 1) / max(self._last - self._began - (self.seconds_to_first or 0.0), 1e-9)

    def said(self) -> Laid:
        """The text and the tokens up to its end, as they are now."""
        ending = self._answers.tokenizer.decode(self.tokens)
        return Laid(self._laid.text + ending, [int(token) for token in self.session.tokens])

    def _make_room(self) -> None:
        """Where the last token would be the context's last one, the oldest half goes first."""
        session = self.session
        if self.finish_reason is not None or not self.tokens or int(session.recorded) < self._answers.context:
            return
        moved, gone = self._answers.shift(session)
        self.dropped += gone
        if moved is not session:
            self._generation = self._begin(moved)

    def _begin(self, session: kv.Session) -> kv.Generation:
        options = {**self._options, "max_tokens": self._options["max_tokens"] - len(self.tokens), "chunk": CHUNK}
        return kv.generate(self._answers.model, session, **options, progress=self._tell)

    def _tell(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)


class Answers:
    """``context``: tokens of the longest conversation, at most what the model and its caches have room for."""

    def __init__(self, model: kv.models.Model, cache: kv.PrefixCache, context: int, raw: bool = False) -> None:
        self.model = model
        self.tokenizer = model.tokenizer
        self.cache = cache
        self.context = context
        self.raw = raw
        self.last: Reuse | None = None
        """Of the prompt before; None: there was none yet."""
        self._layout = Layout(self.tokenizer, raw)
        self._system = ""
        self._kept: tuple[Turn, kv.Session] | None = None  # a session that was shifted, and the turn that it ends with

    def begin(self, conversation: Conversation, parent: Turn | None, question: str, options: Options) -> Answer:
        """An answer to ``question`` after ``parent``; ``options``: those of ``kv.generate``.

        Raises ``kv.ArgumentError`` for a question that is longer than what there is room for. :meth:`end` is due for
        each that is returned.
        """
        self._system = conversation.system
        laid = self._layout.prompt(self._system, line_of(parent), question)
        session, reuse = self._session(parent, question, laid)
        self.last = reuse
        try:
            return Answer(self, laid, session, reuse, options)
        except BaseException:
            session.close()
            raise

    def end(self, answer: Answer, turn: Turn | None) -> None:
        """Keeps what was computed for ``turn``, or None if nothing is to come of the answer."""
        session = answer.session
        shifted = bool(answer.dropped or answer.reuse.dropped or answer.reuse.in_place)
        if turn is not None and not session.closed:
            self._layout.remember(self._system, turn, answer.said())
        if turn is not None and shifted and not session.closed:
            self._kept = (turn, session)
        else:
            session.close()

    def plan(self) -> kv.ReusePlan | None:
        """What the last prompt would reuse if it came again now: a ``kv.ReusePlan``, or None where none was."""
        return None if self.last is None else self.cache.plan(np.asarray(self.last.tokens, np.int32))

    def forget(self) -> None:
        """Another conversation begins; what was computed stays."""
        self._let_go()
        self._layout.forget()

    def close(self) -> None:
        self._let_go()

    def shift(self, session: kv.Session) -> tuple[kv.Session, int]:
        """(a session with its oldest half gone, how many tokens that was); the opening stays."""
        before = int(session.recorded)
        left = session.shift(self._opening(), limit=self.context)
        if left is None:
            return session, before - int(session.recorded)
        session.close()
        moved = self.cache.begin(np.asarray(left.tokens, np.int32))
        return moved, before - len(left.tokens)

    def _session(self, parent: Turn | None, question: str, laid: Laid) -> tuple[kv.Session, Reuse]:
        """Where the answer begins: in the session that was kept, behind a shift, or behind what the tree knows."""
        kept = self._taken(parent)
        if kept is not None and laid.new < len(laid.tokens) and self._fits_behind_a_shift(laid.new):
            return self._go_on(kept, laid, in_place=True)
        if kept is not None:
            kept.close()
        if len(laid.tokens) < self.context:
            return self._from_the_tree(laid.tokens)
        if laid.new < len(laid.tokens) and self._fits_behind_a_shift(laid.new):
            said = np.asarray(laid.tokens[: -laid.new], np.int32)
            return self._go_on(self.cache.begin(said, reuse_all=True), laid, in_place=False)
        return self._without_the_oldest(question, laid)

    def _go_on(self, session: kv.Session, laid: Laid, in_place: bool) -> tuple[kv.Session, Reuse]:
        """Appends the question, where need be behind a shift."""
        dropped = 0
        try:
            if int(session.recorded) + laid.new >= self.context:
                session, dropped = self.shift(session)
            known = int(session.length)
            session.append(np.asarray(laid.tokens[-laid.new :], np.int32))
        except BaseException:
            session.close()
            raise
        tokens = [int(token) for token in session.tokens]
        reason = "" if not dropped else "shifted: the conversation met the limit of its context"
        return session, Reuse(tokens, known, known, reason, str(session.tier), 0, dropped, in_place)

    def _without_the_oldest(self, question: str, laid: Laid) -> tuple[kv.Session, Reuse]:
        """The opening and the latest half of the context, or of all that was said the question alone."""
        alone = self._layout.prompt(self._system, (), question).tokens
        if len(alone) >= self.context:
            raise kv.ArgumentError(
                f"[chat] question: got {len(alone)} tokens, allowed up to {self.context - 1}: the context, less one "
                "for the answer"
            )
        opening = self._opening()
        latest = (self.context - opening) // 2
        tokens = laid.tokens[:opening] + laid.tokens[-latest:] if len(alone) - opening < latest else alone
        return self._from_the_tree(tokens, len(laid.tokens) - len(tokens))

    def _from_the_tree(self, tokens: Sequence[int], dropped: int = 0) -> tuple[kv.Session, Reuse]:
        prompt = np.asarray(tokens, np.int32)
        explanation = self.cache.explain(prompt)
        session = self.cache.begin(prompt)
        return session, _reuse_of(session, tokens, dropped, explanation)

    def _fits_behind_a_shift(self, new: int) -> bool:
        return new < (self.context - self._opening()) // 2

    def _opening(self) -> int:
        """At most half of the context."""
        return min(self._layout.opening(self._system), self.context // 2)

    def _taken(self, parent: Turn | None) -> kv.Session | None:
        """The session that was kept for this place; it is no longer kept. One kept for elsewhere is closed."""
        if self._kept is None or self._kept[0] is not parent:
            self._let_go()
            return None
        session = self._kept[1]
        self._kept = None
        return session

    def _let_go(self) -> None:
        if self._kept is not None:
            self._kept[1].close()
        self._kept = None


def _reuse_of(session: kv.Session, tokens: Sequence[int], dropped: int, explanation: kv.Explanation) -> Reuse:
    return Reuse(
        list(tokens),
        session.matched,
        session.reused,
        str(session.reason),
        str(session.tier),
        session.bytes_moved,
        dropped,
        explanation=explanation,
    )
