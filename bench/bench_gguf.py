"""How fast is a quantised model that people have, beside llama.cpp on the same file and threads?

SmolLM2-135M-Instruct as its package ships it (matrices Q4_1, the embedding, which is the head as well, Q8_0). Ours once
for each way to keep the weights (``--dtype``; "stored": the file's own blocks wherever there is a kernel for them),
llama.cpp with and without flash attention, of which the faster counts, row by row. K and V are float16 on both sides.

    prefill      512 tokens into an empty cache, and the logits after the last
    decode       greedy steps after 16 and after 2,048 tokens
    shared       8 conversations at once that share 2,048 tokens
    memory       bytes of the weights, beside the file's size

Sides run in turns, as in bench_decode.py, which says what lies outside the clock. ``--case`` runs one of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import kvtrie as kv
import smollm2
from bench_decode import PAUSE, PEER, SETTINGS, Ours, Peer, agreement, launches_of, timed
from colours import GUIDE, INK
from report import Report, arguments, bar_of_ratio
from timing import Race, human, race

DTYPES = ("stored", "float16", "q8_0")
PROMPT = 512
CASES = {"prefill": (1, 0), "decode": (1, 16), "decode at 2k": (1, 2048), "shared 2k": (8, 2048)}  # batch, history
# Of llama.cpp's time over ours, with the file's own blocks; and of the file's size.
GOALS = {"prefill": 2.0, "decode": 1.2, "decode at 2k": 2.2, "shared 2k": 2.0}
MEMORY = 1.05


class OurPrefill:
    """A prompt into a cache that holds nothing."""

    def __init__(self, model: Any, prompt: np.ndarray) -> None:
        model.warm_up()
        self._model, self._prompt = model, prompt
        self._caches = model.caches(capacity=len(prompt) + 64)

    def __call__(self) -> float:
        with kv.PrefixCache(self._caches, host_bytes=0) as cache:
            time.sleep(PAUSE)
            start = time.perf_counter()
            with cache.begin(self._prompt, publish=False) as session:
                for step in session.prefill():
                    logits = self._model(step)
                np.asarray(logits)
                return time.perf_counter() - start


class PeerPrefill:
    """The same with llama.cpp."""

    def __init__(self, model: Any, prompt: np.ndarray, flash: bool) -> None:
        self._prompt = prompt
        self._context = model.context(tokens=len(prompt) + 64, flash_attention=flash)

    def __call__(self) -> float:
        self._context.clear()
        time.sleep(PAUSE)
        start = time.perf_counter()
        self._context.prefill(0, self._prompt)
        self._context.logits()
        return time.perf_counter() - start

    def close(self) -> None:
        self._context.close()


def prefill_sides(ours: dict[str, Any], theirs: Any, prompt: np.ndarray) -> tuple[dict[str, Any], list[Any]]:
    """Calls that return seconds, by side, and what is to be closed."""
    sides: dict[str, Any] = {dtype: OurPrefill(model, prompt[:PROMPT]) for dtype, model in ours.items()}
    peers = {name: PeerPrefill(theirs, prompt[:PROMPT], on) for name, on in SETTINGS.items()} if theirs else {}
    return {**sides, **peers}, list(peers.values())


def report_case(report: Report, case: str, took: Race, dtypes: list[str], notes: Callable[[str, str], str]) -> None:
    """One row for each dtype, beside llama.cpp's better setting."""
    batch, history = CASES[case]
    tokens = PROMPT if case == "prefill" else batch
    peers = [name for name in SETTINGS if name in took.samples]
    best = min(peers, key=lambda name: took[name].median) if peers else None
    for dtype in dtypes:
        figures: dict[str, Any] = {"kvtrie": took[dtype]}
        text = f"{case:<13} {dtype:<8} ours {took[dtype]} = {tokens / took[dtype].median:.0f}/s"
        if best is not None:
            ratio, goal = took.ratio(best, to=dtype), GOALS[case] if dtype == "stored" else None
            figures.update({"setting": best, "peer": took[best], "ratio": ratio, "goal": goal})
            text += f"   {PEER}, {best}, {took[best]} = {tokens / took[best].median:.0f}/s   it takes {ratio}"
            text += f", goal {goal}: {'met' if ratio.median >= goal else 'missed'}" if goal else ""
            text += notes(dtype, best)
        report.row(text, case=case, dtype=dtype, batch=batch, history=history, tokens=tokens, **figures)


def measure_prefill(report: Report, ours: dict[str, Any], theirs: Any, text: np.ndarray, rounds: int) -> None:
    sides, opened = prefill_sides(ours, theirs, text)
    took = race(sides, rounds=rounds, warm_up=1, clocked=tuple(sides))
    report_case(report, "prefill", took, list(ours), lambda *_: "")
    for each in opened:
        each.close()


def measure_decode(report: Report, ours: dict[str, Any], theirs: Any, text: np.ndarray, rounds: int, case: str) -> None:
    batch, history = CASES[case]
    firsts = text[history : history + batch]
    own = {dtype: Ours(model, text[:history], firsts) for dtype, model in ours.items()}
    peers = {name: Peer(theirs, text[:history], firsts, on) for name, on in SETTINGS.items()} if theirs else {}
    awake: list[float] = []
    sides = {name: timed(side, batch, awake) for name, side in {**own, **peers}.items()}
    took = race(sides, rounds=rounds, warm_up=1, clocked=tuple(sides))

    def notes(dtype: str, best: str) -> str:
        same, worst = agreement(own[dtype], peers[best], batch)
        return (
            f"   {launches_of(own[dtype], batch):.0f} launches, next tokens equal {same:.0%}, logits within {worst:.2g}"
        )

    report_case(report, case, took, list(ours), notes)
    for side in own.values():
        side.cache.close()
    for peer in peers.values():
        peer.close()


def load(report: Report, file: Path, dtypes: list[str]) -> dict[str, Any]:
    """Our models, and one row for the memory of each."""
    models, size = {}, file.stat().st_size
    for dtype in dtypes:
        start = time.perf_counter()
        model = kv.models.load(file, dtype=dtype)
        took, ratio = human(time.perf_counter() - start), model.nbytes / size
        text = f"memory        {dtype:<8} {model.nbytes / 2**20:.1f} MiB of weights, {ratio:.2f} of the file"
        text += f", loaded in {took}"
        goal = MEMORY if dtype == "stored" else None
        text += f", goal {goal}: {'met' if ratio <= goal else 'missed'}" if goal else ""
        report.row(text, case="memory", dtype=dtype, nbytes=model.nbytes, file=size, ratio=ratio, goal=goal)
        models[dtype] = model
    return models


def draw(axes: Any, rows: list[dict[str, Any]]) -> None:
    """How many times as fast as llama.cpp, for each case and dtype, and the goals."""
    cases = [case for case in CASES if any(row["case"] == case and "ratio" in row for row in rows)]
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    for offset, dtype in enumerate(dtypes):
        for place, case in enumerate(cases):
            found = [row for row in rows if row["case"] == case and row["dtype"] == dtype]
            for row in found:
                ratio, at = row["ratio"], place + (offset - (len(dtypes) - 1) / 2) * 0.8 / len(dtypes)
                label = dtype if place == 0 else None
                bar_of_ratio(axes, at, ratio, 0.8 / len(dtypes), color=f"C{offset}", label=label)
    for place, case in enumerate(cases):
        axes.plot(
            [place - 0.45, place + 0.45],
            [GOALS[case]] * 2,
            color=INK,
            linestyle=":",
            label="goal" if place == 0 else None,
        )
    axes.axhline(1.0, color=GUIDE, linewidth=0.8)
    axes.set_xticks(range(len(cases)), cases)
    axes.set_ylabel(f"times as fast as {PEER}")
    axes.legend()


def main() -> None:
    """One row for each case and dtype."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--case", choices=CASES, action="append", help="only this one")
    parser.add_argument("--dtype", action="append", help=f"how ours keeps the weights (default: {', '.join(DTYPES)})")
    parser.add_argument("--file", type=Path, default=None, help="another GGUF file with a tokenizer")
    options = parser.parse_args()
    try:
        file = options.file or smollm2.path()
    except FileNotFoundError as error:
        print(error)
        return
    report = Report(f"a quantised model beside {PEER}: {file.name}", options.json)
    report.device(kv.Device())
    ours = load(report, file, options.dtype or list(DTYPES))
    text = np.array(next(iter(ours.values())).tokenizer.encode(smollm2.text()), np.int32)
    from peers import llama

    theirs = llama.Model(file) if llama.installed() else None
    if theirs is None:
        report.note(f"{PEER} is left out: ./dev peers installs it")
    else:
        report.note(f"memory        {PEER} {theirs.nbytes / 2**20:.1f} MiB, its mapping of the file")
    for case in options.case or CASES:
        if case == "prefill":
            measure_prefill(report, ours, theirs, text, options.rounds)
        else:
            measure_decode(report, ours, theirs, text, options.rounds, case)
    if theirs is not None:
        theirs.close()
    report.close(draw)


if __name__ == "__main__":
    main()
