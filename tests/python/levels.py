"""Levels of x86-64 processors, and runs of level_worker.py that PoCL compiles for one of them.

PoCL as Debian builds it has a library of builtins for each level, and compiles for the one that the processor fits;
POCL_KERNELLIB_NAME names another one. A processor runs the programs of every level below its own, so all of them can be
tried here; an emulated processor finds them compiled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bounds import LOGITS_OF_FLOAT16_CELLS, close
from processes import ROOT

WORKER = Path(__file__).with_name("level_worker.py")
DECODES = 8


class Level(NamedTuple):
    library: str  # POCL_KERNELLIB_NAME
    aim: str  # what PoCL then compiles for, a part of the device's name
    needs: tuple[str, ...]  # flags in /proc/cpuinfo


LEVELS = {
    "sse4.1": Level("sse41", "penryn", ("sse4_1",)),
    "avx": Level("avx", "sandybridge", ("avx",)),
    "avx2": Level("avx2", "haswell", ("avx2", "fma", "f16c", "bmi1", "bmi2")),
}


def flags_here() -> set[str]:
    """What this processor can, as Linux calls it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return {flag for line in lines if line.startswith("flags") for flag in line.split(":")[1].split()}


def environment(folder: str, level: Level | None = None) -> dict[str, str]:
    """Programs are kept in build/levels/``folder``; PoCL compiles for ``level``."""
    place = ROOT / "build" / "levels" / folder
    for name in ("kvtrie", "pocl"):
        (place / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    found = {"KVTRIE_CACHE_DIR": str(place / "kvtrie"), "POCL_CACHE_DIR": str(place / "pocl"), "KVTRIE_PROBE": "0"}
    return found if level is None else {**found, "POCL_KERNELLIB_NAME": level.library}


def check_report(report: dict[str, Any], native: dict[str, Any]) -> None:
    """What holds on every processor: logits of this one, self-tests, a replayed step's bits, state that comes back.

    Whether steps were replayed at all is not asked here.
    """
    got, wanted = (np.array(each["logits"], np.float64) for each in (report, native))
    assert got.shape == wanted.shape == (1 + DECODES, 1, 97)
    assert np.abs(wanted).max() > 0.1
    close(got, wanted, LOGITS_OF_FLOAT16_CELLS)
    assert report["logged"] == [], "a kernel that fails its self-test is replaced, with a warning"
    assert report["same_bits"] == [True] * (1 + DECODES)
    assert report["reused"] > 20 and report["returned_bits"] and report["problems"] == []


def check_replays(report: dict[str, Any]) -> None:
    """The first decode step is recorded, the others are replayed."""
    assert report["replays"] == DECODES - 1, report["refusal"]


def report_of(ended: Any) -> dict[str, Any]:
    """Of a worker's end; nothing may be printed but the report."""
    assert (ended.returncode, ended.stderr) == (0, "")
    report: dict[str, Any] = json.loads(ended.stdout)
    return report
