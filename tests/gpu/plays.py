"""Kernels at small sizes, played by the interpreter of PTX, with what numpy computes in float64.

A play puts its arguments into memory, launches a program, and asserts the result: ``play(program, seed)``. Shapes are
the smallest that reach every loop and every barrier of a kernel, with a rest wherever a kernel has one.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import numpy as np

import plays_tensor
import ptx
from variants import TensorForm, Variant, tensor_forms

Play = Callable[[ptx.Program, int], ptx.Report]


class Case(NamedTuple):
    """A kernel and its play. ``unseen``: barriers by their order in the PTX whose removal shows nothing, and why.
    ``own``: which of a program's barriers are the play's to prove, where others are those of kernels with plays."""

    variant: Variant
    entry: str
    play: Play
    unseen: tuple[tuple[int, str], ...] = ()
    own: Callable[[ptx.Program], list[int]] = lambda program: list(range(len(program.barriers())))

    @property
    def name(self) -> str:
        return f"{self.entry} {' '.join(self.variant.options)}"


def assert_near(got: Any, wanted: Any, bound: float) -> None:
    """The relative error in the Frobenius norm is at most ``bound``; NaN is never near."""
    error = np.linalg.norm((got - wanted).ravel()) / np.linalg.norm(np.ravel(wanted))
    assert error <= bound, f"relative error: got {error:.1e}, allowed {bound:.1e}"


def empty(*shape: int) -> Any:
    """What nobody has written: NaN."""
    return np.full(shape, np.nan, np.float32)


def launch(program: ptx.Program, groups: tuple[int, int, int], lanes: int, memory: ptx.GlobalMemory, given: list[Any],
           seed: int) -> ptx.Report:  # fmt: skip
    """Runs groups of ``lanes``; arrays among the arguments stand for buffers that nothing reads back."""
    arguments = [memory.put(each) if isinstance(each, np.ndarray) else each for each in given]
    return ptx.Launch(program, groups, (lanes, 1, 1), arguments, seed).run(memory, resident=2)


# ---- products ------------------------------------------------------------------------------------------------------


def packed_halves(w: Any) -> Any:
    """float16 weights [n][k] as lines [n / 64][k][64]."""
    n, k = w.shape
    return np.ascontiguousarray(w.reshape(n // 64, 64, k).transpose(0, 2, 1))


def packed_q8(w: Any) -> tuple[Any, Any]:
    """Weights [n][k] as blocks of q8_0 (kernels/q8.clh), in float32 as kernels quantise them, and their numbers."""
    n, k = w.shape
    blocks = w.astype(np.float32).reshape(n, k // 32, 32)
    d = np.abs(blocks).max(-1) / np.float32(127)
    scales = d.astype(np.float16)
    with np.errstate(divide="ignore"):
        scaled = blocks * np.where(scales > 0, np.float32(1) / d, np.float32(0))[..., None]
    numbers = (np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5))).astype(np.int8)
    parts = []
    for group in range(0, n, 64):
        for block in range(k // 32):
            parts.append(scales[group : group + 64, block].tobytes())
            parts.append(np.ascontiguousarray(numbers[group : group + 64, block].T).tobytes())
    return np.frombuffer(b"".join(parts), np.uint8), (numbers * scales[..., None].astype(np.float64)).reshape(n, k)


def product(rows: int, n: int, k: int, stored: int, block: tuple[int, int], bound: float) -> Play:
    """matmul_few and matmul_many: y = x w + add, ``block`` outputs and rows to a group; n is no multiple of 64."""

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        random = np.random.default_rng(7)
        x = random.standard_normal((rows, k)).astype(np.float32)
        w = (random.standard_normal((-(-n // 64) * 64, k)) * 0.05).astype(np.float16)
        panels, weights = (packed_halves(w), w.astype(np.float64)) if stored == 1 else packed_q8(w.astype(np.float32))
        add = random.standard_normal(n).astype(np.float32)
        memory = ptx.GlobalMemory()
        y = memory.put(empty(rows, n))
        slice_ = (k + 1023) // 1024 * 16
        lanes = 32 * (4 if block[1] < 128 else 8)
        given = [x, 0, panels, 0, add, 0, 0, 1, y, 0, rows, n, k, slice_, n]
        report = launch(program, (-(-n // block[0]), -(-rows // block[1]), 1), lanes, memory, given, seed)
        assert_near(memory.get(y, (rows, n), np.float32), x.astype(np.float64) @ weights[:n].T + add, bound)
        return report

    return play


# ---- attention -----------------------------------------------------------------------------------------------------

# Cells, lengths and positions of a history in pieces, one of them ending inside of a block of 64 keys.
SPANS = ((90, 37, 0), (10, 50, 37), (200, 1, 87), (130, 52, 88))


class History:
    """K and V of ``cells`` cells and ``kv_heads`` heads; what no span holds is NaN."""

    def __init__(self, dim: int, dtype: Any, cells: int = 210, kv_heads: int = 1) -> None:
        random = np.random.default_rng(3)
        self.dim, self.cells = dim, cells
        self.k, self.v = (np.full((kv_heads, cells, dim), np.nan, dtype) for _ in range(2))
        self.order = [cell + i for cell, length, _ in SPANS for i in range(length)]
        for cell in self.order:
            self.k[:, cell], self.v[:, cell] = random.standard_normal((2, kv_heads, dim))
        self.kept, self.words = (self.k, self.v), dim  # what cells hold, and words of a row

    def partial(self, values: Any) -> Any:
        """A weighted sum of values as it is kept until partial results are merged."""
        return values

    def attended(self, q: Any, first: int, end: int, head: int, sink: float) -> tuple[Any, float, float]:
        """Of one query: the weighted sum of values, the sum of exponentials, the largest score, in float64."""
        cells = self.order[first:end]
        scores = self.k[head, cells].astype(np.float64) @ q.astype(np.float64) / np.sqrt(self.dim)
        top = max(scores.max(), sink)
        weights = np.exp(scores - top)
        return weights @ self.v[head, cells].astype(np.float64), weights.sum() + np.exp(sink - top), top


def attention(
    dim: int, dtype: Any, bound: float, lines: int, history_of: Callable[[int, Any], History] = History
) -> Play:
    """attend_tiles: a tile of three rows over two splits, one through a window, with sinks; and one of partials.

    Groups of ``lines`` of the tile's six lines.
    """

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        history, heads, split, parts = history_of(dim, dtype), 2, 128, -(-6 // lines)
        total = len(history.order)
        bounds = [(0, total - 1), (70, total), (0, total), (0, split)]
        q = np.random.default_rng(4).standard_normal((len(bounds), heads, dim)).astype(np.float32)
        ids, segments = [0, 1, 2, 3], [number for span in SPANS for number in span]
        part = [*segments[:9], 130, split - 88, 88]
        tiles = [0, 3, 0, len(SPANS), -1, 3, 1, len(SPANS), len(SPANS), 0]
        table = [number for each in bounds for number in each]
        at = [0]
        for part_of_table in (ids, [*segments, *part], tiles):
            at.append(len(table))
            table += part_of_table
        sinks = np.array([0.5, -np.inf], np.float32)
        memory = ptx.GlobalMemory()
        out, partial, stats = (memory.put(empty(*shape)) for shape in ((4, heads, dim), (1, heads, dim), (1, heads, 2)))
        stride = [history.cells * history.words, history.words]
        given = [q, 0, history.kept[0], 0, history.kept[1], 0, *stride, *stride, np.array(table, np.int32), *at, split,
                 heads, heads, 1 / np.sqrt(dim), 0.0, np.zeros(1, np.float32), 0, 0, sinks, 0, 1, out,
                 0, partial, stats, parts]  # fmt: skip
        report = launch(program, (1, 2 * parts, 1), 64, memory, given, seed)
        got, part_got = (
            memory.get(out, (4, heads, dim), np.float32),
            memory.get(partial, (1, heads, dim), np.float32)[0],
        )
        stats_got = memory.get(stats, (1, heads, 2), np.float32)[0]
        for head in range(heads):
            for row, (first, end) in enumerate(bounds[:3]):
                values, sum_, _ = history.attended(q[row, head], first, end, 0, float(sinks[head]))
                assert_near(got[row, head], values / sum_, bound)
            values, sum_, top = history.attended(q[3, head], *bounds[3], 0, -np.inf)
            assert_near(part_got[head], history.partial(values), bound)
            assert_near(stats_got[head], np.array([top, sum_]), bound)
        return report

    return play


def merge(dim: int, turned: Callable[[Any], Any] = lambda out: out) -> Play:
    """attend_merge: one row of three partials, one of none, which stays, one of a partial that saw nothing.

    ``turned``: what is made of an output where values are kept turned.
    """

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        random, heads = np.random.default_rng(5), 2
        values = random.standard_normal((4, heads, dim)).astype(np.float32)
        stats = np.abs(random.standard_normal((4, heads, 2))).astype(np.float32) + 1
        stats[3] = (-np.inf, 0)
        values[3] = 0
        table, sinks = np.array([0, 3, 3, 4, 2, 0, 1, 3], np.int32), np.array([0.2, -np.inf], np.float32)
        memory = ptx.GlobalMemory()
        out = memory.put(np.full((3, heads, dim), 9, np.float32))
        report = launch(
            program, (3, heads, 1), 64, memory, [values, stats, table, 0, 4, heads, sinks, 0, 1, out, 0], seed
        )
        got = memory.get(out, (3, heads, dim), np.float32)
        for head in range(heads):
            factors = np.exp(stats[:3, head, 0].astype(np.float64))
            sums = (factors * stats[:3, head, 1]).sum() + np.exp(float(sinks[head]))
            assert_near(got[0, head], turned(factors @ values[:3, head] / sums), 5e-7)
        assert (got[1] == 9).all() and (got[2] == 0).all()
        return report

    return play


# ---- rows ----------------------------------------------------------------------------------------------------------


def _norms(entry: str, x: Any, weight: Any, bias: Any) -> Any:
    x = x.astype(np.float64)
    if entry == "softmax":
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)
    if entry == "l2_norm":
        return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-5)
    centred = x - x.mean(-1, keepdims=True) if entry == "layer_norm" else x
    scaled = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return scaled * (weight + 1.0) if entry == "rms_norm" else scaled * weight + bias


def row_kernel(entry: str) -> Play:
    """rows.cl: two rows of 301 numbers, so that vectors and the rest have lanes with less than others."""

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        random, rows, dim = np.random.default_rng(6), 2, 301
        x, (weight, bias) = (random.standard_normal((2, dim)).astype(np.float32) for _ in range(2))
        memory = ptx.GlobalMemory()
        y = memory.put(np.zeros(rows, np.int32) if entry == "argmax" else empty(rows, dim))
        middle = {"rms_norm": [weight, 0], "layer_norm": [weight, 0, bias, 0, 1]}.get(entry, [])
        last = {"rms_norm": [1e-5, 1.0], "layer_norm": [1e-5], "l2_norm": [1e-5]}.get(entry, [])
        report = launch(program, (1, rows, 1), 64, memory, [x, 0, *middle, y, 0, dim, *last], seed)
        if entry == "argmax":
            assert (memory.get(y, (rows,), np.int32) == x.argmax(-1)).all()
        else:
            assert_near(memory.get(y, (rows, dim), np.float32), _norms(entry, x, weight, bias), 5e-7)
        return report

    return play


def qkv(
    dim: int, dtype: Any, bound: float, numbers_of: Callable[[Any], Any] | None = None, block_bytes: int = 34
) -> Play:
    """put_qkv: three rows, of which one stores nothing, four query heads over two K/V heads, norms and rotation.

    ``numbers_of``: of rows in blocks of 32 numbers and ``block_bytes``, given as bytes.
    """

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        random, rows, heads, kv_heads, cells, pairs = np.random.default_rng(8), 3, 4, 2, 5, dim // 2 - 3
        x = random.standard_normal((rows, heads + 2 * kv_heads, dim)).astype(np.float32)
        table, frequencies = np.array([7, 3, 8, -1, 30, 1], np.int32), (0.9 ** np.arange(pairs)).astype(np.float32)
        q_norm, k_norm = random.standard_normal((2, dim)).astype(np.float32)
        memory = ptx.GlobalMemory()
        width = dim if numbers_of is None else dim // 32 * block_bytes
        blank = np.full((kv_heads, cells, width * np.dtype(dtype).itemsize), 0xFF, np.uint8)  # NaN in every format
        q, k, v = (memory.put(each) for each in (empty(rows, heads, dim), blank, blank))
        given = [x, 0, table, frequencies, pairs, 0, 1.25, q_norm, 0, 1, k_norm, 0, 1, 1e-5, 1.0, q, 0, k, 0, v, 0,
                 cells,                 heads, kv_heads, dim]  # fmt: skip
        report = launch(program, (1, rows, kv_heads), 64, memory, given, seed)
        q_got = memory.get(q, (rows, heads, dim), np.float32)
        k_got, v_got = (memory.get(each, (kv_heads, cells, width), dtype) for each in (k, v))
        k_got, v_got = (each.astype(np.float64) if numbers_of is None else numbers_of(each) for each in (k_got, v_got))
        turned = (
            _turned(x[:, :heads], q_norm, table[::2], frequencies),
            _turned(x[:, heads:-kv_heads], k_norm, table[::2], frequencies),
        )
        assert_near(q_got, turned[0], 1e-6)
        for row, cell in ((0, 3), (2, 1)):
            assert_near(k_got[:, cell], turned[1][row], bound)
            assert_near(v_got[:, cell], x[row, -kv_heads:].astype(np.float64), bound)
        assert np.isnan(k_got[:, [0, 2, 4]]).all() and np.isnan(v_got[:, [0, 2, 4]]).all()
        return report

    return play


def _turned(x: Any, weight: Any, positions: Any, frequencies: Any) -> Any:
    """Heads [rows][heads][dim], normed and rotated, in float64."""
    x, pairs = x.astype(np.float64), len(frequencies)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * (weight + 1.0)
    angles = (positions[:, None].astype(np.float32) * frequencies).astype(np.float64)[:, None]
    cos, sin = np.cos(angles) * 1.25, np.sin(angles) * 1.25
    u, v = x[..., :pairs], x[..., pairs : 2 * pairs]
    return np.concatenate([u * cos - v * sin, v * cos + u * sin, x[..., 2 * pairs :]], axis=-1)


# ---- the list ------------------------------------------------------------------------------------------------------


def _few(stored: int, rows: int, columns: int) -> Variant:
    options = (f"STORED={stored}", "X4=1", "LANES=128", f"ROWS={rows}", f"COLUMNS={columns}")
    return Variant("matmul_group", options, ("matmul_few",), 128)


def tiles(dim: int, cells: int, lines: int) -> Variant:
    options = (f"K_DIM={dim}", f"V_DIM={dim}", f"CELL_FORMAT={cells}", "MASKED=0", "LANES=64", f"LINES={lines}")
    return Variant("attention_group", options, ("attend_tiles",), 64)


def _tensor(dim: int, form: TensorForm, group: int, unseen: tuple[tuple[int, str], ...], terms: int = 2) -> Case:
    played = plays_tensor.play(form, dim, group, plays_tensor.BOUNDS[terms])
    return Case(plays_tensor.variant(dim, form, terms), "attend_tiles", played, unseen)


def _merging(dim: int, form: TensorForm, group: int, unseen: tuple[tuple[int, str], ...], terms: int = 2) -> Case:
    played = plays_tensor.merging_play(form, dim, group, plays_tensor.BOUNDS[terms])
    return Case(plays_tensor.variant(dim, form, terms, merges=True), "attend_tiles", played, unseen)


def _others(cells: str, dim: int, form: TensorForm, group: int, unseen: tuple[tuple[int, str], ...]) -> Case:
    played = plays_tensor.merging_play(form, dim, group, plays_tensor.OF_OTHERS, cells)
    return Case(plays_tensor.variant(dim, form, merges=True, cells=cells), "attend_tiles", played, unseen)


def _many(stored: int) -> Variant:
    return Variant("matmul_group", (f"STORED={stored}", "X4=1", "LANES=128"), ("matmul_many",), 128)


_ROWS = Variant("rows", ("LANES=64", "ROW_VW=4"), ("rms_norm", "layer_norm", "l2_norm", "softmax", "argmax"), 64)
_QKV = [
    Variant("qkv", ("K_DIM=64", f"CELL_FORMAT={each}", "LANES=64", "ROW_VW=4"), ("put_qkv",), 64) for each in (0, 1)
]
_LAST = "the last one: what comes after it does not touch the same memory"
_ONE_PASS = (
    "the last one of a pass over k: no second pass follows 64 slices, and a lane overwrites what it alone has read"
)
_TURN = "after sines and cosines: the sum of squares has barriers before they are read"
_HEAD = "after a query head: the next head's sum of squares has barriers before it is overwritten"
_SUM = "after a sum: `shared` is not written again before the barriers behind norm and rotation"
_OF_QKV = ((0, _TURN), (1, _HEAD), (9, _SUM), (19, _SUM))
_MEET = "bar.warp.sync brings lanes together that went ways of their own: the interpreter's meet again by themselves"
_ONE_WARP = "around the clearing of values: a group of one warp has a bar.warp.sync there"
_OF_ONE_WARP = (*((i, _MEET) for i in (0, 1, 2, 5, 7, 9, 11)), (8, _ONE_WARP), (10, _ONE_WARP))
_LAST_OF = {"rms_norm": 7, "layer_norm": 15, "l2_norm": 7, "softmax": 15, "argmax": 7}
PLAYS: list[Case] = [
    Case(_few(1, 1, 32), "matmul_few", product(1, 72, 560, 1, (32, 1), 3e-7), ((3, _LAST),)),
    Case(_few(1, 8, 64), "matmul_few", product(16, 72, 560, 1, (64, 8), 3e-7), ((31, _LAST),)),
    Case(_few(3, 4, 32), "matmul_few", product(4, 72, 544, 3, (32, 4), 3e-7), ((0, _ONE_PASS), (15, _LAST))),
    Case(_many(1), "matmul_many", product(70, 72, 56, 1, (64, 64), 3e-7)),
    Case(_many(3), "matmul_many", product(70, 72, 64, 3, (64, 64), 3e-7)),
    Case(tiles(64, 1, 1), "attend_tiles", attention(64, np.float16, 1e-6, 1)),
    Case(tiles(64, 1, 8), "attend_tiles", attention(64, np.float16, 1e-6, 8)),
    Case(tiles(128, 0, 4), "attend_tiles", attention(128, np.float32, 1e-6, 4)),
    _tensor(64, tensor_forms(64)[-1], 5, tuple((i, _MEET) for i in (0, 1, 2, 5, 7, 9, 11, 12, 13))),
    _tensor(64, tensor_forms(64)[0], 2, _OF_ONE_WARP),
    _merging(64, tensor_forms(64)[0], 2, _OF_ONE_WARP),
    _tensor(64, tensor_forms(64, 1)[-1], 5, tuple((i, _MEET) for i in (0, 1, 2, 5, 7, 9, 11, 12, 13)), 1),
    _tensor(64, tensor_forms(64, 1)[0], 2, _OF_ONE_WARP, 1),
    _merging(64, tensor_forms(64, 1)[0], 2, _OF_ONE_WARP, 1),
    _others("float32", 64, tensor_forms(64, 2, "float32")[-1], 5, tuple((i, _MEET) for i in (0, 1, 6, 8, 9))),
    _others("float32", 64, tensor_forms(64, 2, "float32")[0], 2, tuple((i, _MEET) for i in (0, 1, 6, 8, 9))),
    _others("q8_0", 64, tensor_forms(64, 2, "q8_0")[-1], 5, tuple((i, _MEET) for i in (0, 1, 5, 9, 10))),
    _others("q8_0", 64, tensor_forms(64, 2, "q8_0")[0], 2, tuple((i, _MEET) for i in (0, 1, 5, 9, 10))),
    Case(Variant("attention_merge", ("V_DIM=64", "LANES=64"), ("attend_merge",), 64), "attend_merge", merge(64)),
    *[Case(_ROWS, entry, row_kernel(entry), ((_LAST_OF[entry], _LAST),)) for entry in _ROWS.entries],
    Case(_QKV[0], "put_qkv", qkv(64, np.float32, 1e-6), _OF_QKV),
    Case(_QKV[1], "put_qkv", qkv(64, np.float16, 4e-4), _OF_QKV),
]
