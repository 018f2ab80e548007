"""Plays of a decode step as one launch (kernels/launch_groups.cl): two layers, of which attention has several splits.

The bits are those of the same launches one by one, whatever the number of groups and their order; the logits are those
of numpy in float64.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Callable

import numpy as np

import compilers
import ptx
from launch_lists import Launch, List, Table
from plays import Case
from ptx.conversions import bfloats
from tensor_plays import Weights, of_bfloats, one_term, weights
from variants import TensorForm, Variant, step_variant

HEADS, KV_HEADS, DIM, PAIRS = 2, 1, 64, 32
HIDDEN, INNER, VOCAB = 96, 64, 40
LAYERS, SPLIT, EPS, OFFSET = 2, 128, 1e-5, 0.0
CELLS = 240
# Cells, lengths and positions of two histories: three rows go on from the first, which has two splits, one from the
# other.
FIRST = ((90, 100, 0), (10, 49, 100))
SECOND = ((200, 20, 0),)
POSITIONS = (149, 150, 151, 20)
ROW_CELLS = (59, 60, 61, 220)
OUTPUTS = (HEADS + 2 * KV_HEADS) * DIM
SCALE = np.float32(0.125)
# What launches one by one wrote, by rows, storage, terms and cells.
_APART: dict[tuple[int, int, int, bool], dict[str, Any]] = {}


def _segments(spans: tuple[tuple[int, int, int], ...], begin: int, end: int) -> list[tuple[int, int, int]]:
    cut = [(cell, position, max(begin, position), min(end, position + length)) for cell, length, position in spans]
    return [(cell + low - position, high - low, low) for cell, position, low, high in cut if low < high]


def table_of_step(ids: Any, rows: int) -> tuple[Table, dict[str, int]]:
    """The step's table, and where ids and rows lie behind its header. ``rows``: of POSITIONS."""
    first = (FIRST[0], (10, 52, 100))
    bounds = [number for position in POSITIONS[:rows] for number in (0, position + 1)]
    own = tuple(range(min(rows, 3)))
    tiles = [(own, _segments(first, 0, SPLIT), 0), (own, _segments(first, SPLIT, 152), len(own))]
    if rows == 4:
        tiles.append(((3,), [(200, 21, 0)], -1))
    places, header = {}, {}
    ints: list[int] = []

    def add(name: str, numbers: list[int]) -> None:
        (header if name.startswith("k") else places)[name] = len(ints)
        ints.extend(int(each) for each in numbers)

    add("ids", list(ids))
    add("rows", [number for pair in zip(POSITIONS, ROW_CELLS) for number in pair][: 2 * rows])
    add("kBounds", bounds)
    add("kRowIds", [row for tile in tiles for row in tile[0]])
    add("kSegments", [number for tile in tiles for each in tile[1] for number in each])
    packed, id_at, segment_at = [], 0, 0
    for of, segments, partial in tiles:
        packed += [id_at, len(of), segment_at, len(segments), partial]
        id_at, segment_at = id_at + len(of), segment_at + len(segments)
    add("kTileTable", packed)
    merged = [(row, len(own) + row) for row in own] + [()] * (rows - len(own))
    add("kMergeBegin", [sum(len(each) for each in merged[:i]) for i in range(rows + 1)])
    add("kMergeIds", [number for each in merged for number in each])
    add("kLinesDone", [0] * (rows * KV_HEADS))
    header["kTiles"] = len(tiles)
    return Table(header, ints), places


class Layer:
    """Weights of a layer, and what its cells hold before the step."""

    def __init__(self, stored: int, seed: int, dtype: Any) -> None:
        random = np.random.default_rng(seed)

        def weight(n: int, k: int) -> Weights:
            return weights(-(-n // 64) * 64, k, stored, alike=True)

        self.qkv, self.o = weight(OUTPUTS, HIDDEN), weight(HIDDEN, HEADS * DIM)
        self.gate_up, self.down = weight(2 * INNER, HIDDEN), weight(HIDDEN, INNER)
        self.norms = [(1 + 0.3 * random.standard_normal(HIDDEN)).astype(np.float32) for _ in range(2)]
        self.cells = [np.full((KV_HEADS, CELLS, DIM), np.nan, dtype) for _ in range(2)]
        for cell, length, _ in (*FIRST, *SECOND):
            for each in self.cells:
                each[:, cell : cell + length] = random.standard_normal((KV_HEADS, length, DIM))


class Step:
    """A step of ``rows`` rows; weights as ``stored``; ``terms`` halves for each number of x, q and weights, or one more
    of bfloat16 for x; ``floats``: cells of float32, else of float16."""

    def __init__(self, rows: int, stored: int, terms: int = 2, floats: bool = False) -> None:
        random = np.random.default_rng(5)
        self.rows, self.stored, self.terms, self.floats = rows, stored, terms, floats
        self.cells = np.float32 if floats else np.float16
        self.ids = random.integers(0, VOCAB, rows)
        embeddings = random.standard_normal((VOCAB, HIDDEN)).astype(np.float32)
        self.embeddings = bfloats(embeddings).astype(np.uint16) if stored == 2 else embeddings.astype(np.float16)
        self.layers = [Layer(stored, seed, self.cells) for seed in range(LAYERS)]
        self.head = weights(64, HIDDEN, stored, alike=True)
        self.norm = (1 + 0.3 * random.standard_normal(HIDDEN)).astype(np.float32)
        self.bias = random.standard_normal(VOCAB).astype(np.float32)
        self.sinks = np.array([0.3, -np.inf], np.float32)
        self.frequencies = (0.9 ** np.arange(PAIRS)).astype(np.float32)

    def list(self, memory: ptx.GlobalMemory) -> tuple[List, dict[str, Any]]:
        """The launches, over buffers in ``memory``; what they write, by name."""
        rows, put = self.rows, memory.put
        table, places = table_of_step(self.ids, rows)

        def blank(*shape: int) -> int:
            return put(np.full(shape, np.nan, np.float32))

        at: dict[str, Any] = {"logits": blank(rows, VOCAB), "partial_out": blank(2 * rows, HEADS, DIM),
                              "partial_stats": blank(2 * rows, HEADS, 2)}  # fmt: skip
        x, q, out, inner = blank(rows, HIDDEN), blank(rows, HEADS, DIM), blank(rows, HEADS * DIM), blank(rows, INNER)
        after, head = blank(rows, HIDDEN), blank(rows, VOCAB)
        frequencies, sinks = put(self.frequencies), put(self.sinks)
        launches = [self._embedding(put, f"ints:{places['ids']}", x)]

        def product(form: int, given: int, w: Weights, y: int, n: int, k: int, packed: int, **more: Any) -> None:
            sides = {"x": given, "w": put(w.packed), "y": y, "m_size": rows, "n_size": n, "k_size": k, "y_stride": n}
            launches.append(Launch("tensor_few", (-(-packed // 32), 1, 1), {**sides, "add": given, **more}, form))

        for i, layer in enumerate(self.layers):
            cells = [put(each) for each in layer.cells]
            at[f"k{i}"], at[f"v{i}"] = cells
            norms = [{"weight": put(each), "eps": EPS, "offset": OFFSET} for each in layer.norms]
            stores = {"table": f"ints:{places['rows']}", "inverse_frequencies": frequencies, "factor": 1.0,
                      "heads": HEADS, "kv_heads": KV_HEADS, "k_dim": DIM, "v_dim": DIM, "pairs": PAIRS,
                      "k_pool": cells[0], "v_pool": cells[1], "cells": CELLS}  # fmt: skip
            product(0, x, layer.qkv, q, OUTPUTS, HIDDEN, OUTPUTS, **norms[0], **stores, y_stride=HEADS * DIM)
            launches.append(Launch("tensor_attend", (1, 1, KV_HEADS), {
                "q": q, "k": cells[0], "v": cells[1], "k_head_stride": CELLS * DIM, "k_cell_stride": DIM,
                "v_head_stride": CELLS * DIM, "v_cell_stride": DIM, "table": "table", "split": SPLIT, "heads": HEADS,
                "group": HEADS // KV_HEADS, "scale": SCALE, "sinks": sinks, "has_sinks": 1, "out": out,
                "partial_out": at["partial_out"], "partial_stats": at["partial_stats"], "parts": 1,
                "lines_done": "header:kLinesDone", "rows": rows}, tiles=True))  # fmt: skip
            product(1, out, layer.o, after, HIDDEN, HEADS * DIM, HIDDEN, add=x, add_stride=HIDDEN, has_add=1)
            product(2, after, layer.gate_up, inner, INNER, HIDDEN, 2 * INNER, **norms[1])
            product(1, inner, layer.down, x, HIDDEN, INNER, HIDDEN, add=after, add_stride=HIDDEN, has_add=1)
        product(3, x, self.head, head, VOCAB, HIDDEN, VOCAB, weight=put(self.norm), eps=EPS, offset=OFFSET)
        launches.append(Launch("add", (-(-VOCAB // 16), rows, 1), {
            "a": head, "b": put(self.bias), "y": at["logits"], "dim": VOCAB, "chunk": 16, "b_rows": 1}))  # fmt: skip
        return List(launches, table), at

    def _embedding(self, put: Callable[[Any], int], ids: str, to: int) -> Launch:
        if self.stored < 3:
            return Launch("embedding", (-(-HIDDEN // 32), self.rows, 1), {
                "from": put(self.embeddings), "ids": ids, "to": to, "count": VOCAB, "dim": HIDDEN, "chunk": 32,
                "all": VOCAB})  # fmt: skip
        return Launch("embed", (HIDDEN, self.rows, 1), {
            "w": put(self.head.packed), "ids": ids, "to": to, "n_size": VOCAB, "dim": HIDDEN,
            "all": VOCAB})  # fmt: skip

    def written(self, memory: ptx.GlobalMemory, at: dict[str, Any]) -> dict[str, Any]:
        """Logits, and the cells of each layer."""
        found = {"logits": memory.get(at["logits"], (self.rows, VOCAB), np.float32)}
        for i in range(LAYERS):
            for name in (f"k{i}", f"v{i}"):
                found[name] = memory.get(at[name], (KV_HEADS, CELLS, DIM), self.cells)
        return found

    def apart(self) -> dict[str, Any]:
        """By launches of their own."""
        key = (self.rows, self.stored, self.terms, self.floats)
        if key not in _APART:
            _APART[key] = self._apart()
        return _APART[key]

    def _apart(self) -> dict[str, Any]:
        memory = ptx.GlobalMemory()
        made, at = self.list(memory)
        programs = [(_program(*each), lanes) for each, lanes in self._programs()]
        made.run_apart(programs, memory)
        return self.written(memory, at)

    def _programs(self) -> list[tuple[tuple[Variant, str], int]]:
        few = (f"STORED={self.stored}", f"ROWS={1 if self.rows == 1 else 8}", *one_term(self.terms))
        stores = (*few, "NORMED=1", "QKV=1", f"CELL_FORMAT={int(not self.floats)}")
        form = TensorForm(1, True).options(DIM, self.terms, True, "float32" if self.floats else "float16")
        attention = Variant("attention_tensor", form, ("attend_tiles",), 32)
        of_layer = [_few(stores), ((attention, "attend_tiles"), 32), _few(few), _few((*few, "GATED=1", "NORMED=1")),
                    _few(few)]  # fmt: skip
        from_ = f"FROM={self.stored}"
        embedding = (Variant("copy", (from_, "TO=0", "ROW_VW=4"), ("cast", "embedding"), 64), "embedding")
        if self.stored >= 3:
            embedding = (
                Variant("matmul_group", (f"STORED={self.stored}", "X4=0", "LANES=32"), ("embed",), 32),
                "embed",
            )
        add = Variant("elementwise", ("OP=add", "ROW_VW=4"), ("add",), 64)
        return [(embedding, 1), *of_layer * LAYERS, _few((*few, "NORMED=1")), ((add, "add"), 1)]

    def wanted(self) -> Any:
        """The logits in float64."""
        rows_of = self.embeddings.astype(np.float64) if self.stored == 1 else self.head.numbers
        x = (of_bfloats(self.embeddings).astype(np.float64) if self.stored == 2 else rows_of)[self.ids]
        for layer in self.layers:
            qkv = _normed(x, layer.norms[0]) @ layer.qkv.numbers[:OUTPUTS].T
            x = x + self._attended(layer, qkv) @ layer.o.numbers[:HIDDEN].T
            both = (_normed(x, layer.norms[1]) @ layer.gate_up.numbers[: 2 * INNER].T).reshape(self.rows, -1, 2, 16)
            gate, up = (both[:, :, i].reshape(self.rows, INNER) for i in range(2))
            x = x + gate / (1 + np.exp(-gate)) * up @ layer.down.numbers[:HIDDEN].T
        return _normed(x, self.norm) @ self.head.numbers[:VOCAB].T + self.bias

    def _attended(self, layer: Layer, qkv: Any) -> Any:
        heads = qkv.reshape(self.rows, -1, DIM)
        angles = (np.array(POSITIONS[: self.rows], np.float32)[:, None] * self.frequencies).astype(np.float64)[:, None]
        cos, sin, turned = np.cos(angles), np.sin(angles), heads[:, : HEADS + KV_HEADS]
        a, b = turned[..., :PAIRS].copy(), turned[..., PAIRS:].copy()
        turned[..., :PAIRS], turned[..., PAIRS:] = a * cos - b * sin, b * cos + a * sin
        k, v = (each[0].astype(np.float64) for each in layer.cells)
        for row, cell in enumerate(ROW_CELLS[: self.rows]):
            k[cell], v[cell] = (heads[row, HEADS + i].astype(self.cells) for i in range(2))
        out = np.zeros((self.rows, HEADS, DIM))
        for row, position in enumerate(POSITIONS[: self.rows]):
            spans = SECOND if row == 3 else FIRST
            cells = [cell + i for cell, length, _ in spans for i in range(length)]
            cells += [220] if row == 3 else list(ROW_CELLS[: row + 1])
            assert len(cells) == position + 1
            for head in range(HEADS):
                scores = k[cells] @ heads[row, head] * float(SCALE)
                weights_ = np.exp(scores - scores.max())
                sink = np.exp(float(self.sinks[head]) - scores.max())
                out[row, head] = weights_ @ v[cells] / (weights_.sum() + sink)
        return out.reshape(self.rows, -1)


def _normed(x: Any, weight: Any) -> Any:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * (OFFSET + weight.astype(np.float64))


def _few(options: tuple[str, ...]) -> tuple[tuple[Variant, str], int]:
    return (Variant("matmul_tensor", options, ("tensor_few",), 128), "tensor_few"), 128


@cache
def _program(variant: Variant, entry: str) -> ptx.Program:
    return ptx.Program(compilers.ptx_of(variant).read_text(), entry)


def variant(rows: int, stored: int, terms: int = 2, floats: bool = False) -> Variant:
    """The step's program."""
    return step_variant(stored, 1 if rows == 1 else 8, DIM, terms, floats)


def text_of(step: Step) -> str:
    return compilers.ptx_of(variant(step.rows, step.stored, step.terms, step.floats)).read_text()


def program_of(step: Step) -> ptx.Program:
    return ptx.Program(text_of(step), "run_groups")


def play(step: Step, groups: int, program: ptx.Program, seed: int, resident: int = 3) -> ptx.Report:
    """The bits of launches one by one, and float64's logits."""
    memory = ptx.GlobalMemory()
    made, at = step.list(memory)
    slots = [at["logits"], at["partial_out"], at["partial_stats"]]
    report = made.run(program, memory, groups, seed, slots, resident)
    got, apart = step.written(memory, at), step.apart()
    for name, numbers in got.items():
        assert numbers.tobytes() == apart[name].tobytes(), f"{name}: other bits than launches one by one"
    wanted = step.wanted()
    error = np.linalg.norm(got["logits"] - wanted) / np.linalg.norm(wanted)
    bound = FLOAT_BOUND if step.floats else BOUNDS[step.terms]
    assert error <= bound, f"relative error: got {error:.1e}, allowed {bound:.1e}"
    return report


# By terms. Keys and values are halves: where the two round differently, a number of them is off by 2^-10 of itself; one
# term takes 2^-11 from every number of x.
BOUNDS = {1: 1e-2, 2: 1e-4}
# Nothing is rounded to halves where cells are float32: each of the eleven products and attentions, one after the other,
# is within 1e-6 of a row.
FLOAT_BOUND = 1e-5


def _play_step(program: ptx.Program, seed: int) -> ptx.Report:
    return play(Step(4, 3), 3, program, seed)


def _play_locate(program: ptx.Program, seed: int) -> ptx.Report:
    memory = ptx.GlobalMemory()
    buffer, table = memory.put(np.zeros(3, np.uint8)), memory.put(np.zeros(4, np.uint64))
    report = ptx.Launch(program, (1, 1, 1), (1, 1, 1), [buffer, table, 2], seed).run(memory)
    assert memory.get(table, (4,), np.uint64).tolist() == [0, 0, buffer, 0]
    return report


def _own_barriers(program: ptx.Program) -> list[int]:
    """Those of launch_groups.cl: where items are handed out, before any kernel, and behind each acquire."""
    acquires = [i for i, each in enumerate(program.instructions) if "acquire" in each.words]
    places = program.barriers()
    return [i for i, at in enumerate(places) if at < acquires[0] or any(
        at > acquire and (i == 0 or places[i - 1] < acquire) for acquire in acquires)]  # fmt: skip


STEP_PLAYS: list[Case] = [
    Case(variant(4, 3), "run_groups", _play_step, own=_own_barriers),
    Case(variant(4, 3), "locate", _play_locate),
]
