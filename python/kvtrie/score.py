"""How likely a model finds given continuations of a prompt; nothing is generated.

    scores = kv.score(model, "The capital of Peru is", [" Lima", " Cusco"])
    print(max(scores, key=lambda score: score.logprob).tokens)

The prompt is computed once, or found in the cache. Its last logits are those of every continuation's first token; the
tokens before its last one are computed in a branch, which copies nothing, and several branches share a step. So
a continuation of one token costs nothing beyond the prompt.

Threads: any; the sessions are the call's own. Units: natural logarithms of probabilities. Ends: the sessions are closed
whatever happens; what was computed stays in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from ._arguments import listed, refusal
from ._core import PrefixCache, Session, Step
from ._prompts import Prompt, token_ids
from ._protocols import Logits, StepModel, cache_of, text_model
from .errors import ArgumentError, CacheFullError
from .sampling import log_softmax, whole

__all__ = ["Score", "continuation_ids", "score", "scores_in"]

_WHERE = "score"

Ids = npt.NDArray[np.int32]


class Score(NamedTuple):
    """The model's judgement of one continuation."""

    tokens: list[int]
    logprobs: list[float]
    """Of each token behind the prompt and those before it: natural logarithms."""
    greedy: bool
    """Whether each token was the likeliest one, so that ``kv.generate`` at temperature 0 writes this text."""

    @property
    def logprob(self) -> float:
        """Of the whole continuation: the sum."""
        return float(sum(self.logprobs))


class _RowsModel(Protocol):
    def __call__(self, step: Step, all_rows: bool) -> Logits: ...


def score(
    model: StepModel,
    prompt: Prompt,
    continuations: Iterable[Prompt],
    *,
    cache: PrefixCache | None = None,
    namespace: str = "default",
    max_sessions: int = 8,
    chunk: int = 512,
) -> list[Score]:
    """The score of each of ``continuations``, in their order, behind ``prompt``; both are texts or token ids.

    A continuation that is a text is encoded together with a prompt that is one; where the two merge over the border,
    and behind a prompt of token ids, it is encoded by itself. ``cache``: None for ``model.prefix_cache``.
    ``max_sessions``: how many continuations share a step. ``chunk``: rows that the prompt, or a continuation, has in a
    step at most; a step reads a row of logits [vocab] for each row of a continuation. ``model`` has to take
    ``all_rows=True``, as ``kv.models.Model`` does, unless every continuation is one token.

    Raises ``kv.errors.ArgumentError`` for a prompt or continuation of no tokens, and ``kv.errors.CacheFullError`` where
    the prompt and one continuation do not fit.
    """
    ids = token_ids(model, prompt, _WHERE)
    listed_ = listed(continuations, _WHERE, "continuations", "texts or lists of token ids")
    wanted = [continuation_ids(model, prompt, ids, each) for each in listed_]
    found = cache_of(model, _WHERE) if cache is None else cache
    if not isinstance(found, PrefixCache):
        raise refusal(cache, _WHERE, "cache", "a PrefixCache, or None")
    sizes = whole("max_sessions", max_sessions, 1), whole("chunk", chunk, 1)
    with found.begin(ids, namespace) as session:
        return scores_in(model, found, session, wanted, *sizes)


def continuation_ids(model: StepModel, prompt: Prompt, ids: Ids, continuation: object) -> Ids:
    """The tokens of a continuation; ``ids``: those of ``prompt``."""
    if not isinstance(continuation, str):
        return token_ids(model, cast(Prompt, continuation), _WHERE)
    tokenizer = text_model(model).tokenizer
    if isinstance(prompt, str):
        both = np.asarray(tokenizer.encode(prompt + continuation), np.int32)
        if len(both) > len(ids) and np.array_equal(both[: len(ids)], ids):
            return both[len(ids) :]
    alone = np.asarray(tokenizer.encode(continuation, add_special_tokens=False), np.int32)
    if alone.size == 0:
        raise ArgumentError(f"[{_WHERE}] continuations: got {continuation!r}, allowed a text of 1 token or more")
    return alone


def scores_in(
    model: StepModel, cache: PrefixCache, session: Session, continuations: Sequence[Ids], max_sessions: int, chunk: int
) -> list[Score]:
    """The same behind all tokens of ``session``, some of which remain to be computed; it stands there afterwards."""
    logits: Logits | None = None
    for step in session.prefill(chunk=chunk):
        logits = model(step)
    if logits is None:
        raise ArgumentError(f"[{_WHERE}] session: got 0 tokens that remain, allowed 1 or more")
    first = log_softmax(np.array(logits, np.float32).reshape(-1))
    drafts = [_Draft(first, each, int(session.length)) for each in continuations]
    longer = [draft for draft in drafts if len(draft.tokens) > 1]
    branches = _Branches(model, cache, session, chunk)
    for begin in range(0, len(longer), max_sessions):
        branches.compute(longer[begin : begin + max_sessions])
    return [draft.score() for draft in drafts]


class _Draft:
    """A score in the making: ``judge`` takes rows of logits as they come, each once or more."""

    def __init__(self, first: npt.NDArray[np.float64], tokens: Ids, begin: int) -> None:
        self.tokens = tokens
        self._begin = begin  # position of its first token
        self._logprobs = np.full(len(tokens), np.nan)
        self._greedy = np.zeros(len(tokens), bool)
        self._take(0, first)

    def judge(self, position: int, row: npt.NDArray[np.float32]) -> None:
        """``row`` [vocab]: what follows the token at ``position``."""
        self._take(position - self._begin + 1, log_softmax(row))

    def _take(self, at: int, logprobs: npt.NDArray[np.float64]) -> None:
        token = self.tokens[at]
        if not 0 <= token < len(logprobs):
            raise ArgumentError(f"[{_WHERE}] continuations: got token id {token}, allowed 0 to {len(logprobs) - 1}")
        self._logprobs[at] = logprobs[token]
        self._greedy[at] = logprobs.argmax() == token

    @property
    def complete(self) -> bool:
        return not np.isnan(self._logprobs).any()

    def score(self) -> Score:
        return Score(self.tokens.tolist(), self._logprobs.tolist(), bool(self._greedy.all()))


class _Branches:
    """Computes what follows the first token of continuations, each in a branch of one session."""

    def __init__(self, model: StepModel, cache: PrefixCache, session: Session, chunk: int) -> None:
        self._model = cast(_RowsModel, model)
        self._cache, self._session, self._chunk = cache, session, chunk

    def compute(self, drafts: Sequence[_Draft]) -> None:
        """All of them in the same steps; fewer at a time where the device has no room for so many."""
        try:
            self._together(drafts)
        except CacheFullError:
            if len(drafts) == 1:
                raise
            half = len(drafts) // 2
            self.compute(drafts[:half])
            self.compute(drafts[half:])
            return
        for draft in drafts:
            if not draft.complete:
                self._alone(draft)

    def _together(self, drafts: Sequence[_Draft]) -> None:
        open_: list[Session] = []
        try:
            for draft in drafts:
                open_.append(self._session.branch())
                open_[-1].append(draft.tokens[:-1])
            pairs = list(zip(open_, drafts))
            while pairs:
                self._judge(self._cache.batch([branch for branch, _ in pairs], chunk=self._chunk), pairs)
                pairs = [pair for pair in pairs if len(pair[0].remaining) > 0]
        finally:
            for branch in open_:
                branch.close()

    def _alone(self, draft: _Draft) -> None:
        """For one whose tokens somebody else had computed before: a batch adopts those and gives no logits of them."""
        with self._session.branch() as branch:
            for begin in range(0, len(draft.tokens) - 1, self._chunk):
                branch.append(draft.tokens[:-1][begin : begin + self._chunk])
                self._judge(branch.decode(), [(branch, draft)])

    def _judge(self, step: Step, pairs: Sequence[tuple[Session, _Draft]]) -> None:
        logits = np.asarray(self._model(step, all_rows=True), np.float32)
        for row, sequence, position in zip(logits, step.sequences, step.positions):
            pairs[sequence][1].judge(int(position), row)
