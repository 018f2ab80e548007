"""How the next token is chosen: one code for ``generate``, the chat and batches.

    logits -> repetition, presence and frequency penalties -> logit_bias -> logits_processors
           -> temperature -> min_p, typical_p -> top_k -> top_p -> the draw

All of it is the device's (draws.py, ``kv.ops.sample``) but for logits_processors and typical_p: only where one of those
is asked for is the row of logits read, changed on the host and sent back for the draw. So a token depends on the
logits, the parameters, the seed and its position, and on nothing else, however many sequences choose together.

Threads: :class:`Sampling` is read-only. A :class:`Sampler` belongs to one sequence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Optional, cast

import numpy as np
import numpy.typing as npt

from . import _core
from ._arguments import converting, listed, refusal
from ._core import Tensor
from ._whole import Whole, mark_lacking
from .draws import NONE, Biases, Draw, draw, edits_of
from .errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

__all__ = ["Choice", "LogitsProcessor", "Sampler", "Sampling", "TokenLogprob"]

Logits = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]
# (all tokens so far, logits [vocab]) -> the logits to go on with, which may be the same array, changed. None: the same.
LogitsProcessor = Callable[[Tokens, Logits], Optional[npt.ArrayLike]]

_WHERE = "generate"
_MASK = (1 << 64) - 1
_MAX_LOGPROBS = 1000


class TokenLogprob(NamedTuple):
    """The model's own judgement of a token: natural logarithms of its probabilities, before anything changed them."""

    token: int
    logprob: float
    top: list[tuple[int, float]]  # the likeliest tokens, the likeliest first


class RankedLogprob(NamedTuple):
    """The same of a token of a prompt, and its ``rank``: 1 for the likeliest one."""

    logprob: TokenLogprob
    rank: int


class Choice(NamedTuple):
    """A token, and its log-probability where that was asked for."""

    token: int
    logprob: TokenLogprob | None


@dataclass(frozen=True)
class Sampling:
    """Parameters of the choice. The defaults take the likeliest token.

    ``temperature``: 0 for the likeliest token. ``top_k``: among so many (0: all). ``top_p``: among those that
    together reach this probability. ``min_p``: among those at least this fraction as probable as the likeliest.
    ``typical_p``: among the tokens closest to the expected surprise that reach this probability (Meister et al.
    2022). These four do nothing at temperature 0.
    ``repetition_penalty``: logits of tokens that stand in the text are divided by it (multiplied where negative).
    ``presence_penalty`` and ``frequency_penalty`` are taken off the logit of a token that was generated, the one once,
    the other for each time. ``logit_bias``: added to the logits of tokens by id; -inf forbids one.
    ``logits_processors``: callables (tokens, logits) -> logits, in turn: ``tokens`` int32, all so far, ``logits``
    float32 [vocab], which they may change in place; returning None means that they did. -inf forbids a token.

    ``seed``: the draw depends on it and the position only; None takes a new one from the system. ``logprobs``: how many
    of the likeliest tokens are reported with each token; 0 for the token's own alone, None for nothing.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logits_processors: Sequence[LogitsProcessor] = ()
    seed: int | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, float("inf"), "0 or more", above=None, below=float("inf"))
        whole("top_k", self.top_k, 0)
        _check("top_p", self.top_p, 0.0, 1.0, "above 0 and up to 1", above=0.0)
        _check("min_p", self.min_p, 0.0, 1.0, "0 to 1")
        _check("typical_p", self.typical_p, 0.0, 1.0, "above 0 and up to 1", above=0.0)
        _check("repetition_penalty", self.repetition_penalty, 0.0, 1e6, "above 0", above=0.0)
        _check("presence_penalty", self.presence_penalty, -1e6, 1e6, "a finite number")
        _check("frequency_penalty", self.frequency_penalty, -1e6, 1e6, "a finite number")
        if self.seed is not None:
            whole("seed", self.seed, 0)
        if self.logprobs is not None and whole("logprobs", self.logprobs, 0) > _MAX_LOGPROBS:
            raise ArgumentError(f"[{_WHERE}] logprobs: got {self.logprobs}, allowed 0 to {_MAX_LOGPROBS}")
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        object.__setattr__(self, "logits_processors", _checked_processors(self.logits_processors))

    @property
    def on_device(self) -> bool:
        """Whether tokens are chosen without their logits on the host."""
        return not (self.logits_processors or (self.temperature > 0.0 and self.typical_p < 1.0))

    @property
    def edits_logits(self) -> bool:
        """Whether penalties or biases change some logits."""
        penalties = (self.repetition_penalty - 1.0, self.presence_penalty, self.frequency_penalty)
        return bool(self.logit_bias) or any(penalties)


mark_lacking(Sampling, ("logit_bias",))


class Sampler(Whole):
    """Chooses the tokens of one sequence.

    ``vocab_size``: ids at and above it are refused in ``logit_bias``; None where the model does not say.
    """

    def __init__(self, sampling: Sampling, vocab_size: int | None = None) -> None:
        if not isinstance(sampling, Sampling):
            raise refusal(sampling, _WHERE, "sampling", "a kvtrie.Sampling")
        if vocab_size is not None:
            whole("vocab_size", vocab_size, 1)
        for token in sampling.logit_bias:
            if vocab_size is not None and token >= vocab_size:
                raise ArgumentError(f"[{_WHERE}] logit_bias: got token id {token}, allowed 0 to {vocab_size - 1}")
        self.sampling = sampling
        self._seed = int.from_bytes(os.urandom(8), "little") if sampling.seed is None else sampling.seed
        self._biases = Biases.of(sampling.logit_bias)

    def __call__(self, logits: Tensor | Logits, position: int, tokens: Callable[[], Tokens], generated: int) -> Choice:
        """The token at ``position``; ``logits`` [1, vocab].

        ``tokens()``: all tokens before it, of which the last ``generated`` were generated.
        """
        whole("position", position, 0)
        model_logits = logits
        if self.sampling.on_device:
            drawn = self.draw(position, tokens, generated, _vocab_size(logits))
        else:
            shaped = self._shaped(_row(logits), tokens(), generated).reshape(1, -1)
            logits = _core.tensor(shaped, device=logits.device) if isinstance(logits, Tensor) else shaped
            drawn = self._draw(position)
        token = draw(logits, [drawn])[0]
        if token == NONE:
            raise ArgumentError(f"[{_WHERE}] logits: got no finite largest one, allowed a finite number")
        return self.choice(token, model_logits)

    def draw(self, position: int, tokens: Callable[[], Tokens], generated: int, vocab_size: int) -> Draw:
        """The draw that decides the token at ``position``; see :meth:`__call__`. REQUIRES: ``sampling.on_device``."""
        drawn = self._draw(position)
        if not self.sampling.edits_logits:
            return drawn
        return drawn._replace(edits=edits_of(self.sampling, self._biases, tokens(), generated, vocab_size))

    def choice(self, token: int, logits: Tensor | Logits) -> Choice:
        """With its log-probability among the model's own ``logits`` [1, vocab] where that was asked for."""
        count = self.sampling.logprobs
        return Choice(token, None if count is None else logprob_of(_row(logits), token, count))

    def _draw(self, position: int) -> Draw:
        s = self.sampling
        min_p = s.min_p if s.on_device else 0.0  # else the host has left those out
        return Draw(s.temperature, s.top_k, s.top_p, min_p, _mix(self._seed, position))

    def _shaped(self, row: Logits, tokens: Tokens, generated: int) -> Logits:
        s = self.sampling
        edits = edits_of(s, self._biases, tokens, generated, len(row)) if s.edits_logits else None
        if edits is not None:
            edits.apply(row)
        for processor in s.logits_processors:
            row = _processed(processor, tokens, row)
        if not np.isfinite(row.max()):
            raise ArgumentError(f"[{_WHERE}] logits: got {row.max()} as the largest, allowed a finite number")
        if s.temperature > 0.0:
            row = _filtered(row, s)
        return row


def whole(name: str, value: object, least: int) -> int:
    """``value`` as an int; raises for what is no whole number or below ``least``."""
    if not is_id(value):
        raise ArgumentTypeError(f"[{_WHERE}] {name}: got {type(value).__name__}, allowed an integer")
    if value < least:
        raise ArgumentError(f"[{_WHERE}] {name}: got {value}, allowed {least} or more")
    return int(value)


def is_id(item: object) -> TypeGuard[int]:
    """Whether ``item`` is an integer, which True is not, nor a span of time, which numpy takes for one."""
    return isinstance(item, (int, np.integer)) and not isinstance(item, (bool, np.bool_, np.timedelta64))


def _check(
    name: str,
    value: object,
    least: float,
    most: float,
    allowed: str,
    above: float | None = None,
    below: float | None = None,
) -> None:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ArgumentTypeError(f"[{_WHERE}] {name}: got {type(value).__name__}, allowed a number")
    inside = least <= value <= most and (above is None or value > above) and (below is None or value < below)
    if not inside:
        raise ArgumentError(f"[{_WHERE}] {name}: got {value}, allowed {allowed}")


def _checked_bias(bias: object) -> dict[int, float]:
    if bias is None:
        return {}
    if not isinstance(bias, Mapping):
        raise ArgumentTypeError(f"[{_WHERE}] logit_bias: got {type(bias).__name__}, allowed a mapping of token ids")
    checked = {}
    for token, value in bias.items():
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise ArgumentTypeError(f"[{_WHERE}] logit_bias: got {type(value).__name__}, allowed numbers")
        if not value < float("inf"):
            raise ArgumentError(f"[{_WHERE}] logit_bias: got {value}, allowed finite numbers and -inf")
        checked[whole("logit_bias", token, 0)] = float(value)
    return checked


def _checked_processors(processors: object) -> tuple[LogitsProcessor, ...]:
    if processors is None:
        return ()
    allowed = "a callable, or a list of them"
    items = (
        [processors]
        if callable(processors)
        else listed(cast(Iterable[object], processors), _WHERE, "logits_processors", allowed)
    )
    given = cast("tuple[LogitsProcessor, ...]", tuple(items))
    for each in given:
        if not callable(each):
            raise ArgumentTypeError(f"[{_WHERE}] logits_processors: got {type(each).__name__}, allowed callables")
    return given


def _vocab_size(logits: Tensor | Logits) -> int:
    with converting(logits, _WHERE, "logits", "an array of numbers"):
        shape = np.shape(logits)
    if len(shape) != 2 or shape[0] != 1:
        raise ArgumentTypeError(f"[{_WHERE}] logits: got shape {shape}, allowed [1, vocab]")
    return int(shape[1])


def _row(logits: Tensor | Logits) -> Logits:
    """A copy on the host, [vocab]."""
    with converting(logits, _WHERE, "logits", "an array of numbers"):
        return np.array(logits, np.float32).reshape(-1)


def _processed(processor: LogitsProcessor, tokens: Tokens, row: Logits) -> Logits:
    result = processor(tokens, row)
    if result is None:
        return row
    changed = np.asarray(result, np.float32)
    if changed.shape != row.shape:
        raise ArgumentError(
            f"[{_WHERE}] logits_processors: got logits of shape {changed.shape}, allowed {row.shape} or None"
        )
    return changed if changed.flags.writeable else changed.copy()


def _filtered(row: Logits, s: Sampling) -> Logits:
    """Forbids what min_p and typical_p leave out; the likeliest token always stays for the one."""
    logp = log_softmax(row / np.float32(s.temperature))
    keep = logp >= logp.max() + np.log(s.min_p) if s.min_p > 0.0 else np.ones(row.shape, bool)
    if s.typical_p < 1.0:
        p = np.exp(logp)
        entropy = -np.sum(p[p > 0] * logp[p > 0])  # 0 times infinity would be said in a warning
        order = np.argsort(np.where(np.isfinite(logp), np.abs(-logp - entropy), np.inf), kind="stable")
        count = int(np.searchsorted(np.cumsum(p[order]), s.typical_p)) + 1
        typical = np.zeros(row.shape, bool)
        typical[order[:count]] = True
        if (keep & typical).any():
            keep &= typical
    return np.where(keep, row, np.float32(-np.inf))


def log_softmax(row: Logits) -> npt.NDArray[np.float64]:
    shifted = row.astype(np.float64) - float(row.max())
    with np.errstate(divide="ignore"):
        result: npt.NDArray[np.float64] = shifted - np.log(np.sum(np.exp(shifted)))
    return result


def logprob_of(row: Logits, token: int, top: int) -> TokenLogprob:
    """``row`` [vocab]; ``top``: how many of the likeliest tokens it comes with."""
    logp = log_softmax(row)
    top = min(top, len(logp))
    likeliest = np.argpartition(-logp, top - 1)[:top] if top > 0 else np.empty(0, np.int64)
    likeliest = likeliest[np.lexsort((likeliest, -logp[likeliest]))]
    return TokenLogprob(token, float(logp[token]), [(int(each), float(logp[each])) for each in likeliest])


def _mix(seed: int, position: int) -> int:
    """A 32-bit seed for one draw (splitmix64's finaliser, Steele et al. 2014), so that positions are independent."""
    z = (seed + (position + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) & 0xFFFFFFFF
