"""Token by token generation on one session.

Order of events, for every token: sample, record it in the session, hand it out, and only when the next one is asked for
compute it. So when the caller stops listening - or the text ends - every token that was handed out is in
``session.tokens``, and the last one is recorded, not computed. The same holds for ``async for`` (awaited.py).

An exception may come between any two statements: KeyboardInterrupt, what a callback raises, no memory. So what must
change as one changes in one call of the core, ``session.accept``: it records the token and lists it. All else follows
from that, and is worked out again by the next read:

    tokens         what was accepted; nothing takes one back
    ready          logits with the number of tokens that they follow: of no use once the session has others
    stopper        what it says about ``tokens`` (stopping.py)
    finish_reason  "stop" by the stopper, "length" by the count, "closed" by the caller; set once the session is closed

Logits that were lost are computed again (``session.recompute``), to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple, Union

import numpy as np
import numpy.typing as npt

from . import _core
from ._arguments import optional_callable, refusal
from ._protocols import Logits, StepModel, cache_of, text_model
from .awaited import BothWays, Left
from .draws import Draw
from .errors import ArgumentError, ArgumentTypeError, ClosedError
from .sampling import Choice, LogitsProcessor, Sampler, Sampling, TokenLogprob, whole
from .stopping import Stop, Stopper

__all__ = ["Generation", "Progress", "Prompt", "generate"]

Prompt = Union[str, Sequence[int], npt.NDArray[np.integer]]
Progress = Callable[[int, int], None]  # tokens of the prompt that are computed, and to be computed


class Ready(NamedTuple):
    """What the next token is chosen by."""

    logits: Logits  # [1, vocab]
    length: int  # tokens of the session that they follow


class Generation(BothWays[int]):
    """The tokens of one answer, made as they are asked for; from :func:`generate`.

    It can be continued after any exception, such as KeyboardInterrupt, with the tokens that would have come without it.
    ``async for`` gives the same tokens, computed in a thread; ``await`` gives a list of those that are left. A task
    that is cancelled ends nothing: the next one goes on.
    """

    def __init__(
        self,
        model: StepModel,
        session: _core.Session | None,
        sampler: Sampler,
        stopper: Stopper,
        *,
        max_tokens: int,
        chunk: int,
        logits: Logits | None = None,
        progress: Progress | None = None,
        owned: bool = False,
    ) -> None:
        super().__init__()
        self._model = model
        self._sampler = sampler
        self._stopper = stopper
        self._max_tokens = max_tokens
        self._chunk = chunk
        self._progress = progress
        self._owned = owned
        self._closing = False
        self._asked_at: float | None = None
        self.session = session
        self._ready = None if logits is None else Ready(logits, self.live.recorded)
        self.tokens: list[int] = []
        """Those that were chosen so far."""
        self.logprobs: list[TokenLogprob] = []
        """One for each token, where ``logprobs`` was given."""
        self.finish_reason: str | None = None
        """"stop" (an end token, a stop token or a stop text), "length" (``max_tokens``), "closed"; None: unfinished."""
        self.seconds_to_first: float | None = None
        """From asking for the first token to having it: what the prompt took."""

    @property
    def live(self) -> _core.Session:
        """``session``; ``kv.ClosedError`` for a generation that waits in a batch, or was closed there: it has none."""
        if self.session is None:
            raise ClosedError("[generate] it has no session: it was closed, or waits for its place")
        return self.session

    @property
    def stopped_by(self) -> int | str | None:
        """The token or the text that ended it."""
        return self._stopper.matched

    def __await__(self) -> Generator[object, None, list[int]]:
        return self._rest().__await__()

    async def _rest(self) -> list[int]:
        return [token async for token in self]

    @property
    def _items(self) -> list[int]:
        return self.tokens

    @property
    def _over(self) -> bool:
        return self.finish_reason is not None

    def _make(self) -> bool:
        self.settle()
        if self._over:
            return False
        if self._asked_at is None:
            self._asked_at = time.perf_counter()
        if self.ready is None:
            self._ready = self._compute()
        self.choose()
        return True

    # --- its parts, which a batch drives ----------------------------------------------------------------------------

    @property
    def ready(self) -> Ready | None:
        """What the next token is chosen by; None: to be computed."""
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
        """What decides its next token. REQUIRES: ``on_device``, and logits that are ready."""
        session = self.live
        return self._sampler.draw(session.length, lambda: session.tokens, len(self.tokens), vocab_size)

    def take(self, token: int) -> None:
        """Records what was drawn by the logits that are ready."""
        ready = self._given()
        self._accept(self._sampler.choice(token, ready.logits), ready.length)

    def choose(self) -> None:
        """Takes a token by the logits that are ready."""
        session, ready = self.live, self._given()
        choice = self._sampler(ready.logits, session.length, lambda: session.tokens, len(self.tokens))
        self._accept(choice, ready.length)

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

    def settle(self) -> None:
        """Finishes it where it has all its tokens, or is to be closed."""
        if self.finish_reason is not None:
            return
        self._stopper.read(self.tokens)
        if self._stopper.matched is not None:
            self._end("stop")
        elif len(self.tokens) >= self._max_tokens:
            self._end("length")
        elif self._closing:
            self._end("closed")

    def close(self) -> None:
        """Closes the session where this made it; the tokens stay. Nothing more comes."""
        self._closing = True
        self._end("closed")

    def go_on_in(self, session: _core.Session) -> None:
        """Takes ``session``, or closes it where another thread has ended this meanwhile."""
        if not isinstance(session, _core.Session):
            raise refusal(session, "generate", "session", "a session")
        self.session = session
        if self.finish_reason is not None:
            self._end("closed")

    def give_way(self) -> None:
        """Closes the session, which another one is to take the place of; what it computed stays in the cache."""
        self._ready = None
        session, self.session = self.session, None
        if session is not None:
            session.close()

    def _end(self, reason: str) -> None:
        if self._owned and self.session is not None:
            self.session.close()
        if self.finish_reason is None:  # another thread may have ended it meanwhile
            self.finish_reason = reason

    def renew(self) -> None:
        """Sees to it that something remains to be computed: logits were lost, or nobody had any, as in a branch."""
        session = self.live
        if session.length == session.recorded:
            session.recompute()

    def _compute(self) -> Ready | None:
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
            if done < total and self._apart is not None and self._apart.left:
                raise Left
        return None if logits is None else Ready(logits, length)


def generate(
    model: StepModel,
    session: _core.Session | Prompt,
    max_tokens: int = 64,
    temperature: float = 0.0,
    stop: Stop = None,
    *,
    ignore_eos: bool = False,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    logits_processors: LogitsProcessor | Iterable[LogitsProcessor] = (),
    logprobs: int | None = None,
    seed: int | None = None,
    chunk: int = 512,
    logits: Logits | None = None,
    progress: Progress | None = None,
) -> Generation:
    """An iterator over up to ``max_tokens`` token ids that continue ``session``, for ``for`` and ``async for``.

    ``session``: a session of a cache, or a prompt, text or token ids, which then gets a session of
    ``model.prefix_cache``, closed at the end. What it still has to compute is computed first, in prefill steps of
    ``chunk`` rows; ``progress`` is called with (tokens done, of so many) after each. Where nothing remains (a branch of
    a session that is fully computed), its last token is computed once more, unless the ``logits`` [1, vocab] that
    follow it are passed.

    ``temperature`` 0 takes the likeliest token; otherwise one is drawn, which depends on the logits, ``seed`` and its
    position only, so the same text gives the same token again. The other parameters of the choice are those of
    :class:`kvtrie.Sampling`.

    ``stop``: token ids, texts, or a mix, in addition to the model's own end tokens (``model.end_tokens``), which
    ``ignore_eos`` leaves out. A stop token is the last one recorded and handed out; a stop text ends generation with
    the token that completes it, and needs ``model.tokenizer``. ``finish_reason`` of the result says what ended it, its
    ``logprobs`` are there where ``logprobs`` says how many.

    Arguments are checked when this is called, before anything is computed: ``kv.ArgumentError`` or
    ``kv.ArgumentTypeError`` names it. ``kv.CacheFull`` passes through; the session then holds every token handed out.
    """
    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias={} if logit_bias is None else logit_bias,
        logits_processors=logits_processors,  # type: ignore[arg-type]  # any iterable: Sampling keeps a tuple
        seed=seed,
        logprobs=logprobs,
    )
    max_tokens = whole("max_tokens", max_tokens, 0)
    chunk = whole("chunk", chunk, 1)
    optional_callable(progress, "generate", "progress", "a callable (done, total)")
    if not callable(model):
        raise refusal(model, "generate", "model", "a callable that computes a step")
    sampler = Sampler(sampling, vocab_size_of(model))
    stopper = Stopper(model, stop, ignore_eos)
    live, owned = _session(model, session)
    remaining = len(live.remaining)
    if logits is not None and remaining > 0:
        if owned:
            live.close()
        raise ArgumentError(f"[generate] logits: given, but {remaining} tokens remain to be computed")
    if logits is None and remaining == 0 and live.length == 0:
        raise ArgumentError("[generate] session: got 0 tokens, allowed 1 or more")
    return Generation(
        model,
        live,
        sampler,
        stopper,
        max_tokens=max_tokens,
        chunk=chunk,
        logits=logits,
        progress=progress,
        owned=owned,
    )


def vocab_size_of(model: StepModel) -> int | None:
    """None for a model of the caller's own that does not say."""
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    return None if size is None else int(size)


def _session(model: StepModel, given: _core.Session | Prompt) -> tuple[_core.Session, bool]:
    """A session, and whether it was made here."""
    if isinstance(given, _core.Session):
        return given, False
    if not isinstance(given, (str, list, tuple, range, np.ndarray)):
        raise ArgumentTypeError(
            f"[generate] session: got {type(given).__name__}, allowed a session, a text, or a list of token ids"
        )
    return cache_of(model, "generate").begin(token_ids(model, given, "generate")), True


def token_ids(model: StepModel, prompt: Prompt, where: str) -> npt.NDArray[np.int32]:
    """A text, or token ids in any sequence, as int32 [1 or more]; what they may be otherwise is the cache's to say."""
    if isinstance(prompt, str) and getattr(model, "tokenizer", None) is None:
        raise refusal(model, where, "model", "one with a tokenizer, or token ids in place of a text")
    try:
        ids = np.asarray(text_model(model).tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
    except ValueError:  # rows of several lengths
        raise ArgumentTypeError(f"[{where}] prompt: got lists in a list, allowed a text or integers") from None
    if ids.ndim != 1 or ids.size == 0:
        raise ArgumentError(f"[{where}] prompt: got {ids.size} tokens of rank {ids.ndim}, allowed a list of 1 or more")
    if not np.issubdtype(ids.dtype, np.integer):
        raise ArgumentTypeError(f"[{where}] prompt: got {ids.dtype}, allowed a text or integers")
    outside = np.flatnonzero((ids < -(2**31)) | (ids >= 2**31))
    if outside.size:
        at = int(outside[0])
        raise ArgumentError(f"[{where}] prompt[{at}]: got {ids[at]}, allowed -2147483648 to 2147483647")
    return ids.astype(np.int32)
