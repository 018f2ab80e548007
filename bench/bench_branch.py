"""What do branch, rewind, switch and resume cost, and do they grow with the conversation?

8 layers, 4 K/V heads of 64, float16, 1k to 64k tokens; kvtrie beside llama.cpp and Hugging Face transformers
(branch_sides.py says what is called there). All sides and lengths live at once and run in turns, so that the caches of
the processor hold something else when a side's turn begins; the first call of a turn is also shown by itself.

``branch``   a second conversation at the same place
``rewind``   back to the middle
``switch``   to a conversation that did not run last: kvtrie claims a step of it; llama.cpp with more conversations than
             slots saves one state and loads another (with a slot for each nothing is done, and each slot needs cells of
             its own); transformers keeps an object for each
``resume``   to a conversation that nobody holds: kvtrie finds it by its tokens; llama.cpp loads the state its user
             parked; transformers copies the cache its user kept

K/V bytes are the device's own count for kvtrie (``Device.memory()["kv_bytes_moved"]``) and the size of what is copied
for the others. ``memory``: what 8 branches of one conversation take, each with a token of its own, in a process for
each side: the growth of its peak resident memory.

Targets: 0 bytes, each under 20 us, at 64k tokens at most 1.3 times 1k. ``resume`` compares the tokens, 256 KiB of them
at 64k on each side; it cannot be flat.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from branch_sides import OPERATIONS, TOKEN_BYTES, HuggingFace, LlamaCpp, Ours
from colours import GUIDE, SOFT
from peers import gguf_file, hugging_face, llama
from report import Report, Rows, arguments
from timing import Race, human, race, summarise

LENGTHS = (1024, 4096, 16384, 65536)
MEMORY_TOKENS, MEMORY_BRANCHES = 16384, 8
CALLS = 100  # of what takes microseconds, on one turn
MEMORY_SIDES = {
    "kvtrie": lambda: Ours(MEMORY_TOKENS, conversations=1),
    "llama.cpp": lambda: LlamaCpp(MEMORY_TOKENS, sequences=MEMORY_BRANCHES + 1),
    "llama.cpp, states": lambda: LlamaCpp(
        MEMORY_TOKENS, sequences=MEMORY_BRANCHES + 1, cells=(MEMORY_BRANCHES + 1) * (MEMORY_TOKENS + 256)
    ),
    "transformers": lambda: HuggingFace(MEMORY_TOKENS),
}


def systems() -> list[Any]:
    """Those that are installed."""
    found: list[Any] = [Ours]
    if llama.installed() and gguf_file.package() is not None:
        found.append(LlamaCpp)
    if hugging_face.installed():
        found.append(HuggingFace)
    return found


def turn(call: Callable[[], float], firsts: list[float]) -> Callable[[], float]:
    """One turn: the median seconds of some calls; of one only where it is slow. The first goes to ``firsts``, too."""

    def run() -> float:
        first = call()
        firsts.append(first)
        return statistics.median([first, *(call() for _ in range(CALLS - 1))]) if first < 1e-3 else first

    return run


def compare(sides: dict[str, Any], operation: str, rounds: int) -> tuple[Race, dict[str, list[float]]]:
    """Every side and length in turns."""
    firsts: dict[str, list[float]] = {name: [] for name in sides}
    calls = {name: turn(getattr(side, operation), firsts[name]) for name, side in sides.items()}
    return race(calls, rounds=rounds, warm_up=1, clocked=calls), firsts


def show(report: Report, operation: str, sides: dict[str, Any], rounds: int) -> None:
    """Race one operation and report a row for each length and system."""
    ours = [side for side in sides.values() if isinstance(side, Ours)]
    before = ours[0].bytes_moved()
    result, firsts = compare(sides, operation, rounds)
    moved = ours[0].bytes_moved() - before
    for key, side in sides.items():
        spread, first = result[key], summarise(firsts[key])
        copied = moved if isinstance(side, Ours) else side.moved(operation)
        text = f"{side.length:>6} {side.name:<13} {operation:<7} {spread}   first {human(first.median):>8}"
        text += f"   {copied / 2**20:7.1f} MiB" if copied else "         0 bytes"
        values: dict[str, Any] = {"timing": spread, "first": first, "bytes": copied}
        if side.name != "kvtrie":
            values["ratio"] = result.ratio(key, to=f"{side.length:>6} kvtrie")
            text += f"   {values['ratio'].median:.3g} x kvtrie"
        report.row(text, operation=operation, system=side.name, length=side.length, **values)
    for name in dict.fromkeys(side.name for side in sides.values()):
        growth = result.ratio(f"{LENGTHS[-1]:>6} {name}", to=f"{LENGTHS[0]:>6} {name}")
        report.row(f"{operation:<7} {name:<13} 64k / 1k: {growth}", operation=operation, system=name, growth=growth)


def memory(report: Report, kinds: list[Any]) -> None:
    """Peak memory of the branches, a fresh process for each side."""
    names = {kind.name for kind in kinds}
    for side in MEMORY_SIDES:
        if side.split(",")[0] not in names:
            continue
        done = subprocess.run(
            [sys.executable, __file__, "--memory-of", side], check=True, capture_output=True, text=True
        )
        grown = int(done.stdout.split()[-1])
        one = MEMORY_TOKENS * TOKEN_BYTES
        report.row(
            f"memory  {side:<18} {grown / 2**20:7.0f} MiB for {MEMORY_BRANCHES} branches at {MEMORY_TOKENS} tokens, "
            f"{grown / one:.2f} x one conversation",
            operation="memory",
            system=side,
            peak_bytes=grown,
        )


def peak_growth(side: str) -> int:
    """Bytes by which this process's peak grew from the bare system to the branches."""
    scratch = HuggingFace(1) if side == "transformers" else LlamaCpp(1024, 3) if "llama" in side else Ours(1024)
    scratch.close()  # libraries, kernels and thread pools are there
    start = resident("VmRSS")
    conversation = MEMORY_SIDES[side]()
    (conversation.copies if side.endswith("states") else conversation.branches)(MEMORY_BRANCHES)
    return resident("VmHWM") - start


def resident(what: str) -> int:
    """Bytes of this process in memory: "VmRSS" now, "VmHWM" at most since it began (ru_maxrss counts its parent's)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def main() -> None:
    """A row for each operation, length and system; then the memory of branches."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--memory-of", choices=MEMORY_SIDES, help="print the bytes one side's branches take, and end")
    options = parser.parse_args()
    if options.memory_of:
        print(peak_growth(options.memory_of))
        return
    report = Report("branch, rewind, switch, resume: time and K/V bytes copied", options.json)
    kinds = systems()
    for absent in {"LlamaCpp", "HuggingFace"} - {kind.__name__ for kind in kinds}:
        report.note(f"{absent} is not installed (./dev peers): left out")
    sides = {f"{length:>6} {kind.name}": kind(length) for length in LENGTHS for kind in kinds}
    report.device(next(iter(sides.values())).device)
    for operation in OPERATIONS:
        show(report, operation, sides, options.rounds)
    for side in sides.values():
        side.close()
    memory(report, kinds)
    report.close(draw)


def draw(axes: Any, rows: Rows) -> None:
    """Time over tokens: a colour for each system, a line style for each operation."""
    timed = [row for row in rows if "timing" in row]
    styles = dict(zip(OPERATIONS, ("-", "--", "-.", ":")))
    for place, system in enumerate(dict.fromkeys(row["system"] for row in timed)):
        for operation, style in styles.items():
            own = [row for row in timed if (row["system"], row["operation"]) == (system, operation)]
            medians = [row["timing"]["median"] * 1e6 for row in own]
            lengths = [row["length"] for row in own]
            axes.plot(lengths, medians, style, color=f"C{place}", marker=".", label=f"{system}, {operation}")
    axes.axhline(20, color=GUIDE, linewidth=0.8, zorder=0)
    axes.set(xscale="log", yscale="log", xlabel="tokens in the conversation", ylabel="microseconds")
    lengths = sorted({row["length"] for row in timed})
    axes.set_xticks(lengths, [f"{length // 1024}k" for length in lengths], minor=False)
    axes.set_xticks([], minor=True)
    middle = (lengths[0] * lengths[-1]) ** 0.5
    axes.text(middle, 24, "goal: 20 us", ha="center", va="bottom", fontsize=7, color=SOFT)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))


if __name__ == "__main__":
    main()
