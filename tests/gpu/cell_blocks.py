"""Rows in blocks of q8_0 as cells keep them. Bytes are exact: kernels round in the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


def blocks_of(x: Any) -> Any:
    """Rows [..., dim] as bytes [..., dim / 32 * 34] (csrc/base/cell_format.h); a NaN makes its block one."""
    x = np.asarray(x, np.float32)
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    largest = np.abs(blocks).max(-1)
    with np.errstate(invalid="ignore"):
        scale = (largest * (np.float32(1) / np.float32(127))).astype(np.float16)
        low = np.float32(127.5) * scale.astype(np.float32) < largest
    scale = np.where(low, np.nextafter(scale, np.float16(np.inf)), scale)
    wide = scale.astype(np.float64)[..., None]
    numbers = np.where(np.isfinite(wide), blocks, 0)
    whole = np.rint(np.divide(numbers, wide, out=np.zeros(blocks.shape), where=wide > 0)).clip(-127, 127)
    bits = np.where(np.isfinite(scale), scale.view(np.uint16), np.uint16(0x7E00))
    bytes_ = np.concatenate([bits[..., None].view(np.uint8), whole.astype(np.int8).view(np.uint8)], -1)
    return np.ascontiguousarray(bytes_.reshape(*x.shape[:-1], -1))


def numbers_of(kept: Any) -> Any:
    blocks = kept.reshape(*kept.shape[:-1], -1, 34)
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float64)
    return (scale * blocks[..., 2:].view(np.int8)).reshape(*kept.shape[:-1], -1)


class Kept(NamedTuple):
    """A format in blocks of 32 numbers: rows as bytes, and the numbers that are left of them."""

    blocks_of: Callable[[Any], Any]
    numbers_of: Callable[[Any], Any]
    block_bytes: int


Q8 = Kept(blocks_of, numbers_of, 34)
