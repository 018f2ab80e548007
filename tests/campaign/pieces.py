"""What a soak consists of: each piece is a program that plays so many operations of a seed and ends with 0 if all held.

Pieces are found where they were built; what is not there is named with the reason, and left out.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

ROOT = Path(__file__).resolve().parents[2]
BUILDS = {"": "build/release", " sanitized": "build/sanitize", " TSan": "build/threads"}
ENVIRONMENTS = {
    "": {},
    " sanitized": {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"},
    " TSan": {"TSAN_OPTIONS": "halt_on_error=1"},
}
PYTHON_TESTS = (
    "test_disk_crash",
    "test_folders",
    "test_endings",
    "test_disk",
    "test_disk_damage",
    "test_threads",
    "test_check",
    "test_lifetime",
    "test_stores",
    "test_shared_store",
    "test_tiers",
    "test_models_damage",
    "test_campaign",
)
ALL_ALLOCATIONS = 1_000_000  # asks for every one in every call: there are fewer
Command = Callable[[int, int], list[str]]  # seed, operations -> what to run


@dataclass
class Piece:
    """``first`` operations are played to measure its rate; ``whole`` without a limit of time. ``fixed``: it takes as
    long as it takes, about ``seconds``; ``thorough`` is its environment, besides, without a limit of time."""

    name: str
    command: Command
    first: int = 1
    whole: int = 1
    fixed: bool = False
    seconds: float = 30.0
    environment: dict[str, str] = field(default_factory=dict)
    thorough: dict[str, str] = field(default_factory=dict)


@dataclass
class Counts:
    """What the output of a piece says that it did."""

    operations: int = 0
    faults: int = 0
    rows: int = 0


def counts_of(text: str, asked: int) -> Counts:
    """From the JSON of its last line, or from what it prints for people; else what was asked for."""
    lines = text.strip().splitlines()
    if lines and lines[-1].startswith("{"):
        said = json.loads(lines[-1])
        return Counts(said.get("operations", asked), said.get("faults", 0), said.get("rows", 0))
    faults = sum(int(number) for number in re.findall(r"faults injected and survived: (\d+)", text))
    if passed := re.search(r"\[  PASSED  \] (\d+) tests?", text):
        operations = re.search(r"(\d+) operations", text)
        return Counts(int(operations[1]) if operations else int(passed[1]), faults)
    if passed := re.search(r"^(\d+) passed", text, re.M):
        return Counts(int(passed[1]), faults)
    if mutated := re.search(r"seed \d+: (\{.*?\})", text):
        numbers = [int(number) for number in re.findall(r": (\d+)", mutated[1])]
        return Counts(sum(numbers), sum(numbers))
    operations = re.search(r"(\d+) (?:operations|requests)", text)
    return Counts(int(operations[1]) if operations else asked, faults)


def without_random_addresses() -> list[str]:
    """Where a kernel spreads addresses further than TSan knows, it has to be asked not to."""
    if shutil.which("setarch") is None:
        return []
    command = ["setarch", os.uname().machine, "-R"]
    return command if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0 else []


# K and V of every cache in one format, or in one each.
CELLS = ("float16", "q8_0", "q8_0/q4h", "q4h")


def usage_of(program: Path) -> str:
    """What it says when it is asked how it is called; "" where it does not take the question."""
    try:
        asked = subprocess.run([str(program), "--help"], capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return asked.stdout + asked.stderr


def _oracle(program: Path, flavour: str, *more: str, unit: str = "--operations") -> Command:
    before = without_random_addresses() if flavour == " TSan" else []
    return lambda seed, count: [*before, str(program), "--seed", str(seed), unit, str(count), *more]


def oracles(missing: list[str]) -> Iterator[Piece]:
    for flavour, build in BUILDS.items():
        folder = ROOT / build / "tests/cpp"
        programs = sorted(folder.glob("oracle_*"))
        if flavour == " TSan":
            programs = [each for each in programs if each.name == "oracle_prefix_cache_threads"]
        if not programs:
            missing.append(f"oracles{flavour}: nothing in {build}/tests/cpp")
        slower = 1 if not flavour else 10
        for program in programs:
            name = program.name.removeprefix("oracle_").replace("_", " ")
            made = {"environment": ENVIRONMENTS[flavour], "first": 20_000 // slower, "whole": 2_000_000 // slower}
            if "day" in program.name:
                unit = "--requests" if "--requests" in usage_of(program) else "--operations"
                made.update(first=2000 // slower, whole=200_000 // slower)
                yield Piece(f"{name}{flavour}", _oracle(program, flavour, unit=unit), **made)
            elif program.name == "oracle_prefix_cache":
                for kinds in ("dense", "mixed"):
                    yield Piece(f"{name} {kinds}{flavour}", _oracle(program, flavour, "--kinds", kinds), **made)
                made.update(whole=400_000 // slower)
                for cells in CELLS:
                    yield Piece(f"{name} {cells}{flavour}", _oracle(program, flavour, "--cells", cells), **made)
            else:
                yield Piece(f"{name}{flavour}", _oracle(program, flavour), **made)


FAULTS = "--gtest_filter=*Fault*:*fault*"
# All places of all sweeps take hours: with a limit of time each round has others, by its seed or its stride.
THOROUGH = {"KVTRIE_CIRCLE": "soak"}


def has_faults(program: Path) -> bool:
    listed = subprocess.run([str(program), FAULTS, "--gtest_list_tests"], capture_output=True, text=True, check=False)
    return "\n  " in listed.stdout


def fault_sweeps(missing: list[str]) -> Iterator[Piece]:
    for program in ("test_prefix_cache", "test_store", "test_cache", "test_cl", "test_standalone"):
        path = ROOT / BUILDS[""] / "tests/cpp" / program
        if not path.exists():
            missing.append(f"fault sweeps: {path.relative_to(ROOT)} was not built")
            continue
        if not has_faults(path):
            missing.append(f"fault sweeps: {program} has no test of that name")
            continue

        def command(seed: int, count: int, path: Path = path) -> list[str]:
            shuffled = ["--gtest_shuffle", f"--gtest_random_seed={seed % 99_999 + 1}"]
            return ["env", f"KVTRIE_SEED={seed}", str(path), FAULTS, *shuffled]

        yield Piece(f"fault sweeps of {program}", command, fixed=True, seconds=180, thorough=THOROUGH)


def fuzzers(missing: list[str]) -> Iterator[Piece]:
    said = subprocess.run([str(ROOT / "dev"), "help"], capture_output=True, text=True, check=False).stdout
    if not re.search(r"^  fuzz\b", said, re.M):
        missing.append("fuzzers: ./dev has no command for them")
        return

    def command(seed: int, count: int) -> list[str]:
        return [str(ROOT / "dev"), "fuzz", "--seconds", str(count), "--seed", str(seed)]

    yield Piece("fuzzers", command, first=5, whole=3600, seconds=300)


def python_programs() -> Iterator[Piece]:
    here, tests = ROOT / "tests/campaign", ROOT / "tests/python"
    environment = {"PYTHONPATH": f"{ROOT / 'python'}:{tests}", "KVTRIE_HELPER": "0"}

    def campaign(seed: int, count: int) -> list[str]:
        return [sys.executable, str(here / "worker.py"), "--seed", str(seed), "--operations", str(count)]

    def kills(seed: int, count: int) -> list[str]:
        some = ["--rounds", str(count), "--races", str(4 * count)]
        return [sys.executable, str(here / "kills.py"), "campaign", "--seed", str(seed), *some]

    def mutations(seed: int, count: int) -> list[str]:
        return [sys.executable, str(tests / "gguf_mutations.py"), "--seed", str(seed), "--count", str(count)]

    def allocations(seed: int, count: int) -> list[str]:
        some = [] if count >= ALL_ALLOCATIONS else ["--count", str(count)]
        return [sys.executable, str(tests / "allocation_sweep.py"), "--seed", str(seed), *some]

    yield Piece("Python campaign", campaign, 2000, 100_000, environment=environment)
    yield Piece("failing allocations", allocations, 400, ALL_ALLOCATIONS, environment=environment)
    yield Piece("kills and races", kills, 4, 200, environment=environment)
    yield Piece("GGUF mutations", mutations, 500, 100_000, environment=environment)


def chat_templates(missing: list[str]) -> Iterator[Piece]:
    program = ROOT / "tests/campaign/templates.py"
    if not any((ROOT / "build/templates").glob("*/*.jinja")):
        missing.append(f"chat templates: none in build/templates; {program.name} fetch")
        return

    def command(seed: int, count: int) -> list[str]:
        return [sys.executable, str(program), "play", "--seed", str(seed), "--count", str(count)]

    yield Piece("chat templates", command, 1_000, 10_000, environment={"PYTHONPATH": str(ROOT / "python")})


def python_tests() -> Iterator[Piece]:
    for name in PYTHON_TESTS:
        path = ROOT / "tests/python" / f"{name}.py"

        def command(seed: int, count: int, path: Path = path) -> list[str]:
            return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]

        if path.exists():
            yield Piece(name, command, fixed=True, seconds=180, thorough=THOROUGH)


def pieces(wanted: list[str], missing: list[str], with_tests: Optional[bool] = True) -> list[Piece]:
    """All, or those whose names contain one of ``wanted``; what is not there is added to ``missing``."""
    found = [*oracles(missing), *fault_sweeps(missing), *fuzzers(missing), *python_programs(), *chat_templates(missing)]
    if with_tests:
        found += python_tests()
    return [piece for piece in found if not wanted or any(name.lower() in piece.name.lower() for name in wanted)]
