"""Arithmetic, comparisons and bits of the PTX interpreter: each instruction against Python's integers, or numpy."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Callable

import numpy as np
import pytest

import ptx
from ptx_lines import check, run_line

INTEGERS = ("s16", "u16", "s32", "u32", "s64", "u64")


def bits_of(kind: str) -> int:
    return int(kind[1:])


def quotient(a: int, b: int) -> int:
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)


def shifted(kind: str) -> Callable[[int, int], int]:
    """shr: what is left of a number; the sign fills signed ones, and a shift by all bits leaves nothing else."""
    return lambda a, by: a >> min(by, 200)


def leading(kind: str) -> Callable[[int], int]:
    return lambda a: bits_of(kind) - a.bit_length()


def field(kind: str) -> Callable[[int, int, int], int]:
    """bfe as the ISA writes it down: bit by bit."""

    def extract(a: int, at: int, count: int) -> int:
        top, at, count = bits_of(kind) - 1, at & 255, count & 255
        a &= (1 << bits_of(kind)) - 1
        sign = 0 if kind[0] == "u" or count == 0 else a >> min(at + count - 1, top) & 1
        found = 0
        for i in range(top + 1):
            found |= (a >> (at + i) & 1 if i < count and at + i <= top else sign) << i
        return found

    return extract


def inserted(kind: str) -> Callable[[int, int, int, int], int]:
    """bfi as the ISA writes it down: bit by bit."""

    def insert(a: int, b: int, at: int, count: int) -> int:
        at, count = at & 255, count & 255
        for i in range(count):
            if at + i < bits_of(kind):
                b = b & ~(1 << at + i) | (a >> i & 1) << at + i
        return b

    return insert


def permuted(a: int, b: int, select: int) -> int:
    out = 0
    for i in range(4):
        nibble = select >> 4 * i & 15
        byte = (a | b << 32) >> 8 * (nibble & 7) & 255
        out |= ((255 if byte & 128 else 0) if nibble & 8 else byte) << 8 * i
    return out


def nearest_single(x: Fraction) -> np.float32:
    """The float32 nearest to a fraction, ties to even: by its neighbours, not by double rounding."""
    guess = np.float32(float(x))
    if not np.isfinite(guess):
        return guess
    near = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    near = [each for each in near if np.isfinite(each)]
    return min(near, key=lambda each: (abs(Fraction(float(each)) - x), int(np.float32(each).view(np.uint32)) & 1))


def fused(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    if not all(math.isfinite(float(x)) for x in (a, b, c)):
        return np.float32(float(a) * float(b) + float(c))
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0 or abs(exact) > Fraction(2) ** 128:
        return np.float32(float(a) * float(b) + float(c))
    return nearest_single(exact)


def larger(a: np.float32, b: np.float32) -> np.float32:
    if np.isnan(a) or np.isnan(b):
        return b if np.isnan(a) else a
    return a if (a, not np.signbit(a)) >= (b, not np.signbit(b)) else b


def smaller(a: np.float32, b: np.float32) -> np.float32:
    return -larger(-a, -b)


CASES: list[tuple[str, str, str, Callable[..., Any]]] = [
    *[(f"add.{k} {{d}}, {{0}}, {{1}}", f"{k} {k}", k, lambda a, b: a + b) for k in INTEGERS],
    *[(f"sub.{k} {{d}}, {{0}}, {{1}}", f"{k} {k}", k, lambda a, b: a - b) for k in INTEGERS],
    *[(f"mul.lo.{k} {{d}}, {{0}}, {{1}}", f"{k} {k}", k, lambda a, b: a * b) for k in INTEGERS],
    *[(f"max.{k} {{d}}, {{0}}, {{1}}", f"{k} {k}", k, max) for k in INTEGERS],
    *[(f"min.{k} {{d}}, {{0}}, {{1}}", f"{k} {k}", k, min) for k in INTEGERS],
    *[(f"mad.lo.{k} {{d}}, {{0}}, {{1}}, {{2}}", f"{k} {k} {k}", k, lambda a, b, c: a * b + c) for k in INTEGERS[2:]],
    *[(f"mul.hi.{k} {{d}}, {{0}}, {{1}}", f"{k} {k}", k, lambda a, b: a * b >> 32) for k in ("s32", "u32")],
    ("mul.hi.u16 {d}, {0}, {1}", "u16 u16", "u16", lambda a, b: a * b >> 16),
    ("mul.wide.s16 {d}, {0}, {1}", "s16 s16", "s32", lambda a, b: a * b),
    ("mul.wide.u16 {d}, {0}, {1}", "u16 u16", "u32", lambda a, b: a * b),
    ("mul.wide.s32 {d}, {0}, {1}", "s32 s32", "s64", lambda a, b: a * b),
    ("mul.wide.u32 {d}, {0}, {1}", "u32 u32", "u64", lambda a, b: a * b),
    ("mad.wide.u32 {d}, {0}, {1}, {2}", "u32 u32 u64", "u64", lambda a, b, c: a * b + c),
    ("mad.wide.s32 {d}, {0}, {1}, {2}", "s32 s32 s64", "s64", lambda a, b, c: a * b + c),
    *[(f"and.b{n} {{d}}, {{0}}, {{1}}", f"b{n} b{n}", f"b{n}", lambda a, b: a & b) for n in (16, 32, 64)],
    *[(f"or.b{n} {{d}}, {{0}}, {{1}}", f"b{n} b{n}", f"b{n}", lambda a, b: a | b) for n in (16, 32, 64)],
    *[(f"xor.b{n} {{d}}, {{0}}, {{1}}", f"b{n} b{n}", f"b{n}", lambda a, b: a ^ b) for n in (16, 32, 64)],
    *[(f"not.b{n} {{d}}, {{0}}", f"b{n}", f"b{n}", lambda a: ~a) for n in (16, 32, 64)],
    ("and.pred {d}, {0}, {1}", "pred pred", "pred", lambda a, b: a and b),
    ("or.pred {d}, {0}, {1}", "pred pred", "pred", lambda a, b: a or b),
    ("xor.pred {d}, {0}, {1}", "pred pred", "pred", lambda a, b: a != b),
    ("not.pred {d}, {0}", "pred", "pred", lambda a: not a),
    *[(f"neg.{k} {{d}}, {{0}}", k, k, lambda a: -a) for k in ("s16", "s32", "s64")],
    *[(f"clz.b{n} {{d}}, {{0}}", f"b{n}", "u32", leading(f"b{n}")) for n in (32, 64)],
    ("prmt.b32 {d}, {0}, {1}, {2}", "b32 b32 b32", "b32", permuted),
    *[(f"selp.{k} {{d}}, {{0}}, {{1}}, {{2}}", f"{k} {k} pred", k, lambda a, b, p: a if p else b)
      for k in ("b16", "u32", "b32", "b64", "f32")],
    ("add.rn.f32 {d}, {0}, {1}", "f32 f32", "f32", lambda a, b: a + b),
    ("sub.rn.f32 {d}, {0}, {1}", "f32 f32", "f32", lambda a, b: a - b),
    ("mul.rn.f32 {d}, {0}, {1}", "f32 f32", "f32", lambda a, b: a * b),
    ("div.rn.f32 {d}, {0}, {1}", "f32 f32", "f32", lambda a, b: a / b),
    ("fma.rn.f32 {d}, {0}, {1}, {2}", "f32 f32 f32", "f32", fused),
    ("max.f32 {d}, {0}, {1}", "f32 f32", "f32", larger),
    ("min.f32 {d}, {0}, {1}", "f32 f32", "f32", smaller),
    ("neg.f32 {d}, {0}", "f32", "f32", lambda a: -a),
    ("abs.f32 {d}, {0}", "f32", "f32", abs),
    ("rcp.rn.f32 {d}, {0}", "f32", "f32", lambda a: np.float32(1) / a),
    ("sqrt.rn.f32 {d}, {0}", "f32", "f32", np.sqrt),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].split()[0])
def test_an_instruction(case: tuple[str, str, str, Callable[..., Any]], seed: int) -> None:
    check(*case, seed=seed)


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64"])
def test_shifts_by_more_than_all_bits(kind: str) -> None:
    """Shifts are clamped at the number's width."""
    amounts = np.array([0, 1, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1 << 31, 2**32 - 1] * 3, np.uint32)[:32]

    def given(random: np.random.Generator) -> list[Any]:
        limits = np.iinfo(ptx.operands.NUMPY[kind])
        return [random.integers(limits.min, limits.max, 32, dtype=limits.dtype, endpoint=True), amounts]

    if kind[0] == "b":
        check(f"shl.{kind} {{d}}, {{0}}, {{1}}", f"{kind} u32", kind, lambda a, by: a << min(by, 200), 1, given)
    check(f"shr.{kind} {{d}}, {{0}}, {{1}}", f"{kind} u32", kind, shifted(kind), 2, given)


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("uniform", [True, False])
def test_fields_of_bits(kind: str, uniform: bool) -> None:
    """bfe.u32, bfe.s32, bfe.u64, bfe.s64, also beyond the number's end."""

    def given(random: np.random.Generator) -> list[Any]:
        limits = np.iinfo(ptx.operands.NUMPY[kind])
        number = random.integers(limits.min, limits.max, 32, dtype=limits.dtype, endpoint=True)
        at, count = (random.integers(0, 70, 1 if uniform else 32) for _ in range(2))
        return [number, np.resize(at, 32).astype(np.uint32), np.resize(count, 32).astype(np.uint32)]

    for seed in range(12):
        check(f"bfe.{kind} {{d}}, {{0}}, {{1}}, {{2}}", f"{kind} u32 u32", kind, field(kind), seed, given)


@pytest.mark.parametrize("kind", ["b32", "b64"])
@pytest.mark.parametrize("uniform", [True, False])
def test_inserted_bits(kind: str, uniform: bool) -> None:
    """bfi.b32 and bfi.b64, also beyond the number's end."""

    def given(random: np.random.Generator) -> list[Any]:
        limits = np.iinfo(ptx.operands.NUMPY[kind])
        numbers = random.integers(limits.min, limits.max, (2, 32), dtype=limits.dtype, endpoint=True)
        at, count = (random.integers(0, 70, 1 if uniform else 32) for _ in range(2))
        return [*numbers, np.resize(at, 32).astype(np.uint32), np.resize(count, 32).astype(np.uint32)]

    op = f"bfi.{kind} {{d}}, {{0}}, {{1}}, {{2}}, {{3}}"
    for seed in range(12):
        check(op, f"{kind} {kind} u32 u32", kind, inserted(kind), seed, given)


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64"])
def test_integer_quotients(kind: str) -> None:
    """div.s32, div.u32, div.s64, div.u64 and rem: towards zero; a divisor of 0 is a finding."""

    def given(random: np.random.Generator) -> list[Any]:
        limits = np.iinfo(ptx.operands.NUMPY[kind])
        a, b = (random.integers(limits.min // 2, limits.max, 32, dtype=limits.dtype) for _ in range(2))
        b[:16] = random.integers(1, 50, 16)
        return [a, np.where(b == 0, 1, b).astype(b.dtype)]

    for seed in range(3):
        check(f"div.{kind} {{d}}, {{0}}, {{1}}", f"{kind} {kind}", kind, quotient, seed, given)
        check(
            f"rem.{kind} {{d}}, {{0}}, {{1}}", f"{kind} {kind}", kind, lambda a, b: a - b * quotient(a, b), seed, given
        )
    with pytest.raises(ptx.Finding, match=r"arithmetic: .* a divisor is 0"):
        run_line(f"div.{kind} {{d}}, {{0}}, {{1}}", f"{kind} {kind}", kind, [np.arange(32), np.arange(32)])


FLOAT_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a < b or a > b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "num": lambda a, b: not (np.isnan(a) or np.isnan(b)),
}
# The unordered forms: setp.equ.f32, setp.neu.f32, setp.ltu.f32, setp.leu.f32, setp.gtu.f32, setp.geu.f32, setp.nan.f32.
OPPOSITES = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt", "nan": "num"}


def float_pairs(dtype: type) -> Callable[[np.random.Generator], list[Any]]:
    def given(random: np.random.Generator) -> list[Any]:
        edges = np.array([0.0, -0.0, 1.0, np.nan, np.inf, -np.inf], dtype)
        return [random.choice(edges, 32), random.choice(edges, 32)]

    return given


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("name", [*FLOAT_COMPARISONS, *OPPOSITES])
def test_comparisons_of_floats(name: str, kind: str) -> None:
    """Also setp.leu.f16, as compilers write it for halves."""

    def oracle(a: Any, b: Any) -> bool:
        return (
            FLOAT_COMPARISONS[name](a, b) if name in FLOAT_COMPARISONS else not FLOAT_COMPARISONS[OPPOSITES[name]](a, b)
        )

    check(f"setp.{name}.{kind} {{d}}, {{0}}, {{1}}", f"{kind} {kind}", "pred", oracle, 3,
          float_pairs(ptx.operands.NUMPY[kind]))  # fmt: skip


ORDERS = ("eq", "ne", "lt", "le", "gt", "ge")
INTEGER_COMPARISONS = [(name, kind) for kind in INTEGERS for name in ORDERS] + [("eq", "b32"), ("ne", "b32")]


@pytest.mark.parametrize(("name", "kind"), INTEGER_COMPARISONS)
def test_comparisons_of_integers(name: str, kind: str) -> None:
    """setp.eq.s32 to setp.ge.u64, and setp.eq.b32."""
    compare = {
        "eq": int.__eq__,
        "ne": int.__ne__,
        "lt": int.__lt__,
        "le": int.__le__,
        "gt": int.__gt__,
        "ge": int.__ge__,
    }

    def given(random: np.random.Generator) -> list[Any]:
        limits = np.iinfo(ptx.operands.NUMPY[kind])
        edges = np.array([0, 1, limits.max, limits.min], limits.dtype)
        return [random.choice(edges, 32), random.choice(edges, 32)]

    check(f"setp.{name}.{kind} {{d}}, {{0}}, {{1}}", f"{kind} {kind}", "pred", compare[name], 4, given)


def test_halves_side_by_side() -> None:
    """sub.f16x2, add.f16x2 and mul.f16x2: two float16 of a register."""
    random = np.random.default_rng(5)
    a, b = (random.standard_normal(64).astype(np.float16) for _ in range(2))
    for name, wanted in (("sub", a - b), ("add", a + b), ("mul", a * b)):
        got = run_line(f"{name}.f16x2 {{d}}, {{0}}, {{1}}", "b32 b32", "b32", [a.view(np.uint32), b.view(np.uint32)])
        assert (got.view(np.float16) == wanted).all()


def test_fused_sums_of_halves_are_rounded_once() -> None:
    """fma.rn.f16x2 against exact fractions, ties and sums far apart among them."""
    random = np.random.default_rng(8)
    a, b, c = (random.integers(0, 0x7C00, 64).astype(np.uint16).view(np.float16) for _ in range(3))
    a[:8], b[:8], c[:8] = 1 + 2.0**-10, 1 + 2.0**-10, -(2.0 ** np.arange(-8, 0))
    a[8:16], b[8:16], c[8:16] = 2.0**-12, 1 + 2.0**-10, 2.0 ** np.arange(-2, 6)
    given = [each.view(np.uint32) for each in (a, b, c)]
    with np.errstate(over="ignore"):
        got = run_line("fma.rn.f16x2 {d}, {0}, {1}, {2}", "b32 b32 b32", "b32", given).view(np.float16)
    for one, two, three, result in zip(a, b, c, got, strict=True):
        exact = Fraction(float(one)) * Fraction(float(two)) + Fraction(float(three))
        if np.isinf(result):
            assert exact >= Fraction(65520)
            continue
        near = [result, *(np.nextafter(result, np.float16(to)) for to in (-np.inf, np.inf))]
        distances = [abs(Fraction(float(each)) - exact) for each in near if np.isfinite(each)]
        assert distances[0] == min(distances)
        if distances.count(distances[0]) > 1:
            assert int(result.view(np.uint16)) % 2 == 0


def test_powers_of_two_flush_denormals() -> None:
    """ex2.approx.ftz.f32 is exact here; denormals, in and out, are zeros."""
    x = np.linspace(-150, 20, 32).astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = np.exp2(x)
    wanted[wanted < np.finfo(np.float32).tiny] = 0
    assert (run_line("ex2.approx.ftz.f32 {d}, {0}", "f32", "f32", [x]) == wanted).all()


def test_a_fused_sum_is_rounded_once() -> None:
    """Sums in float64 that lie at a tie of float32 although the exact ones do not."""
    random = np.random.default_rng(6)

    def given(_: np.random.Generator) -> list[Any]:
        a = (1 + random.integers(0, 1 << 23, 32) / (1 << 23)).astype(np.float32)
        c = (a * 2.0 ** random.integers(24, 30, 32)).astype(np.float32)
        return [a, np.float32(1) + np.exp2(-random.integers(1, 24, 32)).astype(np.float32), c]

    for seed in range(20):
        check("fma.rn.f32 {d}, {0}, {1}, {2}", "f32 f32 f32", "f32", fused, seed, given)
    ties = [np.full(32, x, np.float32) for x in (1 + 2.0**-12, 1 + 2.0**-12, 2.0**-25 + 2.0**-48)]
    check("fma.rn.f32 {d}, {0}, {1}, {2}", "f32 f32 f32", "f32", fused, 0, lambda _: ties)


@pytest.mark.parametrize(
    "line",
    ["popc.b32 {d}, {0}", "add.sat.s32 {d}, {0}, {0}", "shf.l.wrap.b32 {d}, {0}, {0}, {0}", "mul.hi.s64 {d}, {0}, {0}"],
)
def test_what_is_not_known_is_named(line: str) -> None:
    kind = "s64" if "64" in line else "b32"
    with pytest.raises(ptx.UnknownInstruction, match=line.split()[0]):
        run_line(line, kind, kind, [np.zeros(32)])
