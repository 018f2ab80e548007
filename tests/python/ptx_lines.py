"""A few lines of PTX as a kernel of one warp, for tests of the interpreter in tests/gpu/ptx.

Inputs are loaded into the registers that a line names as ``{0}``, ``{1}``, ...; the result is ``{d}``.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

import ptx
from ptx.operands import NUMPY

REGISTERS = (
    "\t.reg .pred %p<16>;\n\t.reg .b16 %rs<16>;\n\t.reg .b32 %r<32>;\n\t.reg .f32 %f<32>;\n\t.reg .b64 %rd<32>;\n"
    "\t.reg .f64 %fd<8>;\n"
)
_PREFIX = {8: "%rs", 16: "%rs", 32: "%r", 64: "%rd"}


def register(kind: str, number: int) -> str:
    """A register that keeps a number of this type."""
    if kind == "pred":
        return f"%p{number}"
    if kind in ("f32", "f64"):
        return f"{'%f' if kind == 'f32' else '%fd'}{number}"
    return f"{_PREFIX[8 * np.dtype(NUMPY[kind]).itemsize]}{number}"


def program(body: str, params: str = "", head: str = "", name: str = "lines") -> ptx.Program:
    """A kernel of these lines. ``params``: the types of its parameters; ``head``: declarations, such as .shared."""
    declared = ",\n".join(f"\t.param .{kind} {name}_param_{i}" for i, kind in enumerate(params.split()))
    text = f".version 8.5\n.target sm_90\n.entry {name}(\n{declared}\n)\n{{\n{head}\n{REGISTERS}{body}\n\tret;\n}}\n"
    return ptx.Program(text, name)


def bits_kind(kind: str) -> str:
    """How a number of this type is loaded and stored."""
    return "f32" if kind == "f32" else f"{'s' if kind[0] == 's' else 'b'}{8 * np.dtype(NUMPY[kind]).itemsize}"


def load(kind: str, to: int, param: int) -> str:
    """Lines that load the lane's number of the buffer ``param``; predicates are bytes."""
    address = (
        f"\tld.param.u64 %rd30, [lines_param_{param}];\n\tmov.u32 %r30, %tid.x;\n"
        f"\tmul.wide.u32 %rd31, %r30, {np.dtype(NUMPY[kind]).itemsize};\n\tadd.s64 %rd29, %rd30, %rd31;\n"
    )
    if kind == "pred":
        return address + f"\tld.global.u8 %rs15, [%rd29];\n\tsetp.ne.s16 %p{to}, %rs15, 0;\n"
    return address + f"\tld.global.{bits_kind(kind)} {register(kind, to)}, [%rd29];\n"


def store(kind: str, which: int, param: int) -> str:
    """Lines that store the lane's number into the buffer ``param``."""
    address = load("b64" if kind == "pred" else kind, 20 if kind == "pred" else which, param).rsplit("\tld.global", 1)[
        0
    ]
    if kind == "pred":
        address = address.replace(", 8;", ", 4;")
        return address + f"\tselp.b32 %r29, 1, 0, %p{which};\n\tst.global.b32 [%rd29], %r29;\n"
    return address + f"\tst.global.{bits_kind(kind)} [%rd29], {register(kind, which)};\n"


def run_line(line: str, kinds: str, result: str, values: list[Any]) -> Any:
    """The 32 results of one instruction for 32 values of each input. Kinds are PTX types."""
    inputs = kinds.split()
    body = "".join(load(kind, i, i) for i, kind in enumerate(inputs))
    names = [register(kind, i) for i, kind in enumerate(inputs)]
    body += "\t" + line.format(*names, d=register(result, 10)) + ";\n" + store(result, 10, len(inputs))
    memory = ptx.GlobalMemory()
    places = [memory.put(np.asarray(each, NUMPY[kind])) for kind, each in zip(inputs, values)]
    out = np.uint32 if result == "pred" else NUMPY[result]
    places.append(memory.put(np.zeros(32, out)))
    ptx.Launch(program(body, " ".join(["u64"] * len(places))), (1, 1, 1), (32, 1, 1), places).run(memory)
    return memory.get(places[-1], (32,), out)


def hostile(kind: str, random: np.random.Generator) -> Any:
    """32 numbers of a type: its ends, zeros, ties, NaN and infinities, and others by chance."""
    dtype = np.dtype(NUMPY[kind])
    if kind == "pred":
        return random.integers(0, 2, 32).astype(bool)
    if dtype.kind == "f":
        tiny = np.finfo(dtype).smallest_subnormal
        edges = [
            0.0,
            -0.0,
            1.0,
            -1.5,
            np.inf,
            -np.inf,
            np.nan,
            tiny,
            -tiny,
            np.finfo(dtype).max,
            2.5,
            3.5,
            1e9,
            -3e9,
            0.1,
        ]
        chance = random.standard_normal(32 - len(edges)) * 10.0 ** random.integers(-6, 7, 32 - len(edges))
        with np.errstate(over="ignore"):
            return random.permutation(np.concatenate([edges, chance]).astype(dtype))
    limits = np.iinfo(dtype)
    edges = [0, 1, limits.max, limits.min, limits.max - 1, limits.max // 2, limits.min // 2, 7]
    chance = random.integers(limits.min, limits.max, 32 - len(edges), dtype=dtype, endpoint=True)
    return random.permutation(np.concatenate([np.array(edges, dtype), chance]))


def same(got: Any, wanted: Any) -> bool:
    """Equal bits, any NaN like any other."""
    got, wanted = np.asarray(got), np.asarray(wanted, np.asarray(got).dtype)
    if got.dtype.kind == "f":
        bits = np.dtype(f"u{got.dtype.itemsize}")
        return bool(((got.view(bits) == wanted.view(bits)) | (np.isnan(got) & np.isnan(wanted))).all())
    return bool((got == wanted).all())


def wrapped(number: int, kind: str) -> Any:
    """An integer of any size as a number of a PTX type, as registers keep it."""
    bits = 8 * np.dtype(NUMPY[kind]).itemsize
    return np.array(number & ((1 << bits) - 1), f"u{bits // 8}").view(NUMPY[kind])[()]


def check(line: str, kinds: str, result: str, oracle: Callable[..., Any], seed: int, values: Any = None) -> None:
    """The instruction against an oracle of one lane, which gets Python's integers or numpy's floats."""
    random = np.random.default_rng(seed)
    given = values(random) if values is not None else [hostile(kind, random) for kind in kinds.split()]
    got = run_line(line, kinds, result, given)
    with np.errstate(all="ignore"):
        lanes = [oracle(*(x.item() if x.dtype.kind != "f" else x for x in lane)) for lane in zip(*given)]
    wanted = [
        wrapped(int(x), result) if np.asarray(x).dtype.kind in "iuO" and result[0] in "busf" else x for x in lanes
    ]
    assert same(got, np.array(wanted, got.dtype)), (line, seed, given, got, wanted)
