"""Pseudo-tokens: endless streams of them, each named by a seed, the same on every machine.

Token ``i`` of stream ``seed`` is the top 31 bits of SplitMix64 (Steele, Lea, Flood, 2014) at the state
``mix(seed) + i * step``: any range can be had without what is before it.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]

NO_TOKENS: Int32Array = np.zeros(0, np.int32)
_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def mix(value: int) -> int:
    """SplitMix64's finaliser: 64 bits to 64 bits, one to one."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _FACTORS[0]) & _MASK
    value = ((value ^ (value >> 27)) * _FACTORS[1]) & _MASK
    return value ^ (value >> 31)


def seed_of(*parts: object) -> int:
    """53 bits, so that any JSON reader keeps them, that depend on every part and on where one ends."""
    text = "\x1f".join(repr(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 11


def stream(seed: int, start: int, count: int) -> Int32Array:
    """Tokens [start, start + count) of the stream ``seed``: int32, 0 to 2^31 - 1."""
    state = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    state *= np.uint64(_STEP)
    state += np.uint64(mix(seed))
    for shift, factor in zip((30, 27), _FACTORS):
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    state ^= state >> np.uint64(31)
    tokens: Int32Array = (state >> np.uint64(33)).astype(np.int32)
    return tokens
