"""The measurements of ``python -m kvtrie bench``: tests as llama-bench names them, and the gain of a cache.

Concept. Tokens are random, with a fixed seed, since how long a token takes does not depend on which it is. Each run has
tokens of its own, so that it finds nothing that an earlier run computed. ``speeds`` computes ``depth`` tokens once, and
each run is a branch behind them. ``Reuse`` has a conversation of ``history`` tokens that a cache knows, and asks for
the first token behind a new message in several circumstances; the same prompt is computed cold for comparison.

Threads: one. Units: seconds of ``clock``, tokens. A clock runs from the first call until logits are on the host.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

import kvtrie as kv

if TYPE_CHECKING:
    from kvtrie.models import Model

Clock = Callable[[], float]
Ids = npt.NDArray[np.int32]

MESSAGE = 32  # tokens that are new in a next turn
_SPARE = 64  # cells
_SEED = 1


class Task(NamedTuple):
    """``prompt`` tokens in steps of ``batch``, then ``generated`` tokens one by one, behind ``depth`` tokens."""

    prompt: int
    generated: int
    depth: int
    batch: int

    @property
    def tokens(self) -> int:
        return self.prompt + self.generated

    @property
    def name(self) -> str:
        """As llama-bench has it: pp512, tg128, pp512+tg128 @ d4096."""
        parts = [f"{kind}{count}" for kind, count in (("pp", self.prompt), ("tg", self.generated)) if count]
        return "+".join(parts) + (f" @ d{self.depth}" if self.depth else "")


@dataclass(frozen=True)
class Speed:
    """A test and the seconds of each of its runs."""

    test: Task
    seconds: tuple[float, ...]

    @property
    def rates(self) -> tuple[float, float, float]:
        """Tokens a second: the median run, the slowest, the fastest."""
        count = self.test.tokens
        return count / statistics.median(self.seconds), count / max(self.seconds), count / min(self.seconds)


@dataclass(frozen=True)
class FirstToken:
    """The time to the first token under one circumstance."""

    name: str
    prompt: int
    """Tokens."""
    reused: int
    tier: str
    """Where what was reused was before."""
    seconds: tuple[float, ...]
    cold: tuple[float, ...]
    """The same prompt where nothing is known."""

    @property
    def gain(self) -> float:
        """How many times as long it takes cold: medians."""
        return statistics.median(self.cold) / statistics.median(self.seconds)


class _Tokens:
    """Random tokens that no run shares with another."""

    def __init__(self, vocab_size: int) -> None:
        self._random = np.random.default_rng(_SEED)
        self._vocab_size = vocab_size

    def take(self, count: int) -> Ids:
        return self._random.integers(0, self._vocab_size, count, np.int32)


def compute(model: Model, session: kv.Session, batch: int) -> None:
    """Computes the rest of a session, until its logits are on the host."""
    logits = None
    for step in session.prefill(chunk=batch):
        logits = model(step)
    if logits is not None:
        np.asarray(logits)


def speeds(
    model: Model, tests: Sequence[Task], kv_dtype: str, runs: int, clock: Clock = time.perf_counter
) -> Iterator[Speed]:
    """One test after the other: a run that is not counted, then ``runs``."""
    tokens = _Tokens(model.config.vocab_size)
    for test in tests:
        # A branch needs something to begin behind: one token where nothing else is asked for.
        before = max(test.depth, 1)
        caches = model.caches(capacity=before + test.tokens + _SPARE, dtype=kv_dtype)
        with (
            kv.PrefixCache(caches, host_bytes=0) as cache,
            cache.begin(tokens.take(before), publish=False) as session,
        ):
            compute(model, session, test.batch)
            seconds = [_run(model, session, test, tokens, clock) for _ in range(1 + runs)]
        yield Speed(test, tuple(seconds[1:]))


def _run(model: Model, session: kv.Session, test: Task, tokens: _Tokens, clock: Clock) -> float:
    prompt, following = tokens.take(test.prompt), tokens.take(test.generated)
    with session.branch() as branch:
        begun = clock()
        if len(prompt):
            branch.append(prompt)
            compute(model, branch, test.batch)
        for token in following:
            branch.append([int(token)])
            np.asarray(model(branch.decode()))
        return clock() - begun


class Reuse:
    """A conversation of ``history`` tokens in a cache with all tiers, and what its next turns take."""

    def __init__(self, model: Model, history: int, kv_dtype: str, batch: int, clock: Clock = time.perf_counter) -> None:
        self._model, self._batch, self._clock = model, batch, clock
        self._tokens = _Tokens(model.config.vocab_size)
        self._history = self._tokens.take(history)
        self._stack = ExitStack()
        folder = self._stack.enter_context(TemporaryDirectory(prefix="kvtrie-bench-"))
        caches = model.caches(capacity=2 * (history + MESSAGE) + _SPARE, dtype=kv_dtype)
        room = 2 * sum(cache.nbytes for cache in caches)
        cache = kv.PrefixCache(
            caches, fingerprint=model.fingerprint, host_bytes=room, disk=folder, disk_bytes=4 * room, load="always"
        )
        self._cache = self._stack.enter_context(cache)

    def __enter__(self) -> Reuse:
        with self._cache.begin(self._history) as session:
            compute(self._model, session, self._batch)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def rows(self, runs: int) -> Iterator[FirstToken]:
        """The next turn, one from the middle of the conversation, and the next turn after it was moved to each tier."""
        history, half = self._history, self._history[: len(self._history) // 2]
        cold = {len(each): self._ask(each, runs, use=False)[2] for each in (history, half)}
        ways: list[tuple[str, Ids, str]] = [("next turn", history, ""), ("branch", half, "")]
        ways += [(f"back from {tier}", history, tier) for tier in ("host", "disk")]
        for name, known, tier in ways:
            reused, where, seconds = self._ask(known, runs, moved_to=tier)
            yield FirstToken(name, len(known) + MESSAGE, reused, where, tuple(seconds), tuple(cold[len(known)]))

    def _ask(self, known: Ids, runs: int, *, use: bool = True, moved_to: str = "") -> tuple[int, str, list[float]]:
        """Reused tokens and their tier in the last run, and the seconds of all but the first, which is not counted."""
        reused, tier, seconds = 0, "none", []
        for _ in range(1 + runs):
            if moved_to:
                self._cache.page_out(self._history, to=moved_to)
            prompt = np.concatenate([known, self._tokens.take(MESSAGE)])
            begun = self._clock()
            with self._cache.begin(prompt, use=use, publish=False) as session:
                reused, tier = session.reused, session.tier
                compute(self._model, session, self._batch)
                seconds.append(self._clock() - begun)
        return reused, tier, seconds[1:]
