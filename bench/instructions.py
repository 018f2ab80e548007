"""How many instructions do the trie, finding victims, a prefix cache's calls and a GPU's step take of the host?

Runs the programs ``*_instructions`` under callgrind and compares the counts with those in ``bench/instructions.json``.
Ends with 1 when an operation takes more than the tolerance above what is written there (or below it: then the gate has
become too wide; renew it), or when what should not depend on how much is known takes more than 1.2 times as much with
much.

Counts depend on the compiler and the C library, not on the machine's load. With another compiler or C library than
those named in the file they are printed and not judged; the rule for evicting holds always.

    python bench/instructions.py            compare
    python bench/instructions.py --renew    write what was counted; say in the commit why it changed
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from built import built

ROOT = Path(__file__).resolve().parent.parent
EXPECTED = ROOT / "bench" / "instructions.json"
TIMES = 500  # operations in one run; kTimes of instructions_main.h
TOLERANCE = 0.05
FEW, SOME, MORE, MANY = 1000, 10_000, 100_000, 1_000_000
PROGRAMS = {
    "trie_instructions": (MORE, ("match", "insert", "split", "lock", "extend", "evict")),
    "prefix_cache_instructions": (MORE, ("cells", "points", "spaced", "again")),
    "prefix_cache_calls_instructions": (SOME, ("begin", "branch", "decode", "new", "outside")),
    "prefix_cache_host_path_instructions": (FEW, ("step",)),
}
WORK = [
    (program, name, n) for program, (most, names) in PROGRAMS.items() for name in names for n in sorted({FEW, most})
]
WORK.append(("trie_instructions", "evict", MANY))
FLAT = 1.2  # most that the most may take over FEW, for:
INDEPENDENT = ("evict", "cells", "points", "spaced", "again", "begin", "branch", "decode", "new", "outside")

Counts = dict[str, dict[str, float]]


def count(program: Path, operation: str, size: int) -> float:
    """Instructions of one operation."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--toggle-collect=measured"]
        done = subprocess.run([*command, str(program), operation, str(size)], capture_output=True, text=True)
        totals = re.search(r"^(?:totals|summary): (\d+)", out.read_text() if out.exists() else "", re.MULTILINE)
    if done.returncode != 0 or totals is None or int(totals[1]) == 0:
        sys.exit(f"instructions: {operation} {size} ended with {done.returncode}\n{done.stderr}")
    return int(totals[1]) / TIMES


def judge(counted: float, expected: float | None) -> str:
    """What is wrong with a count; nothing when it is as expected."""
    if expected is None:
        return "not in the file"
    if counted > expected * (1 + TOLERANCE):
        return "TOO MANY"
    return "fewer than the file says" if counted < expected * (1 - TOLERANCE) else ""


def compare(counts: Counts, expected: Counts) -> list[str]:
    """Print the table; the rows that are not as expected."""
    findings = []
    print(f"  {'operation':<9} {'size':>8} {'counted':>9} {'expected':>9} {'change':>8}")
    for operation, by_size in counts.items():
        for size, counted in by_size.items():
            wanted = expected.get(operation, {}).get(size)
            verdict = judge(counted, wanted)
            change = "" if wanted is None else f"{100 * (counted / wanted - 1):+7.1f}%"
            print(f"  {operation:<9} {size:>8} {counted:>9.0f} {wanted or 0:>9.0f} {change:>8}  {verdict}".rstrip())
            if verdict:
                findings.append(f"{operation} on {size}: {verdict}")
    return findings


def growth(counts: Counts) -> list[str]:
    """Print how much more is taken where more is known; what takes too much."""
    findings = []
    for operation in INDEPENDENT:
        most = max(int(size) for size in counts[operation])
        flat = counts[operation][str(most)] / counts[operation][str(FEW)]
        print(f"  {operation} on {most}: {flat:.2f} times the instructions on {FEW}, allowed {FLAT}")
        if flat > FLAT:
            findings.append(f"{operation} grows: {flat:.2f} times, allowed {FLAT}")
    return findings


def main() -> int:
    """Count, compare or renew; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--renew", action="store_true", help=f"write the counts to {EXPECTED.relative_to(ROOT)}")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("instructions: valgrind is missing (Debian package valgrind)")
    programs = {name: built(name) for name in PROGRAMS}
    command = [programs["trie_instructions"], "--built"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    print(f"instructions per operation, {made}, tolerance {TOLERANCE:.0%}")

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda item: count(programs[item[0]], *item[1:]), reversed(WORK)))[::-1]
    counts: Counts = {}
    for (_, operation, size), result in zip(WORK, results):
        counts.setdefault(operation, {})[str(size)] = result
    if options.renew:
        EXPECTED.write_text(json.dumps({"built": made, "instructions": counts}, indent=1) + "\n")
    written = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {"built": "nothing", "instructions": {}}
    findings = compare(counts, written["instructions"])
    if findings and written["built"] != made:
        print(f"  not judged: the file was written with {written['built']}")
        findings = []
    findings += growth(counts)
    for finding in findings:
        print(f"  {finding}")
    if findings:
        print("  if that is meant: python bench/instructions.py --renew, and say why in the commit")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
