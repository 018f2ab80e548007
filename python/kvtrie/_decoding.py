"""One answer as it is made: the state that a :class:`Generation` and a :class:`Request` share, and nobody else changes.

    Generation   its caller drives it, token by token
    Request      the thread of a ``Batcher`` drives it, and publishes what came (_published.py)
    Batch        drives several, for either

Order of events, for every token: sample, record it in the session, hand it out, and only when the next one is asked for
compute it. So when the caller stops listening - or the text ends - every token that was handed out is in
``session.tokens``, and the last one is recorded, not computed.

An exception may come between any two statements: KeyboardInterrupt, what a callback raises, no memory. So what must
change as one changes in one call of the core, ``session.accept``: it records the token and lists it. All else follows
from that, and is worked out again by the next read:

    tokens         what was accepted; nothing takes one back
    ready          logits with the number of tokens that they follow: of no use once the session has others
    stopper        what it says about ``tokens`` (stopping.py)
    finish_reason  "stop" by the stopper, "length" by the count, "closed" by the caller; set once the session is closed

Logits that were lost are computed again (``session.recompute``), to the same bits.

With drafts (draft.py) one step checks several tokens, and those that are right come at once: they are recorded,
computed and listed in one call, ``step.accept``, and the token behind them is chosen as ever.

Threads: one drives it; ``close`` may come from any. Lengths are counted in tokens.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from . import _core
from ._arguments import refusal
from ._checked import Checked, Checking, Drawn, begins_of
from ._drafting import MOST_STATES, Costs, Drafting
from ._prompt_logprobs import PromptLogprobs
from ._prompts import position_limit_of, vocab_size_of
from ._protocols import Logits, StepModel
from ._step_seconds import StepSeconds
from ._values import Reason
from .awaited import Left
from .draft import Draft, drafters
from .draws import Draw
from .errors import ArgumentError, CacheFullError, ClosedError
from .sampling import Choice, Sampler, TokenLogprob
from .stopping import Stopper

__all__ = ["Beginning", "Decoding", "Origin", "Progress"]

Progress = Callable[[int, int], None]  # tokens of the prompt that are computed, and to be computed


class _RowsModel(Protocol):
    def __call__(self, step: _core.Step, all_rows: bool) -> Logits: ...


class Ready(NamedTuple):
    """The logits that the next token is chosen by."""

    logits: Logits  # [1, vocab]
    length: int  # tokens of the session that they follow


class Beginning(NamedTuple):
    """The part of a prompt that the cache had when its session began."""

    matched: int
    """Tokens of the prompt that were known."""
    reused: int
    """Tokens that it went on from; others that came in meanwhile are not counted."""
    tier: str
    """Where they were before."""
    reason: Reason
    """Why fewer are reused than are known."""

    @classmethod
    def of(cls, session: _core.Session) -> Beginning:
        """Of a session that has just begun."""
        return cls(session.matched, session.reused, session.tier, session.reason)


class Origin(NamedTuple):
    """The tokens and options that a batch begins its session from."""

    prompt: npt.NDArray[np.int32]
    namespace: str
    checkpoints: frozenset[int] = frozenset()
    """Lengths where a restore point is kept."""
    alone: bool = False
    """It reuses nothing, and nothing of it is kept."""
    told: PromptLogprobs | None = None
    """The prompt's log-probabilities, where they were asked for."""


def drafting_of(model: StepModel, draft: Draft, costs: Costs | None = None) -> Drafting | None:
    """None: nothing is drafted. ``costs``: those of the steps that it shares with others. ``ArgumentError`` for a model
    that gives only the logits of last rows."""
    found = drafters(draft, model)
    if not found:
        return None
    if not takes(model, "all_rows"):
        raise ArgumentError("[generate] draft: got a model that takes no all_rows, allowed one that gives them")
    own = Costs(StepSeconds.known(model, shared=False)) if costs is None else costs
    drafting = Drafting(found, own, vocab_size_of(model))
    if drafting.breadth > 1 and (costs is not None or drafting.watches):
        where, why = ("batch", "lines of drafts") if costs is not None else ("generate", "one of the two")
        beside = "" if costs is not None else " beside a prediction head"
        raise ArgumentError(f"[{where}] draft: got a tree of drafts{beside}, allowed {why}")
    return drafting


def takes(model: StepModel, name: str) -> bool:
    """Whether it has an argument of that name."""
    try:
        parameters = inspect.signature(model).parameters.values()
    except (TypeError, ValueError):  # of a built-in: it is tried
        return True
    return any(each.name == name or each.kind is each.VAR_KEYWORD for each in parameters)


class Decoding:
    """Either a ``session`` is there from the beginning, or a batch begins one from ``origin``.

    ``owned``: the session is closed with it. ``logits`` [1, vocab] follow all tokens of the session. ``prompt_tokens``:
    of a session that a caller has, all that it holds by now.
    """

    def __init__(
        self,
        model: StepModel,
        sampler: Sampler,
        stopper: Stopper,
        *,
        max_tokens: int,
        chunk: int,
        session: _core.Session | None = None,
        origin: Origin | None = None,
        logits: Logits | None = None,
        progress: Progress | None = None,
        owned: bool = False,
        drafting: Drafting | None = None,
    ) -> None:
        self._model = model if drafting is None else drafting.watched(model)
        self._sampler = sampler
        self._max_tokens = max_tokens
        self._chunk = chunk
        self._progress = progress
        self._owned = owned
        self.drafting = drafting
        self._drawn: Drawn | None = None  # by a step that checked drafts
        self._asked_at: float | None = None
        self._origin = origin
        self.stopper = stopper
        self.session = session
        self._ready = None if logits is None else Ready(logits, self.live.recorded)
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: str | None = None
        self.seconds_to_first: float | None = None
        self.closing = False  # nothing more is wanted of it
        self.beginning = None if session is None else Beginning.of(session)  # of its first session
        self.prompt_tokens: int = self.live.recorded if origin is None else len(origin.prompt)
        self.taken = False  # by its batch
        self.computed = 0  # rows of the prompt, in a batch; more than it has where room had to be given back

    @property
    def live(self) -> _core.Session:
        """``session``; ``kv.errors.ClosedError`` for one that waits in a batch, or was closed there: it has none."""
        if self.session is None:
            raise ClosedError("[generate] it has no session: it was closed, or waits for its place")
        return self.session

    @property
    def origin(self) -> Origin:
        """REQUIRES: one that a batch drives."""
        assert self._origin is not None
        return self._origin

    # --- a token more -----------------------------------------------------------------------------------------------

    def advance(self, left: Callable[[], bool]) -> bool:
        """Computes what the next token needs, and takes one; False where it has ended.

        Between two chunks of a prompt ``left`` says whether nobody waits any more: it raises ``Left`` then.
        """
        self.settle()
        if self.finish_reason is not None:
            return False
        if self._asked_at is None:
            self._asked_at = time.perf_counter()
        began = time.perf_counter()
        rows, paths = 0, 1
        if self.ready is None:
            checked = self._verify()
            rows, paths = sum(map(len, checked)) + len(checked), len(checked)
            if rows == 0:
                rows, paths = int(self.in_answer), 1
                self._ready = self._compute(left)
        self.choose()
        if self.drafting is not None and rows > 0:
            self.drafting.stepped(rows, time.perf_counter() - began, paths)
        return True

    @property
    def ready(self) -> Ready | None:
        """The logits that the next token is chosen by; None: to be computed."""
        found = self._ready
        return found if found is not None and self.live.recorded == found.length else None

    def offer(self, logits: Logits, length: int) -> None:
        """``logits`` [1, vocab] follow ``length`` tokens of the session."""
        self._ready = Ready(logits, length)

    @property
    def on_device(self) -> bool:
        """Whether its token is chosen without its logits on the host."""
        return self._sampler.sampling.on_device

    def draw(self, vocab_size: int) -> Draw:
        """The draw that decides its next token. REQUIRES: ``on_device``, and logits that are ready."""
        session = self.live
        return self._sampler.draw(session.length, lambda: session.tokens, len(self.tokens), vocab_size)

    def take(self, token: int) -> None:
        """Records what was drawn by the logits that are ready."""
        ready = self._given()
        self._accept(self._sampler.choice(token, ready.logits), ready.length)

    def choose(self) -> None:
        """Takes a token by the logits that are ready."""
        session, ready = self.live, self._given()
        if self._drawn is not None and self._drawn.length == ready.length:
            return self.take(self._drawn.token)
        choice = self._sampler(ready.logits, session.length, lambda: session.tokens, len(self.tokens))
        self._accept(choice, ready.length)

    @property
    def in_answer(self) -> bool:
        """Whether only the token that was chosen last is to be computed."""
        return bool(self.tokens) and self.live.recorded - self.live.length == 1

    def _verify(self) -> list[list[int]]:
        """Has drafts checked, if there are any: the paths of that step."""
        most = self.most_drafts
        paths = self.drafting.paths(self.live, most) if self.drafting is not None and most > 0 else []
        if not paths:
            return []
        checking = self.checking(paths)
        try:
            step = self.live.propose_tree(paths)
        except (CacheFullError, ArgumentError):  # no room now, or none in any session
            self.refuse_drafts()
            return []
        logits = cast(_RowsModel, self._model)(step, all_rows=True)
        checked = checking.by(logits)
        step.accept(len(checked.right), self.notes(checked.right), path=checked.path)
        self.go_on_behind(checked, paths, logits)
        if checked.error is not None:
            raise checked.error
        return paths

    @property
    def most_drafts(self) -> int:
        """How many drafts the next step may check."""
        if self.drafting is None or not self.in_answer:
            return 0
        wanted = min(self._max_tokens - len(self.tokens) - 1, self.live.room)  # the last token is chosen, not computed
        if self.live.has_states:
            wanted = min(wanted, MOST_STATES)
        limit = position_limit_of(self._model)
        return max(0, wanted if limit is None else min(wanted, limit - self.live.recorded))

    def refuse_drafts(self) -> None:
        """There was no room for them."""
        if self.drafting is not None:
            self.drafting.refused()

    def checking(self, paths: Sequence[Sequence[int]]) -> Checking:
        """The judge of the drafts of ``paths`` in the next step, or, of one without any, of the token that it gives."""
        return Checking(self._sampler, self.stopper, self.live, self.tokens, paths)

    def notes(self, choices: Sequence[Choice]) -> list[tuple[object, object]]:
        """What is noted of them, in the call that records them."""
        tokens: list[tuple[object, object]] = [(self.tokens, each.token) for each in choices]
        return tokens + [(self.logprobs, each.logprob) for each in choices if each.logprob is not None]

    def go_on_behind(self, checked: Checked, paths: Sequence[Sequence[int]], logits: Logits) -> None:
        """``logits`` [1 + drafts of each path, vocab] of a step that is complete now, with those that were right."""
        row = begins_of(paths)[checked.path] + len(checked.right)
        self._drawn = checked.drawn
        self.offer(logits[row : row + 1], self.live.recorded)
        if self.drafting is not None and any(paths):
            self.drafting.verified(paths, checked.path, len(checked.right))

    def _given(self) -> Ready:
        if self._ready is None:
            raise ArgumentError(f"[generate] logits: got none behind {self.live.recorded} tokens, allowed [1, vocab]")
        return self._ready

    def _accept(self, choice: Choice, length: int) -> None:
        """Records the token behind ``length`` others, unless another one was recorded there; ends where it says so."""
        if self.seconds_to_first is None and self._asked_at is not None:
            self.seconds_to_first = time.perf_counter() - self._asked_at
        notes: list[tuple[object, object]] = [(self.tokens, choice.token)]
        if choice.logprob is not None:
            notes.append((self.logprobs, choice.logprob))
        self.live.accept(choice.token, length, notes)
        self.settle()

    def renew(self) -> None:
        """Sees to it that something remains to be computed: logits were lost, or nobody had any, as in a branch."""
        session = self.live
        if session.length == session.recorded:
            session.recompute()

    def _compute(self, left: Callable[[], bool]) -> Ready | None:
        """Logits behind everything recorded."""
        self.renew()
        session = self.live
        length = session.recorded
        total = length - session.length
        if self.tokens and total == 1:
            return Ready(self._model(session.decode()), length)
        logits, done = None, 0
        for step in session.prefill(chunk=self._chunk):
            logits = self._model(step)
            done += len(step.tokens)
            if self._progress is not None:
                self._progress(done, total)
            if done < total and left():
                raise Left
        return None if logits is None else Ready(logits, length)

    # --- its end ----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Finishes it where it has all its tokens, or is to be closed."""
        if self.finish_reason is not None:
            return
        self.stopper.read(self.tokens)
        if self.stopper.matched is not None:
            self._end("stop")
        elif len(self.tokens) >= self._max_tokens:
            self._end("length")
        elif self.closing:
            self._end("closed")

    def close(self) -> None:
        """Closes the session where it is owned; the tokens stay. Nothing more comes."""
        self.closing = True
        self._end("closed")

    def _end(self, reason: str) -> None:
        if self.drafting is not None:
            self.drafting.close()
        if self._owned and self.session is not None:
            self.session.close()
        if self.finish_reason is None:  # another thread may have ended it meanwhile
            self.finish_reason = reason

    # --- in a batch -------------------------------------------------------------------------------------------------

    def go_on_in(self, session: _core.Session) -> None:
        """Takes ``session``, or closes it where another thread has ended this meanwhile."""
        if not isinstance(session, _core.Session):
            raise refusal(session, "generate", "session", "a session")
        self.session = session
        if self.finish_reason is not None:
            self._end("closed")

    def note_beginning(self) -> None:
        """REQUIRES: a session that has just begun."""
        if self.beginning is None:
            self.beginning = Beginning.of(self.live)

    def give_way(self) -> None:
        """Closes the session, which another one is to take the place of; what it computed stays in the cache."""
        self._ready = None
        session, self.session = self.session, None
        if session is not None:
            session.close()

    def all_tokens(self) -> npt.NDArray[np.int32]:
        """All that a session of it begins with: after it had to give its room back, what was generated, too."""
        return np.concatenate([self.origin.prompt, np.asarray(self.tokens, np.int32)])

    @property
    def reused(self) -> int:
        """Tokens of the prompt that were not computed for it: found at its beginning, or computed by another one."""
        if self.beginning is None:
            return 0
        if self._origin is None:
            return self.beginning.reused
        return max(0, self.prompt_tokens - self.computed - (0 if self.tokens else self.uncomputed))

    @property
    def uncomputed(self) -> int:
        """Tokens of the prompt that are not there yet; all of them until it has begun."""
        if self.finish_reason is not None:
            return 0
        session = self.session
        return self.prompt_tokens if session is None else max(0, self.prompt_tokens - session.length)

    @property
    def in_prompt(self) -> bool:
        """Whether it has more to compute than the token that was chosen last. REQUIRES: a session."""
        session = self.live
        return session.recorded - session.length > 1

    @property
    def to_checkpoint(self) -> int:
        """Rows up to the next length where it keeps a restore point; 0 where none is ahead. REQUIRES: a session."""
        if not self.origin.checkpoints:
            return 0
        now = int(self.live.length)
        return min((length - now for length in self.origin.checkpoints if length > now), default=0)
