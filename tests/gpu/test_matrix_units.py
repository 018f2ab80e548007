"""Products by AMD's and Intel's matrix units: the machine code that compilers make, and the bits of rows, emulated."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

import compilers
import ptx
import toolchain
from matrix_plays import MatrixProduct, emulated
from variants import MATRIX_UNITS, MatrixUnit, matrix_variant

pytestmark = pytest.mark.skipif(not toolchain.present(), reason="the compilers are not here: ./dev kernels")


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("stored", [1, 2, 8])
@pytest.mark.parametrize("unit", MATRIX_UNITS, ids=lambda unit: unit.architecture)
def test_the_instruction_is_there(unit: MatrixUnit, stored: int, few: bool) -> None:
    """And no other one. AMD's compiler unrolls a wave's block: each tile's product of 16 k and a term is one
    instruction, and those of the sums of x, where the type has a shift, are more. Intel's keeps the loops."""
    if unit.architecture in compilers.INTEL and not toolchain.OCLOC.exists():
        pytest.skip("Intel's compiler is not here: ./dev kernels")
    variant = matrix_variant(unit, stored, few)
    compilers.compile_for((unit.architecture,), variant)
    wanted_one, other = (unit.of_bfloats, unit.instruction)[:: 1 if stored == 2 else -1]
    code = compilers.machine_code(unit.architecture, variant, "matrix_products")
    found = len(re.findall(wanted_one, code))
    row_tiles = 64 * 64 * unit.wave // (unit.many_lanes * 32 * unit.tile) if not few else 1
    outputs = 32 // unit.tile + (stored == 8)
    wanted = row_tiles * outputs * 2 * (3 if stored == 2 else 2)
    assert found == wanted if unit.architecture in compilers.AMD else found > 0
    split = compilers.machine_code(unit.architecture, variant, "matrix_split")
    assert not re.search(other, code) and not re.search(wanted_one, split)


@cache
def parsed(unit: MatrixUnit, stored: int, few: bool, gated: bool) -> ptx.Program:
    return ptx.Program(compilers.ptx_of(emulated(unit, stored, few, gated)).read_text(), "matrix_products")


@pytest.mark.parametrize(("unit", "stored", "gated"), [(0, 1, True), (1, 3, False), (2, 11, False)])
def test_a_row_has_the_same_bits_in_both_forms(unit: int, stored: int, gated: bool) -> None:
    """Among few rows, among many, and alone."""
    of, product = MATRIX_UNITS[unit], MatrixProduct(3, 24, 96 if stored < 4 else 256, stored, gated)
    few, _ = product.by(parsed(of, stored, True, gated), 1, of, True)
    many, _ = product.by(parsed(of, stored, False, gated), 2, of, False)
    assert (few.view(np.uint32) == many.view(np.uint32)).all()
    one = MatrixProduct(1, 24, product.k, stored, gated)
    assert (one.given == product.given[:1]).all()
    alone, _ = one.by(parsed(of, stored, True, gated), 3, of, True)
    assert (alone.view(np.uint32) == few[:1].view(np.uint32)).all()
