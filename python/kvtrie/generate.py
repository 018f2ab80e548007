"""Token by token generation on one session.

Order of events, for every token: sample, record it in the session, hand it out, and only when the next one is asked for
compute it. So when the caller stops listening - or the text ends - every token that was handed out is in
``session.tokens``, and the last one is recorded, not computed. The same holds for ``async for`` (awaited.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Union

import numpy as np
import numpy.typing as npt

from . import _core
from ._arguments import optional_callable, refusal
from ._protocols import Logits, StepModel, cache_of, text_model
from .awaited import BothWays, Left
from .draws import Draw
from .errors import ArgumentError, ArgumentTypeError
from .sampling import LogitsProcessor, Sampler, Sampling, TokenLogprob, whole
from .stopping import Stop, Stopper

__all__ = ["Generation", "Progress", "Prompt", "generate"]

Prompt = Union[str, Sequence[int], npt.NDArray[np.integer]]
Progress = Callable[[int, int], None]  # tokens of the prompt that are computed, and to be computed


class Generation(BothWays[int]):
    """The tokens of one answer, made as they are asked for; from :func:`generate`.

    It can be continued after an exception, such as KeyboardInterrupt, from the last complete step. ``async for`` gives
    the same tokens, computed in a thread; ``await`` gives a list of those that are left. A task that is cancelled ends
    nothing: the next one goes on.
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
        self.ready = logits
        """Logits [1, vocab] that the next token is chosen by; None: to be computed."""
        self._progress = progress
        self._owned = owned
        self.session = session
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
        """``session``, which a generation that waits in a batch has none of."""
        assert self.session is not None
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
    def _over(self) -> bool:
        self.settle()
        return self.finish_reason is not None

    def _advance(self) -> int:
        if self._over:
            raise StopIteration
        begin = time.perf_counter()
        if self.ready is None:
            self.ready = self._compute()
        token = self.choose()
        if self.seconds_to_first is None:
            self.seconds_to_first = time.perf_counter() - begin
        return token

    def settle(self) -> None:
        """Finishes it where it has all its tokens."""
        if self.finish_reason is None and len(self.tokens) >= self._max_tokens:
            self._end("length")

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
        assert self.ready is not None
        choice = self._sampler.choice(token, self.ready)
        self.accept(choice.token, choice.logprob)

    def choose(self) -> int:
        """Takes a token by the logits that are ready."""
        session = self.live
        assert self.ready is not None
        choice = self._sampler(self.ready, session.length, lambda: session.tokens, len(self.tokens))
        self.accept(choice.token, choice.logprob)
        return choice.token

    def accept(self, token: int, logprob: TokenLogprob | None = None) -> None:
        """Records the next token; ends where it says so."""
        self.live.append(token)
        self.ready = None
        self.tokens.append(token)
        if logprob is not None:
            self.logprobs.append(logprob)
        if self._stopper(token):
            self._end("stop")
        self.settle()

    def close(self) -> None:
        """Closes the session where this made it; the tokens stay. Nothing more comes."""
        if self.finish_reason is None:
            self._end("closed")
        elif self._owned and self.session is not None:
            self.session.close()

    def _end(self, reason: str) -> None:
        self.finish_reason = reason
        if self._owned and self.session is not None:
            self.session.close()

    def _compute(self) -> Logits | None:
        """Logits behind everything recorded. Where all is computed, as in a branch, the last token is once more."""
        session = self.live
        total = len(session.remaining)
        if self.tokens and total > 0:
            return self._model(session.decode())
        if total == 0:
            last, total = session.tokens[-1:], 1
            session.rewind(session.length - 1)
            session.append(last)
        logits, done = None, 0
        for step in session.prefill(chunk=self._chunk):
            logits = self._model(step)
            done += len(step.tokens)
            if self._progress is not None:
                self._progress(done, total)
            if done < total and self._apart is not None and self._apart.left:
                raise Left
        return logits


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
