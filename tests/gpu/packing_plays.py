"""Plays of what weights go through: packing, lines of embeddings, and products with weights as they come."""

from __future__ import annotations

from typing import Any

import numpy as np

import ptx
from plays import Case, Play, assert_near, empty, launch, packed_halves, packed_q8
from tensor_plays import BLOCKS, Members, weights
from variants import Variant

_VECTORS = ("ROW_VW=4",)
OUTPUTS = 20  # of which the second panel of 16 has four


def _bits(q: Any, at: int, width: int) -> Any:
    return (q >> at & ((1 << width) - 1)).astype(np.uint8)


def _raw_small(made: Members, stored: int, n: int, at: int) -> bytes:
    """A block of 32 (ggml/src/ggml-common.h): d, m, the fifth bits, number j below j + 16."""
    q = made.q[n, at, 0]
    head = made.d[n, at].tobytes() + (made.m[n, at].tobytes() if BLOCKS[stored].zero is None else b"")
    high = np.packbits(_bits(q, 4, 1), bitorder="little").tobytes() if BLOCKS[stored].high else b""
    return head + high + (_bits(q[:16], 0, 4) | _bits(q[16:], 0, 4) << 4).tobytes()


def _raw_large(made: Members, stored: int, n: int, at: int) -> bytes:
    """q4_K and q5_K: s and t of 6 bits, the fifth bits across the 32 bytes, 32 numbers below the next 32."""
    s, t, q = (each[n, at] for each in (made.s, made.t, made.q))
    factors = [*(s[:4] | s[4:] >> 4 << 6), *(t[:4] | t[4:] >> 4 << 6), *(s[4:] & 15 | (t[4:] & 15) << 4)]
    high = b""
    if BLOCKS[stored].high:
        high = sum(_bits(q[sub], 4, 1) << sub for sub in range(8)).astype(np.uint8).tobytes()
    low = [(_bits(q[sub], 0, 4) | _bits(q[sub + 1], 0, 4) << 4).tobytes() for sub in range(0, 8, 2)]
    return b"".join([made.d[n, at].tobytes(), made.m[n, at].tobytes(), bytes(factors), high, *low])


def _raw_q6(made: Members, n: int, at: int) -> bytes:
    """q6_K: of each 128 numbers four runs of 32, two by two in a byte, and their upper two bits in another."""
    runs = made.q[n, at].reshape(2, 4, 32)
    low = [(_bits(half[i], 0, 4) | _bits(half[i + 2], 0, 4) << 4).tobytes() for half in runs for i in range(2)]
    high = [sum(_bits(half[i], 4, 2) << 2 * i for i in range(4)).astype(np.uint8).tobytes() for half in runs]
    return b"".join([*low, *high, made.s[n, at].astype(np.int8).tobytes(), made.d[n, at].tobytes()])


def _raw_q2(made: Members, n: int, at: int) -> bytes:
    """q2_K: s below t in a byte of each 16, then of each 128 numbers four runs of 32, the first lowest."""
    runs = made.q[n, at].reshape(2, 4, 32)
    numbers = [sum(half[i] << 2 * i for i in range(4)).astype(np.uint8).tobytes() for half in runs]
    factors = (made.s[n, at] | made.t[n, at] << 4).astype(np.uint8).tobytes()
    return b"".join([factors, *numbers, made.d[n, at].tobytes(), made.m[n, at].tobytes()])


def raw(made: Members, stored: int, n: int, at: int) -> bytes:
    """Super-block ``at`` of output ``n`` as GGML writes it."""
    if BLOCKS[stored].super_ == 32:
        return _raw_small(made, stored, n, at)
    if stored == 11:
        return _raw_q2(made, n, at)
    return _raw_q6(made, n, at) if stored == 10 else _raw_large(made, stored, n, at)


def pack_blocks(stored: int) -> Play:
    """20 outputs of 64 k or of one super-block, as packed products read them, with zeros beyond the outputs."""

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        supers = max(1, 64 // BLOCKS[stored].super_)
        k = supers * BLOCKS[stored].super_
        made = Members.random(64, k, stored, np.random.default_rng(30))
        each_block = (raw(made, stored, n, at) for n in range(OUTPUTS) for at in range(supers))
        blocks = np.frombuffer(b"".join(each_block), np.uint8)
        for each in made:
            each[OUTPUTS:] = 0
        packed = np.frombuffer(made.packed(stored), np.uint8)
        memory = ptx.GlobalMemory()
        panels = memory.put(np.zeros(packed.size, np.uint8))
        report = launch(program, (2, supers, 1), 1, memory, [blocks, 0, panels, OUTPUTS, k, 1, 0], seed)
        assert (memory.get(panels, packed.shape, np.uint8) == packed).all()
        return report

    return play


def pack_q8(program: ptx.Program, seed: int) -> ptx.Report:
    """20 outputs of 40 k, in either order: the rest of the second block is zero, and so is a block without numbers."""
    k = 40
    w = (np.random.default_rng(31).standard_normal((OUTPUTS, k)) * 0.1).astype(np.float16)
    w[3, :32] = 0
    padded = np.zeros((64, 64), np.float16)
    padded[:OUTPUTS, :k] = w
    wanted, _ = packed_q8(padded)
    for transposed, given in ((1, w), (0, np.ascontiguousarray(w.T))):
        memory = ptx.GlobalMemory()
        panels, largest = memory.put(np.zeros(wanted.size, np.uint8)), memory.put(np.zeros(1, np.uint32))
        arguments = [given, 0, panels, largest, OUTPUTS, k, transposed, 1, 0]
        report = launch(program, (2, 2, 1), 1, memory, arguments, seed)
        assert (memory.get(panels, wanted.shape, np.uint8) == wanted).all()
        assert memory.get(largest, (1,), np.uint32).view(np.float32)[0] == np.abs(w).max()
    return report


def pack(program: ptx.Program, seed: int) -> ptx.Report:
    """float16 weights of 20 outputs and 70 k in panels, in either order."""
    k = 70
    w = np.random.default_rng(32).standard_normal((OUTPUTS, k)).astype(np.float16)
    padded = np.zeros((64, k), np.float16)
    padded[:OUTPUTS] = w
    wanted = packed_halves(padded)
    for transposed, given in ((1, w), (0, np.ascontiguousarray(w.T))):
        memory = ptx.GlobalMemory()
        panels = memory.put(np.zeros_like(wanted))
        report = launch(program, (2, 2, 1), 1, memory, [given, 0, panels, OUTPUTS, k, transposed, 1, 0], seed)
        assert (memory.get(panels, wanted.shape, np.float16) == wanted).all()
    return report


def embed(stored: int) -> Play:
    """Lines of packed weights, the first part of a table in two parts; ids outside of the table are NaN."""

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        outputs, k = 70, 256
        w = weights(128, k, stored)
        ids = np.array([69, 0, 75, 100, -1], np.int32)
        memory = ptx.GlobalMemory()
        y = memory.put(np.full((len(ids), k), 9, np.float32))
        given = [w.packed, 0, ids, 0, y, 0, outputs, k, 0, 100]
        report = launch(program, (k // 32, len(ids), 1), 32, memory, given, seed)
        got = memory.get(y, (len(ids), k), np.float32)
        assert_near(got[:2], w.numbers[[69, 0]], 1e-7)
        assert (got[2] == 9).all() and np.isnan(got[3:]).all()
        return report

    return play


def rows_product(entry: str, stored: type[np.floating[Any]]) -> Play:
    """Six rows, ten outputs, 39 k: a rest of everything that is done by fours."""

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        random, rows, n, k = np.random.default_rng(33), 6, 10, 39
        x, w = random.standard_normal((rows, k)).astype(np.float32), random.standard_normal((n, k)).astype(stored)
        given_w = w if entry == "matmul_nk" else np.ascontiguousarray(w.T)
        memory = ptx.GlobalMemory()
        y = memory.put(empty(rows, n))
        report = launch(program, (1, 2, 1), 64, memory, [x, 0, given_w, 0, y, 0, rows, n, k], seed)
        assert_near(memory.get(y, (rows, n), np.float32), x.astype(np.float64) @ w.astype(np.float64).T, 3e-7)
        return report

    return play


# ---- the list --------------------------------------------------------------------------------------------------------


def _rows_variant(stored: int) -> Variant:
    return Variant("matmul_rows", (f"STORED={stored}", *_VECTORS), ("matmul_nk", "matmul_kn"), 64)


def _blocks_variant(stored: int) -> Variant:
    return Variant("pack_blocks", (f"STORED={stored}", *_VECTORS), ("pack_blocks",), 1)


PACKING_PLAYS: list[Case] = [
    *[Case(_blocks_variant(stored), "pack_blocks", pack_blocks(stored)) for stored in BLOCKS],
    Case(Variant("pack_q8", ("STORED=1", *_VECTORS), ("pack_q8",), 1), "pack_q8", pack_q8),
    Case(Variant("matmul", ("STORED=1", "MATMUL_VW=4", "SLICE=512"), ("pack",), 1), "pack", pack),
    *[
        Case(Variant("matmul_group", (f"STORED={stored}", "X4=0", "LANES=32"), ("embed",), 32), "embed", embed(stored))
        for stored in (1, 3, 8, 11)
    ],
    *[
        Case(_rows_variant(code), entry, rows_product(entry, stored))
        for code, stored in ((0, np.float32), (1, np.float16))
        for entry in ("matmul_nk", "matmul_kn")
    ],
]
