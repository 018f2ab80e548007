"""Hashed n-grams: which rows of a table a token looks up, by itself and the tokens before it.

A head of an n-gram has a table of a prime number of rows, all of them one below the other. Its row is

    (t[0] m[0] ^ t[1] m[1] ^ ... ^ t[n-1] m[n-1]) mod prime          t[k]: the token k before, m: odd multipliers

in integers of 64 bits, for n from 2 to the largest. An n-gram does not reach beyond the end-of-text token before it:
what lies there counts as that token, and so does what lies before the first.

What a row looks up is a function of the tokens of its path, which sessions have: no state is kept for it, and a path
may be taken up at any token. Source: the Hugging Face model of Qwen4-Exp. Threads: any. Units: tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from .step_inputs import StepLike
from .weights import Array

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15  # of splitmix64 (Steele, Lea and Flood 2014), as the next two
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_LAYER_STEP = 10_007  # between the seeds of two layers


@dataclass(frozen=True)
class Ngrams:
    """``layers``: those that look up. ``size``: of the largest n-gram; ``heads``: for each n. ``least``: primes are at
    least so large; ``multiple``: rows of all heads are filled up to a multiple of it. ``end``: the end-of-text token.
    """

    layers: tuple[int, ...] = ()
    size: int = 3
    heads: int = 8
    least: int = 20_000_000
    multiple: int = 128
    seed: int = 1234
    end: int = 0

    @property
    def all_heads(self) -> int:
        return (self.size - 1) * self.heads

    def table(self, layer: int, vocab: int) -> NgramTable:
        """``layer``: one of ``layers``; ``vocab``: of the tokens."""
        number = self.layers.index(layer)
        primes = _primes_from(self.least, (number + 1) * self.all_heads)[number * self.all_heads :]
        return NgramTable(self, tuple(primes), _multipliers(vocab, self.size, self.seed + _LAYER_STEP * number))


@dataclass(frozen=True)
class NgramTable:
    """One layer's. ``primes``: rows of each head; ``multipliers``: of each token of an n-gram."""

    ngrams: Ngrams
    primes: tuple[int, ...]
    multipliers: tuple[int, ...]

    @property
    def rows(self) -> int:
        every = self.ngrams.multiple
        return math.ceil(sum(self.primes) / every) * every

    @property
    def offsets(self) -> tuple[int, ...]:
        """The first row of each head."""
        return tuple(sum(self.primes[:head]) for head in range(len(self.primes)))

    def ids(self, tokens: Array) -> Array:
        """``tokens`` int64 [rows, size], each row's own first and then those before it -> int32 [rows, heads]."""
        own, count = self.ngrams, self.ngrams.heads
        inside = np.cumprod(tokens[:, 1:] != own.end, axis=1, dtype=bool)
        shifted = np.concatenate([tokens[:, :1], np.where(inside, tokens[:, 1:], own.end)], axis=1)
        products = shifted * np.array(self.multipliers, np.int64)
        mixed = np.bitwise_xor.accumulate(products, axis=1)[:, 1:]
        rows = np.repeat(mixed, count, axis=1) % np.array(self.primes, np.int64) + np.array(self.offsets, np.int64)
        ids: Array = rows.astype(np.int32)
        return ids


class _Written(Protocol):
    @property
    def tokens(self) -> Array: ...


def with_context(step: StepLike, tokens: Array, size: int, end: int) -> Array:
    """int64 [rows, size]: the ``tokens`` of a step, and behind each the ones before it on its path; ``end``: those
    before the first. Rows of one session follow each other on its path."""
    sequences, positions, most = np.asarray(step.sequences), np.asarray(step.positions), size - 1
    found = np.full((tokens.size, size), end, np.int64)
    for number, session in enumerate(step.sessions):
        rows = np.flatnonzero(sequences == number)
        begin = int(positions[rows[0]]) if rows.size else 0
        before = _last(session, begin, most)
        line = np.concatenate([np.full(most - len(before), end), before, tokens[rows]]).astype(np.int64)
        for back in range(size):
            found[rows, back] = line[most - back : most - back + rows.size]
    return found


def _last(session: object, begin: int, most: int) -> Array:
    """The last ``most`` tokens before position ``begin``, or as many as there are."""
    if begin == 0:
        return np.zeros(0, np.int64)
    return np.asarray(cast(_Written, session).tokens[max(begin - most, 0) : begin], np.int64)


def _splitmix(value: int) -> int:
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def _multipliers(vocab: int, size: int, seed: int) -> tuple[int, ...]:
    """Odd, and so small that no product with a token exceeds 63 bits."""
    bound = max(1, (2**63 - 1) // vocab // 2)
    return tuple(2 * (_splitmix((seed + _GAMMA * (index + 1)) & _MASK) % bound) + 1 for index in range(size))


def _primes_from(least: int, count: int) -> Sequence[int]:
    """The first ``count`` primes that are at least ``least``: of a sieve over as many numbers as that may take."""
    width = 64 + 4 * count * max(int(math.log(least + 2)), 1)
    while True:
        found = _sieved(least, width)
        if len(found) >= count:
            return found[:count]
        width *= 2


def _sieved(least: int, width: int) -> list[int]:
    """The primes in [least, least + width)."""
    free = np.ones(width, bool)
    free[: max(2 - least, 0)] = False
    for divisor in range(2, math.isqrt(least + width) + 1):
        first = max(divisor * divisor, -(-least // divisor) * divisor)
        free[first - least :: divisor] = False
    return [least + int(each) for each in np.flatnonzero(free)]
