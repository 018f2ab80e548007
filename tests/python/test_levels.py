"""Programs for lesser processors than this one, on this one: narrower vectors, other tiles, the same logits."""

from __future__ import annotations

import platform
from typing import Any

import pytest

from circles import SOAK
from levels import LEVELS, WORKER, check_replays, check_report, environment, flags_here, report_of
from processes import run_python

TRIED = list(LEVELS) if SOAK else ["sse4.1"]


@pytest.fixture(scope="module")
def native(device: Any) -> Any:
    pocl = "Portable Computing Language" in device.platform and device.kind == "cpu"
    if platform.machine() != "x86_64" or not pocl:
        pytest.skip("needs PoCL on an x86-64 processor")
    return report_of(run_python(WORKER))


def test_this_processor(native: Any) -> None:
    check_report(native, native)
    check_replays(native)


@pytest.mark.ci  # each compiles everything anew, the first time
@pytest.mark.parametrize("name", TRIED)
def test_a_lesser_level(name: str, native: Any) -> None:
    level = LEVELS[name]
    if not flags_here().issuperset(level.needs):
        pytest.skip(f"this processor is below {name}")
    report = report_of(run_python(WORKER, environment=environment(name, level)))
    if level.aim not in report["device"]:
        pytest.skip("this PoCL compiles for one processor only")
    check_report(report, native)
    check_replays(report)
