"""The prediction head of a model as a drafter: hidden states of the model's own steps say what comes next but one.

    tokens                 t0    t1    t2    t3           t3 was chosen last, and is not computed
    hidden states          h0    h1    h2                 of the model's steps, as they come (``watch``)
    rows of the head       h0,t1 h1,t2 h2,t3              the last one says what follows t3
    drafts                             x3,d1 x4,d2 ...    x: what the head gave, in place of a hidden state

Row i of the head needs t(i+1), so its text is that of the answer without its first token, in a namespace that names
that token. Rows of hidden states are kept, for what follows and for others of the namespace; those of drafts are made
in a branch that publishes nothing. Where the model found the beginning of a text computed, nobody has its hidden
states: either the head's cache knows these rows, or the head begins behind them, and its session is its own then.

When an answer ends, the rows that are still to come are computed, so that the next turn finds them.

In a batch the head writes for several answers at once, in steps that they share (``write_together``).

Source: DeepSeek-AI 2024 (arXiv 2412.19437, section 2.2); the head itself: models/mtp.py.

Threads: a :class:`PredictionHead` may be shared by any number of answers; a :class:`HeadDrafter` belongs to one, and
only ``close`` may come from another thread. Lengths are counted in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Literal, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from . import _core, ops
from ._arguments import refusal, shown
from ._live import Live
from ._locks import make_lock
from ._own_session import OwnSession, Tokens, first_apart
from ._protocols import Logits, StepModel
from ._step_rows import bounds_of
from .draws import NONE, Draw, draw
from .errors import ArgumentError, CacheFullError, ClosedError, Error

__all__ = ["HeadDrafter", "PredictionHead"]

_CHUNK = 512  # rows of a step
_HELD = 128  # rows of hidden states that wait for the next drafts


class _Head(Protocol):
    @property
    def prefix_cache(self) -> _core.PrefixCache: ...


class HeadModel(Protocol):
    """A model with its prediction head: ``kv.models.load(path, mtp=True)``."""

    @property
    def mtp(self) -> _Head | None: ...

    def __call__(
        self, step: _core.Step, all_rows: bool = ..., *, hidden: Literal[True]
    ) -> tuple[_core.Tensor, _core.Tensor]: ...

    def further(self, step: _core.Step, hidden: _core.Tensor) -> tuple[_core.Tensor, _core.Tensor]: ...


class PredictionHead(Live):
    """A model's own prediction head as a drafter: ``kv.generate(model, prompt, draft=kv.PredictionHead(model))``.

    ``model``: one that was loaded with ``mtp=True``. ``cache``: a ``kv.PrefixCache`` of ``model.mtp.caches()``; None:
    the head's own, with room for 8192 tokens, which ``draft="mtp"`` stands for, too. Turns and other answers of a
    namespace share it; nothing crosses namespaces. Raises ``kv.errors.ArgumentError`` for a model without a head.
    """

    def __init__(self, model: HeadModel, cache: _core.PrefixCache | None = None) -> None:
        if getattr(model, "mtp", None) is None:
            raise ArgumentError(
                f"[PredictionHead] model: got {shown(model)}, allowed one that was loaded with mtp=True"
            )
        if cache is not None and not isinstance(cache, _core.PrefixCache):
            raise refusal(cache, "PredictionHead", "cache", "a PrefixCache, or None")
        self._model = model
        self._cache = cache

    @property
    def cache(self) -> _core.PrefixCache:
        """The cache of its sessions: the one that was given, or the head's own."""
        return cast(_Head, self._model.mtp).prefix_cache if self._cache is None else self._cache

    def drafter(self, model: StepModel) -> HeadDrafter:
        """The drafter of one answer of ``model``. ``kv.errors.ArgumentError`` where it is not the head's own."""
        if cast(object, model) is not self._model:
            raise ArgumentError(
                f"[generate] draft: got the prediction head of {shown(self._model)}, allowed that of {shown(model)}"
            )
        return HeadDrafter(self._model, self.cache)

    def __repr__(self) -> str:
        return f"<kvtrie.PredictionHead of {self._model!r}>"


class _Seen(NamedTuple):
    """Hidden states [rows, hidden_size] of ``tokens``, the first of which stands at ``start``."""

    start: int
    tokens: Tokens
    hidden: _core.Tensor

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class _Ready(NamedTuple):
    """Drafts behind ``tokens``."""

    tokens: Tokens
    found: list[int]


class HeadDrafter(OwnSession):
    """The head's session of one answer."""

    def __init__(self, model: HeadModel, cache: _core.PrefixCache) -> None:
        super().__init__(cache)
        self._model = model
        self._lock = make_lock()
        self._answer: _core.Session | None = None  # whose steps were seen
        self._text: Tokens = np.empty(0, np.int32)  # the tokens of the answer when they last were
        self._seen: list[_Seen] = []  # in order; of rows that the head has not computed, and of its last one
        self._start = 0  # the position of its first row
        self._last: tuple[_core.Tensor, _core.Tensor] | None = None  # logits and hidden state of its last row
        self._ready: _Ready | None = None  # what it wrote together with others

    def watch(self, model: StepModel) -> StepModel:
        """``model``, with its hidden states seen."""
        computing = cast(HeadModel, model)

        def computed(step: _core.Step, all_rows: bool = False, *, hidden: bool = False) -> object:
            logits, states = computing(step, all_rows, hidden=True)
            if len(step.sessions) == 1:
                self.see(step.sessions[0], int(np.asarray(step.positions)[0]), np.asarray(step.tokens), states)
            return (logits, states) if hidden else logits

        return cast(StepModel, computed)

    def _drafts(self, session: _core.Session, tokens: Tokens, most: int) -> list[int]:
        """What the head says."""
        most = self._most(tokens, most)
        ready, self._ready = self._ready, None
        if ready is not None and np.array_equal(ready.tokens, tokens):
            return ready.found[:most]
        if most < 1:
            return []
        with self._lock:
            return self._written(session, tokens, most)

    def _most(self, tokens: Tokens, most: int) -> int:
        """How many it may have of ``most``, by the text; 0 or less: none."""
        return 0 if len(tokens) < 2 or tokens.min() < 0 else min(most, self._cache.longest - len(tokens) + 1)

    def close(self) -> None:
        """Computes the rows that the next turn goes on from, unless it drafts just now, and gives back its session."""
        if self._lock.acquire(blocking=False):
            try:
                self._catch_up_last()
            finally:
                self._lock.release()
        super().close()
        self._answer = None

    # --- the model's steps ------------------------------------------------------------------------------------------

    def see(self, answer: _core.Session, start: int, tokens: npt.NDArray[np.int32], hidden: _core.Tensor) -> None:
        """Hidden states [rows, hidden_size] of the rows of ``answer`` in a step that is complete, or has drafts.
        ``tokens`` [rows]: of these rows, the first of which stands at ``start``."""
        if self._closed:
            return
        seen = _Seen(start, np.array(tokens, np.int32), hidden)
        try:
            with self._lock:
                self._answer = answer
                self._stand(answer.tokens)
                self._seen.append(seen)
                if sum(len(each.tokens) for each in self._seen) > _HELD:
                    self._catch_up(answer, answer.tokens)
        except CacheFullError:
            self._give_way()
        except ClosedError:
            if not self._closed:
                raise

    def _stand(self, tokens: Tokens) -> None:
        """The answer has ``tokens`` now: what it went back from is dropped, hidden states and rows."""
        before, self._text = self._text, tokens
        same = first_apart(tokens, before)
        if same < len(before):
            self._seen = [
                _Seen(each.start, each.tokens[: same - each.start], each.hidden)
                for each in self._seen
                if each.start < same
            ]
        own, rows = self._own, same - 1 - self._start
        if own is None or own.length == own.recorded <= rows:
            return
        self._last = None
        if rows > 0 and not own.closed:
            own.rollback(own.recorded - min(rows, own.length))
        else:
            self._own = None
            own.close()

    def _catch_up_last(self) -> None:
        answer = self._answer
        if answer is None or self._closed or answer.closed:
            return
        try:
            self._catch_up(answer, answer.tokens)
        except Exception:  # it only spares others the work
            self._give_way()

    # --- with others ------------------------------------------------------------------------------------------------

    @staticmethod
    def write_together(asked: Sequence[tuple[HeadDrafter, _core.Session, int]]) -> None:
        """Drafts of several answers, each behind all that its session has recorded, in steps that they share: as many
        as the longest needs. They are given where each is asked for them. Where that fails each writes alone."""
        alike: dict[tuple[int, int], list[_Writing]] = {}
        for drafter, session, most in asked:
            tokens = session.tokens
            if drafter._most(tokens, most) > 0:
                own = _Writing(drafter, session, tokens, drafter._most(tokens, most), [])
                alike.setdefault((id(drafter._model), id(drafter._cache)), []).append(own)
        for each in alike.values():
            with suppress(Error):
                _write(each)

    # --- the head's rows --------------------------------------------------------------------------------------------

    def _give_way(self) -> None:
        """Without the hidden states that wait for it."""
        self._last, self._seen = None, []
        super()._give_way()

    def _catch_up(self, session: _core.Session, tokens: Tokens) -> None:
        """Computes all rows whose hidden state and token are there."""
        for run in self._to_compute(session, tokens):
            self._compute(self._session(session, tokens, run.start, run.end), run.start, run.hidden)
        self._seen = self._seen[-1:]

    def _to_compute(self, session: _core.Session, tokens: Tokens) -> list[_Seen]:
        """Rows that its session has not, and hidden states are there of."""
        self._stand(tokens)
        own = self._own
        if own is not None and own.publishes and not session.publishes:  # what the answer computes is its own by now
            self._own = own.branch(publish=False)
            own.close()
        last = len(tokens) - 1  # rows end before it
        if last > self._cache.longest or (len(tokens) and tokens.min() < 0):
            self._give_way()
            return []
        return [_joined(run) for run in self._runs(tokens[:last])]

    def _runs(self, text: Tokens) -> list[list[_Seen]]:
        """Those of ``text``, neighbours together."""
        runs: list[list[_Seen]] = []
        reached = self._next()
        for seen in self._seen:
            begin = max(seen.start, reached)
            end = seen.start + first_apart(seen.tokens, text[seen.start :])
            if begin >= end:
                continue
            part = _Seen(begin, text[begin:end], seen.hidden[begin - seen.start : end - seen.start])
            if runs and begin == reached:
                runs[-1].append(part)
            else:
                runs.append([part])
            reached = end
        return runs

    def _next(self) -> int:
        """The first row that its session has not."""
        return 0 if self._own is None else self._start + self._own.recorded

    def _session(self, session: _core.Session, tokens: Tokens, begin: int, end: int) -> _core.Session:
        """Its session, with the rows from ``begin`` to ``end`` recorded."""
        own = self._own
        if own is not None and begin == self._start + own.recorded:
            own.append(tokens[begin + 1 : end + 1])
            return own
        if own is not None:  # others computed rows of the answer meanwhile
            own.close()
            self._own = None
        namespace = f"{session.namespace}/{tokens[0]}"
        own = self._cache.begin(tokens[1 : end + 1], namespace, publish=session.publishes)
        self._start = 0
        if own.reused < begin:  # of rows before these nobody has the hidden states
            own.close()
            own = self._cache.begin(tokens[begin + 1 : end + 1], namespace, use=False, publish=False)
            self._start = begin
        self._own = own
        if self._closed:
            own.close()
        return own

    def _compute(self, own: _core.Session, start: int, hidden: _core.Tensor) -> None:
        """``hidden`` [rows, hidden_size] from position ``start`` on."""
        for step in own.prefill(_CHUNK):
            first = self._start + int(np.asarray(step.positions)[0]) - start
            self._last = self._model.further(step, hidden[first : first + len(step.tokens)])

    def _at_end(self, tokens: Tokens) -> tuple[_core.Session, _core.Tensor, _core.Tensor] | None:
        """Its session, and what it gave for the last row of ``tokens``: logits and hidden state; None: it is not
        there."""
        own, last = self._own, self._last
        if own is None or last is None or self._start + own.length != len(tokens) - 1:
            return None
        return (own, *last)

    def _written(self, session: _core.Session, tokens: Tokens, most: int) -> list[int]:
        self._catch_up(session, tokens)
        there = self._at_end(tokens)
        if there is None:
            return []
        own, logits, hidden = there
        found = _likeliest(logits)
        if most == 1 or not found:
            return found
        with own.branch(publish=False) as branch:
            while len(found) < most:
                branch.append(found[-1])
                logits, hidden = self._model.further(branch.decode(), hidden)
                token = _likeliest(logits)
                if not token:
                    break
                found += token
        return found


def _joined(run: Sequence[_Seen]) -> _Seen:
    """Neighbours as one."""
    if len(run) == 1:
        return run[0]
    return _Seen(run[0].start, np.concatenate([each.tokens for each in run]), _stacked([each.hidden for each in run]))


def _stacked(rows: Sequence[_core.Tensor]) -> _core.Tensor:
    """One below the other; a single one as it is."""
    return rows[0] if len(rows) == 1 else ops.concat(rows, axis=0)


def _likeliest(logits: Logits) -> list[int]:
    """Of one row; none where no logit is finite."""
    token = draw(logits, [Draw()])[0]
    return [] if token == NONE else [token]


# ---- several answers at once -----------------------------------------------------------------------------------------


class _Writing(NamedTuple):
    """What the head writes for one answer: at most ``most`` tokens behind ``tokens``."""

    drafter: HeadDrafter
    session: _core.Session
    tokens: Tokens
    most: int
    found: list[int]


def _write(each: Sequence[_Writing]) -> None:
    """Of one model and one cache."""
    model, cache = each[0].drafter._model, each[0].drafter._cache
    with ExitStack() as held:
        for one in each:
            held.enter_context(one.drafter._lock)
        _catch_up_together(model, cache, each)
        going: list[tuple[_Writing, _core.Session]] = []
        states: list[_core.Tensor] = []
        for one in each:
            there = one.drafter._at_end(one.tokens)
            if there is None:
                continue
            own, logits, hidden = there
            one.found.extend(_likeliest(logits))
            if one.found and one.most > 1:
                going.append((one, held.enter_context(own.branch(publish=False))))
                states.append(hidden)
        while going:
            for one, branch in going:
                branch.append(one.found[-1])
            step = cache.batch([branch for _, branch in going])
            logits, hidden = model.further(step, _stacked(states))
            tokens = draw(logits, [Draw()] * len(going))
            for (one, _), token in zip(going, tokens):
                one.found.extend([] if token == NONE else [token])
            on = [at for at, (one, _) in enumerate(going) if tokens[at] != NONE and len(one.found) < one.most]
            going, states = [going[at] for at in on], [hidden[at : at + 1] for at in on]
        for one in each:
            one.drafter._ready = _Ready(one.tokens, one.found)


def _catch_up_together(model: HeadModel, cache: _core.PrefixCache, each: Sequence[_Writing]) -> None:
    """The rows that they have not, in one step of all that have them in one run; others, and long ones, alone."""
    joined: list[tuple[_Writing, _core.Session, _Seen]] = []
    for one in each:
        runs = one.drafter._to_compute(one.session, one.tokens)
        if len(runs) != 1 or len(runs[0].tokens) > _HELD:
            one.drafter._catch_up(one.session, one.tokens)
            continue
        run = runs[0]
        joined.append((one, one.drafter._session(one.session, one.tokens, run.start, run.end), run))
    if not joined:
        return
    step = cache.batch([own for _, own, _ in joined], chunk=_HELD)
    bounds = bounds_of(step, len(joined))
    positions, parts = np.asarray(step.positions), []
    for (one, _, run), begin, end in zip(joined, bounds, bounds[1:]):
        first = one.drafter._start + int(positions[begin]) - run.start
        parts.append(run.hidden[first : first + end - begin])
    logits, hidden = model.further(step, _stacked(parts))
    for at, (one, _, _) in enumerate(joined):
        one.drafter._last = (logits[at : at + 1], hidden[at : at + 1])
        one.drafter._seen = one.drafter._seen[-1:]
