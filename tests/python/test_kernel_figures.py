"""The recorded figures of compiled kernels (docs/results/kernels.json), and what counts as worse."""

from __future__ import annotations

import pytest

import table
from compilers import ARCHITECTURES, Figures, resident_warps, runs_on
from variants import MATRIX_VARIANTS, VARIANTS

GOOD = Figures(64, 0, 0, 4096, 32)


def test_every_variant_is_recorded_for_every_architecture() -> None:
    tools, recorded = table.read()
    assert set(tools) == set(table.versions())
    assert list(recorded) == list(ARCHITECTURES)
    for architecture, rows in recorded.items():
        compiled = [each for each in (*VARIANTS, *MATRIX_VARIANTS) if runs_on(architecture, each)]
        assert set(rows) == {f"{entry} {each.key}" for each in compiled for entry in each.entries}, architecture


def test_the_page_is_that_of_the_figures() -> None:
    assert table.page(*table.read()) == table.PAGE.read_text()


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (GOOD._replace(registers=64 + table.MARGIN), None),
        (GOOD._replace(registers=65 + table.MARGIN), "registers: got 69, allowed 68"),
        (GOOD._replace(spilled=4), "spilled: got 4, allowed 0"),
        (GOOD._replace(stack=16), "stack: got 16, allowed 0"),
        (GOOD._replace(shared=4100), "local memory: got 4100, allowed 4096"),
        (GOOD._replace(warps=28), "resident warps: got 28, allowed 32 or more"),
        (GOOD._replace(registers=20, warps=64, shared=0), None),
    ],
)
def test_what_is_worse(now: Figures, text: str | None) -> None:
    assert table.worse(GOOD, now) == ([text] if text else [])


def test_kernels_that_come_and_go() -> None:
    recorded, made = {"sm_90": {"a": GOOD, "b": GOOD}}, {"sm_90": {"b": GOOD, "c": GOOD}}
    assert table.compared(recorded, made) == [
        "[sm_90] a: not compiled any more",
        "[sm_90] c: not recorded: ./dev kernels --record",
    ]
    assert table.compared(recorded, {}) == []


@pytest.mark.parametrize(
    ("architecture", "registers", "shared", "lanes", "warps"),
    [
        ("sm_90", 32, 0, 128, 64),  # 65,536 / (32 x 32) = 64 warps
        ("sm_90", 248, 0, 128, 8),  # 7,936 registers of a warp: 8 warps, 2 groups
        ("sm_90", 16, 49152, 128, 16),  # 228 KiB / 49 KiB: 4 groups
        ("sm_86", 16, 0, 32, 16),  # 16 groups at most
        ("sm_89", 16, 0, 32, 24),
    ],
)
def test_resident_warps(architecture: str, registers: int, shared: int, lanes: int, warps: int) -> None:
    """By registers, by shared memory, by groups."""
    assert resident_warps(architecture, registers, shared, lanes) == warps
