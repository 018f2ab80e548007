"""mov, cvt and cvta: numbers that change their type, or registers that are joined and taken apart."""

from __future__ import annotations

import numpy as np

from .findings import UnknownInstruction
from .operands import LANES, NUMPY, UNSIGNED, WINDOWS, Mask, Step, Values, inner, reader, size_of, writer
from .source import Instruction, Program

_ROUND = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}


def _move_apart(program: Program, instruction: Instruction, kind: str) -> Step:
    """``mov.b32 {a, b}, r``: the lowest bits to a."""
    parts = inner(instruction.operands[0])
    width = size_of(kind) // len(parts)
    read = reader(program, instruction.operands[1], kind)
    writes = [writer(program, part, f"b{8 * width}") for part in parts]

    def step(warp: object, mask: Mask) -> None:
        pieces = np.ascontiguousarray(read(warp)).view(UNSIGNED[width]).reshape(LANES, -1)  # type: ignore[arg-type]
        for i, write in enumerate(writes):
            write(warp, mask, np.ascontiguousarray(pieces[:, i]))  # type: ignore[arg-type]

    return step


def _move_together(program: Program, instruction: Instruction, kind: str) -> Step:
    parts = inner(instruction.operands[1])
    width = size_of(kind) // len(parts)
    reads = [reader(program, part, f"b{8 * width}") for part in parts]
    write, dtype = writer(program, instruction.operands[0], kind), NUMPY[kind]

    def step(warp: object, mask: Mask) -> None:
        pieces = np.stack([read(warp) for read in reads], axis=1)  # type: ignore[arg-type]
        write(warp, mask, np.ascontiguousarray(pieces).view(dtype).reshape(LANES))  # type: ignore[arg-type]

    return step


def _move(program: Program, instruction: Instruction) -> Step:
    kind = instruction.words[-1]
    if len(instruction.words) != 2 or kind not in NUMPY:
        raise UnknownInstruction(str(instruction))
    if instruction.operands[0].startswith("{"):
        return _move_apart(program, instruction, kind)
    if instruction.operands[1].startswith("{"):
        return _move_together(program, instruction, kind)
    read, write = reader(program, instruction.operands[1], kind), writer(program, instruction.operands[0], kind)
    return lambda warp, mask: write(warp, mask, read(warp))


def _to_integer(values: Values, kind: str) -> Values:
    """Floats that are whole to integers: what is outside goes to the nearest end, NaN to 0."""
    limits = np.iinfo(NUMPY[kind])
    wide = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
    top = wide >= float(limits.max)
    inside = np.where(top | (wide <= float(limits.min)), 0.0, wide).astype(np.int64).astype(NUMPY[kind])
    return np.where(top, limits.max, np.where(wide <= float(limits.min), limits.min, inside)).astype(NUMPY[kind])


def _convert(program: Program, instruction: Instruction) -> Step:
    words = instruction.words
    to, source = words[-2:]
    modifiers = set(words[1:-2])
    if to in PACKED and source == "f32" and modifiers == {"rn"}:
        return _pack_halves(program, instruction)
    if to not in NUMPY or source not in NUMPY or modifiers - {"rn", *_ROUND}:
        raise UnknownInstruction(str(instruction))
    read, write = reader(program, instruction.operands[1], source), writer(program, instruction.operands[0], to)
    rounding = next((_ROUND[name] for name in modifiers if name in _ROUND), None)
    dtype = NUMPY[to]

    def convert(values: Values) -> Values:
        if rounding is not None:
            values = rounding(values)
        return _to_integer(values, to) if source[0] == "f" and to[0] != "f" else values.astype(dtype)

    return lambda warp, mask: write(warp, mask, convert(read(warp)))


def halves(values: Values) -> Values:
    """The bits of float16, rounded to nearest even."""
    return values.astype(np.float16).view(np.uint16).astype(np.uint32)


def bfloats(values: Values) -> Values:
    """The bits of bfloat16, rounded to nearest even; every NaN is 0x7fff (PTX ISA, cvt)."""
    bits = values.view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint32)
    return np.where(np.isnan(values), np.uint32(0x7FFF), rounded)


PACKED = {"f16x2": halves, "bf16x2": bfloats}


def _pack_halves(program: Program, instruction: Instruction) -> Step:
    """cvt.rn.f16x2.f32 d, a, b: a to the upper half of d, b to the lower one; cvt.rn.bf16x2.f32."""
    upper, lower = (reader(program, text, "f32") for text in instruction.operands[1:])
    write, bits = writer(program, instruction.operands[0], "b32"), PACKED[instruction.words[-2]]
    return lambda warp, mask: write(warp, mask, bits(upper(warp)) << np.uint32(16) | bits(lower(warp)))


def _convert_address(program: Program, instruction: Instruction) -> Step:
    """cvta: an address of one space as a generic one, or with ``.to`` back."""
    words = instruction.words
    space = words[-2]
    if words[-1] != "u64" or space not in ("global", *WINDOWS):
        raise UnknownInstruction(str(instruction))
    shift = np.uint64(WINDOWS.get(space, 0))
    read, write = reader(program, instruction.operands[1], "u64"), writer(program, instruction.operands[0], "u64")
    if words[1] == "to":
        return lambda warp, mask: write(warp, mask, read(warp) - shift)
    return lambda warp, mask: write(warp, mask, read(warp) + shift)


def decode(program: Program, instruction: Instruction) -> Step:
    """The step of a mov, cvt or cvta."""
    return {"mov": _move, "cvt": _convert, "cvta": _convert_address}[instruction.words[0]](program, instruction)
