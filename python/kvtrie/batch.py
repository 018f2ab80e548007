"""Several generations at a time: in every step each one that has something to compute takes part.

    batch = kv.Batch(model, cache)
    answers = [batch.add(prompt, max_tokens=64) for prompt in prompts]
    while batch.step():
        ...  # add more, or close some: they join and leave between steps
    print([answer.tokens for answer in answers])

A prompt is computed in chunks beside the tokens that others decode, so nobody waits for a long one. Sessions that share
a prefix read it once. What is chosen is what ``kv.generate`` chooses: a row's bits do not depend on the other rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from . import ops
from ._arguments import converting, refusal
from ._core import PrefixCache
from ._protocols import Logits, StepModel, cache_of
from .errors import CacheFull
from .generate import Generation, Prompt, token_ids, vocab_size_of
from .replies import SamplingOptions, checked_sampling
from .sampling import Sampler, whole
from .stopping import Stop, Stopper

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Batch", "generate_batch"]


class Batch:
    """A scheduler of generations on one model and one cache. One thread at a time drives it.

    ``cache``: None for ``model.prefix_cache``. ``max_sessions``: how many take part in a step; others wait, the first
    added the first to go on. ``chunk``: rows that one prompt has in a step at most. Where the device has no room for
    all, those added last give their room back and begin again later, from what the cache still knows of them.
    """

    def __init__(
        self, model: StepModel, cache: PrefixCache | None = None, *, max_sessions: int = 8, chunk: int = 128
    ) -> None:
        self._model = model
        self._cache = cache_of(model, "batch") if cache is None else cache
        if not isinstance(self._cache, PrefixCache):
            raise refusal(cache, "batch", "cache", "a PrefixCache, or None")
        self._max_sessions = whole("max_sessions", max_sessions, 1)
        self._chunk = whole("chunk", chunk, 1)
        self._waiting: deque[Waiting] = deque()
        self._active: list[Waiting] = []

    def __len__(self) -> int:
        """Generations that are not finished."""
        return len(self._active) + len(self._waiting)

    def add(
        self,
        prompt: Prompt,
        max_tokens: int = 64,
        stop: Stop = None,
        *,
        ignore_eos: bool = False,
        namespace: str = "default",
        **sampling: Unpack[SamplingOptions],
    ) -> Generation:
        """A generation that the next steps drive; ``prompt``: text or token ids. All else as in ``kv.generate``."""
        ids = token_ids(self._model, prompt, "batch")
        sampler = Sampler(checked_sampling(sampling), vocab_size_of(self._model))
        stopper = Stopper(self._model, stop, ignore_eos)
        generation = Generation(
            self._model,
            None,
            sampler,
            stopper,
            max_tokens=whole("max_tokens", max_tokens, 0),
            chunk=self._chunk,
            owned=True,
        )
        self._waiting.append(Waiting(generation, ids, namespace))
        return generation

    def step(self) -> bool:
        """Computes one step of all that take part; False when there is nothing left to do.

        An exception, of a logits processor or KeyboardInterrupt, leaves everything as it was before the step, but for
        generations that had their token already; the next step goes on. ``kv.CacheFull`` means that one generation does
        not fit alone; close it.
        """
        self._leave()
        self._join()
        if not self._active:
            return False
        pending = [each for each in self._active if each.generation.ready is None]
        if pending:
            self._compute(pending)
        self._choose()
        self._leave()
        return len(self) > 0

    def close(self) -> None:
        """Ends every generation; what they have computed stays in the cache."""
        for each in (*self._active, *self._waiting):
            each.generation.close()
        self._active.clear()
        self._waiting.clear()

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _leave(self) -> None:
        for each in (*self._active, *self._waiting):
            each.generation.settle()
        self._active = [each for each in self._active if each.generation.finish_reason is None]
        self._waiting = deque(each for each in self._waiting if each.generation.finish_reason is None)

    def _join(self) -> None:
        while self._waiting and len(self._active) < self._max_sessions:
            each = self._waiting.popleft()
            tokens = np.concatenate([each.prompt, np.asarray(each.generation.tokens, np.int32)])
            try:
                each.generation.session = self._cache.begin(tokens, namespace=each.namespace)
            except BaseException:  # it ends; the others go on
                each.generation.close()
                raise
            self._active.append(each)

    def _compute(self, pending: list[Waiting]) -> None:
        while True:
            try:
                step = self._cache.batch([each.generation.live for each in pending], chunk=self._chunk)
                break
            except CacheFull:
                if len(pending) == 1 and len(self._active) == 1:
                    raise
                last = self._active.pop()  # the one added last begins again later
                last.generation.live.close()
                last.generation.session, last.generation.ready = None, None
                self._waiting.appendleft(last)
                pending = [each for each in pending if each is not last]
                if not pending:
                    return
        logits = self._model(step)
        done = [row for row, each in enumerate(pending) if len(each.generation.live.remaining) == 0]
        for row in done:
            pending[row].generation.ready = logits[row : row + 1]
        self._choose_likeliest(pending, done, logits)

    def _choose_likeliest(self, pending: list[Waiting], rows: Sequence[int], logits: Logits) -> None:
        """One read for all that take the likeliest token and nothing else."""
        plain = [row for row in rows if pending[row].generation.is_plain]
        if len(plain) < 2:
            return
        tokens = np.asarray(ops.argmax(logits)).reshape(-1)
        for row in plain:
            pending[row].generation.accept(int(tokens[row]))

    def _choose(self) -> None:
        for each in self._active:
            if each.generation.ready is not None:
                each.generation.choose()


class Waiting:
    """A generation with what its session begins from."""

    def __init__(self, generation: Generation, prompt: npt.NDArray[np.int32], namespace: str) -> None:
        self.generation = generation
        self.prompt = prompt
        self.namespace = namespace


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
    **sampling: Unpack[SamplingOptions],
) -> list[Generation]:
    """Continues all ``prompts`` (texts or token ids), several in each step; their generations, in order, finished.

    Each has the tokens that ``kv.generate`` gives it alone. For prompts that come and go see :class:`kvtrie.Batch`.
    """
    wanted = "texts or lists of token ids"
    if isinstance(prompts, (str, bytes)) or not isinstance(prompts, Iterable):
        raise refusal(prompts, "batch", "prompts", wanted)
    with converting(prompts, "batch", "prompts", wanted):
        each_prompt = iter(prompts)
    with Batch(model, cache, max_sessions=max_sessions, chunk=chunk) as batch:
        answers = [
            batch.add(prompt, max_tokens, stop, ignore_eos=ignore_eos, namespace=namespace, **sampling)
            for prompt in each_prompt
        ]
        while batch.step():
            pass
    return answers
