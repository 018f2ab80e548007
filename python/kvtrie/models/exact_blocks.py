"""Blocks that no kernel reads, as blocks of another kind that hold exactly the same numbers.

    file      bits a number    kept as    bits    why it is the same
    MXFP4     4.25             q5_0       5.5     whole numbers up to 12 times a power of two (mxfp4.py)
    IQ4_NL    4.5              q8_0       8.5     16 whole numbers of 8 bits, which a table has, times a float16
    Q3_K      3.44             q6_K       6.56    groups of 16, a scale of 6 bits and a float16 in both; -4 to 3

Kept as float16 each would take 16. Layouts: GGML's (ggml-common.h), of which the numbers are those that the ``gguf``
package makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from . import mxfp4
from .weights import Array

_TABLE = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)  # of IQ4_NL
_ZERO_3, _ZERO_6, _ZERO_SCALE = 4, 32, 32  # what each takes off


class Kept(NamedTuple):
    """``kind``: of the blocks on the device. ``make``: they, of a file's, uint8 [..., bytes], and a tensor's name."""

    kind: str
    make: Callable[[Array, str], Array]


def iq4_nl_as_q8_0(blocks: Array, name: str = "") -> Array:  # noqa: ARG001 (every block has one)
    """uint8 [..., 18 a block of 32] -> uint8 [..., 34 a block]."""
    each = blocks.reshape(*blocks.shape[:-1], -1, 18)
    places = np.concatenate([each[..., 2:] & 15, each[..., 2:] >> 4], axis=-1)
    kept = np.concatenate([each[..., :2], _TABLE[places].view(np.uint8)], axis=-1)
    return kept.reshape(*blocks.shape[:-1], -1)


def q3_k_as_q6_k(blocks: Array, name: str = "") -> Array:  # noqa: ARG001 (the same)
    """uint8 [..., 110 a block of 256] -> uint8 [..., 210 a block].

    Q3_K    bit 2 of each number: 32 bytes, of number 32 g + i in bit g of byte i
            bits 0 and 1: 64 bytes, of number 128 h + 32 g + i in bits 2 g of byte 32 h + i
            16 scales: low halves in 8 bytes, scale 8 h + i in half h of byte i; bits 4 and 5 in 4 bytes, scale
            4 g + i in bits 2 g of byte i
            a float16
    Q6_K    low halves: 128 bytes, of number 128 h + 64 a + 32 b + i in half a of byte 64 h + 32 b + i
            bits 4 and 5: 64 bytes, as Q3_K has bits 0 and 1
            16 scales: one byte each, signed
            a float16
    """
    each = blocks.reshape(*blocks.shape[:-1], -1, 110)
    lead = each.shape[:-1]
    third, low, packed, factor = each[..., :32], each[..., 32:96], each[..., 96:108], each[..., 108:]
    pairs = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    bits = third[..., None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    lows = low.reshape(*lead, 2, 1, 32) >> pairs & 3
    numbers = (lows | bits.reshape(*lead, 2, 4, 32) << 2) + np.uint8(_ZERO_6 - _ZERO_3)  # [..., half, 4, 32]
    scales = np.concatenate([packed[..., :8] & 15, packed[..., :8] >> 4], axis=-1)
    scales |= (packed[..., None, 8:] >> pairs & 3).reshape(*lead, 16) << 4
    kept = [
        ((numbers & 15)[..., :2, :] | (numbers & 15)[..., 2:, :] << 4).reshape(*lead, 128),
        np.bitwise_or.reduce(numbers >> 4 << pairs, axis=-2).reshape(*lead, 64),
        (scales.view(np.int8) - np.int8(_ZERO_SCALE)).view(np.uint8),
        factor,
    ]
    return np.concatenate(kept, axis=-1).reshape(*blocks.shape[:-1], -1)


# By a file's kind.
EXACT: Mapping[str, Kept] = {
    mxfp4.KIND: Kept(mxfp4.KEPT, mxfp4.as_q5_0),
    "IQ4_NL": Kept("q8_0", iq4_nl_as_q8_0),
    "Q3_K": Kept("q6_K", q3_k_as_q6_k),
}
