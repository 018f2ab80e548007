"""Instructions of a whole warp: shfl.sync, ldmatrix and mma.sync. All 32 lanes have to arrive together.

Fragments of m16n8k16 (PTX ISA 8.5, "Matrix Fragments for mma.m16n8k16"), with g = lane / 4 and t = 2 (lane % 4):

    A [16][16]   register i: row g + 8 (i % 2), columns t, t + 1 of the half i / 2
    B [16][8]    register i: rows t, t + 1 of the half i, column g
    C [16][8]    register i: row g + 8 (i / 2), column t + i % 2
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from .findings import UnknownInstruction
from .operands import LANES, Mask, Step, Values, address, inner, reader, writer
from .source import Instruction, Program

if TYPE_CHECKING:
    from .machine import Warp

_LANE = np.arange(LANES)
_G, _T = _LANE // 4, _LANE % 4 * 2


def _shuffle(program: Program, instruction: Instruction) -> Step:
    """shfl.sync d, a, b, 0x1f, all: a of the lane whose number differs in the bits of b (bfly), or of lane b (idx)."""
    kind = {"shfl.sync.bfly.b32": "bfly", "shfl.sync.idx.b32": "idx"}.get(instruction.op)
    if kind is None or instruction.operands[3:] not in (("31", "-1"), ("0x1f", "0xffffffff")):
        raise UnknownInstruction(str(instruction))
    write, read = writer(program, instruction.operands[0], "b32"), reader(program, instruction.operands[1], "b32")
    by = reader(program, instruction.operands[2], "u32")

    def step(warp: Warp, mask: Mask) -> None:
        warp.together(instruction, mask)
        other = (by(warp) & np.uint32(31)).astype(np.int64)
        write(warp, None, read(warp)[_LANE ^ other if kind == "bfly" else other + 0 * _LANE])

    return step


def _load_matrices(program: Program, instruction: Instruction) -> Step:
    """ldmatrix: lanes 8 i to 8 i + 7 name the rows of matrix i; each lane gets two neighbours of a row, or a column."""
    found = re.fullmatch(r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared\.b16", instruction.op)
    if found is None:
        raise UnknownInstruction(str(instruction))
    count, across = int(found[1]), found[2] is not None
    writes = [writer(program, name, "b32") for name in inner(instruction.operands[0])]
    place, _ = address(program, instruction.operands[1])

    def step(warp: Warp, mask: Mask) -> None:
        warp.together(instruction, mask)
        rows, shared = place(warp)[: 8 * count], warp.group.shared
        shared.check(warp.group, warp, rows, 16, _LANE[: 8 * count], False)
        halves = shared.bytes[rows[:, None] + np.arange(16)].view(np.uint16).reshape(count, 8, 8)
        for i, write in enumerate(writes):
            matrix = (halves[i].T if across else halves[i]).astype(np.uint32)
            write(warp, None, matrix[_G, _T] | matrix[_G, _T + 1] << np.uint32(16))
        if warp.launch.counting:
            banks = (rows[:, None] // 4 + np.arange(4)) % 32
            fronts = sum(int(np.bincount(each.reshape(-1)).max()) for each in banks.reshape(count, 8, 4))
            warp.launch.count("ldmatrix wavefronts", fronts)
            warp.launch.count("ldmatrix matrices", count)

    return step


def _halves(values: Values) -> Values:
    return np.ascontiguousarray(values).view(np.float16).reshape(LANES, 2).astype(np.float64)


def _bfloats(values: Values) -> Values:
    bits = np.ascontiguousarray(values).view(np.uint16).astype(np.uint32) << np.uint32(16)
    return bits.view(np.float32).reshape(LANES, 2).astype(np.float64)


_PAIRS = {f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32": read
          for kind, read in (("f16", _halves), ("bf16", _bfloats))}  # fmt: skip


def _multiply(program: Program, instruction: Instruction) -> Step:
    """mma.sync: D = A B + C, summed in float64 and rounded once to float32."""
    pairs = _PAIRS.get(instruction.op)
    if pairs is None:
        raise UnknownInstruction(str(instruction))
    to, left, right, add = (inner(text) for text in instruction.operands)
    reads_a, reads_b = ([reader(program, name, "b32") for name in names] for names in (left, right))
    reads_c, writes = [reader(program, name, "f32") for name in add], [writer(program, name, "f32") for name in to]

    def step(warp: Warp, mask: Mask) -> None:
        warp.together(instruction, mask)
        a, b = np.zeros((16, 16)), np.zeros((16, 8))
        for i, read in enumerate(reads_a):
            row, column, pair = _G + 8 * (i & 1), _T + 8 * (i >> 1), pairs(read(warp))
            a[row, column], a[row, column + 1] = pair.T
        for i, read in enumerate(reads_b):
            b[_T + 8 * i, _G], b[_T + 8 * i + 1, _G] = pairs(read(warp)).T
        product = a @ b
        sums = [product[_G + 8 * (i >> 1), _T + (i & 1)] + read(warp) for i, read in enumerate(reads_c)]
        for write, total in zip(writes, sums):
            write(warp, None, total.astype(np.float32))

    return step


def decode(program: Program, instruction: Instruction) -> Step:
    """The step of an instruction of a whole warp."""
    return {"shfl": _shuffle, "ldmatrix": _load_matrices, "mma": _multiply}[instruction.words[0]](program, instruction)
