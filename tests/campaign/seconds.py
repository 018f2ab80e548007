#!/usr/bin/env python3
"""Measures how long each test takes and writes docs/results/test_seconds.md of it.

    seconds.py           what `./dev test` plays: every C++ program, then the Python tests, in as many processes
    seconds.py --table   the page alone, of what was measured before

Needs `./dev build`. What was measured is in build/logs, in JUnit's form. A test's seconds are those of its call, its
fixtures included, while another process computes beside it; a fixture of a whole file counts for the first test that
asks for it. The exit status is 1 if a test failed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "logs"
PROGRAMS, PYTHON = LOGS / "seconds-programs.xml", LOGS / "seconds-python.xml"
PAGE = ROOT / "docs" / "results" / "test_seconds.md"
SHOWN = 0.5  # tests shorter than this are counted, not listed


class Test(NamedTuple):
    file: str
    name: str
    seconds: float


def measure() -> bool:
    """Whether all tests passed."""
    LOGS.mkdir(parents=True, exist_ok=True)
    ctest = ["ctest", "--test-dir", str(ROOT / "build" / "release"), "--no-tests=error", "-j", "2", "--output-junit"]
    workers = str(min(4, os.cpu_count() or 1))
    python = [sys.executable, "-m", "pytest", "-q", "-n", workers, "--dist", "worksteal", f"--junitxml={PYTHON}"]
    statuses = [subprocess.run(command, cwd=ROOT).returncode for command in ([*ctest, str(PROGRAMS)], python)]
    return not any(statuses)


def tests(path: Path) -> list[Test]:
    """Those of one run."""
    cases = list(ElementTree.parse(path).iter("testcase"))
    return [
        Test((each.get("classname") or "").rpartition(".")[2], each.get("name") or "", float(each.get("time") or 0))
        for each in cases
        if each.find("skipped") is None
    ]


def processor() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return f"{os.cpu_count()} cores of {found[1] if found else 'an unknown processor'}"


def page(programs: list[Test], python: list[Test]) -> str:
    files: dict[str, list[float]] = defaultdict(list)
    for test in python:
        files[test.file].append(test.seconds)
    long = sorted((test for test in python if test.seconds >= SHOWN), key=lambda test: -test.seconds)
    text = [
        "# How long each test takes",
        "",
        f"What `./dev test` plays, on {processor()}, in two processes, with kernels and programs compiled before.",
        "`tests/campaign/seconds.py` measures and writes this page. A fixture of a file counts for its first test.",
        "",
        f"{len(python):,} Python tests took {_sum(python)} s, {len(programs)} C++ programs {_sum(programs)} s. "
        f"{len(long)} Python tests that took {SHOWN} s or more have {_sum(long)} s of them.",
        "",
        "## C++",
        "",
        "| program | seconds |",
        "|---|---|",
        *(f"| {test.name} | {test.seconds:.1f} |" for test in sorted(programs, key=lambda test: -test.seconds)),
        "",
        "## Python, by file",
        "",
        "| file | tests | seconds | the longest |",
        "|---|---|---|---|",
    ]
    for name, seconds in sorted(files.items(), key=lambda item: -sum(item[1])):
        text.append(f"| {name} | {len(seconds)} | {sum(seconds):.1f} | {max(seconds):.1f} |")
    text += ["", f"## Python, {SHOWN} s or more", "", "| test | seconds |", "|---|---|"]
    text += [f"| `{test.file}::{_shown(test.name)}` | {test.seconds:.1f} |" for test in long]
    return "\n".join(text) + "\n"


def _sum(tests: list[Test]) -> str:
    return f"{sum(test.seconds for test in tests):,.0f}"


def _shown(name: str) -> str:
    name = name.replace("|", "/").replace("`", "'")
    return name if len(name) <= 90 else f"{name[:87]}..."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="measure nothing")
    passed = parser.parse_args().table or measure()
    PAGE.write_text(page(tests(PROGRAMS), tests(PYTHON)), encoding="utf-8")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
