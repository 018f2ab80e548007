"""Several generations at a time: in every step each one that has something to compute takes part.

    batch = kv.Batch(model, cache)
    answers = [batch.add(prompt, max_tokens=64) for prompt in prompts]
    while batch.step():
        ...  # add more, or close some: they join and leave between steps
    print([answer.tokens for answer in answers])

A prompt is computed in chunks beside the tokens that others decode, so nobody waits for a long one. Sessions that share
a prefix read it once, and compute it once: whoever needs what another one is computing waits for it. What is chosen is
what ``kv.generate`` chooses: a row's bits do not depend on the other rows. ``kv.Batcher`` drives one from any thread.

There is one list, of all that are not finished, in the order in which they were added. Those with a session take
part, and they are the first ones; the others wait. So an exception between two statements leaves no generation in two
places or in none, and each is itself in a state to go on from (_decoding.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ._arguments import converting, flag, listed, refusal
from ._batch_drafts import Drafts, accept, find_drafts, logits_of, rows_of, seeing
from ._core import PrefixCache, Step
from ._decoding import Decoding, Origin, drafting_of, takes
from ._drafting import Costs
from ._leading import leading
from ._live import Live
from ._options import SamplingOptions, checked_sampling
from ._prompt_logprobs import PromptLogprobs, judged
from ._prompts import Prompt, token_ids, vocab_size_of
from ._protocols import Logits, StepModel, cache_of
from ._step_rows import bounds_of
from ._step_seconds import StepSeconds
from .draft import Draft
from .draws import NONE, Draw, draw
from .errors import ArgumentError, BusyError, CacheFullError, ClosedError, Error
from .generation import Generation
from .pace import Pace
from .sampling import Sampler, whole
from .stopping import Stop, Stopper

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Batch", "generate_batch"]


class Batch(Live):
    """A scheduler of generations on one model and one cache. One thread at a time drives it.

    ``cache``: None for ``model.prefix_cache``. ``max_sessions``: how many take part in a step; others wait, the first
    added the first to go on. ``chunk``: rows that one prompt has in a step at most. Where the device has no room for
    all, those added last give their room back and begin again later, from what the cache still knows of them.
    ``draft``: what guesses tokens that a step then checks, of each generation that is added without one of its own; as
    in ``kv.generate``. Who is beside an answer decides how many drafts it has, never what comes.
    """

    def __init__(
        self,
        model: StepModel,
        cache: PrefixCache | None = None,
        *,
        max_sessions: int = 8,
        chunk: int = 128,
        draft: Draft = None,
    ) -> None:
        self._model = model
        self._cache = cache_of(model, "batch") if cache is None else cache
        if not isinstance(self._cache, PrefixCache):
            raise refusal(cache, "batch", "cache", "a PrefixCache, or None")
        self._max_sessions = whole("max_sessions", max_sessions, 1)
        self._chunk = whole("chunk", chunk, 1)
        self._requests: list[Decoding] = []
        self._pace: Pace | None = None  # how many rows prompts have in a step; None: whole chunks
        # Of one generation alone; None: they are raised.
        self._failures: list[tuple[Decoding, BaseException]] | None = None
        self._taking_part: list[Decoding] = []  # in the step that is under way, or was the last one
        self._shares = (0, 0)  # of it: rows of prompts, and how many decoded beside them
        self._flight: _Flight | None = None  # what is to be counted of it
        self._rows = 0  # of it; 0: it was not computed
        self._costs = Costs(StepSeconds.known(model, shared=True))
        self._draft = draft
        drafting_of(model, draft, self._costs)  # so that what is wrong with it is said here
        self._takes_rows = takes(model, "rows")

    @property
    def max_sessions(self) -> int:
        """How many take part in a step."""
        return self._max_sessions

    def __len__(self) -> int:
        """Generations that are not finished."""
        return sum(each.finish_reason is None for each in self._requests)

    def add(
        self,
        prompt: Prompt,
        max_tokens: int = 64,
        stop: Stop = None,
        *,
        ignore_eos: bool = False,
        namespace: str = "default",
        checkpoints: Iterable[int] = (),
        draft: Draft = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Generation[int]:
        """A generation that the next steps drive; ``prompt``: text or token ids. All else as in ``kv.generate``.

        ``checkpoints``: lengths of the prompt, in tokens, where a restore point is kept as by ``session.checkpoint``,
        for prompts that will go on differently from there. One that lies in what is reused needs none. ``draft``: None
        for that of the batch, [] for none.
        """
        each = self.make(
            prompt,
            max_tokens,
            stop,
            ignore_eos=ignore_eos,
            namespace=namespace,
            checkpoints=checkpoints,
            draft=draft,
            **sampling,
        )
        made: Generation[int] = Generation(each)
        self.take(each)
        return made

    def make(
        self,
        prompt: Prompt,
        max_tokens: int = 64,
        stop: Stop = None,
        *,
        ignore_eos: bool = False,
        namespace: str = "default",
        checkpoints: Iterable[int] = (),
        alone: bool = False,
        prompt_logprobs: int | None = None,
        draft: Draft = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Decoding:
        """The generation for :meth:`take`: all arguments are checked, nothing has changed. Any thread may call this."""
        ids = token_ids(self._model, prompt, "batch")
        lengths = _checked_lengths(checkpoints, len(ids))
        sampler = Sampler(checked_sampling(sampling), vocab_size_of(self._model))
        stopper = Stopper(self._model, stop, ignore_eos)
        told = None if prompt_logprobs is None else PromptLogprobs(ids, prompt_logprobs)
        apart = flag(alone, "batch", "alone") or told is not None
        return Decoding(
            self._model,
            sampler,
            stopper,
            max_tokens=whole("max_tokens", max_tokens, 0),
            chunk=self._chunk,
            origin=Origin(ids, namespace, frozenset() if apart else lengths, apart, told),
            owned=True,
            drafting=drafting_of(self._model, self._draft if draft is None else draft, self._costs),
        )

    def take(self, each: Decoding) -> None:
        """It waits for its place in the steps from now on. Nothing where it was taken before."""
        if each.taken:
            return
        if each not in self._requests:
            self._requests.append(each)
        each.taken = True

    def step(self) -> bool:
        """Computes one step of all that take part; False when there is nothing left to do.

        An exception, of a logits processor or KeyboardInterrupt, leaves everything as it was before the step, but for
        generations that had their token already; the next step goes on, and all get the tokens that they would have
        had. ``kv.errors.CacheFullError`` means that one generation does not fit alone; close it. A generation whose
        session another thread closes ends as "closed", and where the cache is closed every step raises
        ``kv.errors.ClosedError``.
        """
        began, self._rows = time.perf_counter(), 0
        self._count()
        self._leave()
        self._join()
        active = self._active
        if not active:
            return False
        self._checkpoint(active)
        pending = [each for each in active if each.ready is None]
        if pending:
            self._compute(leading(pending))
        self._choose()
        self._leave()
        of_prompts, decoding = self._shares
        if self._rows > 0 and decoding > 0:
            spent = sum(each.drafting.take_spent() for each in pending if each.drafting is not None)
            drafts = self._rows - of_prompts - decoding
            self._costs.stepped(self._rows, drafts, decoding, time.perf_counter() - began - spent)
        return len(self) > 0

    def close(self) -> None:
        """Ends every generation; what they have computed stays in the cache."""
        for each in self._requests:
            each.close()
        self._requests = []

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _active(self) -> list[Decoding]:
        """The generations that take part, the first added first."""
        return [each for each in self._requests if each.finish_reason is None and each.session is not None]

    def _leave(self) -> None:
        for each in self._requests:
            try:
                each.settle()
            except BaseException as error:  # of a tokenizer
                self._fail(each, error)
            if self._lost(each):
                each.close()  # nothing where it has ended
        self._requests = [each for each in self._requests if each.finish_reason is None]

    def _lost(self, each: Decoding) -> bool:
        """Whether its session, and not the whole cache, was closed meanwhile."""
        session = each.session
        return session is not None and session.closed and not self._cache.closed

    def _join(self) -> None:
        room = self._max_sessions - len(self._active)
        for each in [each for each in self._requests if each.session is None]:
            if room == 0:
                return
            try:
                shares = not each.origin.alone
                each.go_on_in(
                    self._cache.begin(each.all_tokens(), namespace=each.origin.namespace, use=shares, publish=shares)
                )
                room -= 1
                each.note_beginning()
            except BaseException as error:
                if self._failures is None and not _is_refusal(error):
                    raise  # it waits on
                each.close()
                self._fail(each, error)

    def _fail(self, each: Decoding, error: BaseException) -> None:
        if self._failures is None:
            raise error
        each.close()
        self._failures.append((each, error))

    def _compute(self, pending: list[Decoding]) -> None:
        begun = self._step_of(pending)
        if begun is None:
            return
        step, pending, drafts = begun
        counts = np.diff(bounds_of(step, len(pending))).tolist()
        prompts = [(each, each.computed + n) for each, n in zip(pending, counts) if not each.tokens]
        lengths = [each.live.recorded for each in pending]
        self._flight = _Flight(step, prompts)
        failed: list[tuple[Decoding, BaseException]] = []
        model = seeing(self._model, pending, failed)
        if drafts:
            failed += self._check(model, step, pending, drafts)
        else:
            told = [(row, each.origin.told) for row, each in enumerate(pending)]
            wanting = {row: its for row, its in told if its is not None and not its.complete}
            logits = judged(model, step, wanting) if wanting else model(step)
            self._computed(step, pending)
            done = [row for row, each in enumerate(pending) if each.live.length == lengths[row]]
            for row in done:
                pending[row].offer(logits[row : row + 1], lengths[row])
            self._choose_together(pending, done, logits)
        for each, error in failed:
            self._fail(each, error)

    def _check(
        self, model: StepModel, step: Step, pending: list[Decoding], drafts: Drafts
    ) -> list[tuple[Decoding, BaseException]]:
        """Computes a step with drafts, and takes those that are right; what the choice behind them raised, of each."""
        rows = rows_of(step)
        logits = logits_of(model, step, rows)
        failed = accept(step, pending, drafts, rows, logits)
        self._computed(step, pending)
        return failed

    def _computed(self, step: Step, pending: list[Decoding]) -> None:
        self._count()
        self._checkpoint(pending)
        self._rows = len(step.tokens)

    def _step_of(self, pending: list[Decoding]) -> tuple[Step, list[Decoding], Drafts] | None:
        """A step, and those that take part in it: where not all have room, it has no drafts, then those added last give
        theirs back."""
        self._taking_part = pending
        for each in pending:
            each.renew()
        drafts = self._drafts_of(pending)
        pending = [each for each in pending if each.finish_reason is None]
        while pending:
            self._taking_part = pending
            for each in pending:
                each.renew()
            beside = [drafts.get(each, ()) for each in pending] if drafts else None
            chunk = self._rows_of_prompts(pending)
            try:
                step = self._cache.batch([each.live for each in pending], chunk=chunk, drafts=beside)
            except (CacheFullError, ArgumentError) as error:
                if not drafts and not isinstance(error, CacheFullError):
                    raise
                if not drafts:
                    pending = self._without_the_last(pending, error)
                for each in drafts:
                    each.refuse_drafts()
                drafts = {}
            else:
                decoding = sum(not each.in_prompt for each in pending)
                self._shares = (len(step.tokens) - decoding - sum(map(len, drafts.values())), decoding)
                return step, pending, drafts
        return None

    def _without_the_last(self, pending: list[Decoding], error: BaseException) -> list[Decoding]:
        """The last one gives its room back; where it is alone it fails, and nobody is left."""
        last = self._active[-1]
        if [last] == pending == self._active:
            self._fail(last, error)
            return []
        last.give_way()
        return [each for each in pending if each is not last]

    def _rows_of_prompts(self, pending: Sequence[Decoding]) -> int:
        """How many each prompt has in the next step, at most."""
        prompts = sum(each.in_prompt for each in pending)
        rows = self._chunk if self._pace is None else self._pace.rows(prompts, len(pending) - prompts)
        return min([rows, *(each.to_checkpoint for each in pending if each.to_checkpoint > 0)])

    def _drafts_of(self, pending: Sequence[Decoding]) -> Drafts:
        """None beside a prompt whose tokens are judged, or, where the model gives no single rows, beside any."""
        if all(each.drafting is None for each in pending):
            return {}
        prompts = [each for each in pending if each.in_prompt]
        told = [each.origin.told for each in pending]
        judging = any(its is not None and not its.complete for its in told)
        if judging or len(prompts) == len(pending) or (prompts and not self._takes_rows):
            return {}
        most = self._rows_of_prompts(pending)
        rows = sum(min(most, each.live.recorded - each.live.length) for each in pending)
        return find_drafts(pending, rows, self._costs, self._fail)

    def _count(self) -> None:
        """Of each prompt, the rows that the last step computed, if it did. It may be done again."""
        if self._flight is not None and self._flight.step.complete:
            for each, computed in self._flight.prompts:
                each.computed = computed
        self._flight = None

    @staticmethod
    def _checkpoint(active: Iterable[Decoding]) -> None:
        """Restore points where they are wanted. It may be done again."""
        for each in active:
            if each.origin.checkpoints and each.live.length in each.origin.checkpoints:
                each.live.checkpoint()

    def _choose_together(self, pending: list[Decoding], rows: Sequence[int], logits: Logits) -> None:
        """One launch and one read for all that need nothing from the host; others, and failures, come one by one."""
        chosen = [row for row in rows if pending[row].on_device]
        if len(chosen) < 2:
            return
        draws = [Draw()] * len(pending)  # rows of prompts that go on: what is drawn for them is of no use
        vocab_size = np.shape(logits)[-1]
        for row in chosen:
            draws[row] = pending[row].draw(vocab_size)
        tokens = draw(logits, draws)
        for row in chosen:
            if tokens[row] == NONE:  # it fails alone
                continue
            try:
                pending[row].take(tokens[row])
            except BaseException as error:
                self._fail(pending[row], error)

    def _choose(self) -> None:
        for each in self._active:
            try:
                if each.ready is not None:
                    each.choose()
            except BaseException as error:
                self._fail(each, error)


class _Flight(NamedTuple):
    """A step that the model has been given."""

    step: Step
    prompts: list[tuple[Decoding, int]]  # and how many rows of theirs were computed once it is complete


def _is_refusal(error: BaseException) -> bool:
    """Whether the same request would be refused again: nothing that passes, and not the cache's own end."""
    return isinstance(error, Error) and not isinstance(error, (BusyError, ClosedError))


def _checked_lengths(lengths: Iterable[int], most: int) -> frozenset[int]:
    checked = frozenset(
        whole("checkpoints", length, 1) for length in listed(lengths, "batch", "checkpoints", "lengths")
    )
    for length in checked:
        if length > most:
            raise ArgumentError(f"[batch] checkpoints: got {length}, allowed 1 to {most}, the prompt's length")
    return checked


def generate_batch(
    model: StepModel,
    prompts: Iterable[Prompt],
    max_tokens: int = 64,
    stop: Stop = None,
    *,
    cache: PrefixCache | None = None,
    max_sessions: int = 8,
    chunk: int = 128,
    ignore_eos: bool = False,
    namespace: str = "default",
    draft: Draft = None,
    **sampling: Unpack[SamplingOptions],
) -> list[Generation[int]]:
    """Continues all ``prompts`` (texts or token ids), several in each step; their generations, in order, finished.

    ``draft``: as in ``kv.generate``. Each has the tokens that ``kv.generate`` gives it alone. For prompts that come and
    go see :class:`kvtrie.Batch`.
    """
    wanted = "texts or lists of token ids"
    if isinstance(prompts, (str, bytes)) or not isinstance(prompts, Iterable):
        raise refusal(prompts, "batch", "prompts", wanted)
    with converting(prompts, "batch", "prompts", wanted):
        each_prompt = iter(prompts)
    with Batch(model, cache, max_sessions=max_sessions, chunk=chunk, draft=draft) as batch:
        answers = [
            batch.add(prompt, max_tokens, stop, ignore_eos=ignore_eos, namespace=namespace, **sampling)
            for prompt in each_prompt
        ]
        while batch.step():
            pass
    return answers
