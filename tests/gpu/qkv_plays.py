"""Plays of the product whose outputs are q, k and v, which are rotated and stored (kernels/matmul_tensor_qkv.clh)."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np

import ptx
from plays import Case
from tensor_plays import ELSEWHERE, NormedProduct, Product, Weights, one_term
from variants import Variant

CELLS, FACTOR = 5, 1.25  # of each K/V head; of sines and cosines
BLANK = 0xFF  # bytes of cells that nobody wrote: NaN in every format


class Heads(NamedTuple):
    """Of q, k and v; ``pairs`` of each head of q and k are rotated, by halves or interleaved."""

    heads: int = 4
    kv_heads: int = 2
    k_dim: int = 64
    v_dim: int = 40
    pairs: int = 32
    interleaved: int = 0

    @property
    def turned(self) -> int:
        """Outputs in heads that are rotated."""
        return (self.heads + self.kv_heads) * self.k_dim

    @property
    def outputs(self) -> int:
        return self.turned + self.kv_heads * self.v_dim

    @property
    def frequencies(self) -> Any:
        return (0.9 ** np.arange(max(self.pairs, 1))).astype(np.float32)


class Stored(NamedTuple):
    """What a launch wrote: q [rows][heads][k_dim] float32, K and V [kv_heads][cells][dim] in the format of cells."""

    q: Any
    k: Any
    v: Any

    def same_bits(self, other: Stored) -> bool:
        return all(a.tobytes() == b.tobytes() for a, b in zip(self, other))

    def with_parts_of(self, other: Stored) -> Stored:
        """What either wrote."""
        return Stored(*(np.where(np.isnan(a), b, a) for a, b in zip(self, other)))


class QkvProduct:
    """``product`` has the outputs of ``of`` from ``begin`` on; every third row from the second on stores nothing."""

    def __init__(self, product: Product, of: Heads, kept: type[np.floating[Any]], begin: int = 0) -> None:
        self.product, self.of, self.kept, self.begin = product, of, kept, begin
        rows = np.arange(product.rows)
        cells = np.where(rows % 3 == 1, -1, (3 * rows + 3) % CELLS)
        self.table = np.stack([5 + 97 * rows, cells], axis=1).astype(np.int32)

    def _memory(self) -> tuple[ptx.GlobalMemory, list[int], list[tuple[tuple[int, ...], Any]]]:
        """A memory with q, K and V, where they lie, and what they are."""
        of = self.of
        shapes: list[tuple[tuple[int, ...], Any]] = [
            ((self.product.rows, of.heads, of.k_dim), np.float32),
            ((of.kv_heads, CELLS, of.k_dim), self.kept),
            ((of.kv_heads, CELLS, of.v_dim), self.kept),
        ]
        memory = ptx.GlobalMemory()
        blank = [np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize, BLANK, np.uint8) for shape, dtype in shapes]
        return memory, [memory.put(each) for each in blank], shapes

    def few(self, program: ptx.Program, seed: int, rows_of_group: int) -> tuple[Stored, ptx.Report]:
        memory, (q, k, v), shapes = self._memory()
        product, of = self.product, self.of
        bias = np.zeros(of.outputs, np.float32)
        bias[self.begin : self.begin + product.n] = product.add
        given = [product.given, 0, product.w.packed, 0, bias, self.begin, 0, 1, q, 0, product.rows, product.n,
                 product.k, of.heads * of.k_dim, *product.ends, self.table, of.frequencies, FACTOR, self.begin,
                 of.heads, of.kv_heads, of.k_dim, of.v_dim, of.pairs, of.interleaved, k, 0, v, 0, CELLS]  # fmt: skip
        grid = (-(-product.n // 32), -(-product.rows // rows_of_group), 1)
        given = [memory.put(each) if isinstance(each, np.ndarray) else each for each in given]
        report = ptx.Launch(program, grid, (128, 1, 1), given, seed).run(memory, resident=2)
        return Stored(*(memory.get(at, *what) for at, what in zip((q, k, v), shapes))), report

    def apart(self, product: ptx.Program, put: ptx.Program, rows_of_group: int) -> Stored:
        """By a launch of the product and one of put_qkv. REQUIRES: all outputs."""
        y, _ = self.product.few(product, 1, rows_of_group)
        memory, (q, k, v), shapes = self._memory()
        of, unused = self.of, memory.put(np.zeros(1, np.float32))
        given = [y, 0, self.table, of.frequencies, of.pairs, of.interleaved, FACTOR, unused, 0, 0, unused, 0, 0, 1e-5,
                 0.0, q, 0, k, 0, v, 0, CELLS, of.heads, of.kv_heads, of.v_dim]  # fmt: skip
        given = [memory.put(each) if isinstance(each, np.ndarray) else each for each in given]
        ptx.Launch(put, (1, self.product.rows, of.kv_heads), (64, 1, 1), given, 1).run(memory, resident=2)
        return Stored(*(memory.get(at, *what) for at, what in zip((q, k, v), shapes)))

    def wanted(self) -> Any:
        """q, k and v [rows][outputs] in float64, rotated; NaN where this launch has no outputs."""
        of, product = self.of, self.product
        y = np.full((product.rows, of.outputs), np.nan)
        y[:, self.begin : self.begin + product.n] = product.wanted()
        heads = y[:, : of.turned].reshape(product.rows, -1, of.k_dim)
        if of.pairs:
            angles = (self.table[:, :1].astype(np.float32) * of.frequencies).astype(np.float64)[:, None]
            cos, sin = np.cos(angles) * FACTOR, np.sin(angles) * FACTOR
            ends = slice(0, 2 * of.pairs, 2), slice(1, 2 * of.pairs, 2)
            first, second = ends if of.interleaved else (slice(0, of.pairs), slice(of.pairs, 2 * of.pairs))
            a, b = heads[..., first].copy(), heads[..., second].copy()
            heads[..., first], heads[..., second] = a * cos - b * sin, b * cos + a * sin
        return y

    def cut(self, outputs: int) -> tuple[QkvProduct, QkvProduct]:
        """The same by two weights, the first of so many outputs. REQUIRES: groups of 64 are whole."""
        parts = []
        for begin, end in ((0, outputs), (outputs, self.of.outputs)):
            product = copy.copy(self.product)
            product.n = product.packed_outputs = end - begin
            product.groups = -(-product.n // 64)
            product.add = product.add[begin:end]
            all_groups = len(product.w.numbers) // 64
            size = len(product.w.packed) // all_groups
            own = slice(begin // 64, begin // 64 + product.groups)
            product.w = Weights(
                product.w.packed[own.start * size : own.stop * size],
                product.w.numbers[64 * own.start : 64 * own.stop],
            )
            parts.append(QkvProduct(product, self.of, self.kept, begin))
        return parts[0], parts[1]

    def check(self, got: Stored, bound: float) -> None:
        """q, and the cells of each row, against float64; every other byte is as it was."""
        of, wanted = self.of, self.wanted()
        parts = np.split(wanted, [of.heads * of.k_dim, of.turned], axis=1)
        rounded = bound + (0 if self.kept is np.float32 else 2.0**-11)
        for row, (_, cell) in enumerate(self.table):
            self._near(got.q[row].reshape(-1), parts[0][row], row, bound)
            if cell >= 0:
                self._near(got.k[:, cell].reshape(-1), parts[1][row], row, rounded)
                self._near(got.v[:, cell].reshape(-1), parts[2][row], row, rounded)
        free = np.setdiff1d(np.arange(CELLS), self.table[:, 1])
        assert all((each[:, free].view(np.uint8) == BLANK).all() for each in (got.k, got.v) if each.size)

    def _near(self, got: Any, wanted: Any, row: int, bound: float) -> None:
        """Where numbers are wanted, by the norm of all; elsewhere nothing was written."""
        given = ~np.isnan(wanted)
        assert (got[~given].view(np.uint8) == BLANK).all()
        if not given.any():
            return
        x, size = self.product.x[row].astype(np.float64), np.abs(self.product.w.numbers).mean()
        scale = max(np.linalg.norm(wanted[given]), np.linalg.norm(x) * size, 1e-30)
        error = np.linalg.norm(got[given] - wanted[given]) / scale
        assert error <= bound, f"row {row}: relative error: got {error:.1e}, allowed {bound:.1e}"


# ---- the list ------------------------------------------------------------------------------------------------------

HALVES, PART, INTERLEAVED = Heads(), Heads(pairs=16), Heads(pairs=19, interleaved=1)
PLAIN, WIDE = Heads(pairs=0), Heads(2, 1, 256, 64, 128)
# By terms, of the product of normed rows and of a rotation: two products and a sum of float32; 2^-11 of a number.
BOUNDS = {1: 1e-3, 2: 8e-7}


def variant(stored: int, rows: int, normed: bool, cell_format: int, terms: int = 2) -> Variant:
    options = (f"STORED={stored}", f"ROWS={rows}", *(("NORMED=1",) if normed else ()))
    options += ("QKV=1", f"CELL_FORMAT={cell_format}", *one_term(terms))
    return Variant("matmul_tensor", options, ("tensor_few",), 128)


def made(stored: int, rows: int, normed: bool, of: Heads, half: bool = True, terms: int = 2) -> QkvProduct:
    """The product of ``rows`` rows; of those that are not normed, float16 would not hold the largest."""
    kind = NormedProduct if normed else Product
    product = kind(rows, of.outputs, 320 if stored < 8 else 512, stored, terms=terms)
    return QkvProduct(product, of, np.float16 if half else np.float32)


def _case(stored: int, rows: int, normed: bool, of: Heads, half: bool = True, group: int = 8,
          unseen: tuple[tuple[int, str], ...] = ()) -> Case:  # fmt: skip
    product = made(stored, rows, normed, of, half)

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        got, report = product.few(program, seed, group)
        product.check(got, BOUNDS[2])
        return report

    return Case(variant(stored, group, normed, int(half)), "tensor_few", play, unseen)


QKV_PLAYS: list[Case] = [
    _case(1, 3, True, HALVES),
    _case(3, 1, True, PART, group=1),
    _case(8, 3, False, INTERLEAVED, half=False, unseen=((2, ELSEWHERE),)),
]
