"""Random draws in whole numbers only: the same on every machine, for ever.

One SplitMix64 sequence for each ``Draws``. Exponential draws use von Neumann's comparisons of uniform numbers (1951)
and are exact. Log-normal ones interpolate a table of the normal quantile and one of 2^x. Both tables are rounded to
2^-20, far coarser than the last bits in which mathematical libraries differ.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist
from typing import Optional

from .tokens import mix, seed_of

_BITS = 20
_ONE = 1 << _BITS
_CELLS = 1 << 12  # of the quantile's table
_NORMAL = [
    round(_ONE * (NormalDist().inv_cdf(cell / _CELLS) if 0 < cell < _CELLS else (4.0 if cell else -4.0)))
    for cell in range(_CELLS + 1)
]
_POWERS = [round(_ONE * 2 ** (cell / 256)) for cell in range(257)]
_Z90 = round(_ONE * NormalDist().inv_cdf(0.9))
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Lengths:
    """A log-normal distribution by its median and its upper tenth, cut at ``most``; whole numbers, 1 or more."""

    p50: int
    p90: int
    most: int

    def describe(self) -> str:
        """Its three lengths as one word, for reports."""
        return f"{self.p50}:{self.p90}:{self.most}"


class Draws:
    """A sequence of draws, named by ``parts``."""

    __slots__ = ("_state",)

    def __init__(self, *parts: object) -> None:
        self._state = seed_of(*parts)

    def bits(self) -> int:
        """64 random bits."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        return mix(self._state)

    def below(self, count: int) -> int:
        """Uniform in 0 .. count - 1 (the bias is below count / 2^64)."""
        return (self.bits() * count) >> 64

    def chance(self, permille: int) -> bool:
        """True with probability ``permille`` / 1000."""
        return self.below(1000) < permille

    def exponential(self, mean: int) -> int:
        """Exponential with that mean, rounded down."""
        whole = 0
        while True:
            first = last = self.bits()
            falling = 1
            while (following := self.bits()) < last:
                last = following
                falling += 1
            if falling % 2 == 1:
                return whole * mean + ((first * mean) >> 64)
            whole += 1

    def geometric(self, permille: int) -> int:
        """How often in a row an event of that chance happens, at most 10,000 times."""
        count = 0
        while count < 10_000 and self.chance(permille):
            count += 1
        return count

    def lengths(self, of: Lengths) -> int:
        """Log-normal through the median and the upper tenth of ``of``."""
        place = self.bits() >> (64 - 12 - _BITS)
        z = _interpolate(_NORMAL, place >> _BITS, place & (_ONE - 1))
        doublings = z * log2_of(of.p90, of.p50) // _Z90
        scaled = of.p50 * _exp2(doublings) >> _BITS
        return max(1, min(scaled, of.most))


def _interpolate(table: list[int], cell: int, rest: int) -> int:
    return table[cell] + ((table[cell + 1] - table[cell]) * rest >> _BITS)


def _exp2(x: int) -> int:
    """2^x, both in units of 2^-20."""
    whole, rest = x >> _BITS, x & (_ONE - 1)
    power = _interpolate(_POWERS, rest >> (_BITS - 8), (rest << 8) & (_ONE - 1))
    return power << whole if whole >= 0 else power >> -whole


def log2_of(a: int, b: int) -> int:
    """log2(a / b) in units of 2^-20, for a >= b > 0, by repeated squaring."""
    value = (a << 64) // b
    whole = value.bit_length() - 65
    value >>= whole
    result = whole
    for _ in range(_BITS):
        value = value * value >> 64
        result <<= 1
        if value >> 65:
            value >>= 1
            result |= 1
    return result


class Zipf:
    """Ranks 0 .. count - 1, rank r with weight 1 / (r + 1)."""

    __slots__ = ("_ends",)

    def __init__(self, count: int) -> None:
        self._ends = list(accumulate((1 << 40) // (rank + 1) for rank in range(count)))

    def draw(self, draws: Draws) -> Optional[int]:
        """A rank; None where there is none to draw."""
        if not self._ends:
            return None
        return bisect_right(self._ends, draws.below(self._ends[-1]))
