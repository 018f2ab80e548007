"""Plays of attention with tensor cores (kernels/attention_tensor.cl) at small sizes.

A :class:`Work` is a history in pieces and tiles over it; :meth:`Work.run` launches a form of the kernel on some of
these tiles, and gives what it wrote. So one and the same rows go through several forms, alone and among others, and
are compared with float64 or with each other. :class:`Merges` is what a launch merges, by itself or one behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import ptx
from cell_blocks import Q8
from variants import GroupForm, TensorForm, Variant

SPLIT = 128
# Cells, lengths and positions: pieces that end inside of blocks, one of them of one cell, and a gap of one split.
SPANS = ((90, 37, 0), (10, 50, 37), (300, 1, 87), (130, 52, 88), (400, 116, 140), (190, 100, 256 + 128), (520, 3, 484))
CELLS = 530
_TABLE = 10  # of the kernel's arguments
# Relative errors by terms: those of float32, and of halves, whose 2^-12 weights take from q and from themselves.
BOUNDS = {1: 1e-3, 2: 8e-7}
OF_OTHERS = 8e-7  # of float32 cells and of blocks: weights of 22 bits, too, and numbers of as many
Spans = tuple[tuple[int, int, int], ...]


class Format(NamedTuple):
    """How a pool keeps rows of ``dtype``, what is left of their numbers, and words of a row of ``dim`` numbers."""

    dtype: Any
    keep: Callable[[Any], Any] = lambda rows: rows
    numbers: Callable[[Any], Any] = lambda kept: kept.astype(np.float64)
    words: Callable[[int], int] = lambda dim: dim


FORMATS = {
    "float16": Format(np.float16),
    "float32": Format(np.float32),
    "q8_0": Format(np.float32, Q8.blocks_of, Q8.numbers_of, lambda dim: dim // 32 * Q8.block_bytes // 2),
}


class Tile(NamedTuple):
    """Rows of the queries, and the positions [begin, end) whose keys the tile has. ``partial``: its first, or -1."""

    rows: tuple[int, ...]
    begin: int
    end: int
    partial: int = -1


class Written(NamedTuple):
    """What a launch wrote: NaN where nothing was written. ``counts``: the counters of one that merges."""

    out: Any
    partials: Any
    stats: Any
    report: ptx.Report
    counts: Any = None


class Merges(NamedTuple):
    """The partials of each row, in position order, and the row of each copy, which are numbered behind the rows."""

    partials: dict[int, list[int]]
    rows: int
    copies: tuple[int, ...] = ()

    @classmethod
    def of(cls, tiles: list[Tile], rows: int, copies: tuple[int, ...] = ()) -> Merges:
        """What tiles with partials leave, of which later ones begin at later positions."""
        partials: dict[int, list[int]] = {}
        for tile in tiles:
            for i, row in enumerate(tile.rows if tile.partial >= 0 else ()):
                partials.setdefault(row if row < rows else copies[row - rows], []).append(tile.partial + i)
        return cls(partials, rows, copies)

    def table(self) -> tuple[list[int], list[int]]:
        """merge_begin and merge_ids of a plan."""
        begin, ids = [0], []
        for row in range(self.rows):
            ids += self.partials.get(row, [])
            begin.append(len(ids))
        return begin, ids


def segments_of(spans: Spans, begin: int, end: int) -> list[tuple[int, int, int]]:
    """The parts of spans that lie in [begin, end)."""
    made = []
    for cell, length, position in spans:
        low, high = max(begin, position), min(end, position + length)
        if low < high:
            made.append((cell + low - position, high - low, low))
    return made


class Work:
    """K, V and queries of ``rows`` rows, ``group`` query heads to each of ``kv_heads``; free cells hold NaN."""

    def __init__(self, dim: int, group: int, bounds: list[tuple[int, int]], kv_heads: int = 1,
                 spans: Spans = SPANS, cells: str = "float16") -> None:  # fmt: skip
        random = np.random.default_rng(3)
        self.spans = spans
        self.dim, self.group, self.kv_heads, self.bounds = dim, group, kv_heads, bounds
        self.heads = group * kv_heads
        self.format = FORMATS[cells]
        self.k, self.v = (np.full((kv_heads, CELLS, dim), np.nan, self.format.dtype) for _ in range(2))
        self.cell = {position + i: cell + i for cell, length, position in spans for i in range(length)}
        for cell in self.cell.values():
            self.k[:, cell], self.v[:, cell] = random.standard_normal((2, kv_heads, dim))
        self.q = random.standard_normal((len(bounds), self.heads, dim)).astype(np.float32)
        self.sinks = random.standard_normal(self.heads).astype(np.float32)
        self.sinks[0] = -np.inf
        self.scale, self.softcap = np.float32(1 / np.sqrt(dim)), 0.0

    def numbers(self, rows: Any) -> Any:
        """What attention reads where rows were kept, in float64."""
        return self.format.numbers(self.format.keep(rows))

    def attended(self, row: int, head: int, begin: int, end: int, sink: float) -> tuple[Any, float, float]:
        """In float64: the weighted sum of values, the sum of exponentials, the largest score."""
        first, last = self.bounds[row]
        cells = [self.cell[p] for p in sorted(self.cell) if max(first, begin) <= p < min(last, end)]
        if not cells:
            return np.zeros(self.dim), 0.0, -np.inf
        kv = head // self.group
        scores = self.numbers(self.k[kv, cells]) @ self.q[row, head].astype(np.float64) * float(self.scale)
        if self.softcap > 0:
            scores = self.softcap * np.tanh(scores / self.softcap)
        top = max(scores.max(), sink)
        weights = np.exp(scores - top)
        return weights @ self.numbers(self.v[kv, cells]), weights.sum() + np.exp(sink - top), top

    def table(self, tiles: list[Tile]) -> tuple[Any, list[int]]:
        """The plan of ``tiles``, and where its parts begin."""
        ids: list[int] = []
        segments: list[tuple[int, int, int]] = []
        packed: list[int] = []
        for tile in tiles:
            own = segments_of(self.spans, tile.begin, tile.end)
            packed += [len(ids), len(tile.rows), len(segments), len(own), tile.partial]
            ids += tile.rows
            segments += own
        table = [number for each in self.bounds for number in each]
        at = [0]
        for part in (ids, [number for each in segments for number in each], packed):
            at.append(len(table))
            table += part
        return np.array(table, np.int32), at

    def run(self, program: ptx.Program, form: TensorForm | GroupForm, tiles: list[Tile], seed: int = 1,
            split: int = SPLIT, sinks: bool = True, counting: bool = False,
            merges: Merges | None = None) -> Written:  # fmt: skip
        """Launches a form on tiles, with sinks for tiles without partials and for what it merges."""
        table, at = self.table(tiles)
        partials = max(1, sum(len(tile.rows) for tile in tiles if tile.partial >= 0))
        parts = max(-(-len(tile.rows) * self.group // form.lines) for tile in tiles)
        memory = ptx.GlobalMemory()
        shapes = ((len(self.bounds), self.heads, self.dim), (partials, self.heads, self.dim), (partials, self.heads, 2))
        places = [memory.put(np.full(shape, np.nan, np.float32)) for shape in shapes]
        words = self.format.words(self.dim)
        stride = [CELLS * words, words]
        k, v = (self.format.keep(rows) for rows in (self.k, self.v))
        mask = [np.zeros(1, np.float32), 0, 0] if isinstance(form, GroupForm) else []
        given = [self.q, 0, k, 0, v, 0, *stride, *stride, table, *at, split, self.heads, self.group,
                 self.scale, self.softcap, *mask, self.sinks, 0, int(sinks), places[0], 0, *places[1:],
                 parts]  # fmt: skip
        counters = 0
        if merges is not None:
            begin, ids = merges.table()
            counters = memory.put(np.array([0] * merges.rows * self.kv_heads + list(merges.copies), np.int32))
            given[_TABLE] = np.concatenate([table, np.array(begin + ids, np.int32)])
            given += [len(table), len(table) + len(begin), counters, merges.rows]
        arguments = [memory.put(each) if isinstance(each, np.ndarray) else each for each in given]
        groups = (1, len(tiles) * parts, self.kv_heads)
        launch = ptx.Launch(program, groups, (32 * form.warps, 1, 1), arguments, seed)
        report = launch.run(memory, resident=2 if merges is None else 3, counting=counting)
        out, partial_out, stats = (memory.get(place, shape, np.float32) for place, shape in zip(places, shapes))
        counts = memory.get(counters, (merges.rows, self.kv_heads), np.int32) if merges is not None else None
        return Written(out, partial_out, stats, report, counts)

    def merged(self, written: Written, merges: Merges, program: ptx.Program) -> Any:
        """What attention_merge.cl makes of partials, by a launch of its own: NaN for rows that have none."""
        begin, ids = merges.table()
        memory = ptx.GlobalMemory()
        shape = (merges.rows, self.heads, self.dim)
        out = memory.put(np.full(shape, np.nan, np.float32))
        given = [written.partials, written.stats, np.array(begin + ids, np.int32), 0, len(begin), self.heads,
                 self.sinks, 0, 1, out, 0]  # fmt: skip
        arguments = [memory.put(each) if isinstance(each, np.ndarray) else each for each in given]
        ptx.Launch(program, (merges.rows, self.heads, 1), (64, 1, 1), arguments, 1).run(memory)
        return memory.get(out, shape, np.float32)

    def check_merged(self, written: Written, tiles: list[Tile], merges: Merges, bound: float) -> None:
        """Each row that has partials against float64, over all that its tiles see; the counters are 0 again."""
        assert (written.counts == 0).all()
        for row in merges.partials:
            ids = {row, *(merges.rows + i for i, source in enumerate(merges.copies) if source == row)}
            seen = [(each, tile) for tile in tiles if tile.partial >= 0 for each in tile.rows if each in ids]
            for head in range(self.heads):
                sink = float(self.sinks[head])
                parts = [self.attended(each, head, tile.begin, tile.end, -np.inf) for each, tile in seen]
                top = max(sink, *(part[2] for part in parts))
                factors = [np.exp(part[2] - top) if np.isfinite(part[2]) else 0.0 for part in parts]
                total = np.exp(sink - top) + sum(f * part[1] for f, part in zip(factors, parts))
                near(written.out[row, head], sum(f * part[0] for f, part in zip(factors, parts)) / total, bound)

    def check(self, written: Written, tiles: list[Tile], bound: float, sinks: bool = True) -> None:
        """Every row of every tile against float64; one that sees a value which is not finite is NaN throughout."""
        for tile in tiles:
            for i, row in enumerate(tile.rows):
                for head in range(self.heads):
                    if not np.isfinite(self.attended(row, head, tile.begin, tile.end, -np.inf)[0]).all():
                        assert tile.partial < 0 and np.isnan(written.out[row, head]).all()
                        continue
                    if tile.partial < 0:
                        sink = float(self.sinks[head]) if sinks else -np.inf
                        values, sum_, _ = self.attended(row, head, tile.begin, tile.end, sink)
                        near(written.out[row, head], values / sum_ if sum_ else values, bound)
                        continue
                    values, sum_, top = self.attended(row, head, tile.begin, tile.end, -np.inf)
                    near(written.partials[tile.partial + i, head], values, bound)
                    near(written.stats[tile.partial + i, head], np.array([top, sum_]), bound)


def near(got: Any, wanted: Any, bound: float) -> None:
    """The relative error in the Frobenius norm is at most ``bound``; NaN is never near, and 0 is 0."""
    error, size = np.linalg.norm(got - wanted), np.linalg.norm(wanted[np.isfinite(wanted)])
    assert error <= bound * size, f"relative error: got {error / max(size, 1e-30):.1e}, allowed {bound:.1e}"


def small(dim: int, group: int, kv_heads: int = 1, cells: str = "float16") -> tuple[Work, list[Tile]]:
    """Rows that see all, a window, a chunk inside of a block, nothing, and the last key, whose value no other row sees
    and which is not finite; a walk over splits of which one is left out, tiles of partials of two splits, one with
    fewer lines, and one without keys."""
    bounds = [(0, 486), (70, 300), (390, 401), (0, 440), (100, 486), (0, 0), (20, 128), (0, 460), (450, 487)]
    work = Work(dim, group, bounds, kv_heads, cells=cells)
    work.v[:, work.cell[486], 3] = np.inf
    tiles = [Tile((0, 1, 2, 3, 8), 0, 487), Tile((4, 7), 128, 256, 0), Tile((4, 7), 384, 487, 2),
             Tile((6,), 20, 128, 4), Tile((5,), 0, 0)]  # fmt: skip
    return work, tiles


def split_up(
    dim: int, group: int, kv_heads: int = 1, rows: int = 3, cells: str = "float16"
) -> tuple[Work, list[Tile], Merges]:
    """``rows`` rows whose history is cut into splits, a copy of the last of them among its tiles, and one that sees
    nothing. Not every row sees every split; the last one's only partial is a tile of its own."""
    bounds = [(0, 440 + i) for i in range(rows)]
    bounds[-1] = (384, 487)
    bounds += [(0, 0), (10, 120)]  # the row without keys, and the copy of row 0
    work = Work(dim, group, bounds, kv_heads, cells=cells)
    all_ = tuple(range(rows - 1))
    bounds[0] = (128, 440)
    tiles = [Tile((*all_[1:], rows + 1), 0, 128, 0), Tile(all_, 128, 256, rows - 1),
             Tile((*all_, rows - 1), 384, 487, 2 * rows - 2), Tile((rows,), 0, 0)]  # fmt: skip
    return work, tiles, Merges.of(tiles, rows + 1, (0,))


def merging_play(form: TensorForm, dim: int, group: int, bound: float, cells: str = "float16") -> Any:
    """A play of plays.py: groups of three splits, of which the last one of each row and K/V head merges; and all else
    that a kernel of this form reaches."""

    def played(program: ptx.Program, seed: int) -> ptx.Report:
        work, tiles, merges = split_up(dim, group, cells=cells)
        check_merging(work, tiles, merges, work.run(program, form, tiles, seed, merges=merges), bound)
        work, tiles = small(dim, group, cells=cells)
        merges = Merges.of(tiles, len(work.bounds))
        written = work.run(program, form, tiles, seed, merges=merges)
        check_merging(work, tiles, merges, written, bound)
        return written.report

    return played


def check_merging(work: Work, tiles: list[Tile], merges: Merges, written: Written, bound: float) -> None:
    """Tiles, partials, and what became of them."""
    work.check(written, tiles, bound)
    work.check_merged(written, tiles, merges, bound)


def play(form: TensorForm, dim: int, group: int, bound: float, cells: str = "float16") -> Any:
    """A play of plays.py: everything that a kernel of this form reaches."""

    def played(program: ptx.Program, seed: int) -> ptx.Report:
        work, tiles = small(dim, group, cells=cells)
        written = work.run(program, form, tiles, seed)
        work.check(written, tiles, bound)
        return written.report

    return played


def variant(dim: int, form: TensorForm, terms: int = 2, merges: bool = False, cells: str = "float16") -> Variant:
    """The kernel with these options."""
    return Variant("attention_tensor", form.options(dim, terms, merges, cells), ("attend_tiles",), 32 * form.warps)
