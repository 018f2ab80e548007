"""The table of docs/results/kernels.json: figures by architecture and kernel, and the tools that made them.

A kernel that became worse is one with more registers than recorded plus a margin, more spilled or kept in memory, more
local memory, or fewer resident warps; a kernel that is missing on either side counts, too.
"""

from __future__ import annotations

import json
from typing import Any

from compilers import Figures
from toolchain import ROOT, versions

RESULTS = ROOT / "docs" / "results" / "kernels.json"
PAGE = ROOT / "docs" / "results" / "kernels.md"
MARGIN = 4  # registers of a lane: what a harmless change of a source moves

Table = dict[str, dict[str, Figures]]


def read() -> tuple[dict[str, str], Table]:
    """The tools and the figures that were recorded."""
    data = json.loads(RESULTS.read_text())
    table = {key: {name: Figures(*each) for name, each in rows.items()} for key, rows in data["kernels"].items()}
    return data["tools"], table


def write(table: Table) -> None:
    """Records figures: one line for each kernel."""
    lines = [
        "{",
        f' "tools": {json.dumps(versions())},',
        f' "columns": {json.dumps(Figures._fields)},',
        ' "kernels": {',
    ]
    blocks = []
    for key, rows in table.items():
        inner = ",\n".join(f"   {json.dumps(name)}: {json.dumps(list(each))}" for name, each in sorted(rows.items()))
        blocks.append(f"  {json.dumps(key)}: {{\n{inner}\n  }}")
    lines += [",\n".join(blocks), " }", "}"]
    RESULTS.write_text("\n".join(lines) + "\n")
    PAGE.write_text(page(versions(), table))


_HEAD = """# Kernels, as compilers for GPUs see them

Made by `./dev kernels --record` from [kernels.json](kernels.json), which also has the local
memory of each group. Tools: {tools}.
[gpu_kernels.md](../gpu_kernels.md) says how; a driver's own compiler may take some registers more or less.

Registers of a lane, and the warps that are resident on a multiprocessor at a time (AMD: waves on a SIMD unit; Intel's
compiler tells neither). `+N`: bytes of a lane that lie in memory instead, spilled registers among them (Intel: of a
hardware thread).

"""


def cell(figures: Figures) -> str:
    """A kernel's figures on one architecture: `registers/warps`, and what lies in memory."""
    known = "-" if figures.registers is None else f"{figures.registers}/{figures.warps}"
    return known + (f" +{figures.stack}" if figures.stack else "")


def page(tools: dict[str, str], table: Table) -> str:
    """The figures as a page of documentation."""
    text = _HEAD.format(tools=", ".join(f"{name} {version}" for name, version in tools.items()))
    text += f"| kernel | {' | '.join(table)} |\n|{'---|' * (len(table) + 1)}\n"
    for name in sorted({name for rows in table.values() for name in rows}):
        kernel, _, options = name.partition(" ")
        cells = [cell(rows[name]) if name in rows else "-" for rows in table.values()]
        text += f"| {kernel} `{options}` | {' | '.join(cells)} |\n"
    return text


def worse(was: Figures, now: Figures) -> list[str]:
    """In which figures a kernel became worse, as `what: got N, allowed M`."""
    found = []

    def compare(what: str, new: Any, allowed: Any) -> None:
        if new is not None and allowed is not None and new > allowed:
            found.append(f"{what}: got {new}, allowed {allowed}")

    compare("registers", now.registers, None if was.registers is None else was.registers + MARGIN)
    compare("spilled", now.spilled, was.spilled)
    compare("stack", now.stack, was.stack)
    compare("local memory", now.shared, was.shared)
    if was.warps is not None and now.warps is not None and was.warps > now.warps:
        found.append(f"resident warps: got {now.warps}, allowed {was.warps} or more")
    return found


def compared(recorded: Table, made: Table) -> list[str]:
    """What is worse in ``made``, of the architectures that it has."""
    faults = []
    for architecture, rows in made.items():
        before = recorded.get(architecture, {})
        for name in sorted({*before, *rows}):
            if name not in rows or name not in before:
                where = "not compiled any more" if name not in rows else "not recorded: ./dev kernels --record"
                faults.append(f"[{architecture}] {name}: {where}")
                continue
            faults += [f"[{architecture}] {name}: {each}" for each in worse(before[name], rows[name])]
    return faults
