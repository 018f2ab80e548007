#!/usr/bin/env python3
"""Counts what becomes of changed settings in all families, and writes the table into docs/models.md.

    configs.py                         every setting and some pairs of each family, 3,000 models; then the table
    configs.py llama qwen3 --pairs 50  these families, with 50 pairs each; prints the table only
    configs.py --seed 3                other pairs and other RoPE settings

Needs `./dev build` and the tests' packages. Outcomes are those of tests/python/config_sweep.py; each wrong one is
printed as it is found. The exit status is 1 if there was any.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python")]

from config_sweep import FAMILIES, OUTCOMES, cases_of, outcome, pairs_of

PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- counted by tests/campaign/configs.py -->\n\n", "\n<!-- until here -->\n"


def count(name: str, pairs: int, ropes: int, seed: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for case in [*cases_of(FAMILIES[name], seed, ropes), *pairs_of(FAMILIES[name], pairs, seed)]:
        what, seen = outcome(case)
        found[what] += 1
        if what == "wrong":
            print(f"{case}\n    {seen}", flush=True)
    return found


def table(counts: dict[str, Counter[str]]) -> str:
    rows = [["family", "models", *OUTCOMES], ["---"] * (2 + len(OUTCOMES))]
    for name, found in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        rows.append([name, f"{found.total():,}", *(f"{found[what]:,}" for what in OUTCOMES)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", choices=[*FAMILIES, []], default=[])
    parser.add_argument("--pairs", type=int, default=140, help="of each family")
    parser.add_argument("--ropes", type=int, default=60, help="RoPE settings drawn at random, of each family")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    counts = {}
    for name in chosen.families or FAMILIES:
        counts[name] = count(name, chosen.pairs, chosen.ropes, chosen.seed)
        print(name, dict(counts[name]), flush=True)
    print(table(counts))
    if not chosen.families:
        page = PAGE.read_text(encoding="utf-8")
        head, rest = page.split(BEGIN)
        PAGE.write_text(head + BEGIN + table(counts) + END + rest.split(END)[1], encoding="utf-8")
    return int(any(found["wrong"] for found in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
