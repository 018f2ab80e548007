"""Answers of a model to a conversation, over one prefix cache.

Every answer has a session of its own: what earlier ones computed is found in the tree, whichever branch they belong
to. Where a conversation meets the limit of its context, its oldest half goes (``session.shift``). Everything that is
computed from then on belongs to that session alone, so it stays open for the next question in the same place.

Ctrl-C may come between any two statements, and an answer can be read on after it: it has the tokens of its generations,
and its text follows from them. A session that is kept stays so until the answer that goes on in it has ended; what an
interrupted question left in it is taken off again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import kvtrie as kv

from ..._decoding import Progress
from ..._handing import Handing
from ...draft import Draft
from ...thinking.asked import Thinking
from ...thinking.limit import ThinkingLimit
from ...thinking.piece_reader import Piece
from .conversation import Conversation, Turn, line_of
from .layout import Laid, Layout
from .parts import AnswerParts
from .thinking import AS_IT_LIKES, unshifted

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
    # As it was before the prompt began; None: it followed from no match.
    explanation: kv.results.Explanation | None = None

    @property
    def computed(self) -> int:
        return len(self.tokens) - self.reused


class _Making(NamedTuple):
    """``earlier``: tokens of the answer before those of ``generation``. ``left``: where keys cannot move, the tokens
    that the next session begins with; this one's is of no more use."""

    generation: kv.Generation[int]
    earlier: list[int]
    left: list[int] | None = None


class Answer(Handing[Piece]):
    """Pieces of one answer, reasoning and text in whole characters, made as they are asked for. It can be left at any
    of them, and read on after any exception. ``most``: tokens of reasoning; None: any number."""

    def __init__(
        self, answers: Answers, laid: Laid, session: kv.Session, reuse: Reuse, options: Options, most: int | None = None
    ) -> None:
        self._answers = answers
        self._laid = laid
        self._options = options
        self._watching: list[Progress] = []  # apart from the answer: nothing that is dropped leads back to itself
        self._parts = answers.parts(laid.text)
        reader = None if most is None else self._parts.reader
        self._limit = None if most is None or reader is None else ThinkingLimit(answers.tokenizer, reader, most)
        self._dropped = 0
        self.reuse = reuse
        self.seconds_to_first: float | None = None
        self._now = _Making(self._begin(session, 0), [])
        self._began = time.perf_counter()
        self._last = self._began

    @property
    def _items(self) -> list[Piece]:
        self._parts.read(self.tokens, ended=self.finish_reason is not None)
        return self._parts.pieces

    def _make(self) -> bool:
        if self.finish_reason is not None:
            return False
        self._make_room()
        if next(self._now.generation, None) is not None:
            self._last = time.perf_counter()
            if self.seconds_to_first is None:
                self.seconds_to_first = self._last - self._began
        return True

    @property
    def tokens(self) -> list[int]:
        """The tokens chosen so far."""
        now = self._now
        return [*now.earlier, *now.generation.tokens] if now.earlier else now.generation.tokens

    @property
    def text(self) -> str:
        """Their text, without the reasoning."""
        return "".join(text for kind, text in self._items if kind == "text")

    @property
    def reasoning(self) -> str:
        """What they say before it; "": nothing."""
        return "".join(text for kind, text in self._items if kind == "reasoning")

    @property
    def dropped(self) -> int:
        """Tokens that went while it was made."""
        if not self.session.closed:
            self._dropped = len(self.reuse.tokens) + len(self.tokens) - int(self.session.recorded)
        return self._dropped

    def watch(self, progress: Progress | None) -> None:
        """Calls ``progress`` with (tokens of the prompt that are computed, and to be computed)."""
        self._watching[:] = [] if progress is None else [progress]

    @property
    def session(self) -> kv.Session:
        return self._now.generation._decoding.live

    @property
    def finish_reason(self) -> str | None:
        """ "stop", "length", or None for an answer that was left."""
        return self._now.generation.finish_reason

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
        now, session = self._now, self.session
        if now.left is None:
            now.generation._decoding.settle()  # it may have been interrupted behind its last token
            if self.finish_reason is not None or not self.tokens or int(session.recorded) < self._answers.context:
                return
            left = self._answers.shift(session)
            if left is None:
                return
            self._now = now = now._replace(left=left)
        tokens = list(self.tokens)
        self._dropped = len(self.reuse.tokens) + len(tokens) - len(now.left or ())
        session.close()  # there may be no room for both
        moved = self._answers.cache.begin(np.asarray(now.left, np.int32))
        self._now = _Making(self._begin(moved, len(tokens)), tokens)

    def _begin(self, session: kv.Session, made: int) -> kv.Generation[int]:
        options = {**self._options, "max_tokens": self._options["max_tokens"] - made, "chunk": CHUNK}
        if self._limit is not None:
            options["logits_processors"] = [unshifted(self._limit, self._shown(made), len(session.tokens))]
        own = self._answers
        told = partial(_tell, self._watching)
        return kv.generate(own.model, session, **options, draft=own.draft, progress=told)

    def _shown(self, made: int) -> list[int]:
        """The prompt and the tokens that earlier sessions made, whatever a shift took from them."""
        return [*self.reuse.tokens, *(self.tokens if made else ())]


def _tell(watching: list[Progress], done: int, total: int) -> None:
    for progress in watching:
        progress(done, total)


class _Kept(NamedTuple):
    """A session that was shifted, the turn that it ends with, and how many tokens it has by then."""

    turn: Turn
    session: kv.Session
    recorded: int


class Answers:
    """``context``: tokens of the longest conversation, at most what the model and its caches have room for. ``draft``:
    as in ``kv.generate``."""

    def __init__(
        self,
        model: kv.models.Model,
        cache: kv.PrefixCache,
        context: int,
        raw: bool = False,
        draft: Draft = None,
    ) -> None:
        self.model = model
        self.draft = draft
        self.tokenizer = model.tokenizer
        self.cache = cache
        self.context = context
        self.raw = raw
        self.last: Reuse | None = None
        """Of the prompt before; None: there was none yet."""
        self._layout = Layout(self.tokenizer, self.parts, raw)
        self._system = ""
        self._kept: _Kept | None = None

    def begin(
        self,
        conversation: Conversation,
        parent: Turn | None,
        question: str,
        options: Options,
        thinking: Thinking = AS_IT_LIKES,
    ) -> Answer:
        """An answer to ``question`` after ``parent``; ``options``: those of ``kv.generate``; ``thinking``: of
        ``Thinker``.

        Raises ``kv.errors.ArgumentError`` for a question that is longer than what there is room for. :meth:`end` is due
        for each that is returned.
        """
        self._system = conversation.system
        self._layout.variables = thinking.variables
        laid = self._layout.prompt(self._system, line_of(parent), question)
        session, reuse = self._session(parent, question, laid)
        self.last = reuse
        try:
            return Answer(self, laid, session, reuse, options, thinking.most)
        except BaseException:
            if self._kept is None or self._kept.session is not session:
                session.close()
            raise

    def end(self, answer: Answer, turn: Turn | None) -> None:
        """Keeps what was computed for ``turn``, or None if nothing is to come of the answer. It may be called again."""
        session, kept = answer.session, self._kept
        shifted = bool(answer.dropped or answer.reuse.dropped or answer.reuse.in_place)
        if turn is not None and not session.closed:
            self._layout.remember(self._system, turn, answer.said())
        if turn is None and kept is not None and kept.session is session:
            return  # it goes back to the end of its turn with the next question
        if turn is not None and shifted and not session.closed:
            self._kept = _Kept(turn, session, int(session.recorded))
        else:
            session.close()
            self._let_go()

    def parts(self, prompt: str) -> AnswerParts:
        """Those of an answer behind the text ``prompt``, of which nothing was read yet."""
        return AnswerParts(self.model, None if self.raw else self.tokenizer.template().source, prompt)

    def plan(self) -> kv.results.ReusePlan | None:
        """The reuse of the last prompt if it came again now: a ``kv.results.ReusePlan``, or None where none was."""
        return None if self.last is None else self.cache.plan(np.asarray(self.last.tokens, np.int32))

    def forget(self) -> None:
        """Another conversation begins; what was computed stays."""
        self._let_go()
        self._layout.forget()

    def close(self) -> None:
        self._let_go()

    def shift(self, session: kv.Session) -> list[int] | None:
        """Lets its oldest half go; the opening stays. Where keys cannot move nothing happens, and the result is what
        another session is to begin with."""
        left = session.shift(self._opening(), limit=self.context)
        return None if left is None else [int(token) for token in left.tokens]

    def _session(self, parent: Turn | None, question: str, laid: Laid) -> tuple[kv.Session, Reuse]:
        """Where the answer begins: in the session that was kept, behind a shift, or behind what the tree knows."""
        kept = self._taken(parent)
        if kept is not None and laid.new < len(laid.tokens) and self._fits_behind_a_shift(laid.new):
            return self._go_on(kept, laid, in_place=True)
        self._let_go()
        if len(laid.tokens) < self.context:
            return self._from_the_tree(laid.tokens)
        if laid.new < len(laid.tokens) and self._fits_behind_a_shift(laid.new):
            said = np.asarray(laid.tokens[: -laid.new], np.int32)
            session = self.cache.begin(said, reuse_all=True)
            assert parent is not None  # something was said
            self._kept = _Kept(parent, session, len(said))  # before a shift takes from the tree what is in it
            return self._go_on(session, laid, in_place=False)
        return self._without_the_oldest(question, laid)

    def _go_on(self, session: kv.Session, laid: Laid, in_place: bool) -> tuple[kv.Session, Reuse]:
        """Appends the question, where need be behind a shift."""
        said = len(laid.tokens) - laid.new
        if int(session.recorded) + laid.new >= self.context:
            left = self.shift(session)
            if left is not None:
                session.close()  # there may be no room for both
                session = self.cache.begin(np.asarray(left, np.int32))
        if self._kept is not None:
            self._kept = self._kept._replace(session=session, recorded=int(session.recorded))
        dropped = said - int(session.recorded)
        known = int(session.length)
        session.append(np.asarray(laid.tokens[-laid.new :], np.int32))
        tokens = [int(token) for token in session.tokens]
        reason = "" if not dropped else "shifted: the conversation met the limit of its context"
        return session, Reuse(tokens, known, known, reason, str(session.tier), 0, dropped, in_place)

    def _without_the_oldest(self, question: str, laid: Laid) -> tuple[kv.Session, Reuse]:
        """The opening and the latest half of the context, or of all that was said the question alone."""
        alone = self._layout.prompt(self._system, (), question).tokens
        if len(alone) >= self.context:
            raise kv.errors.ArgumentError(
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
        """The session that is kept for this place, without what a question that was interrupted left in it. One that is
        kept for elsewhere, or cannot go back, is closed."""
        kept = self._kept
        if kept is None or kept.turn is not parent or kept.session.closed:
            self._let_go()
            return None
        if kept.session.recorded > kept.recorded:
            if not kept.session.can_rewind(kept.recorded):
                self._let_go()
                return None
            kept.session.rewind(kept.recorded)
        return kept.session

    def _let_go(self) -> None:
        if self._kept is not None:
            self._kept.session.close()
        self._kept = None


def _reuse_of(session: kv.Session, tokens: Sequence[int], dropped: int, explanation: kv.results.Explanation) -> Reuse:
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
