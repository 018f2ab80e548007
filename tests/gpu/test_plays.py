"""Plays the kernels of plays.py from the PTX that clang makes of them: `./dev kernels --play`.

Results are those of numpy in float64, without a finding, in several orders of the warps; each barrier of each kernel,
removed once, is noticed. The seeds are fixed; a failure names its own.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import compilers
import plays
import ptx
import qkv_plays
import toolchain
from circles import CIRCLE, drawn
from matrix_plays import MATRIX_PLAYS
from packing_plays import PACKING_PLAYS
from plays import Case
from q4_plays import Q4_PLAYS
from q8_plays import Q8_PLAYS
from qkv_plays import HALVES, INTERLEAVED, PART, PLAIN, QKV_PLAYS, WIDE, Heads
from small_plays import SMALL_PLAYS
from state_plays import STATE_PLAYS
from step_plays import STEP_PLAYS
from tensor_plays import TENSOR_PLAYS, NormedProduct, Product, few_variant, many_variant
from variants import MATRIX_VARIANTS, NOT_ON_GPUS, VARIANTS, Variant

SEEDS = range(int(os.environ.get("KVTRIE_PLAY_SEEDS", "1" if CIRCLE == "ci" else "2")))
PLAYS = [*plays.PLAYS, *TENSOR_PLAYS, *SMALL_PLAYS, *STATE_PLAYS, *PACKING_PLAYS, *Q8_PLAYS, *Q4_PLAYS, *QKV_PLAYS]
PLAYS += [*STEP_PLAYS, *MATRIX_PLAYS]
TESTS = Path(__file__).resolve().parents[1] / "python"


@cache
def text_of(variant: Variant) -> str:
    return compilers.ptx_of(variant).read_text()


@cache
def parsed(variant: Variant, entry: str) -> ptx.Program:
    return ptx.Program(text_of(variant), entry)


def program_of(case: Case) -> ptx.Program:
    return parsed(case.variant, case.entry)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", PLAYS, ids=lambda case: case.name)
def test_a_kernel_computes_what_numpy_does(case: Case, seed: int) -> None:
    case.play(program_of(case), seed)


@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("stored", [1, 2, 3, 8, 10, 11])
def test_a_row_has_the_same_bits_in_every_form(stored: int, gated: bool, terms: int) -> None:
    """Alone, among 8, among many, by warps of 32 rows and of 64, and with a group for each slice of k."""
    product = Product(4, 40, 320 if stored < 4 else 512, stored, gated, terms)

    alone, _ = product.few(parsed(few_variant(stored, 1, gated, terms=terms), "tensor_few"), 1, 1)
    among, _ = product.few(parsed(few_variant(stored, 8, gated, terms=terms), "tensor_few"), 2, 8)
    found = [among]
    for of_warp in (32, 64) if terms == 1 and stored != 2 else (32,):
        variant = many_variant(stored, (1, 1), gated=gated, terms=terms, rows_of_warp=of_warp)
        found.append(product.many(parsed(variant, "tensor_many"), 3, (1, 1), False, of_warp)[0])
    slices = many_variant(stored, (2, 2), True, gated, terms)
    parts, _ = product.many(parsed(slices, "tensor_many"), 4, (2, 2), True)
    found.append(product.join(parsed(slices, "tensor_join"), 5, parts)[0])
    for each in found:
        assert (each.view(np.uint32) == alone.view(np.uint32)).all()


# Warp instructions of the loop over k for each 16 outputs x 8 rows x 16 k, by type of weights, terms, rows of a warp.
COSTS = {(1, 2, 32): 7.0, (1, 1, 32): 3.6, (1, 1, 64): 2.6, (2, 2, 32): 8.5, (2, 1, 32): 7.0}


@pytest.mark.parametrize(("stored", "terms", "of_warp"), COSTS)
def test_what_a_product_costs(stored: int, terms: int, of_warp: int) -> None:
    """Instructions, and bytes that two terms or smaller tiles read more of; local memory without bank conflicts."""
    found = []
    for k in (256, 512):
        product, warps = Product(2 * of_warp, 128, k, stored, terms=terms), (2, 2)
        program = parsed(many_variant(stored, warps, terms=terms, rows_of_warp=of_warp), "tensor_many")
        found.append(product.many(program, 1, warps, False, of_warp, counting=True)[1])
    products = 2 * of_warp * 128 * 256 / (16 * 8 * 16)
    each = (found[1].total - found[0].total) / products
    assert each <= COSTS[stored, terms, of_warp], f"instructions for each product: {each:.2f}"
    counts = {name: found[1].counts[name] - found[0].counts[name] for name in found[1].counts}
    assert counts["ldmatrix wavefronts"] == counts["ldmatrix matrices"]
    copied = 128 + 2 * of_warp * (terms + (stored == 2))  # weights and terms for each k
    assert counts["wavefronts of copies"] == copied * 256 * 2 // 128, "one for each 128 bytes"


@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("stored", [1, 2, 3, 8, 10])
def test_a_norm_inside_of_a_product_changes_no_bit(stored: int, gated: bool, terms: int) -> None:
    """Those of a launch of rms_norm and a product after it, and the same alone and among 8."""
    product = NormedProduct(4, 40, 320 if stored < 4 else 512, stored, gated, terms)
    norm = Variant("rows", ("LANES=64", "ROW_VW=4"), ("rms_norm",), 64)
    apart = product.apart(product.normed(parsed(norm, "rms_norm"), 1))
    wanted, _ = apart.few(parsed(few_variant(stored, 8, gated, terms=terms), "tensor_few"), 2, 8)
    for rows in (1, 8):
        program = parsed(few_variant(stored, rows, gated, normed=True, terms=terms), "tensor_few")
        got, _ = product.few(program, 3, rows)
        assert (got.view(np.uint32) == wanted.view(np.uint32)).all()


# Every kind of head with one type of weights; with the others those whose tiles lie apart, in a group and in several.
STORING = [(1, of, 2) for of in (HALVES, PART, INTERLEAVED, PLAIN, WIDE)]
STORING += [
    (2, HALVES, 2),
    (3, HALVES, 2),
    (3, WIDE, 2),
    (8, HALVES, 2),
    (10, WIDE, 2),
    (1, HALVES, 1),
    (3, WIDE, 1),
    (8, PART, 1),
]


@pytest.mark.parametrize(("stored", "of", "terms"), STORING, ids=str)
def test_a_product_that_rotates_and_stores_changes_no_bit(stored: int, of: Heads, terms: int) -> None:
    """Those of a launch of the product and one of put_qkv, alone and among 8; in float16 and float32."""
    half = of is not PART and stored != 2  # products of these weights of bfloat16 leave the range of halves
    product = qkv_plays.made(stored, 3, True, of, half, terms)
    put = Variant("qkv", (f"K_DIM={of.k_dim}", f"CELL_FORMAT={int(half)}", "LANES=64", "ROW_VW=4"), ("put_qkv",), 64)
    plain = parsed(few_variant(stored, 8, normed=True, terms=terms), "tensor_few")
    wanted = product.apart(plain, parsed(put, "put_qkv"), 8)
    for rows in (1, 8):
        variant = qkv_plays.variant(stored, rows, True, int(half), terms)
        got, _ = product.few(parsed(variant, "tensor_few"), 2, rows)
        product.check(got, qkv_plays.BOUNDS[terms])
        assert got.same_bits(wanted)


@pytest.mark.parametrize("stored", [1, 3, 8])
def test_weights_one_after_the_other_rotate_and_store_alike(stored: int) -> None:
    """q and k of one weight, v of another: their launches write what one of all would."""
    whole = qkv_plays.made(stored, 3, True, HALVES)
    program = parsed(qkv_plays.variant(stored, 8, True, 1), "tensor_few")
    wanted, _ = whole.few(program, 1, 8)
    first, second = whole.cut(HALVES.turned)
    for part in (first, second):
        part.check(part.few(program, 2, 8)[0], qkv_plays.BOUNDS[2])
    assert first.few(program, 3, 8)[0].with_parts_of(second.few(program, 4, 8)[0]).same_bits(wanted)


# In CI one in six of the barriers is taken out, drawn by the commit; by `./dev kernels --play` each.
SHARE = 6 if CIRCLE == "ci" else 1


def removed() -> list[tuple[Case, int]]:
    """Barriers of each play, where the compilers are here."""
    if not toolchain.present():
        return []
    return [(case, i) for case in PLAYS for i in case.own(program_of(case)) if drawn(f"{case.name} {i}", SHARE)]


@pytest.mark.parametrize(("case", "barrier"), removed(), ids=lambda x: x.name if isinstance(x, Case) else str(x))
def test_each_barrier_is_missed(case: Case, barrier: int) -> None:
    """Without it there is a finding, or a wrong result; where nothing can show, plays.py says why."""
    program = program_of(case)
    without = program.without(program.barriers()[barrier])
    noticed = False
    for seed in range(1, 3):
        try:
            case.play(without, seed)
        except (ptx.Finding, AssertionError):
            noticed = True
            break
    reason = dict(case.unseen).get(barrier)
    assert noticed != (reason is not None), f"barrier {barrier}: {reason or 'nothing noticed'}"


def test_every_kernel_is_compiled() -> None:
    """Each source of kernels/ and each kernel in it has a variant, or a reason why no GPU runs it."""
    compiled = {(f"{each.program}.cl", entry) for each in [*VARIANTS, *MATRIX_VARIANTS] for entry in each.entries}
    for source in sorted(toolchain.KERNELS.glob("*.cl")):
        declared = re.findall(
            r"^(?:__kernel|KERNEL|GROUP_KERNEL\(\w+\))(?!\w)[^(]*?(?:\(\([^)]*\)+\)+\s*void\s+|void\s+)(\w+)\(",
            source.read_text(),
            re.M,
        )
        declared += re.findall(r"^#define IS_(\w+) ", source.read_text(), re.M)
        assert declared, source.name
        for kernel in declared:
            named = source.name in NOT_ON_GPUS or f"{source.name}: {kernel}" in NOT_ON_GPUS
            assert named != ((source.name, kernel) in compiled), f"{source.name}: {kernel}"


def test_every_kernel_is_played() -> None:
    played = {(case.variant.program, case.entry) for case in PLAYS}
    assert {(each.program, entry) for each in [*VARIANTS, *MATRIX_VARIANTS] for entry in each.entries} <= played


def test_every_instruction_is_known_and_tested() -> None:
    """What the compiler makes of all variants is decoded; each operation is one that test_ptx_*.py names."""
    tested = "\n".join(path.read_text() for path in TESTS.glob("test_ptx_*.py"))
    unknown = set()
    for variant in VARIANTS:
        for entry in variant.entries:
            program = parsed(variant, entry)
            ptx.Launch(program, (1, 1, 1), (32, 1, 1), [0] * len(program.params))
            unknown |= {each.words[0] for each in program.instructions if f"{each.words[0]}." not in tested}
    assert unknown <= {"ret"}
