#!/usr/bin/env python3
"""Holds logits of GGUF files against llama.cpp's: random models of every family that both know, in float32.

    llama_cpp.py                 all forms; then the table in docs/results/llama_cpp.md
    llama_cpp.py phi3 gemma4     these; prints the table only
    llama_cpp.py --rows 200      another length of the text (60)

Needs `./dev peers`, `./dev build` and the tests' packages. Both sides load the same file and compute all rows of one
text; llama.cpp in a process of its own (llama_logits.py). Files that llama.cpp does not load, or computes otherwise,
are in llama_forms.py, each with a reason. The exit status is 1 where logits are further apart than the bound there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python")]

import llama_forms

CHILD = Path(__file__).with_name("llama_logits.py")
PAGE = ROOT / "docs" / "results" / "llama_cpp.md"
BEGIN, END = "<!-- measured by tests/campaign/llama_cpp.py -->\n\n", "\n<!-- until here -->\n"


class Outcome(NamedTuple):
    """``off``: the greatest difference of a logit, of the greatest logit; ``failure``: why there is none."""

    off: float
    failure: str = ""


def compare(name: str, rows: int) -> Outcome:
    text = llama_forms.text(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = llama_forms.write(name, Path(folder))
        into = Path(folder) / "theirs.npy"
        np.save(Path(folder) / "text.npy", text)
        child = [sys.executable, CHILD, path, Path(folder) / "text.npy", into]
        done = subprocess.run(child, capture_output=True, text=True, timeout=300)
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()
            return Outcome(float("nan"), last[-1] if last else f"it ended with {done.returncode}")
        got = llama_forms.ours(path, text)
        wanted = np.load(into)
    return Outcome(float(np.abs(got - wanted).max() / np.abs(wanted).max()))


def table(found: dict[str, Outcome]) -> str:
    lines = ["| file | family | greatest difference, of the greatest logit | bound |", "|---|---|---|---|"]
    for name, outcome in found.items():
        shown = outcome.failure or f"{outcome.off:.1e}"
        lines.append(f"| `{name}` | {llama_forms.family(name)} | {shown} | {llama_forms.bound(name):.0e} |")
    left = ["", "Left out:", "", *(f"- `{name}`: {why}" for name, why in llama_forms.LEFT_OUT.items())]
    return "\n".join([*lines, *left]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("forms", nargs="*")
    parser.add_argument("--rows", type=int, default=60)
    options = parser.parse_args()
    found = {}
    for name in options.forms or llama_forms.NAMES:
        found[name] = compare(name, options.rows)
        print(name, found[name].failure or f"{found[name].off:.1e}", flush=True)
    print(table(found))
    if not options.forms:
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        PAGE.write_text(before + BEGIN + table(found) + END + rest.split(END)[1], encoding="utf-8")
    return int(any(not outcome.off <= llama_forms.bound(name) for name, outcome in found.items()))


if __name__ == "__main__":
    sys.exit(main())
