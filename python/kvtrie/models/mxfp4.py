"""MXFP4: 32 numbers of four bits that share a power of two; as files hold it, and as the device keeps it.

A number is one of 0, 0.5, 1, 1.5, 2, 3, 4, 6, or minus that, times 2^(e - 127). Twice each is a whole number up to 12,
so GGML's q5_0, whole numbers from -16 to 15 times a float16, holds a block exactly wherever 2^(e - 128) is a float16:
in 22 bytes where MXFP4 takes 17. No kernel reads MXFP4 itself.

safetensors files have two tensors: ``*_blocks`` uint8 [..., blocks, 16], of which byte j holds numbers 2 j (its low
half) and 2 j + 1, and ``*_scales`` uint8 [..., blocks] of e. GGUF files have 17 bytes a block, e first, and byte j
holds numbers j and j + 16; blocks here are like that. Source: Open Compute Project, OCP Microscaling Formats 1.0.
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import ArgumentError, FormatError
from .weights import Array, Blocks, WeightSource

KIND = "MXFP4"
KEPT = "q5_0"
NUMBERS, BYTES = 32, 17  # of a block
_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
_ZERO = 16  # what q5_0 takes off
_LEAST, _MOST = 104, 143  # e for which 2^(e - 128) is a float16


def numbers(blocks: Array) -> Array:
    """uint8 [..., 17 a block] -> float32 [..., 32 a block]."""
    scales, doubled = _parts(blocks)
    with np.errstate(over="ignore"):
        values: Array = np.ldexp(doubled.astype(np.float32), scales.astype(np.int32)[..., None] - 128)
    return values.reshape(*blocks.shape[:-1], -1)


def as_q5_0(blocks: Array, name: str) -> Array:
    """uint8 [..., 17 a block] -> uint8 [..., 22 a block], the same numbers.

    Raises ``kv.errors.ArgumentError`` for a scale that is no float16, in a block of numbers other than 0.
    """
    scales, doubled = _parts(blocks)
    beyond = ((scales < _LEAST) | (scales > _MOST)) & doubled.any(axis=-1)
    if beyond.any():
        raise ArgumentError(
            f"[models] dtype 'stored' cannot hold {name}: got an MXFP4 scale of 2^{int(scales[beyond][0]) - 127}, "
            f"allowed 2^{_LEAST - 127} to 2^{_MOST - 127}; use dtype='float32'"
        )
    quants = (doubled + np.int8(_ZERO)).view(np.uint8)
    factors = np.ldexp(np.float32(1), np.clip(scales, _LEAST, _MOST).astype(np.int32) - 128).astype("<f2")
    kept = np.empty((*scales.shape, 22), np.uint8)
    kept[..., :2] = factors[..., None].view(np.uint8)
    kept[..., 2:6] = np.packbits(quants >> 4, axis=-1, bitorder="little")
    kept[..., 6:] = (quants[..., :16] & 15) | (quants[..., 16:] & 15) << 4
    return kept.reshape(*blocks.shape[:-1], -1)


def _parts(blocks: Array) -> tuple[Array, Array]:
    """e [..., blocks], and the numbers doubled, without it: int8 [..., blocks, 32]."""
    each = blocks.reshape(*blocks.shape[:-1], -1, BYTES)
    halves = np.concatenate([each[..., 1:] & 15, each[..., 1:] >> 4], axis=-1)
    return each[..., 0], _DOUBLED[halves]


def stacked(blocks: WeightSource, scales: WeightSource, name: str) -> WeightSource:
    """The two tensors of a safetensors file as one, [..., numbers]; rows are of the first axis.

    Raises ``kv.errors.FormatError`` where they do not fit each other.
    """
    for part in (blocks, scales):
        if part.dtype != "U8":
            raise FormatError(f"[models] {part.origin}: {part.name}: got {part.dtype}, allowed U8")
    if blocks.shape != (*scales.shape, NUMBERS // 2) or not scales.shape:
        raise FormatError(
            f"[models] {blocks.origin}: {blocks.name}: got shape {list(blocks.shape)}, expected "
            f"{[*scales.shape, NUMBERS // 2]} beside {scales.name}"
        )
    shape = (*scales.shape[:-1], scales.shape[-1] * NUMBERS)

    def rows(begin: int, end: int) -> Array:
        pairs = blocks.rows(begin, end)
        apart = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], NUMBERS)
        halves = apart[..., :16] | apart[..., 16:] << 4
        each = np.concatenate([scales.rows(begin, end)[..., None], halves], axis=-1)
        return each.reshape(*each.shape[:-2], -1)

    return _of_blocks(name, shape, blocks.origin, Blocks(KIND, rows, numbers))


def matrix(whole: WeightSource, name: str, index: int, step: slice) -> WeightSource:
    """Matrix ``index`` of a source [count, rows, columns] of blocks; ``step``: which of its rows."""
    assert whole.blocks is not None
    count = len(range(*step.indices(whole.shape[1])))
    take = whole.blocks.rows

    def rows(begin: int, end: int) -> Array:
        return np.ascontiguousarray(take(index, index + 1)[0][step][begin:end])

    return _of_blocks(name, (count, whole.shape[2]), whole.origin, Blocks(KIND, rows, numbers))


def _of_blocks(name: str, shape: tuple[int, ...], origin: str, blocks: Blocks) -> WeightSource:
    return WeightSource(name, "F32", shape, math.prod(shape) // NUMBERS * BYTES, origin, blocks.numbers, blocks)
