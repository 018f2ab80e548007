"""The memories of the PTX interpreter: loads, stores, copies and atomics, and what it finds in their use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ptx
from ptx.counts import sectors, wavefronts
from ptx_lines import load, program, run_line, store

SHARED = "\t.shared .align 16 .b8 tile[1024];"
# %rd1 the address of the lane's number in buffer 0, %r1 the lane.
LANE = (
    "\tmov.u32 %r1, %tid.x;\n\tld.param.u64 %rd2, [lines_param_0];\n"
    "\tmul.wide.u32 %rd3, %r1, 4;\n\tadd.s64 %rd1, %rd2, %rd3;\n"
)


def launch(
    body: str, params: list[Any], kinds: str = "", head: str = "", block: int = 32, **options: Any
) -> ptx.Report:
    """Runs lines on buffers, which keep what was written."""
    memory = ptx.GlobalMemory()
    places = [memory.put(each) if isinstance(each, np.ndarray) else each for each in params]
    seed, grid = options.pop("seed", 0), options.pop("grid", 1)
    one = program(body, kinds or " ".join(["u64"] * len(params)), head)
    report = ptx.Launch(one, (grid, 1, 1), (block, 1, 1), places, seed).run(memory, **options)
    for place, each in zip(places, params):
        if isinstance(each, np.ndarray):
            each[:] = memory.get(place, each.shape, each.dtype)
    return report


@pytest.mark.parametrize("kind", ["u8", "s8", "u16", "b16", "u32", "s32", "b32", "f32", "b64", "u64"])
def test_numbers_come_and_go(kind: str) -> None:
    """ld.global.u8 to st.global.u64, each lane its own; narrow ones are extended."""
    dtype = ptx.operands.NUMPY[kind]
    numbers = np.random.default_rng(1).integers(0, 100, 32).astype(dtype) - (50 if kind[0] in "sf" else 0)
    out = np.zeros(32, dtype)
    size = np.dtype(dtype).itemsize
    register = "%f1" if kind == "f32" else {1: "%rs1", 2: "%rs1", 4: "%r2", 8: "%rd5"}[size]
    place = f"\tmov.u32 %r1, %tid.x;\n\tmul.wide.u32 %rd3, %r1, {size};\n"
    body = place + "\tld.param.u64 %rd2, [lines_param_0];\n\tadd.s64 %rd1, %rd2, %rd3;\n"
    body += f"\tld.global.{kind} {register}, [%rd1];\n"
    body += "\tld.param.u64 %rd2, [lines_param_1];\n\tadd.s64 %rd1, %rd2, %rd3;\n"
    launch(body + f"\tst.global.{kind} [%rd1], {register};\n", [numbers, out])
    assert (out == numbers).all()


def test_a_signed_byte_fills_its_register() -> None:
    body = "\tld.param.u64 %rd2, [lines_param_0];\n\tld.global.s8 %r2, [%rd2+1];\n\tld.global.nc.u8 %rs3, [%rd2+2];\n"
    body += "\tcvt.u32.u16 %r3, %rs3;\n\tst.global.v2.u32 [%rd2+8], {%r2, %r3};\n"
    memory = ptx.GlobalMemory()
    at = memory.put(np.array([1, 0xFE, 0xFE, *[0] * 13], np.uint8))
    ptx.Launch(program(body, "u64"), (1, 1, 1), (1, 1, 1), [at]).run(memory)
    assert (memory.get(at, (4,), np.uint32)[2:] == [0xFFFFFFFE, 0xFE]).all()


@pytest.mark.parametrize("space", ["shared", "local", "generic local", "generic shared"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_vectors_in_every_space(space: str, count: int) -> None:
    """st.v4.f32 and ld.v4.f32 (v2, one): what a lane has stored comes back, in every memory."""
    kind = space.split()[-1]
    name = "tile" if kind == "shared" else "__local_depot0"
    head = f"\t.{kind} .align 16 .b8 {name}[1024];"
    word = "" if space.startswith("generic") else f".{space}"
    numbers = ", ".join(f"%f{i + 1}" for i in range(count))
    vector = f"{{{numbers}}}" if count > 1 else numbers
    op = f"{word}{'' if count == 1 else f'.v{count}'}.f32"
    body = (
        LANE
        + "\tld.global.f32 %f1, [%rd1];\n"
        + "".join(f"\tadd.rn.f32 %f{i + 1}, %f{i}, 0f3F800000;\n" for i in range(1, 4))
    )
    body += f"\tmov.u64 %rd4, {name};\n" + (f"\tcvta.{kind}.u64 %rd4, %rd4;\n" if not word else "")
    body += "\tmul.wide.u32 %rd6, %r1, 16;\n\tadd.s64 %rd4, %rd4, %rd6;\n"
    body += f"\tst{op} [%rd4+{16 - 4 * count}], {vector};\n\tmov.f32 %f1, 0f00000000;\n"
    body += f"\tld{op} {vector}, [%rd4+{16 - 4 * count}];\n"
    sums = "".join(f"\tadd.rn.f32 %f1, %f1, %f{i + 1};\n" for i in range(1, count))
    x = np.arange(32, dtype=np.float32)
    wanted = count * x + sum(range(count))
    launch(body + sums + "\tst.global.f32 [%rd1], %f1;\n", [x], head=head)
    assert (x == wanted).all()


def test_local_memory_is_a_lane_s_own() -> None:
    body = LANE + "\tmov.u64 %rd4, __local_depot0;\n\tst.local.u32 [%rd4+8], %r1;\n\tld.local.u32 %r2, [%rd4+8];\n"
    x = np.zeros(32, np.uint32)
    launch(body + "\tst.global.u32 [%rd1], %r2;\n", [x], head="\t.local .align 8 .b8 __local_depot0[16];")
    assert (x == np.arange(32)).all()


def test_constant_tables() -> None:
    """ld.const.f32 and ld.const.v2.f32 of a table before the kernel."""
    data = np.arange(8, dtype=np.float32)
    text = f".const .align 8 .b8 TABLE[32] = {{{', '.join(str(x) for x in data.tobytes())}}};\n"
    one = program(LANE, "u64")
    body = LANE + "\tmov.u64 %rd4, TABLE;\n\tld.const.f32 %f1, [%rd4+4];\n\tld.const.v2.f32 {%f2, %f3}, [%rd4+24];\n"
    body += "\tadd.rn.f32 %f1, %f1, %f3;\n\tst.global.f32 [%rd1], %f1;\n\tret;\n"
    registers = "\t.reg .b32 %r<9>;\n\t.reg .f32 %f<9>;\n\t.reg .b64 %rd<9>;\n"
    source = f"{text}.entry lines(\n\t.param .u64 lines_param_0\n)\n{{\n{registers}{body}}}\n"
    one = ptx.Program(source, "lines")
    memory = ptx.GlobalMemory()
    at = memory.put(np.zeros(32, np.float32))
    ptx.Launch(one, (1, 1, 1), (32, 1, 1), [at]).run(memory)
    assert (memory.get(at, (32,), np.float32) == data[1] + data[7]).all()


def test_parameters_of_every_type() -> None:
    body = (
        LANE + "\tld.param.u32 %r2, [lines_param_1];\n\tld.param.f32 %f1, [lines_param_2];\n"
        "\tld.param.s32 %r3, [lines_param_3];\n"
    )
    body += "\tcvt.rn.f32.u32 %f2, %r2;\n\tcvt.rn.f32.s32 %f3, %r3;\n\tadd.rn.f32 %f1, %f1, %f2;\n"
    body += "\tadd.rn.f32 %f1, %f1, %f3;\n"
    x = np.zeros(32, np.float32)
    launch(body + "\tst.global.f32 [%rd1], %f1;\n", [x, 7, 0.5, -3], "u64 u32 f32 s32")
    assert (x == 4.5).all()


# ---- atomics -------------------------------------------------------------------------------------------------------


def test_atomics_of_all_lanes() -> None:
    """atom.relaxed.gpu.global.add.s32, atom.global.max.u32, atom.global.cas.b32, red.release.gpu.global.add.s32."""
    body = LANE + "\tatom.relaxed.gpu.global.add.s32 %r2, [%rd2], 3;\n\tatom.global.max.u32 %r3, [%rd2+4], %r1;\n"
    body += "\tred.release.gpu.global.add.s32 [%rd2+8], %r1;\n\tatom.global.cas.b32 %r4, [%rd2+12], 9, %r1;\n"
    body += "\tatom.global.exch.b32 %r5, [%rd2+16], %r1;\n\tld.param.u64 %rd4, [lines_param_1];\n"
    body += "\tadd.s64 %rd5, %rd4, %rd3;\n"
    counters, before = np.array([100, 5, 0, 9, 77], np.int32), np.zeros(32, np.int32)
    launch(body + "\tst.global.u32 [%rd5], %r2;\n", [counters, before], seed=3)
    assert counters[:3].tolist() == [196, 31, 496] and 0 <= counters[3] < 32
    assert sorted(before) == list(range(100, 196, 3)) and (np.diff(before) < 0).any()  # in no particular order


# ---- cp.async ------------------------------------------------------------------------------------------------------

COPY = (
    LANE
    + "\tmul.wide.u32 %rd6, %r1, 16;\n\tadd.s64 %rd7, %rd2, %rd6;\n\tmov.u64 %rd8, tile;\n\tcvt.u32.u64 %r9, %rd8;\n"
    "\tshl.b32 %r10, %r1, 4;\n\tadd.s32 %r9, %r9, %r10;\n"
    "\tcp.async.cg.shared.global [%r9], [%rd7], 16{size};\n{commit}{wait}"
    "\tld.shared.v4.u32 {{%r11, %r12, %r13, %r14}}, [%r9];\n"
    "\tld.param.u64 %rd4, [lines_param_1];\n\tadd.s64 %rd5, %rd4, %rd6;\n"
    "\tst.global.v4.u32 [%rd5], {{%r11, %r12, %r13, %r14}};\n"
)
COMMIT, WAIT = "\tcp.async.commit_group;\n", "\tcp.async.wait_group {};\n"


def test_copies_land_when_they_are_waited_for() -> None:
    x, y = np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)
    launch(COPY.format(size="", commit=COMMIT, wait=WAIT.format(0)), [x, y], head=SHARED)
    assert (y == x).all()


@pytest.mark.parametrize(("commit", "wait"), [(COMMIT, ""), ("", WAIT.format(0)), (COMMIT, WAIT.format(1))])
def test_copies_that_nobody_waited_for(commit: str, wait: str) -> None:
    """Without a wait, without a commit before it, or with a wait that lets the last group fly on."""
    x = np.arange(128, dtype=np.uint32)
    with pytest.raises(ptx.Finding, match=r"not landed: .* cp.async has not brought"):
        launch(COPY.format(size="", commit=commit, wait=wait), [x, x.copy()], head=SHARED)


def test_a_copy_of_fewer_bytes_is_filled_with_zeros() -> None:
    """cp.async.cg.shared.global.L2::128B with a source size, 0 of them outside of all buffers, too."""
    x, y = np.arange(1, 129, dtype=np.uint32), np.zeros(128, np.uint32)
    body = COPY.format(size=", %r20", commit=COMMIT, wait=WAIT.format(0)).replace("global [", "global.L2::128B [")
    body = body.replace("\tcp.async.cg", "\tand.b32 %r20, %r1, 1;\n\tshl.b32 %r20, %r20, 3;\n\tcp.async.cg")
    launch(body, [x, y], head=SHARED)
    assert (y.reshape(16, 2, 4)[:, 0] == 0).all() and (y.reshape(16, 2, 4)[:, 1, 2:] == 0).all()
    assert (y.reshape(16, 2, 4)[:, 1, :2] == x.reshape(16, 2, 4)[:, 1, :2]).all()


PIECES = "".join(
    f"\tcp.async.ca.shared.global [%r9+{at}], [%rd7+{at}], {size};\n" for at, size in ((0, 8), (8, 4), (12, 4))
)


def copy_in_pieces(body: str) -> str:
    return body.replace("\tcp.async.cg.shared.global [%r9], [%rd7], 16;\n", PIECES)


def test_copies_of_4_and_8_bytes() -> None:
    """cp.async.ca; each lands with its group, and is aligned to what it copies."""
    x, y = np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)
    body = copy_in_pieces(COPY.format(size="", commit=COMMIT, wait=WAIT.format(0)))
    launch(body, [x, y], head=SHARED)
    assert (y == x).all()
    with pytest.raises(ptx.Finding, match=r"not landed: .* cp.async has not brought"):
        launch(copy_in_pieces(COPY.format(size="", commit=COMMIT, wait="")), [x, y], head=SHARED)
    with pytest.raises(ptx.Finding, match=r"alignment: cp.async"):
        launch(body.replace("[%rd7+8], 4", "[%rd7+4], 8"), [x, y], head=SHARED)


@pytest.mark.parametrize("piece", ["cg.shared.global [%r9], [%rd7], 8", "ca.shared.global [%r9], [%rd7], 2"])
def test_copies_that_no_gpu_has(piece: str) -> None:
    x = np.arange(128, dtype=np.uint32)
    body = COPY.format(size="", commit=COMMIT, wait=WAIT.format(0))
    with pytest.raises(ptx.UnknownInstruction):
        launch(body.replace("cg.shared.global [%r9], [%rd7], 16", piece), [x, x.copy()], head=SHARED)


# ---- findings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "finding"),
    [
        ("ld.global.u32 %r2, [%rd1+4]", "bounds: global: .* outside of all buffers"),
        ("st.global.u32 [%rd2+-4], %r1", "bounds: global"),
        ("mov.u64 %rd5, 0; ld.global.u32 %r2, [%rd5]", "bounds: global"),
        ("ld.shared.u32 %r2, [tile+1024]", "bounds: shared"),
        ("ld.shared.u32 %r2, [tile+16]", "unwritten: shared: .* reads what nobody wrote"),
        ("ld.global.u32 %r2, [%rd2+2]", "alignment: global: .* allowed multiples of 4"),
        ("mov.u64 %rd4, depot; ld.local.u32 %r2, [%rd4+16]", "bounds: local"),
        ("st.shared.u32 [tile], %r1", "race: shared: two lanes .* write the same bytes at once"),
        ("st.global.u32 [%rd2], %r1", "race: global: two lanes"),
        (
            "st.global.u32 [%rd1], %r1; ld.global.u32 %r2, [%rd2]",
            "race: global: .* reads after a write of another lane",
        ),
        (
            "ld.global.u32 %r2, [%rd2]; st.global.u32 [%rd1], %r1",
            "race: global: .* writes after a read of another lane",
        ),
    ],
)
def test_wrong_accesses(lines: str, finding: str) -> None:
    head = SHARED + "\n\t.local .align 8 .b8 depot[16];"
    with pytest.raises(ptx.Finding, match=finding):
        launch(LANE + "\t" + lines + ";\n", [np.zeros(32, np.uint32)], head=head)


def test_a_lane_may_read_what_it_wrote_and_all_may_read_the_same() -> None:
    x = np.arange(32, dtype=np.uint32)
    launch(LANE + "\tld.global.u32 %r2, [%rd1];\n\tadd.s32 %r2, %r2, 1;\n\tst.global.u32 [%rd1], %r2;\n"
           "\tld.global.u32 %r3, [%rd1];\n\tst.global.u32 [%rd1], %r3;\n", [x])  # fmt: skip
    assert (x == np.arange(1, 33)).all()
    assert (run_line("ld.global.u32 {d}, [%rd30]", "u32", "u32", [np.full(32, 8)]) == 8).all()


def test_loads_and_stores_of_the_helper_agree() -> None:
    """The lines that other tests are made of name the lane's own number."""
    assert "[%rd29]" in load("f32", 1, 0) and "[%rd29]" in store("f32", 1, 0)


# ---- what accesses cost --------------------------------------------------------------------------------------------


def test_sectors_and_wavefronts_against_counting() -> None:
    lanes = np.arange(32)
    assert sectors(lanes * 4, 4) == 4 and sectors(lanes * 4 + 4096, 4) == 4 and sectors(lanes * 32, 4) == 32
    assert sectors(lanes * 4 + 4, 4) == 5 and sectors(lanes * 16, 16) == 16
    assert wavefronts(lanes * 4, 4) == 1 and wavefronts(np.zeros(32, int), 4) == 1
    assert wavefronts(lanes * 8, 4) == 2 and wavefronts(lanes * 128, 4) == 32
    assert wavefronts(lanes * 8, 8) == 2 and wavefronts(lanes * 16, 16) == 4 and wavefronts(lanes * 64, 16) == 16


def test_a_report_counts_them() -> None:
    x = np.zeros(32, np.uint32)
    body = LANE + "\tshl.b32 %r2, %r1, 3;\n\tst.shared.u32 [%r2], %r1;\n\tst.global.u32 [%rd1], %r1;\n"
    report = launch(body, [x], head=SHARED, counting=True)
    assert report.counts == {
        "shared requests": 1,
        "shared wavefronts": 2,
        "requests stored": 1,
        "sectors stored": 4,
    }
    assert report.instructions["st.shared.u32"] == 1 and report.total == 8
