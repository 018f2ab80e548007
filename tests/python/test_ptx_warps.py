"""Warps and groups of the PTX interpreter: instructions of a whole warp, barriers, and what it finds between lanes."""

from __future__ import annotations

from typing import Any, Callable

import ml_dtypes
import numpy as np
import pytest

import ptx
from ptx_lines import program, run_line
from test_ptx_memory import LANE, SHARED, launch

BARRIER = "\tbar.sync \t0;\n"


def test_butterflies() -> None:
    """shfl.sync.bfly.b32."""
    x = np.arange(32, dtype=np.uint32) * 3
    for by in (1, 2, 16, 31):
        got = run_line(f"shfl.sync.bfly.b32 {{d}}, {{0}}, {by}, 0x1f, 0xffffffff", "b32", "b32", [x])
        assert (got == x[np.arange(32) ^ by]).all()


def test_lanes_are_named() -> None:
    """shfl.sync.idx.b32: each lane names another; what is beyond 31 begins again at 0."""
    x, other = np.arange(32, dtype=np.uint32) * 3, np.arange(32, dtype=np.uint32) * 7 + 5
    got = run_line("shfl.sync.idx.b32 {d}, {0}, {1}, 0x1f, 0xffffffff", "b32 b32", "b32", [x, other])
    assert (got == x[other % 32]).all()
    got = run_line("shfl.sync.idx.b32 {d}, {0}, 9, 0x1f, 0xffffffff", "b32", "b32", [x])
    assert (got == x[9]).all()


# ---- matrices ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_reach_their_lanes(count: int, across: bool) -> None:
    """ldmatrix.sync.aligned.m8n8.x1, x2, x4, also .trans: element by element, as the ISA draws them."""
    op = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if across else ''}.shared.b16"
    registers = [f"%r{11 + i}" for i in range(count)]
    body = (
        LANE + "\tmul.wide.u32 %rd6, %r1, 16;\n\tadd.s64 %rd7, %rd2, %rd6;\n\tmov.u64 %rd8, tile;\n"
        "\tadd.s64 %rd9, %rd8, %rd6;\n"
    )
    body += "\tld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd7];\n\tst.shared.v4.u32 [%rd9], {%r2, %r3, %r4, %r5};\n"
    body += "\tbar.warp.sync 0xffffffff;\n" + f"\t{op} {{{', '.join(registers)}}}, [%rd9];\n"
    body += "\tld.param.u64 %rd4, [lines_param_1];\n\tadd.s64 %rd5, %rd4, %rd6;\n"
    body += "".join(f"\tst.global.b32 [%rd5+{4 * i}], {name};\n" for i, name in enumerate(registers))
    x, y = np.random.default_rng(1).integers(0, 1 << 16, 256, dtype=np.uint16), np.zeros(256, np.uint16)
    launch(body, [x, y], head=SHARED)
    matrices, got = x.reshape(4, 8, 8), y.reshape(32, 4, 2)
    for lane in range(32):
        for i in range(count):
            for j in range(2):
                row, column = lane // 4, lane % 4 * 2 + j
                assert got[lane, i, j] == (matrices[i, column, row] if across else matrices[i, row, column])


def fragments(matrix: Any, place: Callable[[int, int], tuple[int, int]], registers: int, halves: bool) -> list[Any]:
    """A matrix as registers [32]: ``place(lane, number)`` is the row and column of a lane's number."""
    numbers = [
        np.array([matrix[place(lane, i)] for lane in range(32)], matrix.dtype) for i in range(registers * (1 + halves))
    ]
    if not halves:
        return numbers
    return [np.stack(numbers[2 * i : 2 * i + 2], axis=1).reshape(-1).view(np.uint32) for i in range(registers)]


def place_a(lane: int, i: int) -> tuple[int, int]:
    """The ISA: row = group for i 0, 1, 4, 5, else group + 8; column = 2 (lane % 4) + i % 2, and 8 more from i 4 on."""
    return lane // 4 + (0 if i in (0, 1, 4, 5) else 8), lane % 4 * 2 + (i & 1) + (8 if i >= 4 else 0)


def place_b(lane: int, i: int) -> tuple[int, int]:
    return lane % 4 * 2 + (i & 1) + (8 if i >= 2 else 0), lane // 4


def place_c(lane: int, i: int) -> tuple[int, int]:
    return lane // 4 + (0 if i < 2 else 8), lane % 4 * 2 + (i & 1)


@pytest.mark.parametrize(("kind", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
@pytest.mark.parametrize("i", range(4))
def test_products_of_matrices(i: int, kind: str, dtype: Any) -> None:
    """mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32, and of bf16: number i of every lane against numpy."""
    random = np.random.default_rng(i)
    a, b = (random.standard_normal(shape).astype(dtype) for shape in ((16, 16), (16, 8)))
    c = random.standard_normal((16, 8)).astype(np.float32)
    given = [*fragments(a, place_a, 4, True), *fragments(b, place_b, 2, True), *fragments(c, place_c, 4, False)]
    out = ["%f20", "%f21", "%f22", "%f23"]
    out[i] = "{d}"
    line = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{{{{', '.join(out)}}}}}, "
        "{{{0}, {1}, {2}, {3}}}, "
        "{{{4}, {5}}}, {{{6}, {7}, {8}, {9}}}"
    )
    got = run_line(line, "b32 b32 b32 b32 b32 b32 f32 f32 f32 f32", "f32", given)
    wanted = (a.astype(np.float64) @ b.astype(np.float64) + c).astype(np.float32)
    assert (got == [wanted[place_c(lane, i)] for lane in range(32)]).all()


@pytest.mark.parametrize(
    "op", ["shfl.sync.bfly.b32 %r2, %r1, 1, 0x1f, 0xffffffff", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [tile]"]
)
def test_a_part_of_a_warp_is_not_enough(op: str) -> None:
    body = LANE + "\tsetp.lt.u32 %p1, %r1, 16;\n\t@%p1 bra $there;\n\tadd.s32 %r3, %r1, 1;\n\tbra.uni $end;\n"
    with pytest.raises(ptx.Finding, match=r"divergence: .* by 16 of its 32 lanes"):
        launch(body + f"$there:\n\t{op};\n$end:\n", [np.zeros(32, np.uint32)], head=SHARED)


# ---- branches ------------------------------------------------------------------------------------------------------


def test_lanes_go_their_own_ways_and_meet_again() -> None:
    """A loop of another length in each lane, a branch inside, and a shuffle behind it that all lanes reach together."""
    body = LANE + "\tmov.u32 %r2, 0;\n\tmov.u32 %r3, 0;\n"
    body += (
        "$loop:\n\tsetp.ge.u32 %p1, %r2, %r1;\n\t@%p1 bra $out;\n\tand.b32 %r4, %r2, 1;\n\tsetp.eq.s32 %p2, %r4, 0;\n"
    )
    body += "\t@%p2 bra $even;\n\tadd.s32 %r3, %r3, 10;\n$even:\n"
    body += "\tadd.s32 %r3, %r3, 1;\n\tadd.s32 %r2, %r2, 1;\n\tbra.uni $loop;\n$out:\n"
    x = np.zeros(32, np.uint32)
    launch(body + "\tshfl.sync.bfly.b32 %r5, %r3, 31, 0x1f, 0xffffffff;\n\tst.global.u32 [%rd1], %r5;\n", [x])
    assert (x[::-1] == [lane + 10 * (lane // 2) for lane in range(32)]).all()


def test_guards_and_lanes_that_end_early() -> None:
    body = (
        LANE + "\tsetp.lt.u32 %p1, %r1, 5;\n\t@!%p1 add.s32 %r1, %r1, 100;\n\tsetp.gt.u32 %p2, %r1, 120;\n\t@%p2 ret;\n"
    )
    x = np.full(32, 7, np.uint32)
    launch(body + "\tst.global.u32 [%rd1], %r1;\n", [x])
    assert (x == [lane if lane < 5 else lane + 100 if lane <= 20 else 7 for lane in range(32)]).all()


def test_the_places_of_work_items() -> None:
    """%tid, %ntid, %ctaid, %nctaid in two dimensions, of a group that is no multiple of 32."""
    memory = ptx.GlobalMemory()
    at = memory.put(np.zeros((3, 2, 5, 8), np.uint32))
    body = (
        "\tld.param.u64 %rd2, [lines_param_0];\n\tmov.u32 %r1, %tid.x;\n\tmov.u32 %r2, %tid.y;\n"
        "\tmov.u32 %r3, %ntid.x;\n"
        "\tmov.u32 %r4, %ctaid.x;\n\tmov.u32 %r5, %ctaid.y;\n\tmov.u32 %r6, %nctaid.x;\n\tmov.u32 %r7, %ntid.y;\n"
        "\tmad.lo.s32 %r8, %r5, %r6, %r4;\n\tmad.lo.s32 %r8, %r8, %r7, %r2;\n\tmad.lo.s32 %r8, %r8, %r3, %r1;\n"
        "\tmul.wide.u32 %rd3, %r8, 4;\n\tadd.s64 %rd1, %rd2, %rd3;\n\tst.global.u32 [%rd1], %r8;\n"
    )
    ptx.Launch(program(body, "u64"), (2, 3, 1), (8, 5, 1), [at]).run(memory)
    assert (memory.get(at, (240,), np.uint32) == np.arange(240)).all()


# ---- barriers and races --------------------------------------------------------------------------------------------

# Each lane writes its number and reads that of another one, `by` lanes further on in a group of 64.
EXCHANGE = (
    "\tmov.u32 %r1, %tid.x;\n\tshl.b32 %r2, %r1, 2;\n\tst.shared.u32 [%r2], %r1;\n{first}"
    "\tadd.s32 %r3, %r1, {by};\n\tand.b32 %r3, %r3, 63;\n\tshl.b32 %r3, %r3, 2;\n\tld.shared.u32 %r4, [%r3];\n{second}"
    "\tst.shared.u32 [%r2], %r4;\n\tld.param.u64 %rd2, [lines_param_0];\n\tmul.wide.u32 %rd3, %r1, 4;\n"
    "\tadd.s64 %rd1, %rd2, %rd3;\n\tst.global.u32 [%rd1], %r4;\n"
)


@pytest.mark.parametrize("by", [1, 32])
@pytest.mark.parametrize("seed", range(4))
def test_each_barrier_of_an_exchange_is_missed(seed: int, by: int) -> None:
    """Between lanes of one warp and of two: a read after the write of another lane, a write after its read."""
    x = np.zeros(64, np.uint32)
    launch(EXCHANGE.format(by=by, first=BARRIER, second=BARRIER), [x], head=SHARED, block=64, seed=seed)
    assert (x == (np.arange(64) + by) % 64).all()
    for first, second in (("", BARRIER), (BARRIER, "")):
        with pytest.raises(ptx.Finding, match=rf"(race|unwritten): shared.*seed {seed}"):
            launch(EXCHANGE.format(by=by, first=first, second=second), [x], head=SHARED, block=64, seed=seed)


def test_a_barrier_of_the_warp_orders_its_lanes_alone() -> None:
    sync = "\tbar.warp.sync 0xffffffff;\n"
    x = np.zeros(32, np.uint32)
    body = EXCHANGE.format(by=1, first=sync, second=sync).replace("%r3, 63", "%r3, 31")
    launch(body, [x], head=SHARED)
    assert (x == (np.arange(32) + 1) % 32).all()
    with pytest.raises(ptx.Finding, match=r"(race|unwritten): shared"):
        launch(EXCHANGE.format(by=32, first=sync, second=sync), [np.zeros(64, np.uint32)], head=SHARED, block=64)


def test_global_memory_is_ordered_by_barriers_too() -> None:
    body = (
        LANE + "\tst.global.u32 [%rd1], %r1;\n{}\txor.b32 %r2, %r1, 33;\n\tmul.wide.u32 %rd3, %r2, 4;\n"
        "\tadd.s64 %rd4, %rd2, %rd3;\n"
    )
    body += "\tld.global.u32 %r5, [%rd4];\n"
    launch(body.format(BARRIER), [np.zeros(64, np.uint32)], block=64)
    with pytest.raises(ptx.Finding, match=r"race: global"):
        launch(body.format(""), [np.zeros(64, np.uint32)], block=64)


@pytest.mark.parametrize(
    "body",
    [
        "\tsetp.lt.u32 %p1, %r1, {n};\n\t@%p1 bra $end;\n" + BARRIER + "$end:\n",
        "\tsetp.lt.u32 %p1, %r1, {n};\n\t@%p1 bra $other;\n"
        + BARRIER
        + "\tbra.uni $end;\n$other:\n"
        + BARRIER
        + "$end:\n",
    ],
    ids=["not all", "two"],
)
@pytest.mark.parametrize("n", [8, 32])
def test_a_barrier_that_not_all_reach(body: str, n: int) -> None:
    """Lanes of a warp, or whole warps, that go around a barrier, or to another one."""
    with pytest.raises(ptx.Finding, match=r"divergence"):
        launch(LANE + body.replace("{n}", str(n)), [np.zeros(64, np.uint32)], block=64)


def test_another_seed_is_another_order() -> None:
    """Warps that write the same word in turns of chance: with a barrier between, the last one differs by seed."""
    body = LANE + "\tshr.u32 %r2, %r1, 5;\n\tatom.global.exch.b32 %r3, [%rd2], %r2;\n"
    last = set()
    for seed in range(8):
        x = np.zeros(128, np.uint32)
        launch(body, [x], block=128, seed=seed)
        last.add(int(x[0]))
    assert len(last) > 1


# ---- several groups ------------------------------------------------------------------------------------------------

# Group 0 writes a number and releases a counter; group 1 acquires it in a loop, then reads the number.
HANDED = (
    "\tld.param.u64 %rd1, [lines_param_0];\n\tmov.u32 %r1, %ctaid.x;\n\tmov.u32 %r9, %tid.x;\n"
    "\tsetp.eq.s32 %p1, %r1, 1;\n"
    "\tsetp.ne.s32 %p3, %r9, 0;\n\t@%p1 bra $reads;\n\t@%p3 bra $wrote;\n\tst.global.u32 [%rd1], 5;\n$wrote:\n{before}"
    "\t@%p3 ret;\n\tred.{release}.gpu.global.add.s32 [%rd1+64], 1;\n\tret;\n$reads:\n\t@%p3 bra $look;\n"
    "$wait:\n\tld.acquire.gpu.global.s32 %r2, [%rd1+64];\n\tsetp.lt.s32 %p2, %r2, 1;\n"
    "\t@%p2 bra $wait;\n$look:\n{after}"
    "\tld.global.u32 %r3, [%rd1];\n\t@%p3 ret;\n\tst.global.u32 [%rd1+128], %r3;\n"
)


def test_groups_hand_over_by_release_and_acquire() -> None:
    whole = {"before": BARRIER, "after": BARRIER, "release": "release"}
    for seed in range(6):
        x = np.zeros(64, np.uint32)
        launch(HANDED.format(**whole), [x], grid=2, resident=2, turn=7, seed=seed)
        assert x[32] == 5
    for part, instead in (("before", ""), ("after", ""), ("release", "relaxed")):
        with pytest.raises(ptx.Finding, match=r"race: global: .* which nothing orders"):
            launch(HANDED.format(**{**whole, part: instead}), [np.zeros(64, np.uint32)], grid=2, resident=2, turn=7)


# Each of two groups writes its number and counts itself; the one that counts last reads both.
COUNTED = (
    "\tld.param.u64 %rd1, [lines_param_0];\n\tmov.u32 %r1, %ctaid.x;\n\tmov.u32 %r9, %tid.x;\n"
    "\tmul.wide.u32 %rd2, %r1, 4;\n\tadd.s64 %rd3, %rd1, %rd2;\n\tadd.s32 %r2, %r1, 5;\n"
    "\tsetp.ne.s32 %p3, %r9, 0;\n\t@%p3 bra $wrote;\n\tst.global.u32 [%rd3], %r2;\n$wrote:\n{before}"
    "\tmov.u32 %r4, 0;\n\t@%p3 bra $counted;\n\tatom.{order}.gpu.global.add.s32 %r4, [%rd1+64], 1;\n$counted:\n"
    "{after}\tsetp.ne.s32 %p1, %r4, 1;\n\t@%p1 ret;\n"
    "\tld.global.u32 %r5, [%rd1];\n\tld.global.u32 %r6, [%rd1+4];\n\tmul.lo.s32 %r5, %r5, %r6;\n"
    "\tst.global.u32 [%rd1+128], %r5;\n"
)


def test_the_last_group_learns_by_acq_rel() -> None:
    """atom.acq_rel.gpu.global.add.s32: neither half of it is enough, nor without the barriers around it."""
    whole = {"before": BARRIER, "after": BARRIER, "order": "acq_rel"}
    for seed in range(6):
        x = np.zeros(64, np.uint32)
        launch(COUNTED.format(**whole), [x], grid=2, resident=2, turn=7, seed=seed)
        assert x[32] == 30
    lacking = [("before", ""), ("after", ""), *(("order", each) for each in ("acquire", "release", "relaxed"))]
    for part, instead in lacking:
        with pytest.raises(ptx.Finding, match=r"race: global: .* which nothing orders"):
            launch(COUNTED.format(**{**whole, part: instead}), [np.zeros(64, np.uint32)], grid=2, resident=2, turn=7)


def test_a_wait_for_what_never_comes_ends() -> None:
    with pytest.raises(ptx.Finding, match=r"endless"):
        launch("$wait:\n\tbra.uni $wait;\n", [], limit=50_000)


def test_arguments_are_counted() -> None:
    with pytest.raises(ValueError, match=r"arguments: got 0, allowed 1"):
        ptx.Launch(program(LANE, "u64"), (1, 1, 1), (32, 1, 1), [])
    with pytest.raises(KeyError, match=r"kernel: got other, allowed lines"):
        ptx.Program(".entry lines()\n{\n\tret;\n}\n", "other")
