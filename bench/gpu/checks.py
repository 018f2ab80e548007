"""Whether it computes right there: self-tests, the demo, and the tests of devices, one for each core.

Python's where python3 has pytest and hypothesis; C++'s where they were built (``./dev gpu --carry``). What a test that
failed said is in its row.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu.rows import Rows

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build/gpu/release/tests/cpp"
SHARES = 4  # of the C++ tests that take longest
PYTHON = ("ops", "models", "batch", "step_graphs", "generate", "tiers", "parity", "sampling", "caches", "attend_qkv")
Command = tuple[str, list[str], dict[str, str]]  # name, arguments, further environment


def doctor(rows: Rows) -> None:
    """Every kernel against its reference (``python -m kvtrie doctor``)."""
    _end(_run(rows, ("self-tests", [sys.executable, "-m", "kvtrie", "doctor"], {}), shown=40))


def demo(rows: Rows) -> None:
    """Conversations that share, branch and come back, compared with cold runs."""
    script = str(ROOT / "examples/conversations.py")
    _end(_run(rows, ("demo", [sys.executable, script, "--model", "tiny"], {}), shown=4))


def tests(rows: Rows) -> None:
    """The tests; the first programs of each size are compiled for the device, so what takes longest begins first."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        passed = [pool.submit(_run, rows, command) for command in commands()]
    _end(all(each.result() for each in passed))


def _end(passed: bool) -> None:
    """The part's own exit status says whether all passed."""
    if not passed:
        sys.exit(1)


def commands() -> list[Command]:
    """What can be run here."""
    found: list[Command] = []
    for name in ("ops", "prefix_cache"):
        for share in range(SHARES):
            part = {"GTEST_TOTAL_SHARDS": str(SHARES), "GTEST_SHARD_INDEX": str(share)}
            found.append((f"test_{name} {share}", [str(BUILT / f"test_{name}")], part))
    found += [(f"test_{name}", [str(BUILT / f"test_{name}")], {}) for name in ("cl", "tensor", "cache", "standalone")]
    found = [command for command in found if Path(command[1][0]).exists()]
    if all(importlib.util.find_spec(name) for name in ("pytest", "hypothesis")):
        quiet = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
        found += [(name, [sys.executable, *quiet, f"tests/python/test_{name}.py"], {}) for name in (*PYTHON, "tensor")]
    return found


def _run(rows: Rows, command: Command, shown: int = 0) -> bool:
    """Whether it passed. ``shown``: lines of what it says that are printed though it does."""
    name, arguments, environment = command
    begun = time.perf_counter()
    done = subprocess.run(
        arguments,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    seconds = time.perf_counter() - begun
    most = shown if done.returncode == 0 else 30
    lines = done.stdout.splitlines()[-most:] if most else []
    said = "passed" if done.returncode == 0 else f"failed with {done.returncode}"
    rows.say(
        "\n".join([*(line[:200] for line in lines), f"{name}: {said} after {seconds:.0f} s"]),
        what=name,
        returncode=done.returncode,
        seconds=seconds,
        said=done.stdout[-8000:] if done.returncode else "",
    )
    return done.returncode == 0
