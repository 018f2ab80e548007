#!/usr/bin/env python3
"""Compiles every kernel for GPUs that are not here: `./dev kernels`.

    kernels.py            all architectures; prints a line for each kernel
    kernels.py --check    sm_90 and gfx1100 against docs/results/kernels.json; with --all every architecture
    kernels.py --record   writes that file

The compilers are fetched first (toolchain.py). The exit status is 1 if a kernel became worse or does not compile, and
77 if the compilers cannot be had here.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import table
import toolchain
from compilers import ARCHITECTURES, DoesNotCompile, Figures, compile_for
from variants import MATRIX_VARIANTS, VARIANTS, Variant

UNAVAILABLE = 77
CHECKED = ("sm_90", "gfx1100")  # one of each compiler that is quick


def compile_all(architectures: tuple[str, ...]) -> tuple[table.Table, list[str]]:
    """The figures of all variants, and what did not compile."""
    made: table.Table = {each: {} for each in architectures}
    faults: list[str] = []

    def one(variant: Variant) -> dict[str, dict[str, Figures]]:
        try:
            return compile_for(architectures, variant)
        except DoesNotCompile as error:
            faults.append(str(error))
            return {}

    variants = [*VARIANTS, *MATRIX_VARIANTS]
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for done, (variant, found) in enumerate(zip(variants, pool.map(one, variants)), 1):
            for architecture, figures in found.items():
                made[architecture].update({f"{name} {variant.key}": each for name, each in figures.items()})
            if done % 10 == 0:
                print(f"[{done}/{len(variants)}] compiled", flush=True)
    return made, faults


def _show(made: table.Table) -> None:
    for architecture, rows in made.items():
        print(f"\n{architecture}: registers, spilled, stack, local memory, resident warps")
        for name, each in sorted(rows.items()):
            print("  " + " ".join(f"{'-' if value is None else value:>6}" for value in each) + f"  {name}")


def _check(made: table.Table) -> list[str]:
    tools, recorded = table.read()
    if tools != toolchain.versions():
        return [f"[kernels] tools: got {toolchain.versions()}, allowed {tools}, or ./dev kernels --record"]
    return table.compared(recorded, made)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./dev kernels", description="Compiles every kernel for GPUs that are not here."
    )
    parser.add_argument("--check", action="store_true", help="sm_90 and gfx1100 against what was recorded")
    parser.add_argument("--all", action="store_true", help="with --check: every architecture")
    parser.add_argument("--record", action="store_true", help="write docs/results/kernels.json")
    options = parser.parse_args(arguments)
    chosen = CHECKED if options.check and not options.all else ARCHITECTURES
    try:
        toolchain.fetch(intel=chosen is ARCHITECTURES)
    except toolchain.CannotFetch as error:
        print(f"the compilers cannot be had here: {error}")
        return UNAVAILABLE
    made, faults = compile_all(chosen)
    if options.check:
        faults += _check(made)
    else:
        _show(made)
    if options.record and not faults:
        table.write(made)
    print("\n".join(faults) or f"{sum(map(len, made.values()))} kernels compiled for {', '.join(made)}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
