"""Text in, text out: what ``model.chat`` and ``model.complete`` give back.

    reply = model.chat([{"role": "user", "content": "What is a cache?"}], max_tokens=64)
    for piece in reply:
        print(piece, end="", flush=True)
    print(reply.finish_reason, reply.reused, "of", reply.prompt_tokens, "tokens reused")

``str(reply)`` and ``reply.text`` run it to its end. Nothing is computed before it is asked for.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TypedDict, cast

import numpy as np

from ._arguments import optional_callable, refusal
from ._core import PrefixCache as _Cache
from ._core import TokenTexts
from ._protocols import StepModel, text_model
from ._values import Reason
from .awaited import Apart, BothWays
from .errors import ArgumentTypeError
from .generate import Generation, Progress, vocab_size_of
from .sampling import LogitsProcessor, Sampler, Sampling, TokenLogprob, whole
from .stopping import Stop, Stopper

__all__ = ["Reply", "ReplyOptions", "SamplingOptions", "begin_reply", "checked_sampling", "has_answers"]


class SamplingOptions(TypedDict, total=False):
    """Those of :class:`kvtrie.Sampling`, as keyword arguments."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    logits_processors: LogitsProcessor | Sequence[LogitsProcessor]
    seed: int | None
    logprobs: int | None


class ReplyOptions(SamplingOptions, total=False):
    """What ``model.chat`` and ``model.complete`` take by keyword: the parameters of the choice, and these.

    ``max_tokens``: 256 unless given. ``stop``, ``ignore_eos``, ``chunk`` (512), ``progress``: those of ``kv.generate``;
    a stop text is not part of the answer. ``cache``: the model's own unless given; ``namespace``: "default".
    """

    max_tokens: int
    stop: Stop
    cache: _Cache | None
    namespace: str
    ignore_eos: bool
    chunk: int
    progress: Progress | None


class Reply(BothWays[str]):
    """An answer in whole characters, made as it is asked for; without its stop text and without special tokens.

    An exception, such as KeyboardInterrupt, ends nothing: what was written stays in ``text_so_far``, and the next
    read continues. ``close`` ends it, and so does leaving a ``with`` block. ``async for`` gives the same text, computed
    in a thread, ``await`` all of it, and ``async with`` closes it. For many at a time see :class:`kvtrie.Batcher`.
    """

    def __init__(self, generation: Generation, stopper: Stopper, prompt_tokens: int) -> None:
        super().__init__()
        self._generation = generation
        self._stopper = stopper
        self._closed = False
        self.prompt_tokens = prompt_tokens
        """Tokens of the prompt."""
        self.reused: int = generation.live.reused
        """Of them, those that were known and not computed."""
        self.reason: Reason = generation.live.reason
        """Why not more was reused: a str, empty when nothing was left out."""

    def __await__(self) -> Generator[object, None, str]:
        return self._whole().__await__()

    async def _whole(self) -> str:
        async for _ in self:
            pass
        return self.text_so_far

    @property
    def _items(self) -> list[str]:
        return self._stopper.pieces

    @property
    def _over(self) -> bool:
        return self._closed or (self._stopper.ended and self._generation.finish_reason is not None)

    def _thread(self) -> Apart:
        self._apart = self._generation._thread()  # so that a long prompt stops between its chunks, too
        return self._apart

    def _make(self) -> bool:
        if self._over:
            return False
        if not self._generation._make():
            self._stopper.read(self._generation.tokens, ended=True)
        return True

    @property
    def text(self) -> str:
        """The whole answer."""
        for _ in self:
            pass
        return self.text_so_far

    @property
    def text_so_far(self) -> str:
        """What there is by now."""
        return "".join(self._stopper.pieces)

    @property
    def message(self) -> dict[str, str]:
        """The whole answer as a message, for the next turn."""
        return {"role": "assistant", "content": self.text}

    @property
    def tokens(self) -> list[int]:
        """Those of the answer so far, with what ended it."""
        return list(self._generation.tokens)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """One for each of ``tokens``, where ``logprobs`` was given."""
        return list(self._generation.logprobs)

    @property
    def finish_reason(self) -> str | None:
        """ "stop", "length" or "closed"; None while there is more."""
        return self._generation.finish_reason

    @property
    def seconds_to_first(self) -> float | None:
        """From asking for the first token to having it; None before."""
        return self._generation.seconds_to_first

    def close(self) -> None:
        """Ends it, and closes its session."""
        self._closed = True
        self._generation.close()

    def __enter__(self) -> Reply:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        state = self.finish_reason or "unfinished"
        return f"<kvtrie.Reply, {len(self.tokens)} tokens, {state}, {self.reused} of {self.prompt_tokens} reused>"


def checked_sampling(options: SamplingOptions) -> Sampling:
    """Raises for what is no parameter, or out of its range."""
    unknown = sorted(set(options) - set(SamplingOptions.__annotations__))
    if unknown:
        allowed = ", ".join(SamplingOptions.__annotations__)
        raise ArgumentTypeError(f"[generate] {unknown[0]}: there is no such parameter, allowed {allowed}")
    return Sampling(**options)  # type: ignore[arg-type]  # any iterable of processors


def begin_reply(
    model: StepModel, tokens: Sequence[int], options: ReplyOptions, texts: TokenTexts | None = None
) -> Reply:
    """A reply to the prompt ``tokens``, in a new session of the cache. Checks all arguments.

    ``texts``: what tokens spell, where the prompt is to be taken in the tokens that the cache knows its text by.
    """
    max_tokens = whole("max_tokens", options.get("max_tokens", 256), 0)
    chunk = whole("chunk", options.get("chunk", 512), 1)
    sampling = {name: value for name, value in options.items() if name not in _OF_REPLIES}
    sampler = Sampler(checked_sampling(cast(SamplingOptions, sampling)), vocab_size_of(model))
    stopper = Stopper(model, options.get("stop"), options.get("ignore_eos", False), wants_text=True)
    given = options.get("cache")
    cache = text_model(model).prefix_cache if given is None else given
    if not isinstance(cache, _Cache):
        raise refusal(cache, "generate", "cache", "a PrefixCache, or None")
    optional_callable(options.get("progress"), "generate", "progress", "a callable (done, total)")
    namespace = options.get("namespace", "default")
    prompt = np.asarray(tokens, np.int32)
    if texts is not None and len(prompt):
        prompt = cache.match_text(prompt, texts, namespace)
    session = cache.begin(prompt, namespace=namespace)
    generation = Generation(
        model,
        session,
        sampler,
        stopper,
        max_tokens=max_tokens,
        chunk=chunk,
        progress=options.get("progress"),
        owned=True,
    )
    return Reply(generation, stopper, len(prompt))


def has_answers(messages: Sequence[Mapping[str, object]]) -> bool:
    """Whether any is an answer, whose tokens a cache may know."""
    return any(message.get("role") == "assistant" for message in messages if isinstance(message, Mapping))


_OF_REPLIES = ReplyOptions.__annotations__.keys() - SamplingOptions.__annotations__.keys()
