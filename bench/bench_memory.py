"""Where does the memory of a process go, and how much more does it take than llama.cpp's with the same model and room?

SmolLM2-135M-Instruct (or ``--model``), 8,192 cells of float16, a prompt of some thousand tokens. First by step: a
process that imports, opens a device, loads, makes its caches and reads the prompt (memory_stages.py), and what of each
step our own count explains. Then two servers on the same file, each with the same threads and room, asked for the same
prompt and 32 tokens: ``python -m kvtrie serve`` without a host tier, and llama-server as it is and with one slot.

All figures are resident memory (process_memory.py), taken after the answer. Goal: 1.2 times llama.cpp's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import kvtrie as kv
import process_memory
import served_engine
import smollm2
from colours import GUIDE
from peers import llama_server
from report import Report, Rows, arguments

OURS, THEIRS, ONE_SLOT = "kvtrie serve", "llama-server", "llama-server -np 1"
ANSWER = 32


def stages(report: Report, file: Path, cells: int, length: int) -> None:
    """A row for each step of our process, and one for each part of what it has in the end."""
    child = Path(__file__).with_name("memory_stages.py")
    command = [sys.executable, str(child), str(file), str(cells), str(length)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    before = 0.0
    for row in found["rows"]:
        grown, known = row["mib"] - before, row["known_mib"]
        note = f", {known:.1f} of them known, {grown - known:+.1f} beside them" if known else ""
        report.row(f"{row['stage']:<12} {grown:+8.1f} MiB{note}", step=row["stage"], grown_mib=grown, known_mib=known)
        before = row["mib"]
    report.row(f"{'in all':<12} {before:8.1f} MiB, {found['tokens']} tokens", step="in all", grown_mib=before)
    show_parts(report, "process", found["parts"])


def show_parts(report: Report, side: str, parts: dict[str, float]) -> None:
    """One row: the sum, and what lies where."""
    whole = sum(parts.values())
    text = ", ".join(f"{part} {mib:.1f}" for part, mib in parts.items())
    report.row(f"{side}: {whole:.1f} MiB: {text}", side=side, mib=whole, parts=parts)


def served(report: Report, side: str, engine: Any, prompt: list[int]) -> float:
    """MiB of a server before and after an answer. It is closed then."""
    try:
        start = sum(process_memory.of(engine.process.pid).values())
        engine.complete(prompt, ANSWER)
        parts = process_memory.of(engine.process.pid)
    finally:
        engine.close()
    report.note(f"{side}: {start:.1f} MiB when it listened")
    show_parts(report, side, parts)
    return sum(parts.values())


def against_llama(report: Report, file: Path, cells: int, length: int) -> None:
    """Our server's memory over that of llama.cpp's, where it is installed."""
    tokenizer = kv.models.load_tokenizer(file)
    assert tokenizer is not None
    prompt = tokenizer.encode(smollm2.text())[:length]
    ours = served(report, OURS, served_engine.Engine(file, tokens=cells, host_mib=0), prompt)
    if not llama_server.installed():
        return report.note("llama-server is not installed (./dev peers): left out")
    for side, options in {THEIRS: [], ONE_SLOT: ["-np", "1"]}.items():
        engine = llama_server.Server(file, options, tokens=cells, host_mib=0)
        theirs = served(report, side, engine, prompt)
        report.row(f"{OURS} takes {ours / theirs:.2f} of {side} (goal 1.2)", ratio=ours / theirs, to=side)
    return None


def draw(axes: Any, rows: Rows) -> None:
    """A bar for each process, its parts one after the other."""
    shown = [row for row in rows if "parts" in row]
    names = list(dict.fromkeys(part for row in shown for part in row["parts"]))
    for place, row in enumerate(reversed(shown)):
        left = 0.0
        for index, part in enumerate(names):
            mib = row["parts"].get(part, 0.0)
            label = part if place == 0 else None
            axes.barh(place, mib, left=left, color=f"C{index}" if index < 6 else GUIDE, label=label)
            left += mib
        axes.text(left, place, f"  {left:.0f}", va="center", fontsize=8)
    axes.set_yticks(range(len(shown)), [row["side"] for row in reversed(shown)])
    axes.set_xlabel("MiB")
    axes.margins(x=0.1)
    axes.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.15))


def main() -> None:
    """The steps, then the servers."""
    parser = arguments(__doc__)
    parser.add_argument("--model", type=Path, metavar="GGUF", help="SmolLM2 if none is given")
    parser.add_argument("--cells", type=int, default=8192)
    parser.add_argument("--prompt", type=int, default=4096, metavar="TOKENS", help="at most so many of the text")
    options = parser.parse_args()
    report = Report("where the memory of a process goes, and how much llama.cpp's takes", options.json)
    file = options.model or smollm2.path()
    report.note(f"{file.name}, {options.cells:,} cells of float16")
    stages(report, file, options.cells, options.prompt)
    against_llama(report, file, options.cells, options.prompt)
    report.close(draw)


if __name__ == "__main__":
    main()
