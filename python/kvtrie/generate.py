"""Token by token generation on one session.

Order of events, for every token: sample, record it in the session, yield it, and only when the next one is asked for
compute it. So when the caller stops listening - or the generator ends - every token that was yielded is in
``session.tokens``, and the last one is recorded, not computed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Union

import numpy as np

import kvtrie as kv

Stop = Union[None, int, str, Iterable[Union[int, str]]]
_MASK = (1 << 64) - 1


def generate(
    model: Any,
    session: Any,
    max_tokens: int = 64,
    temperature: float = 0.0,
    stop: Stop = None,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
    chunk: int = 512,
    logits: Any = None,
) -> Iterator[int]:
    """Yields up to ``max_tokens`` token ids that continue ``session``.

    What the session still has to compute is computed first, in prefill steps of ``chunk`` rows. Where nothing remains
    (a branch of a session that is fully computed), its last token is computed once more, unless the ``logits``
    [1, vocab] that follow it are passed.

    ``temperature`` 0 takes the likeliest token; otherwise sampling among the ``top_k`` likeliest (0: all) whose
    probabilities reach ``top_p``. The draw depends on ``seed`` and the position only, so the same text gives the same
    token again; ``seed=None`` takes a new seed from the system.

    ``stop``: token ids, texts, or a mix; None means the checkpoint's own end-of-text tokens, () means none. A stop
    token is the last one recorded and yielded; a stop text ends generation with the token that completes it, and needs
    ``model.tokenizer``.

    Arguments are checked when this is called, before anything is computed: ``kv.ArgumentError`` or
    ``kv.ArgumentTypeError`` names it. ``kv.CacheFull`` passes through; the session then holds every token yielded.
    """
    max_tokens = _whole("max_tokens", max_tokens, 0)
    top_k = _whole("top_k", top_k, 0)
    chunk = _whole("chunk", chunk, 1)
    if not 0.0 <= _number("temperature", temperature) < float("inf"):
        raise kv.ArgumentError(f"[generate] temperature: got {temperature}, allowed 0 or more")
    if not 0.0 < _number("top_p", top_p) <= 1.0:
        raise kv.ArgumentError(f"[generate] top_p: got {top_p}, allowed above 0 and up to 1")
    seed = int.from_bytes(os.urandom(8), "little") if seed is None else _whole("seed", seed, 0)
    if logits is None and len(session.remaining) == 0 and session.length == 0:
        raise kv.ArgumentError("[generate] session: got 0 tokens, allowed 1 or more")
    if logits is not None and len(session.remaining) > 0:
        raise kv.ArgumentError(f"[generate] logits: given, but {len(session.remaining)} tokens remain to be computed")
    stopper = _Stopper(model, stop)
    sampler = _Sampler(float(temperature), top_k, float(top_p), seed)
    return _run(model, session, max_tokens, chunk, logits, sampler, stopper)


def _run(
    model: Any, session: Any, max_tokens: int, chunk: int, logits: Any, sampler: _Sampler, stopper: _Stopper
) -> Iterator[int]:
    if logits is None and max_tokens > 0 and len(session.remaining) == 0:
        last = session.tokens[-1:]
        session.rewind(session.length - 1)
        session.append(last)
    for step in session.prefill(chunk=chunk) if logits is None and max_tokens > 0 else ():
        logits = model(step)
    for count in range(max_tokens):
        if count > 0:
            logits = model(session.decode())
        token = sampler(logits, session.length)
        session.append(token)
        yield token
        if stopper(token):
            return


class _Sampler:
    """logits [1, vocab] -> one token id: one blocking read."""

    def __init__(self, temperature: float, top_k: int, top_p: float, seed: int) -> None:
        self._temperature = temperature
        self._top_k = top_k
        self._top_p = top_p
        self._seed = seed

    def __call__(self, logits: Any, position: int) -> int:
        if self._temperature == 0.0:
            chosen = kv.ops.argmax(logits)
        else:
            chosen = kv.ops.sample(logits, self._temperature, self._top_k, self._top_p, _mix(self._seed, position))
        return int(np.asarray(chosen).reshape(-1)[0])


class _Stopper:
    """Says after each token whether it ends the text."""

    def __init__(self, model: Any, stop: Stop) -> None:
        wanted: list[Any]
        if stop is None:
            wanted = list(model.config.eos_token_ids)
        elif isinstance(stop, (str, int, np.integer)):
            wanted = [stop]
        else:
            try:
                wanted = list(stop)
            except TypeError:
                raise kv.ArgumentTypeError(
                    f"[generate] stop: got {type(stop).__name__}, allowed token ids and texts"
                ) from None
        self._ids = {int(item) for item in wanted if _is_id(item)}
        self._texts = [item for item in wanted if isinstance(item, str)]
        if len(self._texts) + sum(map(_is_id, wanted)) != len(wanted) or "" in self._texts:
            raise kv.ArgumentTypeError(f"[generate] stop: got {stop!r}, allowed token ids and non-empty texts")
        self._stream = None
        self._tail = ""
        if self._texts:
            if model.tokenizer is None:
                raise kv.ArgumentError(
                    "[generate] stop: got a text, allowed token ids only: the model has no tokenizer"
                )
            self._stream = model.tokenizer.stream(skip_special_tokens=False)
            self._keep = max(map(len, self._texts)) - 1

    def __call__(self, token: int) -> bool:
        if token in self._ids:
            return True
        if self._stream is None:
            return False
        text = self._tail + self._stream.feed(token)
        self._tail = text[-self._keep :] if self._keep else ""
        return any(wanted in text for wanted in self._texts)


def _is_id(item: Any) -> bool:
    return isinstance(item, (int, np.integer)) and not isinstance(item, (bool, np.bool_))


def _whole(name: str, value: Any, least: int) -> int:
    if not _is_id(value):
        raise kv.ArgumentTypeError(f"[generate] {name}: got {type(value).__name__}, allowed an integer")
    if value < least:
        raise kv.ArgumentError(f"[generate] {name}: got {value}, allowed {least} or more")
    return int(value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise kv.ArgumentTypeError(f"[generate] {name}: got {type(value).__name__}, allowed a number")
    return float(value)


def _mix(seed: int, position: int) -> int:
    """A 32-bit seed for one draw (splitmix64's finaliser, Steele et al. 2014), so that positions are independent."""
    z = (seed + (position + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) & 0xFFFFFFFF
