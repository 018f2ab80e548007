"""How long does a user wait for the first token on a day of many chats, beside llama.cpp's server?

The day (workload.py): 35 % next turns, 35 % returns to another conversation or branch, 20 % edits and regenerated
answers, 10 % new conversations over a few shared system prompts. Three kinds of model with the same random weights on
both sides (random_models.py), float16 K/V, as many threads as cores, every answer greedy and of the asked length. All
engines run in processes of their own and are asked in turns, one at a time; each sees its own answers in later prompts.

Both have K/V for 16384 tokens and a host tier (theirs: --cache-ram) of the same cap. Our layers with a window have
cells for all of them, as llama.cpp's with --swa-full, and in a second row as few as llama.cpp's as shipped. The server
is run as its users would at their best: as shipped (4 slots that share the K/V, a prompt cache in RAM, checkpoints),
with 4 and 8 slots that keep what they hold, with --swa-full, and with checkpoints every 256 tokens. Its time to the
first token is that of the stream; what a request costs that computes nothing is taken off ("without HTTP").
Every fourth prompt is also computed by both with no cache, apart, on warm processes.

``--http``: ours is ``python -m kvtrie serve`` (served_engine.py). All sides load the same GGUF file, that of SmolLM2 as
the dense one, and are asked for the same day; its users say the same token ids to all three kinds. Times are those of
the stream on both sides, with nothing taken off. What our server cannot be asked for is left out: fewer cells for
windows, and no cache.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import random_models
import served_engine
import smollm2
from chat_engine import Engine
from peers import gguf_file, llama_server
from report import Report, Rows, arguments
from timing import human, summarise
from workload import Day

TOKENS, HOST_MIB, SEED = 16384, 512, 1
VOCABULARY = 4096  # ids that users say are below: all of the random models, the first ones of SmolLM2
KINDS = {"dense": "dense-28m", "window": "window", "hybrid": "hybrid"}
OUR_NAME, OUR_SMALL, OUR_BARE, THEIR_BARE = (
    "kvtrie",
    "kvtrie, 2560 window cells",
    "kvtrie, no cache",
    "llama.cpp, no cache",
)
# Our window layers have cells for all tokens, as with --swa-full, or as many as llama.cpp gives them as shipped.
OURS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    OUR_NAME: (("dense", "window", "hybrid"), {}),
    OUR_SMALL: (("window",), {"window_tokens": 2560}),
}
SLOTS = 16  # recurrent states of ours on the device
SETTINGS: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "llama.cpp as shipped": (("dense", "window", "hybrid"), []),
    "llama.cpp, no flash": (("dense", "window", "hybrid"), ["-fa", "off"]),
    "llama.cpp --swa-full": (("window",), ["--swa-full"]),
    "llama.cpp --swa-full, no flash": (("window",), ["--swa-full", "-fa", "off"]),
    "llama.cpp --swa-full, 8 slots": (("window",), ["--swa-full", "-np", "8", "-kvu", "--no-cache-idle-slots"]),
    "llama.cpp 4 slots": (("dense", "window", "hybrid"), ["-np", "4"]),
    "llama.cpp 8 slots": (("dense", "window", "hybrid"), ["-np", "8", "-kvu", "--no-cache-idle-slots"]),
    "llama.cpp checkpoints": (("window", "hybrid"), ["-cms", "256"]),
}
BARE_EVERY = 4
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Side:
    """An engine, its own day, and what was measured of it. Seconds and tokens, one entry for each request."""

    engine: Any
    day: Day | None
    first: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    reused: list[int] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    own: list[dict[str, float]] = field(default_factory=list)  # what our engine says beside
    idle: tuple[float, float] = (0.0, 0.0)  # seconds of CPU used while others were asked, and how long that took
    start: dict[str, int] = field(default_factory=dict)
    _left: tuple[float, float] | None = None

    def ask(self, prompt: list[int], count: int, operation: str) -> list[int]:
        """One request, measured."""
        now, used = time.perf_counter(), _cpu_seconds(self.engine.process.pid)
        if self._left is not None:
            self.idle = self.idle[0] + used - self._left[1], self.idle[1] + now - self._left[0]
        answer = self.engine.complete(prompt, count)
        found = answer if isinstance(answer, dict) else vars(answer)
        self.first.append(found["first"])
        self.total.append(found["total"])
        self.reused.append(found["reused"])
        self.prompt.append(len(prompt))
        self.operations.append(operation)
        self.own.append({part: found[part] for part in ("begin", "compute", "close", "moved") if part in found})
        self._left = time.perf_counter(), _cpu_seconds(self.engine.process.pid)
        return list(found["tokens"])

    def next(self) -> tuple[list[int], list[int]]:
        """The next request of its own day: prompt and answer."""
        assert self.day is not None
        request = self.day.next()
        tokens = self.ask(request.prompt, request.answer_length, request.operation)
        self.day.answer(tokens)
        return request.prompt, tokens

    def by_operation(self) -> dict[str, dict[str, float]]:
        """Requests, median seconds to the first token and tokens computed, for each operation."""
        found = {}
        for operation in dict.fromkeys(self.operations):
            at = [index for index, name in enumerate(self.operations) if name == operation]
            computed = sum(self.prompt[index] - self.reused[index] for index in at)
            median = statistics.median(self.first[index] for index in at)
            found[operation] = {"requests": len(at), "first": median, "computed": computed}
        return found

    def parts(self) -> dict[str, float]:
        """Of our engine: median seconds of finding and fetching, of computing, of closing; bytes paged in."""
        if not all(self.own):
            return {}
        found = {part: statistics.median(own[part] for own in self.own) for part in ("begin", "compute", "close")}
        return {**found, "moved": sum(own["moved"] for own in self.own)}


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def memory_mib(pid: int) -> dict[str, float]:
    """``now`` and ``peak``: resident memory of a process."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(lines[key].split()[0]) / 1024 for name, key in (("now", "VmRSS"), ("peak", "VmHWM"))}


def piped(kind: str, gguf: Path) -> Iterator[tuple[str, Side]]:
    """Every side of one kind, ours asked through pipes; ``gguf``: where the model is written for llama.cpp."""
    room = {"tokens": TOKENS, "host_mib": HOST_MIB}
    for name, (kinds, own) in OURS.items():
        if kind in kinds:
            yield name, Side(Engine(KINDS[kind], slots=SLOTS, **room, **own), Day(SEED, VOCABULARY))
    yield OUR_BARE, Side(Engine(KINDS[kind], slots=SLOTS, **room, use=False), None)
    if llama_server.installed() and gguf_file.package() is not None:
        yield from _peers(kind, _written(kind, gguf))
        yield THEIR_BARE, Side(llama_server.Server(gguf, ["-np", "1"], tokens=TOKENS, host_mib=0, cache=False), None)


def served(kind: str, gguf: Path) -> Iterator[tuple[str, Side]]:
    """Every side of one kind, all asked over HTTP; ``gguf``: where a random model is written for all of them."""
    file = smollm2.path() if kind == "dense" else _written(kind, gguf)
    engine = served_engine.Engine(file, tokens=TOKENS, host_mib=HOST_MIB)
    yield OUR_NAME, Side(engine, Day(SEED, VOCABULARY))
    if llama_server.installed():
        yield from _peers(kind, file)


def _written(kind: str, gguf: Path) -> Path:
    return gguf_file.write(random_models.config(KINDS[kind]), random_models.weights(KINDS[kind]), gguf)


def _peers(kind: str, gguf: Path) -> Iterator[tuple[str, Side]]:
    for name, (kinds, options) in SETTINGS.items():
        if kind in kinds:
            server = llama_server.Server(gguf, options, tokens=TOKENS, host_mib=HOST_MIB)
            yield name, Side(server, Day(SEED, VOCABULARY))


def _warm_up(side: Side) -> None:
    """What any first request pays once; both sides also keep these prompts, as they keep others."""
    prompt = list(range(300, 1100))
    for length in (800, 516, 530, 620, 90, 131):
        side.engine.complete(prompt[:length], 16)
    side.start = memory_mib(side.engine.process.pid)


def run(sides: dict[str, Side], requests: int) -> float:
    """The day on every side, in turns; the share of first tokens that agree where prompts are still equal."""
    agreed = compared = 0
    for index in range(requests):
        order = list(sides)
        order = order[index % len(order) :] + order[: index % len(order)]
        seen = {name: sides[name].next() for name in order if sides[name].day is not None}
        prompt, answer = seen[OUR_NAME]
        for other, tokens in seen.values():
            if other == prompt and tokens is not answer:
                agreed, compared = agreed + (tokens[0] == answer[0]), compared + 1
        if index % BARE_EVERY == 0:
            for name in order:
                if sides[name].day is None:
                    sides[name].ask(prompt, len(answer), sides[OUR_NAME].operations[-1])
    return agreed / compared if compared else 1.0


def overhead(sides: dict[str, Side]) -> float:
    """Seconds of a request to the server that carries a prompt of middle length and computes nothing."""
    servers = [side.engine for side in sides.values() if isinstance(side.engine, llama_server.Server)]
    if not servers:
        return 0.0
    length = int(statistics.median(sides[OUR_NAME].prompt))
    return summarise(servers[0].overhead(list(range(300, 300 + length)))).median


def rows(report: Report, kind: str, sides: dict[str, Side], agreed: float, cost: float | None) -> None:
    """One row for each side, and the one that decides. ``cost``: seconds of HTTP, taken off theirs; None: none are."""
    medians = {name: _net(name, side, cost) for name, side in sides.items()}
    for name, side in sides.items():
        without = "" if cost is None else f", without HTTP {human(medians[name])}"
        _row(report, kind, name, side, medians[name], without)
    rivals = [name for name in medians if name in SETTINGS]
    if not rivals:
        report.note("llama.cpp's server is not installed (./dev peers): left out")
        return
    if agreed < 0.8:
        raise RuntimeError(f"[bench_chats] {kind}: got {agreed:.0%} equal first tokens, allowed 80 % or more")
    best = min(rivals, key=lambda name: medians[name])
    ratio, shipped = medians[best] / medians[OUR_NAME], medians["llama.cpp as shipped"] / medians[OUR_NAME]
    costs = "" if cost is None else f"a request costs {human(cost)} without computing; "
    report.row(
        f"{kind:<7} {ratio:.2f} times faster at the median than {best}, the best of {len(rivals)}, "
        f"{shipped:.2f} times than as shipped; {costs}{agreed:.0%} of first tokens equal",
        kind=kind,
        best=best,
        ratio=ratio,
        ratio_to_shipped=shipped,
        overhead=cost,
        agreed=agreed,
    )


def _net(name: str, side: Side, cost: float | None) -> float:
    """Median seconds to the first token, a peer's without ``cost``."""
    paid = cost if cost is not None and name.startswith("llama.cpp") else 0.0
    return summarise(side.first).median - paid


def _row(report: Report, kind: str, name: str, side: Side, net: float, without: str) -> None:
    first, memory = summarise(side.first), memory_mib(side.engine.process.pid)
    held = side.engine.held_mib()
    values = {
        "p90": sorted(side.first)[len(side.first) * 9 // 10],
        "net": net,
        "recomputed": sum(side.prompt) - sum(side.reused),
        "prompt_tokens": sum(side.prompt),
        "total": sum(side.total),
        "peak_mib": memory["peak"],
        "grown_mib": memory["peak"] - side.start["now"],
        "device_mib": held["device"],
        "host_mib": held["host"],
        "idle": side.idle[0] / max(side.idle[1], 1e-3),
    }
    text = (
        f"{kind:<7} {name:<29} first token {first}, p90 {human(values['p90'])}{without}; "
        "{recomputed:>6} of {prompt_tokens} tokens computed; all {total:.1f} s; peak {peak_mib:.0f} MiB "
        "(+{grown_mib:.0f}), K/V {device_mib:.0f} + host {host_mib:.0f} MiB; idle {idle:.1%}".format(**values)
    )
    report.row(text, kind=kind, side=name, first=first, **values, operations=side.by_operation(), parts=side.parts())


# Ours blue, theirs warm, without a cache hollow.
COLOURS = {
    OUR_NAME: "#2a6f97",
    OUR_SMALL: "#4795bd",
    OUR_BARE: "#2a6f97",
    "llama.cpp as shipped": "#c8650f",
    "llama.cpp 4 slots": "#d4587f",
    "llama.cpp 8 slots": "#94790f",
    "llama.cpp checkpoints": "#8a3f8f",
    "llama.cpp --swa-full": "#b03a2e",
    "llama.cpp --swa-full, 8 slots": "#6b3a2a",
    THEIR_BARE: "#7a6c5d",
}


def draw(axes: Any, rows: Rows) -> None:
    """Grouped bars: median time to the first token of each side, by kind of model."""
    shown = [row for row in rows if "side" in row]
    kinds = list(dict.fromkeys(row["kind"] for row in shown))
    groups = {kind: {row["side"]: 1000 * row["net"] for row in shown if row["kind"] == kind} for kind in kinds}
    width = 0.86 / max(map(len, groups.values()))
    for name, colour in COLOURS.items():
        places, heights = [], []
        for at, kind in enumerate(kinds):
            present = [side for side in COLOURS if side in groups[kind]]
            if name in present:
                places.append(at + (present.index(name) - (len(present) - 1) / 2) * width)
                heights.append(groups[kind][name])
        if places:
            ground = "none" if name in (OUR_BARE, THEIR_BARE) else colour
            bars = axes.bar(places, heights, width * 0.9, label=name, color=ground, edgecolor=colour, linewidth=0.8)
            axes.bar_label(bars, fmt="%.0f", fontsize=6, padding=1)
    axes.set_yscale("log")
    axes.set_ylim(bottom=10)
    axes.set_yticks([10, 20, 50, 100, 200, 500], ["10", "20", "50", "100", "200", "500"])
    axes.minorticks_off()
    axes.set_xticks(range(len(kinds)), kinds)
    axes.set_ylabel("median time to first token [ms]")
    axes.legend(fontsize=7, ncols=4, loc="upper left", bbox_to_anchor=(-0.08, -0.08))


def measure(report: Report, kind: str, requests: int, http: bool) -> None:
    """The day of one kind on all its sides, which end with it."""
    sides: dict[str, Side] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, side in (served if http else piped)(kind, Path(folder) / "model.gguf"):
                sides[name] = side
            for side in sides.values():
                _warm_up(side)
            agreed = run(sides, requests)
            rows(report, kind, sides, agreed, None if http else overhead(sides))
        finally:
            for side in sides.values():
                side.engine.close()


def main() -> None:
    """Print one row for each side and kind, and the ratio to llama.cpp's best."""
    parser = arguments(__doc__)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--http", action="store_true", help="ours is kvtrie serve, and dense is SmolLM2")
    options = parser.parse_args()
    over = " over HTTP" if options.http else ""
    report = Report(f"a day of chats{over}: time to the first token", options.json)
    report.device(random_models.kv.Device())
    report.note(f"K/V for {TOKENS} tokens, host tier {HOST_MIB} MiB, {options.requests} requests, seed {SEED}")
    for kind in options.kinds:
        measure(report, kind, options.requests, options.http)
    report.close(draw)


if __name__ == "__main__":
    main()
