#!/usr/bin/env python3
"""Runs kvtrie under other OpenCL drivers, and on emulated devices: what `./dev drivers` calls.

    drivers.py [--all] [--only STEP] [--brief] [NAME...]    every driver, or those named
    drivers.py --list

--all: all device tests of Python, not a selection. --brief, for CI: of the C++ tests of ops/ those that depend on a
device's limits and are compiled in seconds; prefix caches, whose launches are those of the layers below, only where
events come late; and the drivers side by side.

For each driver: whether its device is listed and every kernel passes its self-test (`doctor`), the demo with the tiny
model, the device tests of C++ and Python, and the tokens per second of the tiny model. Compiled programs stay in
build/drivers/programs/NAME, so that a second run is one of the tests and not of the compiler. What each step printed is
in build/drivers/NAME; the table goes to build/drivers/table.md. The exit status is 1 if any step failed.

`./dev drivers` puts Intel's and Mesa's drivers into build/drivers; without them their rows say that they are missing.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "drivers"
STEPS = ("self-test", "demo", "tokens", "cpp", "python")
BRIEF = (
    "-MatmulGroup*:*MatmulMatrix*:Matmul.*:MatmulQ8.*:Every/PackBlocks*:MatmulTiles*:LaunchGraph*:PaceTest*"
    ":SelfTest.Variants*:Types/BlockProducts.Products*:Types/BlockProducts.Gated*:AttentionLatent.AgreesForLatentKeys"
)
BRIEF_CPP = {"pocl-small": ("cl", "tensor", "cache", "ops")}  # others have all
PATIENCE = 3600.0  # seconds for one step: compilers of small processors are slow, a hang is an hour


@dataclass(frozen=True)
class Driver:
    """One row: how its device is chosen, and which tests it runs unless --all asks for all."""

    name: str
    what: str
    environment: dict[str, str]
    needs: Path | None = None
    cpp: tuple[str, ...] = ("cl", "tensor", "cache", "prefix_cache", "ops")
    python: tuple[str, ...] = (
        "test_tensor",
        "test_ops",
        "test_caches",
        "test_attend_qkv",
        "test_models",
        "test_parity",
        "test_tiers",
    )


@dataclass
class Row:
    """What the steps of one driver gave."""

    driver: Driver
    cells: dict[str, str] = field(default_factory=dict)
    failed: bool = False


def _vendor(name: str, library: Path) -> dict[str, str]:
    """The environment in which the loader sees this driver and no other."""
    folder = FOLDER / "vendors" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.icd").write_text(f"{library}\n")
    return {"OCL_ICD_VENDORS": f"{folder}/"}


INTEL = FOLDER / "intel" / "lib" / "libintelocl.so"
RUSTICL = FOLDER / "mesa" / "usr" / "lib" / "x86_64-linux-gnu" / "libRusticlOpenCL.so.1"
# Translators that take minutes for what PoCL compiles in seconds run the tests without large kernels.
SLOW_CPP, SLOW_PYTHON = ("cl", "tensor"), ("test_tensor", "test_caches")


def drivers() -> list[Driver]:
    return [
        Driver("pocl", "PoCL of the distribution", {}),
        Driver("pocl-gpu", "the same, emulating a GPU", {"KVTRIE_EMULATED_DEVICE": "gpu"}),
        Driver(
            "pocl-small", "emulating the smallest GPU, without fp16", {"KVTRIE_EMULATED_DEVICE": "gpu small no_fp16"}
        ),
        Driver("pocl-late", "emulating a GPU that starts late", {"KVTRIE_EMULATED_DEVICE": "gpu late"}),
        Driver("intel", "Intel's CPU runtime (PyPI, proprietary)", _vendor("intel", INTEL), INTEL),
        Driver(
            "rusticl",
            "Mesa's Rusticl on llvmpipe",
            {**_vendor("rusticl", RUSTICL), "RUSTICL_ENABLE": "llvmpipe"},
            RUSTICL,
            cpp=SLOW_CPP,
            python=SLOW_PYTHON,
        ),
    ]


SPEED = """
import time
import kvtrie as kv
model = kv.models.load("examples/tiny")
model.warm_up()
cache = kv.PrefixCache(model.caches(capacity=512), host_bytes=0)
with cache.begin([5, 6, 7]) as session:
    list(kv.generate(model, session, max_tokens=16, ignore_eos=True))
    start = time.perf_counter()
    tokens = len(list(kv.generate(model, session, max_tokens=64, ignore_eos=True)))
    print(f"{tokens / (time.perf_counter() - start):.0f}/s on {kv.Device().name}")
"""


def run(row: Row, step: str, command: list[str], found: str) -> None:
    """Runs one step; ``found`` is a pattern whose groups are what the table shows of its output."""
    driver = row.driver
    programs = FOLDER / "programs" / driver.name
    (programs / "pocl").mkdir(parents=True, exist_ok=True)
    programs.chmod(0o700)
    environment = {
        **os.environ,
        "KVTRIE_CACHE_DIR": str(programs),
        "KVTRIE_TEST_PROGRAMS": str(programs),
        "POCL_CACHE_DIR": str(programs / "pocl"),
        **driver.environment,
    }
    log = FOLDER / driver.name / f"{step.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with log.open("w") as out:
        try:
            status = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=PATIENCE,
            ).returncode
        except subprocess.TimeoutExpired:
            status = -1
    seconds = time.monotonic() - begun
    match = re.findall(found, log.read_text(errors="replace"))
    said = " ".join(match[-1] if isinstance(match[-1], tuple) else (match[-1],)) if match else ""
    if status != 0 or not match:
        row.failed = True
        said = f"**failed ({status})** {said}".strip()
    row.cells[step] = said if step == "tokens" else f"{said}, {seconds:.0f} s"
    print(f"  {driver.name:<11} {step:<10} {row.cells[step]}", flush=True)


def measure(driver: Driver, everything: bool, brief: bool, wanted: list[str]) -> Row:
    row = Row(driver)
    if driver.needs is not None and not driver.needs.exists():
        row.cells["self-test"] = "not here"
        print(f"  {driver.name:<11} {driver.needs} is not there: `./dev drivers` fetches it", flush=True)
        return row
    python = str(ROOT / ".venv-tests" / "bin" / "python")
    if "self-test" in wanted:
        run(row, "self-test", [python, "-m", "kvtrie", "doctor"], r"kernels +(largest relative error \S+)")
    if "demo" in wanted:
        run(row, "demo", [python, "examples/conversations.py", "--model", "tiny"], r"same: (\d+ of \d+) tokens equal")
    if "tokens" in wanted:
        run(row, "tokens", [python, "-c", SPEED], r"(\d+/s) on")
    libraries = Driver.cpp if everything else driver.cpp
    if brief:
        libraries = BRIEF_CPP.get(driver.name, libraries)
    for name in libraries if "cpp" in wanted else ():
        program = ROOT / "build" / "release" / "tests" / "cpp" / f"test_{name}"
        chosen = [f"--gtest_filter={BRIEF}"] if brief and name == "ops" else []
        run(row, f"C++ {name}", [str(program), *chosen], r"PASSED *\] (\d+) tests?")
    if "python" in wanted:
        files = ["tests/python"] if everything else [f"tests/python/{name}.py" for name in driver.python]
        workers = str(min(4, os.cpu_count() or 1))
        run(
            row, "Python", [python, "-m", "pytest", "-q", "-n", workers, "--dist", "worksteal", *files], r"(\d+) passed"
        )
    return row


def table(rows: list[Row]) -> str:
    """The steps side by side; the C++ executables as one sum."""
    lines = ["| driver | what | self-test | demo | tokens | C++ tests | Python tests |", "|" + "---|" * 7]
    for row in rows:
        tests = [text for step, text in row.cells.items() if step.startswith("C++")]
        passed = sum(int(text.split(",")[0]) for text in tests if text[:1].isdigit())
        bad = " ".join(
            step[4:] for step, text in row.cells.items() if step.startswith("C++") and not text[:1].isdigit()
        )
        cpp = f"{passed}" + (f", **failed: {bad}**" if bad else "") if tests else ""
        cells = (row.cells.get(step, "") for step in ("self-test", "demo", "tokens"))
        lines.append(
            f"| `{row.driver.name}` | {row.driver.what} | {' | '.join(cells)} | {cpp} | {row.cells.get('Python', '')} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", choices=STEPS, action="append", help="these steps")
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    known = drivers()
    if options.list:
        print("\n".join(f"{driver.name:<11} {driver.what}" for driver in known))
        return 0
    unknown = set(options.names) - {driver.name for driver in known}
    if unknown:
        parser.error(f"NAME: got {', '.join(sorted(unknown))}, allowed {', '.join(driver.name for driver in known)}")
    chosen = [driver for driver in known if not options.names or driver.name in options.names]
    with ThreadPoolExecutor(os.cpu_count() if options.brief else 1) as beside:
        rows = list(
            beside.map(lambda each: measure(each, options.all, options.brief, options.only or list(STEPS)), chosen)
        )
    (FOLDER / "table.md").write_text(table(rows))
    print(table(rows))
    return 1 if any(row.failed for row in rows) else 0


sys.exit(main())
