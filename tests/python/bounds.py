"""The bounds of floating-point comparisons: each with its reason, and asserted here.

A comparison that holds is written down where the environment has KVTRIE_BOUNDS, the name of a file: a line of JSON with
the test, the bound and what was measured. tests/campaign/tolerances.py makes docs/results/tolerances.md of such files,
one for each processor. tests/cpp/bounds.h is the same in C++.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Bound(NamedTuple):
    """``derived``: what no correct processor exceeds. Others are at least ten times what any has measured."""

    name: str
    value: float
    why: str
    derived: bool = False


FLOAT32 = 2.0**-24  # of a number: what rounding it changes, at most

# ---- of the largest number: `close(...)` -----------------------------------------------------------------------------

LOGITS = Bound("LOGITS", 1e-4, "logits of small models in float32: some 30 sums of up to 256 products in a row")
LOGITS_OF_KINDS = Bound(
    "LOGITS_OF_KINDS", 2e-4, "the same, and states, with recurrent layers, which sum over all rows; goldens in float32"
)
LOGITS_OF_SETTINGS = Bound(
    "LOGITS_OF_SETTINGS",
    3e-4,
    "the same, where settings and weights are random: routers choose by scores that are large",
)
LOGITS_OF_FLOAT16_CELLS = Bound(
    "LOGITS_OF_FLOAT16_CELLS", 1e-3, "the same with K and V in float16, each of which loses up to 2^-11, up or down"
)
LOGITS_OF_Q8_CELLS = Bound(
    "LOGITS_OF_Q8_CELLS",
    5e-2,
    "the same in q8_0, where a number that lies between two moves by 1/127 of its block's largest",
)
LOGITS_OF_TORCH = Bound(
    "LOGITS_OF_TORCH", 5e-4, "float32, both sides by torch, whose products add up in another order for another shape"
)
LOGITS_OF_HALF = Bound(
    "LOGITS_OF_HALF", 0.2, "all of a model of two or three layers in bfloat16 or float16, in products of other shapes"
)
REFERENCE = Bound("REFERENCE", 1e-5, "the float64 reference beside numbers that were computed or stored in float32")
PRODUCTS = Bound("PRODUCTS", 1e-5, "sums of up to 77 products in float32")

# What blocks lose no processor changes by more than the sums around them, 1e-5; they lose the same bits everywhere.
LOST_BY_8_BITS = Bound("LOST_BY_8_BITS", 0.05, "weights in blocks of 8 bits: half of 1/127 of a block's largest", True)
LOST_BY_4_BITS = Bound("LOST_BY_4_BITS", 0.5, "some weights in blocks of 4 bits: half of 1/15 of a block's range", True)

# ---- of each number, or of 1 if that is more: `close(..., each=True)` ------------------------------------------------

SMALL_SUMS = Bound("SMALL_SUMS", 2e-5, "functions of one number, and sums of up to 40, in float32")
ATTENTION = Bound("ATTENTION", 2e-5, "softmax and sums over up to 200 keys in float32")
ROTATION = Bound("ROTATION", 2e-5, "angles of up to 75 in float32, their sines and cosines")
ROPE_TABLES = Bound(
    "ROPE_TABLES", 2e-5, "frequencies of RoPE, powers in float32 on one side, back from a sine and a cosine of float32"
)
FAR_ROTATION = Bound(
    "FAR_ROTATION", 2 * 500 * FLOAT32 * 5, "angles of 500, rounded twice to float32, times pairs up to 5 long", True
)
LOGPROBS = Bound("LOGPROBS", 1e-4, "logarithms of probabilities: as far off as the logits, which are up to 10")
PENALTIES = Bound("PENALTIES", 1e-5, "one product, quotient or sum in float32")
STATES = Bound("STATES", 2e-5, "recurrent sums over up to 40 rows in float32")
ROUNDED_TO_FLOAT16 = Bound("ROUNDED_TO_FLOAT16", 2.0**-11, "half a step of float16", True)
ROUNDED_TO_BFLOAT16 = Bound("ROUNDED_TO_BFLOAT16", 2.0**-8, "half a step of bfloat16", True)


def difference(got: Any, wanted: Any, each: bool = False) -> float:
    """The largest one, in parts of the largest wanted number; ``each``: of its own, where that is more than 1."""
    got, wanted = (np.asarray(numbers, np.float64) for numbers in (got, wanted))
    if got.shape != wanted.shape:
        raise AssertionError(f"got shape {got.shape}, wanted {wanted.shape}")
    apart, size = np.abs(got - wanted), np.abs(wanted)
    if not apart.any():
        return 0.0
    if each:
        return float((apart / np.maximum(size, 1)).max())
    return float(apart.max() / size.max()) if size.any() else math.inf


def close(got: Any, wanted: Any, bound: Bound, each: bool = False) -> None:
    within(difference(got, wanted, each), bound)


def within(measured: float, bound: Bound) -> None:
    """Asserts it, and writes it down."""
    # NaN is within nothing.
    note(measured, bound)
    if not measured <= bound.value:
        raise AssertionError(f"{measured:.2e} is more than {bound.name} allows, {bound.value:.2e}: {bound.why}")


def note(measured: float, bound: Bound) -> None:
    file = os.environ.get("KVTRIE_BOUNDS")
    if not file or not math.isfinite(measured):
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    # "tests/python/test_ops.py::test_norms[3] (call)"
    test, _, case = os.environ.get("PYTEST_CURRENT_TEST", line).rpartition(" ")[0].partition("[")
    entry = {"site": test.rpartition("/")[2] or line, "case": case.rstrip("]"), "line": line, "measured": measured}
    # One write in append mode: several processes may write to one file.
    with open(file, "ab", buffering=0) as out:
        out.write(json.dumps({**entry, **bound._asdict()}).encode() + b"\n")
