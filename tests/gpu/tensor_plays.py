"""Plays of products by matrix instructions (kernels/matmul_tensor.cl), with weights of each type as they are packed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import ptx
from plays import Case, packed_halves
from ptx.conversions import bfloats, halves
from variants import Variant

SLICES = 4


class Blocks(NamedTuple):
    """A type of kernels/quants.clh: bits above 4, numbers of a super-block and of a sub-block, what q is less by.

    ``line``: k that share a byte.
    """

    high: int
    super_: int
    sub: int
    zero: int | None
    line: int = 2


BLOCKS = {
    4: Blocks(0, 32, 32, 8),
    5: Blocks(0, 32, 32, None),
    6: Blocks(1, 32, 32, 16),
    7: Blocks(1, 32, 32, None),
    8: Blocks(0, 256, 32, None),
    9: Blocks(1, 256, 32, None),
    10: Blocks(2, 256, 16, 32),
    11: Blocks(0, 256, 16, None, 4),
}


class Weights(NamedTuple):
    """A weight as it is packed, and the numbers [outputs][k] that it stands for; outputs are whole groups of 64."""

    packed: Any
    numbers: Any


def _halves(n: int, k: int, random: Any) -> Weights:
    w = (random.standard_normal((n, k)) * 0.05).astype(np.float16)
    return Weights(packed_halves(w), w.astype(np.float64))


def of_bfloats(bits: Any) -> Any:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _bfloats(n: int, k: int, random: Any, sizes: Any) -> Weights:
    bits = bfloats((random.standard_normal((n, k)) * sizes).astype(np.float32))
    return Weights(packed_halves(bits.astype(np.uint16)), of_bfloats(bits).astype(np.float64))


def _bytes_of_8_bits(n: int, k: int, random: Any) -> Weights:
    d = (random.random((n, k // 32)) * 0.01 + 1e-3).astype(np.float16)
    q = random.integers(-127, 128, (n, k // 32, 32), np.int8)
    parts = []
    for group in range(0, n, 64):
        for block in range(k // 32):
            parts += [d[group : group + 64, block].tobytes(), q[group : group + 64, block].T.tobytes()]
    return Weights(np.frombuffer(b"".join(parts), np.uint8), (q * d[..., None].astype(np.float64)).reshape(n, k))


def _sub_block(q: Any, high: int, line: int) -> bytes:
    """q [64][numbers of a sub-block]: words of the bits above 4, then ``line`` k of 64 outputs to a line."""
    words = np.zeros(64, np.uint32)
    if high:
        for k in range(q.shape[1]):
            words |= (q[:, k].astype(np.uint32) >> 4) << np.uint32(high * k)
    low, width = q & 15, 8 // line
    lines = sum(low[:, j::line] << width * j for j in range(line)).T
    return (words.tobytes() if high else b"") + np.ascontiguousarray(lines, np.uint8).tobytes()


class Members(NamedTuple):
    """What blocks are made of, for [outputs][super-blocks]: d and m; for each of their sub-blocks s, t and q."""

    d: Any
    m: Any
    s: Any
    t: Any
    q: Any

    @classmethod
    def random(cls, n: int, k: int, stored: int, random: Any) -> Members:
        kind = BLOCKS[stored]
        supers, subs = k // kind.super_, kind.super_ // kind.sub
        d, m = ((random.random((n, supers)) * 0.01 + 1e-3).astype(np.float16) for _ in range(2))
        signed = kind.zero is not None
        most = 128 if signed else 64 if kind.line == 2 else 16
        s = random.integers(-127 if signed else 0, most, (n, supers, subs)).astype(np.int64)
        t = random.integers(0, min(most, 64), (n, supers, subs)).astype(np.int64)
        numbers = 16 << kind.high if kind.line == 2 else 4
        return cls(d, m, s, t, random.integers(0, numbers, (n, supers, subs, kind.sub)).astype(np.int64))

    def packed(self, stored: int) -> bytes:
        """As kernels/quants.clh lays them out, for whole groups of 64 outputs."""
        kind, parts = BLOCKS[stored], []
        for group in range(0, len(self.d), 64):
            rows = slice(group, group + 64)
            for at in range(self.d.shape[1]):
                parts.append(self.d[rows, at].tobytes())
                if kind.zero is None:
                    parts.append(self.m[rows, at].tobytes())
                for sub in range(self.q.shape[2]):
                    if kind.line == 4:
                        parts.append((self.s[rows, at, sub] | self.t[rows, at, sub] << 4).astype(np.uint8).tobytes())
                    elif kind.super_ == 256:
                        parts.append(self.s[rows, at, sub].astype(np.int8).tobytes())
                        if kind.zero is None:
                            parts.append(self.t[rows, at, sub].astype(np.uint8).tobytes())
                    parts.append(_sub_block(self.q[rows, at, sub], kind.high, kind.line))
        return b"".join(parts)

    def numbers(self, stored: int) -> Any:
        """What they stand for, [outputs][k] in float64."""
        kind = BLOCKS[stored]
        scale, shift = self.d[:, :, None].astype(np.float64), self.m[:, :, None].astype(np.float64)
        if kind.super_ == 256:
            scale, shift = scale * self.s, -shift * self.t
        shift = -scale * kind.zero if kind.zero is not None else shift
        return (scale[..., None] * self.q + shift[..., None]).reshape(len(self.d), -1)


def _bytes_of_blocks(n: int, k: int, stored: int, random: Any) -> Weights:
    made = Members.random(n, k, stored, random)
    return Weights(np.frombuffer(made.packed(stored), np.uint8), made.numbers(stored))


def weights(n: int, k: int, stored: int, alike: bool = False) -> Weights:
    """Random ones of a type. Of bfloat16 with outputs of very different sizes, which halves would not hold, unless
    these are to be ``alike``."""
    random = np.random.default_rng(stored)
    if stored == 1:
        return _halves(n, k, random)
    if stored == 2:
        return _bfloats(n, k, random, 0.05 if alike else np.exp2(np.arange(n) % 7 * 9.0 - 30.0)[:, None])
    return _bytes_of_8_bits(n, k, random) if stored == 3 else _bytes_of_blocks(n, k, stored, random)


# The k that lies at each place of 16 (matmul_tensor_stored.clh).
_K_AT = np.array([0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15])


def _of_halves(bits: Any) -> Any:
    return bits.view(np.float16).astype(np.float32)


class Terms(NamedTuple):
    """Rows of x as tensor_split leaves them: their bits [term][rows][k], and what sums are multiplied by."""

    placed: Any
    back: Any
    read: Any

    @classmethod
    def of(cls, x: Any, terms: int, stored: int) -> Terms:
        """Halves, or of weights of bfloat16 one more of these."""
        write, read = (bfloats, of_bfloats) if stored == 2 else (halves, _of_halves)
        terms += stored == 2
        top = np.abs(x).max(-1)
        exponent = np.minimum(141 - (top.view(np.uint32) >> 23).astype(np.int64), 126)
        left = (x * np.exp2(exponent.astype(np.float64))[:, None]).astype(np.float32)
        made = []
        for _ in range(terms):
            made.append(write(left).astype(np.uint16))
            left = left - read(made[-1])
        placed = np.stack(made).reshape(terms, len(x), -1, 16)[..., _K_AT]
        back = np.exp2(-exponent.astype(np.float64)).astype(np.float32)
        return cls(np.ascontiguousarray(placed.reshape(terms, len(x), -1)), back, read)

    def numbers(self) -> Any:
        """What they stand for, [rows][k] in float64."""
        terms = self.read(self.in_order()).astype(np.float64)
        return terms.sum(0) * self.back[:, None].astype(np.float64)

    def in_order(self) -> Any:
        """Their bits with ascending k."""
        found = np.empty_like(self.placed)
        found.reshape(-1, 16)[:, _K_AT] = self.placed.reshape(-1, 16)
        return found


def numbers(rows: int, k: int) -> Any:
    """x: rows of very different sizes, one of zeros where there are three."""
    x = np.random.default_rng(7).standard_normal((rows, k)).astype(np.float32)
    x *= np.exp2(np.arange(rows) % 5 * 13.0 - 20.0).astype(np.float32)[:, None]
    if rows > 2:
        x[2] = 0
    return x


def _put(memory: ptx.GlobalMemory, given: list[Any]) -> list[Any]:
    return [memory.put(each) if isinstance(each, np.ndarray) else each for each in given]


class Product:
    """One product of ``rows`` rows by each of its kernels; n is no multiple of 64 outputs. ``gated``: two weights.

    ``terms``: halves that stand for a number of x, or one less than the terms of bfloat16 that do. With one, results
    are those of the numbers that the terms are.
    """

    ends: tuple[Any, ...] = ()  # further arguments of tensor_few

    def __init__(self, rows: int, n: int, k: int, stored: int, gated: bool = False, terms: int = 2) -> None:
        self.rows, self.n, self.k, self.stored, self.gated, self.terms = rows, n, k, stored, gated, terms
        self.packed_outputs = -(-n // 16) * 32 if gated else n
        self.groups = -(-self.packed_outputs // 64)
        self.x, self.w = numbers(rows, k), weights(self.groups * 64, k, stored)
        self.add = np.random.default_rng(9).standard_normal(n).astype(np.float32) * 1e-3
        self.given = self.x  # what the kernel reads
        self.split = Terms.of(self.x, terms, stored)
        if terms == 1:
            self.x = self.split.numbers()

    def wanted(self) -> Any:
        sums = self.x.astype(np.float64) @ self.w.numbers.T
        if not self.gated:
            return sums[:, : self.n] + self.add
        pairs = sums.reshape(self.rows, -1, 2, 16)
        gate, up = (pairs[:, :, i].reshape(self.rows, -1)[:, : self.n] for i in range(2))
        return gate * (1 + np.tanh(gate / 2)) / 2 * up

    def check(self, y: Any, bound: float) -> None:
        """Each row by itself: its relative error in the Frobenius norm; a row of zeros is ``add``. With weights of
        bfloat16 each output, too."""
        wanted = self.wanted()
        if self.stored == 2 and not self.gated:
            sizes = np.abs(self.x.astype(np.float64)) @ np.abs(self.w.numbers[: self.n]).T + np.abs(self.add)
            assert (np.abs(y - wanted) <= 1e-6 * sizes).all(), "an error beyond float32's of an output"
        for row in range(self.rows):
            size = (
                np.linalg.norm(self.x[row].astype(np.float64)) * np.abs(self.w.numbers).mean() if not self.gated else 0
            )
            scale = max(np.linalg.norm(wanted[row]), size)
            error = np.linalg.norm(y[row] - wanted[row]) / scale if scale else np.abs(y[row]).max()
            assert error <= bound, f"row {row}: relative error: got {error:.1e}, allowed {bound:.1e}"

    def check_rounding(self, y: Any) -> None:
        """Against the numbers as they were given: half of the last of 11 bits of each, or of the smallest half; of two
        terms of bfloat16, of the last of 16 bits."""
        assert not self.gated
        given, w = np.abs(self.given.astype(np.float64)), np.abs(self.w.numbers)[: self.n]
        lost = given * (2.0**-11 if self.stored != 2 else 2.0**-17) + given.max(-1, keepdims=True) * 2.0**-39
        wanted = self.given.astype(np.float64) @ self.w.numbers[: self.n].T + self.add
        allowed = lost @ w.T + 1e-6 * (given @ w.T + np.abs(self.add))
        assert (np.abs(y - wanted) <= allowed).all(), "an error beyond what rounding to a half loses"

    def _ends(self) -> list[Any]:
        return [self.add, 0, 0, 0 if self.gated else 1]

    def joined(self, parts: Any) -> Any:
        """What tensor_join makes of the parts of each slice."""
        sums = np.zeros(parts.shape[1:], np.float32)
        for part in parts:
            sums = sums + part
        return sums[:, : self.n] * self.split.back[:, None] + self.add

    def parts(self) -> Any:
        """Of each slice the products, multiplied as the halves are."""
        blocks = -(-self.k // 32)
        cuts = [min(i * -(-blocks // SLICES), blocks) * 32 for i in range(SLICES + 1)]
        scaled = self.x / self.split.back[:, None].astype(np.float64)
        made = [scaled[:, a:b] @ self.w.numbers[:, a:b].T for a, b in zip(cuts, cuts[1:])]
        return np.stack(made).astype(np.float32)

    def few(self, program: ptx.Program, seed: int, rows_of_group: int) -> tuple[Any, ptx.Report]:
        memory = ptx.GlobalMemory()
        y = memory.put(np.full((self.rows, self.n), np.nan, np.float32))
        given = [self.given, 0, self.w.packed, 0, *self._ends(), y, 0, self.rows, self.n, self.k, self.n, *self.ends]
        grid = (-(-self.packed_outputs // 32), -(-self.rows // rows_of_group), 1)
        report = ptx.Launch(program, grid, (128, 1, 1), _put(memory, given), seed).run(memory, resident=2)
        return memory.get(y, (self.rows, self.n), np.float32), report

    def many(self, program: ptx.Program, seed: int, warps: tuple[int, int], slices: bool, rows_of_warp: int = 32,
             counting: bool = False) -> tuple[Any, ptx.Report]:  # fmt: skip
        """y, or the parts of each slice."""
        memory = ptx.GlobalMemory()
        packed = self.groups * 64
        shape = (SLICES, self.rows, packed) if slices else (self.rows, self.n)
        y = memory.put(np.full(shape, np.nan, np.float32))
        x = [self.split.placed, 0, self.split.back, 0]
        given = [*x, self.w.packed, 0, *self._ends(), y, 0, self.rows, self.n, self.k, shape[-1], self.groups]
        grid = (-(-self.rows // (rows_of_warp * warps[1])), -(-self.groups // warps[0]), SLICES if slices else 1)
        lanes = 32 * warps[0] * warps[1]
        launch = ptx.Launch(program, grid, (lanes, 1, 1), _put(memory, given), seed)
        report = launch.run(memory, resident=2, counting=counting)
        return memory.get(y, shape, np.float32), report

    def join(self, program: ptx.Program, seed: int, parts: Any) -> tuple[Any, ptx.Report]:
        memory = ptx.GlobalMemory()
        y = memory.put(np.full((self.rows, self.n), np.nan, np.float32))
        given = [parts, 0, self.split.back, 0, *self._ends(), y, 0, self.rows, self.n, self.groups * 64, self.n]
        grid = (-(-self.n // 128), self.rows, 1)
        report = ptx.Launch(program, grid, (128, 1, 1), _put(memory, given), seed).run(memory, resident=2)
        return memory.get(y, (self.rows, self.n), np.float32), report


class NormedProduct(Product):
    """The product of rms_norm of ``given``: x is that in float64. Rows are smaller than eps, and far larger."""

    EPS, OFFSET = 1e-6, 1.0

    def __init__(self, rows: int, n: int, k: int, stored: int, gated: bool = False, terms: int = 2) -> None:
        super().__init__(rows, n, k, stored, gated, terms)
        self.weight = (np.random.default_rng(11).standard_normal(k) * 0.5).astype(np.float32)
        self.ends = (self.weight, 0, self.EPS, self.OFFSET)
        squares = (self.given.astype(np.float64) ** 2).mean(-1, keepdims=True)
        self.x = self.given / np.sqrt(squares + self.EPS) * (self.OFFSET + self.weight.astype(np.float64))

    def normed(self, program: ptx.Program, seed: int) -> Any:
        """``given`` as the kernel rms_norm leaves it."""
        memory = ptx.GlobalMemory()
        y = memory.put(np.full_like(self.given, np.nan))
        given = [self.given, 0, self.weight, 0, y, 0, self.k, self.EPS, self.OFFSET]
        ptx.Launch(program, (1, self.rows, 1), (64, 1, 1), _put(memory, given), seed).run(memory, resident=2)
        return memory.get(y, self.given.shape, np.float32)

    def apart(self, normed: Any) -> Product:
        """The product of rows that were normed before."""
        product = Product(self.rows, self.n, self.k, self.stored, self.gated, self.terms)
        product.x = product.given = normed
        return product


# ---- the list ------------------------------------------------------------------------------------------------------

_BOUND = 3e-7  # two halves have 22 bits, and sums are of float32
_NORM_BOUND = _BOUND + 4 * 2.0**-24  # a row's scale, and each number multiplied by it and by its weight
_HALF_BOUND = 2.0**-11  # of numbers that were normed before they became one half each


def one_term(terms: int) -> tuple[str, ...]:
    """The option of kernels whose numbers of x are one half."""
    return ("TERMS=1",) if terms == 1 else ()


def few_variant(stored: int, rows: int, gated: bool = False, normed: bool = False, terms: int = 2) -> Variant:
    options = (f"STORED={stored}", f"ROWS={rows}", *(("GATED=1",) if gated else ()))
    options += ("NORMED=1",) if normed else ()
    return Variant("matmul_tensor", (*options, *one_term(terms)), ("tensor_few",), 128)


def many_variant(stored: int, warps: tuple[int, int], slices: bool = False, gated: bool = False, terms: int = 2,
                 rows_of_warp: int = 32) -> Variant:  # fmt: skip
    options = (f"STORED={stored}", "SAVE_LOCALLY=0", f"WARPS_M={warps[0]}", f"WARPS_N={warps[1]}")
    options += (f"SPLIT={int(slices)}", *(("GATED=1",) if gated else ()), *one_term(terms))
    options += (f"WARP_ROWS={rows_of_warp}",) if rows_of_warp != 32 else ()
    return Variant("matmul_tensor_many", options, ("tensor_many", "tensor_join"), 32 * warps[0] * warps[1])


ELSEWHERE = "the last one of a warp: its sums take the place of blocks that were read long ago, in so short a slice"


def _few(product: Product, rows: int, unseen: tuple[tuple[int, str], ...] = ()) -> Case:
    normed = isinstance(product, NormedProduct)

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        y, report = product.few(program, seed, rows)
        product.check(y, (_NORM_BOUND if product.terms == 2 else _HALF_BOUND) if normed else _BOUND)
        if product.terms == 1 and not normed and not product.gated:
            product.check_rounding(y)
        return report

    return Case(few_variant(product.stored, rows, product.gated, normed, product.terms), "tensor_few", play, unseen)


def _many(product: Product, warps: tuple[int, int], slices: bool = False, rows_of_warp: int = 32) -> Case:
    """y; with ``slices`` what tensor_join is to make of the parts."""

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        y, report = product.many(program, seed, warps, slices, rows_of_warp)
        product.check(product.joined(y) if slices else y, _BOUND)
        return report

    variant = many_variant(product.stored, warps, slices, product.gated, product.terms, rows_of_warp)
    return Case(variant, "tensor_many", play)


def _split(product: Product) -> Case:
    def play(program: ptx.Program, seed: int) -> ptx.Report:
        memory = ptx.GlobalMemory()
        wanted = product.split
        terms, back = memory.put(np.zeros_like(wanted.placed)), memory.put(np.zeros_like(wanted.back))
        given = [product.given, 0, terms, 0, back, 0, product.rows, product.k]
        launched = ptx.Launch(program, (1, product.rows, 1), (128, 1, 1), _put(memory, given), seed)
        report = launched.run(memory, resident=2)
        assert (memory.get(terms, wanted.placed.shape, np.uint16) == wanted.placed).all()
        assert (memory.get(back, wanted.back.shape, np.float32) == wanted.back).all()
        return report

    return Case(many_variant(product.stored, (2, 2), terms=product.terms), "tensor_split", play)


def _join(product: Product) -> Case:
    def play(program: ptx.Program, seed: int) -> ptx.Report:
        parts = product.parts()
        y, report = product.join(program, seed, parts)
        product.check(y, _BOUND)
        return report

    return Case(many_variant(product.stored, (2, 1), True, product.gated), "tensor_join", play)


TENSOR_PLAYS: list[Case] = [
    *[_few(Product(3, 72, 320, stored), 8) for stored in (1, 2, 3)],
    *[_few(Product(3, 72, 512, stored), 8, ((2, ELSEWHERE),)) for stored in (5, 9, 10, 11)],
    _few(Product(1, 72, 544, 1), 1),
    _few(Product(1, 72, 544, 2), 1),
    _few(Product(1, 72, 256, 8), 1),
    _few(Product(9, 40, 320, 3, gated=True), 8),
    *[_few(NormedProduct(3, 72, 320, stored), 8) for stored in (1, 2, 3)],
    _few(NormedProduct(1, 72, 544, 1), 1),
    _few(NormedProduct(1, 72, 256, 8), 1),
    _few(NormedProduct(9, 40, 320, 3, gated=True), 8),
    *[_many(Product(70, 72, 320, stored), (1, 2)) for stored in (1, 2)],
    _many(Product(33, 72, 256, 8), (2, 1)),
    *[_many(Product(9, 72, 320, stored), (2, 1), slices=True) for stored in (2, 3)],
    _many(Product(9, 40, 320, 1, gated=True), (1, 1)),
    *[_split(Product(3, 64, 544, stored)) for stored in (1, 2)],
    _join(Product(3, 200, 64, 1)),
    _join(Product(3, 72, 64, 1, gated=True)),
    # One term.
    *[_few(Product(3, 72, 320, stored, terms=1), 8) for stored in (1, 2, 3)],
    *[_few(Product(3, 72, 512, stored, terms=1), 8, ((2, ELSEWHERE),)) for stored in (5, 9, 10, 11)],
    _few(Product(1, 72, 544, 1, terms=1), 1),
    _few(Product(1, 72, 256, 8, terms=1), 1),
    _few(Product(9, 40, 320, 3, gated=True, terms=1), 8),
    _few(NormedProduct(3, 72, 320, 1, terms=1), 8),
    _few(NormedProduct(1, 72, 256, 8, terms=1), 1),
    *[_many(Product(9, 72, 320, stored, terms=1), (2, 1), slices=True) for stored in (2, 3)],
    _many(Product(9, 40, 320, 1, gated=True, terms=1), (1, 1)),
    _many(Product(130, 72, 320, 1, terms=1), (1, 2), rows_of_warp=64),
    _many(Product(65, 72, 256, 8, terms=1), (2, 1), rows_of_warp=64),
    _many(Product(9, 40, 320, 3, gated=True, terms=1), (1, 1), rows_of_warp=64),
    *[_split(Product(3, 64, 544, stored, terms=1)) for stored in (1, 2)],
]
