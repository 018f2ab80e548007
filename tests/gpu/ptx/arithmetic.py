"""Arithmetic, comparisons and bits: each lane by itself, as the PTX ISA (8.5) defines them.

Sums and products of float32 are rounded to nearest even, fma once; denormals stay unless ``.ftz``. Integers wrap.
"""

from __future__ import annotations

from typing import Callable

import numpy as np

from .findings import Finding, UnknownInstruction
from .operands import LANES, NUMPY, Mask, Read, Step, Values, reader, size_of, writer
from .source import Instruction, Program

Function = Callable[..., Values]
_IGNORED = {"rn", "lo", "approx", "full"}  # what is the only way here, or exact here


def _sum_to_odd(product: Values, addend: Values, fix: Values) -> Values:
    """The sum of two float64; where ``fix`` and it is not exact, the one of its two neighbours whose last bit is 1.

    Rounding to odd (Boldo, Melquiond 2008) keeps a second rounding, to a shorter type, from going the wrong way.
    """
    total = product + addend
    bits, back = total.view(np.int64), total - product
    error = (product - (total - back)) + (addend - back)
    odd = np.where((error > 0) == (total > 0), bits + 1, bits - 1)
    return np.where(fix & (error != 0) & np.isfinite(total) & (bits & 1 == 0), odd, bits).view(np.float64)


def _fma(a: Values, b: Values, c: Values) -> Values:
    """a * b + c of float32, rounded once: the product is exact in float64, the sum rounded to odd where it matters."""
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + addend
    tie = ((total.view(np.int64) & 0x1FFFFFFF) == 0x10000000) | (np.abs(total) < 1.2e-38)
    if tie.any():
        total = _sum_to_odd(product, addend, tie)
    return total.astype(np.float32)


def _fma_halves(a: Values, b: Values, c: Values) -> Values:
    """The same of two pairs of float16."""
    one, two, three = (np.ascontiguousarray(each).view(np.float16).astype(np.float64) for each in (a, b, c))
    return _sum_to_odd(one * two, three, np.bool_(True)).astype(np.float16).view(np.uint32)


def _extreme(larger: bool) -> Function:
    def extreme(a: Values, b: Values) -> Values:
        if a.dtype.kind != "f":
            return np.maximum(a, b) if larger else np.minimum(a, b)
        result = np.fmax(a, b) if larger else np.fmin(a, b)  # of a number and a NaN the number
        zeros = (a == 0) & (b == 0)  # +0 is larger than -0
        sign = np.signbit(a) & np.signbit(b) if larger else np.signbit(a) | np.signbit(b)
        return np.where(zeros, np.where(sign, a.dtype.type(-0.0), a.dtype.type(0.0)), result)

    return extreme


def _divide(a: Values, b: Values) -> Values:
    if a.dtype.kind == "f":
        return a / b
    quotient = np.abs(a.astype(object)) // np.abs(b.astype(object)) if a.dtype.itemsize == 8 else None
    if quotient is None:
        wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
        return (np.sign(wide_a) * np.sign(wide_b) * (np.abs(wide_a) // np.abs(wide_b))).astype(a.dtype)
    signs = np.where((a < 0) != (b < 0), -1, 1).astype(object)
    return (quotient * signs).astype(a.dtype)


def _high(a: Values, b: Values) -> Values:
    wide = np.int64 if a.dtype.kind == "i" else np.uint64
    return (a.astype(wide) * b.astype(wide) >> wide(8 * a.dtype.itemsize)).astype(a.dtype)


def _halves(function: Function) -> Function:
    def pairs(a: Values, b: Values) -> Values:
        first, second = (np.ascontiguousarray(each).view(np.float16) for each in (a, b))
        return function(first, second).astype(np.float16).view(np.uint32)

    return pairs


def _shift(left: bool) -> Function:
    def shift(a: Values, by: Values) -> Values:
        bits = 8 * a.dtype.itemsize
        amount = np.minimum(by, np.uint32(bits - 1)).astype(a.dtype)
        result = a << amount if left else a >> amount
        return result if a.dtype.kind == "i" and not left else np.where(by >= bits, a.dtype.type(0), result)

    return shift


def _extract(a: Values, at: Values, count: Values) -> Values:
    """bfe: ``count`` bits from bit ``at`` on; signed types repeat the highest of them."""
    bits = 8 * a.dtype.itemsize
    out = np.zeros(LANES, object)
    for lane in range(LANES):
        first, length = int(at[lane]) & 255, int(count[lane]) & 255
        number = int(a[lane])  # signed: as if the sign went on for ever
        field = (number >> first) & ((1 << length) - 1)
        if a.dtype.kind == "i" and length:
            top = min(first + length - 1, bits - 1)
            field = field - (1 << length) if number >> top & 1 else field
        out[lane] = field & ((1 << bits) - 1)
    return out.astype(f"u{a.dtype.itemsize}").view(a.dtype)


def _extract_fast(a: Values, at: Values, count: Values) -> Values:
    """The same where all lanes take the same bits and they lie inside of the number, as compilers write it."""
    bits, first, length = 8 * a.dtype.itemsize, int(at[0]) & 255, int(count[0]) & 255
    if length == 0 or first + length > bits or (at != at[0]).any() or (count != count[0]).any():
        return _extract(a, at, count)
    kind = a.dtype.type
    return (a << kind(bits - first - length)) >> kind(bits - length)


def _insert(a: Values, b: Values, at: Values, count: Values) -> Values:
    """bfi: b with the lowest ``count`` bits of a in place of its own from bit ``at`` on."""
    bits, kind = 8 * a.dtype.itemsize, a.dtype.type
    out = np.zeros(LANES, object)
    for lane in range(LANES):
        first, length = int(at[lane]) & 255, int(count[lane]) & 255
        mask = ((1 << length) - 1 << first) & ((1 << bits) - 1)
        out[lane] = int(b[lane]) & ~mask | int(a[lane]) << first & mask
    return out.astype(kind)


def _leading_zeros(a: Values) -> Values:
    bits = 8 * a.dtype.itemsize
    return np.array([bits - int(each).bit_length() for each in a], np.uint32)


def _permute(a: Values, b: Values, select: Values) -> Values:
    """prmt: each nibble of ``select`` chooses one of the 8 bytes of b:a, or with bit 3 that byte's sign, repeated."""
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    out = np.zeros(LANES, np.uint32)
    for i in range(4):
        nibble = select >> np.uint32(4 * i) & np.uint32(15)
        byte = (both >> ((nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8)) & np.uint64(255)).astype(np.uint32)
        sign = np.where(byte & np.uint32(128) != 0, np.uint32(255), np.uint32(0))
        out |= np.where(nibble & np.uint32(8) != 0, sign, byte) << np.uint32(8 * i)
    return out


_FLOAT = ("f32", "f64")
_BINARY: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "max": _extreme(True),
    "min": _extreme(False),
    "div": _divide,
    "rem": np.fmod,
}
_UNARY: dict[str, Function] = {
    "not": np.invert,
    "neg": np.negative,
    "abs": np.abs,
    "ex2": np.exp2,
    "rcp": lambda a: a.dtype.type(1) / a,
    "sqrt": np.sqrt,
}
_COMPARE: dict[str, Function] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _flushed(function: Function) -> Function:
    def flush(x: Values) -> Values:
        return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)

    return lambda *given: flush(function(*(flush(each) for each in given)))


def _comparison(words: list[str], kind: str) -> Function:
    """setp's: of floats ``ne`` is false where one is NaN, and those that end in u are true there."""
    name = words[1]
    if name in ("num", "nan"):
        return lambda a, b: (np.isnan(a) | np.isnan(b)) == (name == "nan")
    if kind[0] != "f":
        if name in _COMPARE:
            return _COMPARE[name]
    elif name in _COMPARE:
        return lambda a, b: _COMPARE[name](a, b) & ~(np.isnan(a) | np.isnan(b))
    elif name[:-1] in _COMPARE and name[-1] == "u":
        return lambda a, b: _COMPARE[name[:-1]](a, b) | np.isnan(a) | np.isnan(b)
    raise UnknownInstruction(".".join(words))


def _plain(program: Program, instruction: Instruction, function: Function, kinds: list[str], result: str) -> Step:
    reads: list[Read] = [reader(program, text, kind) for text, kind in zip(instruction.operands[1:], kinds)]
    if len(reads) != len(kinds) or len(instruction.operands) != len(kinds) + 1:
        raise UnknownInstruction(str(instruction), f"{len(kinds)} operands are known")
    write, dtype = writer(program, instruction.operands[0], result), NUMPY[result]
    if len(reads) == 2:
        one, two = reads
        return lambda warp, mask: write(warp, mask, function(one(warp), two(warp)).astype(dtype, copy=False))
    return lambda warp, mask: write(warp, mask, function(*(read(warp) for read in reads)).astype(dtype, copy=False))


def _integer_division(program: Program, instruction: Instruction, function: Function, kind: str) -> Step:
    one, two = (reader(program, text, kind) for text in instruction.operands[1:])
    write = writer(program, instruction.operands[0], kind)

    def step(warp: object, mask: Mask) -> None:
        a, b = one(warp), two(warp)  # type: ignore[arg-type]
        zero = b == 0
        if (zero if mask is None else zero & mask).any():
            raise Finding("arithmetic", f"{instruction}: a divisor is 0")
        write(warp, mask, function(a, np.where(zero, b.dtype.type(1), b)).astype(a.dtype))  # type: ignore[arg-type]

    return step


def decode(program: Program, instruction: Instruction) -> Step:
    """The step of an arithmetic instruction."""
    words = instruction.words
    head, kind = words[0], words[-1]
    modifiers = set(words[1:-1]) - _IGNORED
    if kind not in NUMPY:
        raise UnknownInstruction(str(instruction))
    if head == "setp":
        step = _plain(program, instruction, _comparison(words, kind), [kind, kind], "pred")
        modifiers -= {words[1]}
    elif head == "selp":
        step = _plain(program, instruction, lambda a, b, p: np.where(p, a, b), [kind, kind, "pred"], kind)
    elif "wide" in modifiers and head in ("mul", "mad"):
        modifiers -= {"wide"}
        wide = f"{kind[0]}{16 * size_of(kind)}"
        dtype = NUMPY[wide]
        if head == "mul":
            step = _plain(program, instruction, lambda a, b: a.astype(dtype) * b.astype(dtype), [kind, kind], wide)
        else:
            step = _plain(
                program, instruction, lambda a, b, c: a.astype(dtype) * b.astype(dtype) + c, [kind, kind, wide], wide
            )
    elif "hi" in modifiers and head == "mul" and size_of(kind) <= 4:
        modifiers -= {"hi"}
        step = _plain(program, instruction, _high, [kind, kind], kind)
    elif kind == "f16x2" and head in ("add", "sub", "mul"):
        step = _plain(program, instruction, _halves(_BINARY[head]), [kind, kind], kind)
    else:
        step = _others(program, instruction, head, kind, modifiers)
        modifiers -= {"ftz"}
    if modifiers:
        raise UnknownInstruction(str(instruction), f"modifiers {sorted(modifiers)}")
    return step


def _others(program: Program, instruction: Instruction, head: str, kind: str, modifiers: set[str]) -> Step:
    if head in ("div", "rem") and kind not in _FLOAT:
        return _integer_division(program, instruction, _BINARY[head], kind)
    if head in ("shl", "shr"):
        return _plain(program, instruction, _shift(head == "shl"), [kind, "u32"], kind)
    if head == "bfe":
        return _plain(program, instruction, _extract_fast, [kind, "u32", "u32"], kind)
    if head == "bfi":
        return _plain(program, instruction, _insert, [kind, kind, "u32", "u32"], kind)
    if head == "clz":
        return _plain(program, instruction, _leading_zeros, [kind], "u32")
    if head == "prmt":
        return _plain(program, instruction, _permute, ["u32"] * 3, "u32")
    if head == "mad":
        return _plain(program, instruction, lambda a, b, c: a * b + c, [kind] * 3, kind)
    if head == "fma" and kind == "f32":
        function, count = _fma, 3
    elif head == "fma" and kind == "f16x2":
        function, count = _fma_halves, 3
    elif head in _BINARY and kind not in ("f16", "f16x2"):
        function, count = _BINARY[head], 2
    elif head in _UNARY and kind not in ("f16", "f16x2"):
        function, count = _UNARY[head], 1
    else:
        raise UnknownInstruction(str(instruction))
    if "ftz" in modifiers and kind == "f32":
        function = _flushed(function)
    return _plain(program, instruction, function, [kind] * count, kind)
