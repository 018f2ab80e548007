"""How instructions read and write registers: operand text to functions of a warp.

A reader gives a number for each of the 32 lanes, in numpy's type for the PTX type that the instruction names. A writer
takes such an array and a mask of the lanes that execute (None: all 32). A register that is wider than the type gives
its lowest bits, and takes a number extended by its sign (PTX: operand size exceeding instruction-type size).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from .findings import UnknownInstruction
from .source import Program

if TYPE_CHECKING:
    from .machine import Warp

LANES = 32
Values = Any  # an array of 32 numbers of any type
Mask = Optional[np.ndarray]
Read = Callable[["Warp"], Values]
Write = Callable[["Warp", Mask, Values], None]
Step = Callable[["Warp", Mask], None]

NUMPY: dict[str, type] = {
    "pred": np.bool_,
    **{f"{kind}{bits}": getattr(np, f"uint{bits}") for kind in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": getattr(np, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": getattr(np, f"float{bits}") for bits in (16, 32, 64)},
    "f16x2": np.uint32,
}
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}

# Where generic addresses of a lane's own and of a group's memory begin; lower ones are global.
LOCAL_WINDOW, SHARED_WINDOW = 1 << 44, 1 << 45
WINDOWS = {"local": LOCAL_WINDOW, "shared": SHARED_WINDOW, "const": 1 << 46}


def size_of(kind: str) -> int:
    """Bytes of a PTX type."""
    return int(np.dtype(NUMPY[kind]).itemsize)


def _constant(text: str, kind: str) -> Optional[Values]:
    dtype = np.dtype(NUMPY[kind])
    if re.fullmatch(r"0f[0-9A-Fa-f]{8}", text):
        bits, width = int(text[2:], 16), 4
    elif re.fullmatch(r"0d[0-9A-Fa-f]{16}", text):
        bits, width = int(text[2:], 16), 8
    elif re.fullmatch(r"-?(0x[0-9A-Fa-f]+|\d+)U?", text):
        bits, width = int(text.rstrip("U"), 0), dtype.itemsize
    else:
        return None
    bits &= (1 << 8 * width) - 1
    if dtype == np.bool_:
        return np.full(LANES, bits != 0)
    if width != dtype.itemsize:
        raise UnknownInstruction(text, f"a constant of {width} bytes for .{kind}")
    return np.full(LANES, bits, UNSIGNED[width]).view(dtype)


def reader(program: Program, text: str, kind: str) -> Read:
    """What ``text`` is: a register, a constant, a special register, or the address of a variable."""
    if text.startswith("!"):
        inner = reader(program, text[1:], kind)
        return lambda warp: ~inner(warp)
    constant = _constant(text, kind)
    if constant is None and (variable := program.place(text)) is not None:
        constant = np.full(LANES, variable[1], np.uint64).astype(NUMPY[kind])
    if constant is not None:
        constant.flags.writeable = False
        return lambda warp: constant
    if re.match(r"%(tid|ntid|ctaid|nctaid)\.|%laneid$|%warpid$", text):
        return lambda warp: warp.special[text].astype(NUMPY[kind])
    return _register_reader(program, text, kind)


def _register_reader(program: Program, text: str, kind: str) -> Read:
    slot, storage = program.slot(text)
    dtype, width = np.dtype(NUMPY[kind]), np.dtype(storage).itemsize
    if (storage is np.bool_) != (dtype == np.bool_) or width < dtype.itemsize:
        raise UnknownInstruction(text, f"a register of {width} bytes as .{kind}")
    if storage is np.bool_ or dtype == storage:
        return lambda warp: warp.registers[slot]
    if width == dtype.itemsize:
        return lambda warp: warp.registers[slot].view(dtype)
    narrow = UNSIGNED[dtype.itemsize]
    return lambda warp: warp.registers[slot].astype(narrow).view(dtype)


def writer(program: Program, text: str, kind: str) -> Write:
    """Where results go; ``_`` takes none."""
    if text == "_":
        return lambda warp, mask, values: None
    slot, storage = program.slot(text)
    dtype, width = np.dtype(NUMPY[kind]), np.dtype(storage).itemsize
    if (storage is np.bool_) != (dtype == np.bool_) or width < dtype.itemsize:
        raise UnknownInstruction(text, f"a register of {width} bytes for .{kind}")
    wide = (SIGNED if dtype.kind == "i" else UNSIGNED)[width] if width > dtype.itemsize else None

    def write(warp: Warp, mask: Mask, values: Values) -> None:
        bits = values if values.dtype == storage else (values if wide is None else values.astype(wide)).view(storage)
        warp.registers[slot] = bits if mask is None else np.where(mask, bits, warp.registers[slot])

    return write


def inner(text: str) -> list[str]:
    """The registers of ``{a, b}``, or the one that stands alone."""
    return [part.strip() for part in text.strip("{} ").split(",")]


def address(program: Program, text: str) -> tuple[Read, Optional[str]]:
    """Of ``[register+offset]`` or ``[variable+offset]``: byte addresses as int64, and the space of a variable."""
    found = re.fullmatch(r"\[\s*([^\]+\s]+)\s*(?:\+\s*(-?\d+))?\s*\]", text)
    if found is None:
        raise UnknownInstruction(text, "an address")
    offset, variable = int(found[2] or 0), program.place(found[1])
    if variable is not None:
        fixed = np.full(LANES, variable[1] + offset, np.int64)
        return (lambda warp: fixed), variable[0]
    slot, storage = program.slot(found[1])
    if storage is np.uint64:
        return (lambda warp: warp.registers[slot].view(np.int64) + offset), None
    return (lambda warp: warp.registers[slot].astype(np.int64) + offset), None
