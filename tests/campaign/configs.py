#!/usr/bin/env python3
"""Counts what becomes of changed settings in all families, and writes the table into docs/models.md.

    configs.py                         every setting and some pairs of each family, 20,000 models
    configs.py llama qwen3 --pairs 50  these families, with 50 pairs each: only their rows are written
    configs.py --missing               those that have no row yet
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


def written(page: str) -> dict[str, Counter[str]]:
    """The counts of the table in a page, by family."""
    counts = {}
    for row in page.split(BEGIN)[1].split(END)[0].splitlines()[2:-1]:
        name, _, *numbers = (cell.strip() for cell in row.strip("| ").split("|"))
        counts[name] = Counter({what: int(each.replace(",", "")) for what, each in zip(OUTCOMES, numbers)})
    return counts


def renewed(page: str, counts: dict[str, Counter[str]]) -> str:
    """The page with these counts, and the others that it has."""
    both = {**written(page), **counts}
    head, rest = page.split(BEGIN)
    return head + BEGIN + table({name: both[name] for name in FAMILIES if name in both}) + END + rest.split(END)[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", choices=[*FAMILIES, []], default=[])
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--pairs", type=int, default=140, help="of each family")
    parser.add_argument("--ropes", type=int, default=60, help="RoPE settings drawn at random, of each family")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    names = chosen.families or [*FAMILIES]
    if chosen.missing:
        names = [name for name in names if name not in written(PAGE.read_text(encoding="utf-8"))]
    wrong = 0
    for name in names:
        counts = count(name, chosen.pairs, chosen.ropes, chosen.seed)
        wrong += counts["wrong"]
        PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), {name: counts}), encoding="utf-8")
        print(name, dict(counts), flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
