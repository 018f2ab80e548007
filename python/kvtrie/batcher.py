"""Requests from any thread or coroutine on one model: they join and leave between steps.

    batcher = kv.Batcher(model)
    request = batcher.submit("A cache", max_tokens=64)
    for token in request:  # in any thread; `async for` in any event loop
        ...
    print(batcher.chat([{"role": "user", "content": "What is a cache?"}]).result())

A thread of the batcher's own drives a :class:`kvtrie.Batch`; nobody else touches it. What passes between it and the
callers are requests that arrive, tokens, and what is to stop:

    callers                      the batcher's thread
    submit  --open------>        takes what arrived, begins or ends requests, computes one step,
    read    <--tokens----        tells each request what was chosen for it, and again, until there is nothing to do
    cancel  --flag------>        ends at the next step; what was computed stays in the cache

A request that fails (its logits processor raises, its prompt is too long, it does not fit alone) ends with its error;
the others go on. What fails for all, such as the device, ends all that took part in the step.

Threads: every method may be called from any, also from a logits processor. Ends: ``close`` ends all requests and waits
for the step that is under way; so do leaving a ``with`` block, the end of the interpreter, and ``aclose``, which lets
its event loop go on meanwhile. A batcher without any reference ends, too. In a forked process it is refused
(``NotSupportedError``), as the thread stayed behind.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING

from ._bell import Bell
from ._closing import AsyncClosing
from ._core import PrefixCache
from ._decoding import Decoding
from ._handing import Item
from ._options import SamplingOptions
from ._persisting import persist
from ._prompts import Prompt, chat_prompt, token_ids
from ._protocols import StepModel
from ._published import Outcome, Published
from .batch import Batch
from .draft import Draft
from .errors import ArgumentError, ArgumentTypeError, BusyError, ClosedError, Error
from .pace import Pace
from .request import Request
from .sampling import whole
from .stopping import Stop

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .models.tokenizer import TextReading

__all__ = ["Batcher"]

_open: weakref.WeakSet[Batcher] = weakref.WeakSet()


class Batcher(AsyncClosing):
    """``model``, ``cache``, ``max_sessions``, ``chunk`` and ``draft`` are those of :class:`kvtrie.Batch`.

    ``max_waiting``: how many requests may wait for a place in the steps; :meth:`submit` refuses more with
    ``kv.errors.BusyError``. ``stall``: seconds that prompts may add to a step beside requests that decode, so that
    those get their tokens evenly; None: prompts always have whole chunks.
    """

    def __init__(
        self,
        model: StepModel,
        cache: PrefixCache | None = None,
        *,
        max_sessions: int = 8,
        chunk: int = 128,
        max_waiting: int = 256,
        stall: float | None = 0.2,
        draft: Draft = None,
    ) -> None:
        chunk = whole("chunk", chunk, 1)
        pace = Pace(chunk, _checked(stall))
        self._batch = _Driven(model, cache, max_sessions=max_sessions, chunk=chunk, draft=draft, pace=pace)
        self._driver = _Driver(self._batch, whole("max_waiting", max_waiting, 0))
        weakref.finalize(self, self._driver.stop).atexit = False
        if not _open:
            atexit.unregister(_close_all)
            atexit.register(_close_all)  # now, so that it comes before what the cache needs ends
        _open.add(self)

    def submit(
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
    ) -> Request[int]:
        """A request that is being answered from now on; arguments as in ``kv.generate``, which are checked here.

        ``checkpoints``: as in :meth:`kvtrie.Batch.add`. ``alone``: nothing of what is known is reused, and nothing of
        what it computes is kept, in any tier. ``prompt_logprobs``: the request comes to have ``prompt_logprobs``, each
        with so many of the likeliest tokens; what is known has no logits, so it is computed alone. ``draft``: None for
        that of the batcher, [] for none. Raises ``kv.errors.BusyError`` where ``max_waiting`` requests wait already,
        ``kv.errors.ClosedError`` once it is closed.
        """
        decoding = self._batch.make(
            prompt,
            max_tokens,
            stop,
            ignore_eos=ignore_eos,
            namespace=namespace,
            checkpoints=checkpoints,
            alone=alone,
            prompt_logprobs=prompt_logprobs,
            draft=draft,
            **sampling,
        )
        return self._driver.submit(Request(self._driver.published(decoding)))

    def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        max_tokens: int = 256,
        stop: Stop = None,
        *,
        tools: Sequence[object] | None = None,
        template: Mapping[str, object] | None = None,
        special_tokens: TextReading = "letters",
        ignore_eos: bool = False,
        namespace: str = "default",
        draft: Draft = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Request[str]:
        """The answer to ``messages``, as ``model.chat`` gives it, beside others in the batcher's steps.

        Raises as :meth:`submit` does, and ``kv.errors.NotSupportedError`` where the model has no tokenizer or template.
        """
        prompt = chat_prompt(*self._batch.made_of, messages, tools, template, namespace, special_tokens)
        made = self._batch.make(
            prompt, max_tokens, stop, ignore_eos=ignore_eos, namespace=namespace, draft=draft, **sampling
        )
        return self._text(made)

    def complete(
        self,
        text: str,
        max_tokens: int = 256,
        stop: Stop = None,
        *,
        ignore_eos: bool = False,
        namespace: str = "default",
        draft: Draft = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Request[str]:
        """The continuation of plain ``text``; as :meth:`chat`."""
        ids = token_ids(self._batch.made_of[0], text, "batch")
        made = self._batch.make(
            ids, max_tokens, stop, ignore_eos=ignore_eos, namespace=namespace, draft=draft, **sampling
        )
        return self._text(made)

    def _text(self, made: Decoding) -> Request[str]:
        made.stopper.for_text()  # where the model has no tokenizer, this raises
        return self._driver.submit(Request(self._driver.published(made), of_text=True))

    def stats(self) -> dict[str, int]:
        """Requests now (``active``, ``waiting``), and ``waiting_tokens``, those of their prompts that are still to be
        computed as far as is known before they begin. Totals: ``submitted``, ``finished``, ``cancelled``, ``failed``,
        ``steps``, ``tokens`` (generated)."""
        return self._driver.stats()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._driver.closing

    def close(self) -> None:
        """Ends every request; what they have computed stays in the cache. Waits for the step that is under way."""
        self._driver.close()

    async def aclose(self) -> None:
        """As :meth:`close`, and the event loop goes on while this waits."""
        await self._driver.aclose()

    def __enter__(self) -> Batcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


class _Driven(Batch):
    """A batch whose requests fail alone, and whose prompts take only so much of a step."""

    def __init__(
        self, model: StepModel, cache: PrefixCache | None, *, max_sessions: int, chunk: int, draft: Draft, pace: Pace
    ) -> None:
        super().__init__(model, cache, max_sessions=max_sessions, chunk=chunk, draft=draft)
        self._pace = pace
        self._failures = []

    @property
    def made_of(self) -> tuple[StepModel, PrefixCache]:
        """Its model and its cache."""
        return self._model, self._cache

    @property
    def active(self) -> int:
        """Requests that have a place in the steps."""
        return len(self._active)

    def measure(self, seconds: float) -> None:
        """How long the last step took."""
        if self._pace is not None:
            self._pace.measured(*self._shares, seconds)

    def attempt(self) -> dict[int, BaseException]:
        """One step. The error of each that failed in it, by the identity of its `Decoding`."""
        self._taking_part, self._shares = [], (0, 0)
        try:
            self.step()
        except BaseException as error:
            for each in self._concerned():
                self._fail(each, error)
        failures, self._failures = self._failures or [], []
        return {id(each): error for each, error in failures}

    def _concerned(self) -> list[Decoding]:
        """Whom an error of the step ends. Somebody, so that no step is tried for ever."""
        unfinished = [each for each in self._requests if each.finish_reason is None]
        taking_part = [each for each in self._active if each in self._taking_part]
        lost = [each for each in taking_part if self._lost(each)]
        return lost or taking_part or self._active or unfinished


class _Driver:
    """Owns the batch and the thread.

    ``_open`` has every request that has not ended, and is all there is to know of them: one that is in it gets its
    turn, and its end; counts are worked out from it. Callers put one in, with the lock, under which a closing batcher
    takes none; the thread takes it out. Callers wake the thread through a queue that is safe in destructors, so that a
    request may be collected anywhere, whatever lock that thread holds.

    An exception may come between any two statements of a caller, such as what a signal's handler raises: a request that
    was put in before is cancelled. Of the threads that callers start, the first one runs; others end at once.
    """

    def __init__(self, batch: _Driven, max_waiting: int) -> None:
        self._batch = batch  # of the thread alone, once it runs; but for `make`
        self._max_waiting = max_waiting
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        self._open: dict[Published, None] = {}
        self._ending: list[
            tuple[Published, Outcome]
        ] = []  # no longer in `_open`, and not told yet; of the thread alone
        self._running = threading.Lock()  # the thread has it from its start on
        self._thread: threading.Thread | None = None  # None: none has it
        self._active = 0
        self._totals = dict.fromkeys(("finished", "cancelled", "failed", "steps", "tokens"), 0)
        self._at_end: list[Bell] = []  # of those that wait for the thread's end
        self._over = False
        self.closing = False

    # --- any thread -------------------------------------------------------------------------------------------------

    def published(self, decoding: Decoding) -> Published:
        """The published part of a new request."""
        return Published(decoding, self.wake)

    def submit(self, request: Request[Item]) -> Request[Item]:
        if self.closing:
            raise ClosedError("[submit] the batcher is closed")
        if self._thread is None:
            threading.Thread(target=self._run, name="kvtrie-batcher", daemon=True).start()
        try:
            self._admit(request._published)
            self.wake()
        except BaseException:
            request.cancel()
            raise
        return request

    def _admit(self, published: Published) -> None:
        with self._lock:
            if self.closing:
                raise ClosedError("[submit] the batcher is closed")
            allowed = self._batch.max_sessions + self._max_waiting
            if len(self._open) >= allowed:
                raise BusyError(f"[submit] unfinished requests: got {len(self._open) + 1}, allowed {allowed}")
            self._open[published] = None

    def stats(self) -> dict[str, int]:
        with self._lock:
            unfinished, active, totals = self._open.copy(), self._active, self._totals
        ended = totals["finished"] + totals["cancelled"] + totals["failed"]
        return {
            "active": active,
            "waiting": len(unfinished) - active,
            "waiting_tokens": sum(published.decoding.uncomputed for published in unfinished),
            "submitted": len(unfinished) + ended,
            **totals,
        }

    def wake(self) -> None:
        self._wakes.put(None)

    def stop(self) -> None:
        """Asks the thread to end all requests, and then itself. Takes no lock: nobody may have the batcher any more."""
        self.closing = True
        self.wake()

    def close(self) -> None:
        """The same, and waits for the thread's end, but in the thread itself."""
        with self._lock:
            self.stop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    async def aclose(self) -> None:
        """The same without holding the event loop."""
        bell = Bell()
        with self._lock:
            self.stop()
            if self._thread is None or self._over or self._thread is threading.current_thread():
                return
            self._at_end.append(bell)
        await bell.heard()

    # --- its thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if not self._running.acquire(blocking=False):
            return
        self._thread = threading.current_thread()
        while self._turn(self._take_part):
            pass
        while self._turn(self._end):
            pass

    def _turn(self, part: Callable[[], bool]) -> bool:
        """``part``; where it fails, such as without memory, all that have not ended do with its error."""
        try:
            return part()
        except BaseException as error:
            persist(functools.partial(self._fail_all, error))
            return True

    def _fail_all(self, error: BaseException) -> None:
        self._batch.close()
        self._tell({id(published.decoding): error for published in self._open.copy()})

    def _take_part(self) -> bool:
        """Waits for something to do, and does it; False when it is to end."""
        if not self._open and not self.closing:
            self._wakes.get()
        with contextlib.suppress(Empty):
            while True:
                self._wakes.get_nowait()
        for published in self._open.copy():
            if not published.ended:
                self._batch.take(published.decoding)
            if published.cancelled:
                published.decoding.close()
        if self.closing:
            return False
        self._tell(self._step())
        return True

    def _end(self) -> bool:
        """Ends all. False: nothing is left of it to do."""
        for published in self._open.copy():
            published.decoding.close()
        self._batch.close()
        self._tell({})
        with self._lock:
            self._over = True
            waiting, self._at_end = self._at_end, []
        for bell in waiting:
            bell.ring()
        return False

    def _step(self) -> dict[int, BaseException]:
        began = time.perf_counter()
        errors = self._batch.attempt()
        self._batch.measure(time.perf_counter() - began)
        return errors

    def _tell(self, errors: dict[int, BaseException]) -> None:
        """Counts what became of each request, then tells its readers, who may look at the counts."""
        unfinished = self._open.copy()
        endings = [(published, published.ending(errors.get(id(published.decoding)))) for published in unfinished]
        ended = [(published, outcome) for published, outcome in endings if outcome is not None]
        totals = self._counted(
            [outcome for _, outcome in ended], sum(published.unpublished for published in unfinished)
        )
        with self._lock:
            left = self._open.copy()
            for published, _ in ended:
                left.pop(published, None)
            self._ending += ended
            self._open, self._totals, self._active = left, totals, self._batch.active
        for published, outcome in endings:
            if outcome is None:
                published.publish(None)
        for published, outcome in self._ending:
            published.publish(outcome)
        self._ending = []

    def _counted(self, outcomes: Sequence[Outcome], tokens: int) -> dict[str, int]:
        totals = dict(self._totals)
        totals["steps"] += 1
        totals["tokens"] += tokens
        for outcome in outcomes:
            kind = outcome.finish_reason
            totals[kind if kind in ("cancelled", "failed") else "finished"] += 1
        return totals


def _checked(stall: float | None) -> float | None:
    if stall is None:
        return None
    if isinstance(stall, bool) or not isinstance(stall, (int, float)):
        raise ArgumentTypeError(f"[Batcher] stall: got {type(stall).__name__}, allowed seconds as a number, or None")
    if not 0 < stall < float("inf"):
        raise ArgumentError(f"[Batcher] stall: got {stall}, allowed seconds above 0")
    return float(stall)


def _close_all() -> None:
    """Before the interpreter ends its threads, so that none is in a step then."""
    for batcher in list(_open):
        with contextlib.suppress(Error):  # of a device that is gone already
            batcher.close()
