"""Plays of cells in q4h, and of pools that have it for V alone: as those of q8_0, with blocks that are turned."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import plays
import ptx
from cell_blocks import Q8, Kept
from plays import Case, attention, merge, qkv
from q8_plays import K_DIM, V_DIM, history_of, load_cells, rotated, store_cells
from state_plays import CELLS, HEADS, LANES, RUNS
from variants import K8_V4, Variant

_GROUP = ("LANES=64", "ROW_VW=4")
_AT = [cell + i for cell, length in RUNS for i in range(length)]


def turned(x: Any, factor: float) -> Any:
    """Rows [..., dim], each 32 of them times a Hadamard matrix and a factor, in the order of sums that cells have."""
    blocks = np.asarray(x).reshape(-1, 32)
    for apart in (1, 2, 4, 8, 16):
        pairs = blocks.reshape(-1, 16 // apart, 2, apart)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        blocks = np.stack([low + high, low - high], 2).reshape(-1, 32)
    return (blocks * blocks.dtype.type(factor)).reshape(np.shape(x))


def blocks_of(x: Any) -> Any:
    """Rows [..., dim] as bytes [..., dim / 32 * 18] (csrc/base/cell_format.h); a NaN makes its block one."""
    x = np.asarray(x, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        z = turned(x, 0.25).reshape(*x.shape[:-1], -1, 32)
        largest, lowest = np.abs(z).max(-1), z.min(-1)
        scale = (largest * np.float32(0.125)).astype(np.float16)
        low = np.float32(8.5) * scale.astype(np.float32) < largest
        scale = np.where(low, np.nextafter(scale, np.float16(np.inf)), scale)
        good = np.isfinite(scale)
        flip = good & (scale > 0) & (-lowest != largest)
        wide = np.where(good, scale, 0).astype(np.float64)[..., None]
        own = np.where(wide > 0, np.where(flip[..., None], -z, z), 0).astype(np.float64)
        steps = sum((np.abs(own) > (step + 0.5) * wide).astype(np.uint8) for step in range(8))
    codes = np.where(np.signbit(own), 8 - steps, np.minimum(8 + steps, 15)).astype(np.uint8)
    bits = np.where(good, scale.view(np.uint16) | np.where(flip, 0x8000, 0), 0x7E00).astype(np.uint16)
    both = codes[..., :16] | codes[..., 16:] << 4
    bytes_ = np.concatenate([bits[..., None].view(np.uint8), both], -1)
    return np.ascontiguousarray(bytes_.reshape(*x.shape[:-1], -1))


def numbers_of(kept: Any) -> Any:
    blocks = kept.reshape(*kept.shape[:-1], -1, 18)
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float64)
    codes = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], -1).astype(np.float64)
    return turned((scale * (codes - 8)).reshape(*kept.shape[:-1], -1), 0.125)


Q4 = Kept(blocks_of, numbers_of, 18)


def rotate_cells(program: ptx.Program, seed: int) -> ptx.Report:
    before = blocks_of(np.random.default_rng(46).standard_normal((HEADS, CELLS, K_DIM)))
    report, *both = rotated(program, seed, before, Q4)
    z, was = (turned(each, 0.25) for each in both)
    assert (np.abs(z - was) <= 1.01 * np.abs(was).max(-1, keepdims=True) / 8).all()
    return report


_CELLS = Variant("cells", ("CELL_FORMAT=4", "LINEAR=0", *_GROUP), ("load_cells", "store_cells"), LANES)
_APART = Variant("cells", (*K8_V4, "LINEAR=0", *_GROUP), ("load_cells", "store_cells"), LANES)
_EDITS = Variant("cells_edit", ("CELL_FORMAT=4", "K_DIM=64", *_GROUP), ("rotate_cells",), LANES)
_QKV = Variant("qkv", ("K_DIM=64", "CELL_FORMAT=4", *_GROUP), ("put_qkv",), LANES)


class TurnedHistory(history_of(Q4)):  # type: ignore[misc]
    """Partial results are of turned values."""

    def partial(self, values: Any) -> Any:
        return turned(values, 0.25)


_MERGE = Variant("attention_merge", ("V_DIM=64", "V_FORMAT=4", "LANES=64"), ("attend_merge",), LANES)
assert V_DIM == 32  # one block: a lane turns it
Q4_PLAYS: list[Case] = [
    *[
        Case(variant, entry, partial(play, sides=sides))
        for variant, sides in ((_CELLS, (Q4, Q4)), (_APART, (Q8, Q4)))
        for entry, play in (("load_cells", load_cells), ("store_cells", store_cells))
    ],
    Case(_EDITS, "rotate_cells", rotate_cells, ((0, "who reads a block's numbers writes the next cell's"),)),
    Case(_QKV, "put_qkv", qkv(64, np.uint8, 0.25, numbers_of, 18), plays._OF_QKV),
    Case(plays.tiles(64, 4, 4), "attend_tiles", attention(64, np.float32, 2e-6, 4, TurnedHistory)),
    Case(_MERGE, "attend_merge", merge(64, partial(turned, factor=0.125))),
]
