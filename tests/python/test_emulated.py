"""Other processors, by emulation: the same steps, the same logits, and nothing printed.

`./dev emulate CPU...` runs this file and names the processors in KVTRIE_EMULATED_PROCESSORS, as `qemu-x86_64 -cpu
help` lists them; without it the file is not collected. PoCL and the library see the processor that qemu-user makes up
and take the paths for it. Compiling takes minutes there, so programs are compiled beforehand by this processor, for
that one, where PoCL can; what is missing is compiled under the emulator.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from levels import LEVELS, WORKER, check_replays, check_report, environment, report_of
from processes import run_command, run_python

EMULATOR = "qemu-x86_64"
CPUS = os.environ.get("KVTRIE_EMULATED_PROCESSORS", "").split()
# The level that PoCL takes an emulated processor for; others are emulated, too, but more slowly.
LEVEL_OF = {"Nehalem": "sse4.1", "Westmere": "sse4.1", "SandyBridge": "avx", "Haswell": "avx2", "EPYC": "avx2"}

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="runs programs of this machine, which is no x86-64"),
]


def run_on(cpu: str) -> Any:
    folder = LEVEL_OF.get(cpu, cpu)
    if folder in LEVELS:
        run_python(WORKER, environment=environment(folder, LEVELS[folder]))  # may well fail on a lesser processor
    # numpy's OpenBLAS runs the kernels that OPENBLAS_CORETYPE names on any processor.
    wanted = {**environment(folder), "OPENBLAS_CORETYPE": None}
    return run_command(EMULATOR, "-cpu", cpu, sys.executable, WORKER, environment=wanted, timeout=3000)


def without_warnings_of_the_emulator(text: str) -> str:
    """It tells which features of the processor it leaves out."""
    return re.sub(rf"^{EMULATOR}: warning: TCG doesn't support requested feature.*\n", "", text, flags=re.M)


@pytest.fixture(scope="module")
def ends() -> Any:
    """Of all of them, side by side."""
    if shutil.which(EMULATOR) is None:
        pytest.fail(f"{EMULATOR} is not installed (apt-get install qemu-user)")
    with ThreadPoolExecutor(max(1, len(CPUS))) as pool:
        return dict(zip(CPUS, pool.map(run_on, CPUS)))


@pytest.mark.parametrize("cpu", CPUS)
def test_another_processor(cpu: str, ends: Any) -> None:
    ended = ends[cpu]
    ended.stderr = without_warnings_of_the_emulator(ended.stderr)
    report = report_of(ended)
    if cpu in LEVEL_OF:
        assert LEVELS[LEVEL_OF[cpu]].aim in report["device"]
    check_report(report, report_of(run_python(WORKER)))
    check_replays(report)
