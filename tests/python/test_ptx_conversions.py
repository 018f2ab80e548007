"""mov, cvt and cvta of the PTX interpreter, against numpy and Python's integers."""

from __future__ import annotations

import math
from typing import Any, Callable

import ml_dtypes
import numpy as np
import pytest

import ptx
from ptx_lines import check, hostile, run_line


def saturated(kind: str, rounded: Callable[[float], float]) -> Callable[[Any], int]:
    limits = np.iinfo(ptx.operands.NUMPY[kind])

    def convert(x: Any) -> int:
        if math.isnan(x):
            return 0
        return int(limits.max if x == math.inf else limits.min if x == -math.inf else
                   min(max(int(rounded(float(x))), limits.min), limits.max))  # fmt: skip

    return convert


def to_even(x: float) -> float:
    return float(np.rint(x))


SOURCES = ("s16", "u16", "s32", "u32", "s64", "u64")
CASES: list[tuple[str, str, str, Callable[..., Any]]] = [
    *[(f"cvt.{to}.{source} {{d}}, {{0}}", source, to, lambda a: a)
      for to, source in (("u64", "u32"), ("u32", "u64"), ("s64", "s32"), ("u16", "u32"), ("u32", "u16"), ("s32", "s16"),
                         ("u16", "u8"), ("s16", "s8"), ("u32", "u8"), ("s32", "s8"))],
    *[(f"cvt.rn.f32.{source} {{d}}, {{0}}", source, "f32", np.float32) for source in SOURCES],
    *[(f"cvt.rzi.{to}.f32 {{d}}, {{0}}", "f32", to, saturated(to, math.trunc)) for to in ("s16", "s32", "u32", "s64")],
    ("cvt.rni.s32.f32 {d}, {0}", "f32", "s32", saturated("s32", to_even)),
    ("cvt.rmi.s32.f32 {d}, {0}", "f32", "s32", saturated("s32", math.floor)),
    ("cvt.rpi.s32.f32 {d}, {0}", "f32", "s32", saturated("s32", math.ceil)),
    ("cvt.rzi.f32.f32 {d}, {0}", "f32", "f32", np.trunc),
    ("cvt.rni.f32.f32 {d}, {0}", "f32", "f32", np.rint),
    ("cvt.rmi.f32.f32 {d}, {0}", "f32", "f32", np.floor),
    ("cvt.rpi.f32.f32 {d}, {0}", "f32", "f32", np.ceil),
    ("cvt.rn.f16.f32 {d}, {0}", "f32", "f16", np.float16),
    ("cvt.f32.f16 {d}, {0}", "f16", "f32", np.float32),
    *[(f"mov.{k} {{d}}, {{0}}", k, k, lambda a: a) for k in ("b16", "u16", "b32", "u32", "b64", "u64", "f32", "pred")],
]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].split()[0])
def test_a_conversion(case: tuple[str, str, str, Callable[..., Any]], seed: int) -> None:
    check(*case, seed=seed)


def test_bits_change_their_type() -> None:
    """mov.b32 between an integer and a float register."""
    x = hostile("f32", np.random.default_rng(1))
    assert (run_line("mov.b32 {d}, {0}", "f32", "b32", [x]) == x.view(np.uint32)).all()


def test_a_byte_in_a_register_of_32_bits() -> None:
    """cvt.s8.s32: the lowest byte, its sign repeated in the register."""
    x = np.arange(100, 132, dtype=np.int32)
    assert (run_line("cvt.s8.s32 %r11, {0}; cvt.s32.s8 {d}, %r11", "s32", "s32", [x]) == x.astype(np.int8)).all()
    assert (run_line("cvt.s8.s32 %r11, {0}; mov.b32 {d}, %r11", "s32", "s32", [x]) == x.astype(np.int8)).all()


def test_registers_join_and_part() -> None:
    """mov.b32 and mov.b64 of vectors: the first register has the lowest bits."""
    random = np.random.default_rng(2)
    low, high = (random.integers(0, 1 << 16, 32, dtype=np.uint16) for _ in range(2))
    joined = low | high.astype(np.uint32) << 16
    assert (run_line("mov.b32 {d}, {{{0}, {1}}}", "b16 b16", "b32", [low, high]) == joined).all()
    assert (run_line("mov.b32 {{%rs11, {d}}}, {0}", "b32", "b16", [joined]) == high).all()
    assert (run_line("{{ .reg .b16 tmp; mov.b32 {{{d}, tmp}}, {0}; }}", "b32", "b16", [joined]) == low).all()
    wide = random.integers(0, 1 << 63, 32, dtype=np.uint64)
    assert (run_line("mov.b64 {{%r11, {d}}}, {0}", "b64", "b32", [wide]) == wide >> 32).all()


@pytest.mark.parametrize(("kind", "dtype"), [("f16x2", np.float16), ("bf16x2", ml_dtypes.bfloat16)])
def test_two_halves_of_one_register(kind: str, dtype: Any) -> None:
    """cvt.rn.f16x2.f32: the first operand goes to the upper half."""
    random = np.random.default_rng(3)
    a, b = (hostile("f32", random) for _ in range(2))
    with np.errstate(all="ignore"):
        wanted = np.stack([b.astype(dtype), a.astype(dtype)], axis=1)
    got = run_line(f"cvt.rn.{kind}.f32 {{d}}, {{0}}, {{1}}", "f32 f32", "b32", [a, b]).view(dtype).reshape(32, 2)
    assert ((got == wanted) | (np.isnan(got) & np.isnan(wanted))).all()


def test_constants() -> None:
    """Decimal, hexadecimal and negative ones, and floats by their bits."""
    zeros = [np.zeros(32)]
    assert (run_line("add.s32 {d}, {0}, -7", "s32", "s32", zeros) == -7).all()
    assert (run_line("add.s64 {d}, {0}, -7", "s64", "s64", zeros) == -7).all()
    assert (run_line("or.b32 {d}, {0}, 0xffff0000U", "b32", "b32", zeros) == 0xFFFF0000).all()
    assert (run_line("add.rn.f32 {d}, {0}, 0f40490FDB", "f32", "f32", zeros) == np.float32(np.pi)).all()


@pytest.mark.parametrize("space", ["local", "shared", "const", "global"])
def test_generic_addresses_return(space: str) -> None:
    x = [np.arange(32, dtype=np.uint64) * 8]
    line = f"cvta.{space}.u64 %rd11, {{0}}; cvta.to.{space}.u64 {{d}}, %rd11"
    assert (run_line(line, "u64", "u64", x) == x[0]).all()


@pytest.mark.parametrize("line", ["cvt.rn.bf16.f32 {d}, {0}", "cvt.rz.f16.f32 {d}, {0}", "cvt.sat.f32.f32 {d}, {0}"])
def test_what_is_not_known_is_named(line: str) -> None:
    with pytest.raises(ptx.UnknownInstruction, match=line.split()[0]):
        run_line(line, "f32", "f32", [np.zeros(32)])
