"""Beginning an answer that its caller drives: checks of all arguments, its session, and the :class:`Generation`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np

from . import _core
from ._arguments import optional_callable, refusal
from ._core import PrefixCache, TokenTexts
from ._decoding import Decoding, Progress, drafting_of
from ._options import SamplingOptions, TextOptions, checked_sampling
from ._prompts import Prompt, known_prompt, token_ids, vocab_size_of
from ._protocols import Logits, StepModel, cache_of, text_model
from .draft import Draft
from .errors import ArgumentError, ArgumentTypeError
from .generation import Generation
from .sampling import LogitsProcessor, Sampler, Sampling, whole
from .stopping import Stop, Stopper

__all__ = ["begin_text", "generate"]


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
    draft: Draft = None,
) -> Generation[int]:
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

    ``draft``: what guesses several tokens, which one step then checks: "prompt" (what followed the same tokens earlier
    in the text), "tree" (what others of the namespace went on with), "suffix" (what followed the same last tokens
    anywhere in the namespace), "mtp" (the model's own prediction head), a :class:`kvtrie.DraftModel`, a
    :class:`kvtrie.DraftTree` of several ways at once, a callable (tokens int32, most) -> token ids, or a list of these,
    asked in turn. The tokens are those without it, and on CPU
    devices so are all bits; several of them may come at once, and are then in the session before they are handed out.
    ``model`` has to take ``all_rows``. How long drafts are follows from how many are right and what that costs;
    ``proposed`` and ``accepted`` of the result count them.

    Arguments are checked when this is called, before anything is computed: ``kv.errors.ArgumentError`` or
    ``kv.errors.ArgumentTypeError`` names it. ``kv.errors.CacheFullError`` passes through; the session then holds every
    token handed out.
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
    drafting = drafting_of(model, draft)
    live, owned = _session(model, session)
    remaining = len(live.remaining)
    if logits is not None and remaining > 0:
        if owned:
            live.close()
        raise ArgumentError(f"[generate] logits: given, but {remaining} tokens remain to be computed")
    if logits is None and remaining == 0 and live.length == 0:
        raise ArgumentError("[generate] session: got 0 tokens, allowed 1 or more")
    decoding = Decoding(
        model,
        sampler,
        stopper,
        max_tokens=max_tokens,
        chunk=chunk,
        session=live,
        logits=logits,
        progress=progress,
        owned=owned,
        drafting=drafting,
    )
    return Generation(decoding)


def _session(model: StepModel, given: _core.Session | Prompt) -> tuple[_core.Session, bool]:
    """A session, and whether it was made here."""
    if isinstance(given, _core.Session):
        return given, False
    if not isinstance(given, (str, list, tuple, range, np.ndarray)):
        raise ArgumentTypeError(
            f"[generate] session: got {type(given).__name__}, allowed a session, a text, or a list of token ids"
        )
    return cache_of(model, "generate").begin(token_ids(model, given, "generate")), True


def begin_text(
    model: StepModel, tokens: Sequence[int], options: TextOptions, texts: TokenTexts | None = None
) -> Generation[str]:
    """An answer in text to the prompt ``tokens``, in a new session of the cache. Checks all arguments.

    ``texts``: what tokens spell, where the prompt is to be taken in the tokens that the cache knows its text by.
    """
    max_tokens = whole("max_tokens", options.get("max_tokens", 256), 0)
    chunk = whole("chunk", options.get("chunk", 512), 1)
    sampling = {name: value for name, value in options.items() if name not in _OF_TEXT}
    sampler = Sampler(checked_sampling(cast(SamplingOptions, sampling)), vocab_size_of(model))
    stopper = Stopper(model, options.get("stop"), options.get("ignore_eos", False), wants_text=True)
    given = options.get("cache")
    cache = text_model(model).prefix_cache if given is None else given
    if not isinstance(cache, PrefixCache):
        raise refusal(cache, "generate", "cache", "a PrefixCache, or None")
    optional_callable(options.get("progress"), "generate", "progress", "a callable (done, total)")
    drafting = drafting_of(model, options.get("draft"))
    namespace = options.get("namespace", "default")
    session = cache.begin(known_prompt(cache, tokens, texts, namespace), namespace=namespace)
    decoding = Decoding(
        model,
        sampler,
        stopper,
        max_tokens=max_tokens,
        chunk=chunk,
        session=session,
        progress=options.get("progress"),
        owned=True,
        drafting=drafting,
    )
    return Generation(decoding, of_text=True)


_OF_TEXT = TextOptions.__annotations__.keys() - SamplingOptions.__annotations__.keys()
