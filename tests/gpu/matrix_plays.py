"""Plays of products by matrix units that are not NVIDIA's (kernels/matmul_matrix.cl), whose instruction is emulated.

So all of the kernel but the instruction is played: what lanes bring, where it lies in local memory, which lane takes
what, and every barrier, those of the emulation among them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import ptx
from plays import Case, empty, launch
from tensor_plays import Product
from variants import MATRIX_UNITS, MatrixUnit, Variant, matrix_variant

# Two halves have 22 bits, three terms of bfloat16 24; the emulation adds 64 products one by one in float32 (96 with
# three terms), of which each is off by 2^-24 of a sum at most, so their chain by the root of 64 times as much where
# errors do not agree, 5e-7 (6e-7), and half of that besides.
_BOUND = 1e-6
# Types with scales read these behind it, so their plays notice.
_EMULATED = "the last one of a step: halves are read before the emulation's own last barrier, which stands in for it"
_KEPT = "the last one of group_max: nobody writes to its memory again"
WMMA, MFMA, DPAS = MATRIX_UNITS


def emulated(unit: MatrixUnit, stored: int, few: bool, gated: bool = False, terms: int = 2) -> Variant:
    """As a device without such a unit builds it."""
    further = (*(("TERMS=1",) if terms == 1 else ()), *(("GATED=1",) if gated else ()), "EMULATED=1")
    return matrix_variant(unit, stored, few, further)


class MatrixProduct(Product):
    """One product, by groups of few rows or of many."""

    def by(self, program: ptx.Program, seed: int, unit: MatrixUnit, few: bool) -> tuple[Any, ptx.Report]:
        memory = ptx.GlobalMemory()
        y = memory.put(empty(self.rows, self.n))
        x = self.given if few else self.split.in_order()
        given = [x, 0, self.split.back, 0, self.w.packed, 0, *self._ends(), y, 0]
        given += [self.rows, self.n, self.k, self.n]
        rows, outputs = (unit.tile, 32) if few else (64, 64)
        groups = (-(-self.packed_outputs // outputs), -(-self.rows // rows), 1)
        report = launch(program, groups, unit.lanes(few), memory, given, seed)
        return memory.get(y, (self.rows, self.n), np.float32), report


def _product(unit: MatrixUnit, few: bool, product: MatrixProduct, unseen: tuple[tuple[int, str], ...] = ()) -> Case:
    def play(program: ptx.Program, seed: int) -> ptx.Report:
        y, report = product.by(program, seed, unit, few)
        product.check(y, _BOUND)
        if product.terms == 1 and not product.gated:
            product.check_rounding(y)
        return report

    variant = emulated(unit, product.stored, few, product.gated, product.terms)
    return Case(variant, "matrix_products", play, unseen)


def _split(unit: MatrixUnit, stored: int, terms: int) -> Case:
    product = MatrixProduct(3, 64, 544, stored, terms=terms)

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        memory, wanted = ptx.GlobalMemory(), product.split
        made, back = memory.put(np.zeros_like(wanted.placed)), memory.put(np.zeros_like(wanted.back))
        given = [product.given, 0, made, 0, back, 0, product.rows, product.k]
        report = launch(program, (1, product.rows, 1), 64, memory, given, seed)
        assert (memory.get(made, wanted.placed.shape, np.uint16) == wanted.in_order()).all()
        assert (memory.get(back, wanted.back.shape, np.float32) == wanted.back).all()
        return report

    return Case(emulated(unit, stored, True, terms=terms), "matrix_split", play, ((7, _KEPT),))


MATRIX_PLAYS: list[Case] = [
    _product(WMMA, True, MatrixProduct(3, 40, 160, 1), ((2, _EMULATED),)),
    _product(MFMA, True, MatrixProduct(3, 24, 160, 3)),
    _product(DPAS, True, MatrixProduct(9, 40, 256, 8)),
    _product(DPAS, True, MatrixProduct(3, 24, 256, 11)),
    _product(WMMA, True, MatrixProduct(2, 24, 160, 3, gated=True, terms=1)),
    _product(WMMA, False, MatrixProduct(66, 40, 64, 3)),
    _product(MFMA, False, MatrixProduct(17, 40, 64, 3, terms=1)),
    _product(DPAS, False, MatrixProduct(17, 24, 96, 1, gated=True), ((0, _EMULATED),)),
    _product(WMMA, False, MatrixProduct(17, 24, 64, 2), ((0, _EMULATED),)),
    _product(DPAS, True, MatrixProduct(3, 24, 160, 2, terms=1), ((2, _EMULATED),)),
    _split(WMMA, 1, 2),
    _split(DPAS, 1, 1),
    _split(MFMA, 2, 2),
]
