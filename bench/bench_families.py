"""How fast is each kind of layers, beside llama.cpp on the same file and threads?

One random model of each kind (family_models.py), its matrices in blocks of 8 bits, gpt-oss's experts in those of 4. K
and V are float16 on both sides, or with ``--kv-dtype q8_0`` blocks of 8 bits; llama.cpp with and without flash
attention (blocks want it), of which the faster counts, row by row.

    prefill        512 tokens into an empty cache, and the logits after the last
    decode 512     steps of one conversation behind 512 tokens, each with its logits
    decode 4096    the same behind 4,096

Sides run in turns. A sample of decoding is STEPS steps that go on from where the last sample ended, since states of
recurrent layers cannot be cut back; before it come a pause, in which the threads of the other side go to sleep, and
WARM steps. Both sides are fed the same tokens. That they compute the same is told by the logits: the greatest
difference, of the greatest logit, at the end of a prompt. llama.cpp rounds activations to 8 bits, ours to 16, with
``--precision fast`` to 8 as well.

``--parts`` lists instead which kernels the time of ours goes to, by the device's own clock: of a prompt, and of steps
behind it that are launched kernel by kernel. ``--clock cpu`` counts the processor's seconds of this process divided by
its threads: nearer to an idle machine's where others use it, though it charges llama.cpp for threads that spin.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import family_models
import kvtrie as kv
from bench_decode import PAUSE, PEER, SETTINGS
from colours import GUIDE, INK
from gpu.rows import by_kernel, open_device
from report import Report, arguments, bar_of_ratio
from timing import Race, race

PROMPT, HISTORIES = 512, (512, 4096)
WARM, STEPS = 3, 12
GOALS = {"prefill": 1.5, "decode": 1.2}
Clock = Callable[[], float]


def processor() -> float:
    """Seconds of all threads, as if they were shared out evenly."""
    return time.process_time() / len(os.sched_getaffinity(0))


CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": processor}


class Ours:
    """One conversation; ``last``: the logits after what was computed last, float32 [vocab]."""

    def __init__(self, model: Any, room: int, kept: str = "float16") -> None:
        self._model, self._caches = model, model.caches(capacity=room, dtype=kept, warm_up=False)
        self._cache: Any = None

    def prefill(self, prompt: np.ndarray) -> None:
        """``prompt`` into an empty cache."""
        self.close()
        self._cache = kv.PrefixCache(self._caches, host_bytes=0)
        self._session = self._cache.begin(prompt, publish=False)
        for step in self._session.prefill():
            logits = self._model(step)
        self.last = np.asarray(logits)

    def step(self, token: int) -> None:
        self._session.append(token)
        self.last = np.asarray(self._model(self._session.decode()))

    def close(self) -> None:
        if self._cache is not None:
            self._session.close()
            self._cache.close()


class Peer:
    """The same with llama.cpp."""

    def __init__(self, model: Any, room: int, flash: bool, kept: str) -> None:
        self._context = model.context(tokens=room, flash_attention=flash, kv_dtype=kept)

    def prefill(self, prompt: np.ndarray) -> None:
        self._context.clear()
        self._context.prefill(0, prompt)
        self.last, self._position = np.array(self._context.logits()), len(prompt)

    def step(self, token: int) -> None:
        self._context.decode([(0, self._position, [token])])
        self.last = np.asarray(self._context.logits())
        self._position += 1

    def close(self) -> None:
        self._context.close()


class Sides:
    """Both engines on one file, and random tokens."""

    def __init__(self, file: Path, peer: Any, clock: Clock, precision: str, kept: str) -> None:
        self.model = kv.models.load(file, precision=precision)
        self.model.warm_up()  # no helper compiles beside what is timed, and steps are replayed
        self._peer = None if peer is None else peer.Model(file)
        self._clock, self._kept = clock, kept

    def open(self, room: int) -> dict[str, Any]:
        """Blocks want flash attention in llama.cpp."""
        settings = {name: on for name, on in SETTINGS.items() if on or self._kept == "float16"}
        peers = {} if self._peer is None else settings
        theirs = {name: Peer(self._peer, room, on, self._kept) for name, on in peers.items()}
        return {"kvtrie": Ours(self.model, room, self._kept), **theirs}

    def tokens(self, count: int) -> np.ndarray:
        return np.random.default_rng(7).integers(3, self.model.config.vocab_size, count, np.int32)

    def prefill(self, side: Any, prompt: np.ndarray) -> Callable[[], float]:
        """Seconds of a prompt."""

        def sample() -> float:
            time.sleep(PAUSE)
            start = self._clock()
            side.prefill(prompt)
            return self._clock() - start

        return sample

    def decode(self, side: Any, prompt: np.ndarray, count: int) -> Callable[[], float]:
        """Seconds of a step, the next ``count`` samples."""
        side.prefill(prompt)
        tokens = iter(self.tokens(count * (WARM + STEPS)).tolist())

        def sample() -> float:
            time.sleep(PAUSE)
            for _ in range(WARM):
                side.step(next(tokens))
            start = self._clock()
            for _ in range(STEPS):
                side.step(next(tokens))
            return (self._clock() - start) / STEPS

        return sample

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()


def differences(sides: dict[str, Any]) -> dict[str, float]:
    """Of each peer's last logits from ours, of the greatest of ours."""
    ours = sides["kvtrie"].last.reshape(-1)
    return {
        name: float(np.abs(ours - sides[name].last).max() / np.abs(ours).max()) for name in SETTINGS if name in sides
    }


def report_case(report: Report, kind: str, case: str, history: int, took: Race, apart: dict[str, float]) -> None:
    tokens = PROMPT if case == "prefill" else 1
    named = case if case == "prefill" else f"{case} {history}"
    figures: dict[str, Any] = {"kvtrie": took["kvtrie"]}
    text = f"{kind:<8} {named:<12} ours {took['kvtrie']} = {tokens / took['kvtrie'].median:.0f}/s"
    if apart:
        best = min(apart, key=lambda name: took[name].median)
        ratio, goal = took.ratio(best, to="kvtrie"), GOALS[case]
        figures |= {"setting": best, "peer": took[best], "ratio": ratio, "goal": goal, "difference": apart[best]}
        text += f"   {PEER}, {best}, {took[best]} = {tokens / took[best].median:.0f}/s   it takes {ratio}, goal {goal}:"
        text += f" {'met' if ratio.median >= goal else 'missed'}   logits within {apart[best]:.2g}"
    report.row(text, kind=kind, case=case, history=history, tokens=tokens, **figures)


def measure(report: Report, kind: str, sides: Sides, cases: list[str], histories: Sequence[int], rounds: int) -> None:
    if "prefill" in cases:
        prompt, opened = sides.tokens(PROMPT), sides.open(PROMPT + 64)
        calls = {name: sides.prefill(side, prompt) for name, side in opened.items()}
        took = race(calls, rounds=rounds, warm_up=1, clocked=tuple(calls))
        report_case(report, kind, "prefill", 0, took, differences(opened))
        for side in opened.values():
            side.close()
    for history in histories if "decode" in cases else ():
        room = history + (rounds + 1) * (WARM + STEPS)
        prompt, opened = sides.tokens(history), sides.open(room + 64)
        calls = {name: sides.decode(side, prompt, rounds + 1) for name, side in opened.items()}
        apart = differences(opened)
        took = race(calls, rounds=rounds, warm_up=1, clocked=tuple(calls))
        report_case(report, kind, "decode", history, took, apart)
        for side in opened.values():
            side.close()


def parts(report: Report, kind: str, file: Path, device: Any, precision: str) -> None:
    """The kernels of a prompt and of steps behind it, of the fastest of three runs."""
    model = kv.models.load(file, device=device, precision=precision)
    model.replays = False  # a replayed step is one launch
    side = Ours(model, PROMPT + 64)
    prompt = np.random.default_rng(7).integers(3, model.config.vocab_size, PROMPT, np.int32)

    def steps() -> None:
        for token in range(3, 3 + STEPS):
            side.step(token)

    for case, work, each in (("prefill", lambda: side.prefill(prompt), 1), ("decode", steps, STEPS)):
        runs = []
        for _ in range(4 if case == "prefill" else 3):
            device._take_launch_times()
            work()
            runs.append(by_kernel(device._take_launch_times()))
        found = min(runs[1:], key=lambda rows: sum(row.us for row in rows))
        whole = sum(row.us for row in found)
        launches = sum(row.launches for row in found) / each
        text = f"{kind} {case}: {whole / each / 1e3:.2f} ms in {launches:.0f} kernels"
        report.row(text, kind=kind, case=case, us=whole / each, launches=launches)
        for row in found[:14]:
            text = f"  {row.kernel} {row.work_items} x {row.launches / each:.0f}"
            us = row.us / each
            report.row(f"{text:<44} {us / 1e3:7.3f} ms", kind=kind, case=case, kernel=row.kernel, us=us)
    side.close()


def draw(axes: Any, rows: list[dict[str, Any]]) -> None:
    """How many times as fast as llama.cpp, for each kind and case, and the goals."""
    rows = [row for row in rows if "ratio" in row]
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    cases = list(dict.fromkeys((row["case"], row["history"]) for row in rows))
    for row in rows:
        offset = cases.index((row["case"], row["history"]))
        at, ratio = kinds.index(row["kind"]) + (offset - 1) * 0.27, row["ratio"]
        name = row["case"] if row["case"] == "prefill" else f"decode behind {row['history']}"
        bar_of_ratio(axes, at, ratio, 0.27, color=f"C{offset}", label=name if row["kind"] == kinds[0] else None)
    for case, goal in GOALS.items():
        axes.axhline(goal, color=INK, linestyle=":", linewidth=0.8)
        axes.text(len(kinds) - 0.5, goal, f"goal, {case}", fontsize=7, va="bottom", ha="right")
    axes.axhline(1.0, color=GUIDE, linewidth=0.8)
    axes.set_xticks(range(len(kinds)), kinds)
    axes.set_ylabel(f"times as fast as {PEER}")
    axes.legend()


def main() -> None:
    """Three rows for each kind."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kind", choices=family_models.SHAPES, action="append", help="only this one")
    parser.add_argument("--case", choices=tuple(GOALS), action="append", help="only this one")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    parser.add_argument("--precision", choices=("auto", "fast", "exact"), default="auto", help="of our products")
    parser.add_argument("--kv-dtype", choices=("float16", "q8_0"), default="float16", help="of K and V, on both sides")
    parser.add_argument("--history", type=int, nargs="+", default=HISTORIES, help="tokens behind which steps decode")
    parser.add_argument("--parts", action="store_true", help="list the kernels of ours instead")
    parser.add_argument("--files", type=Path, help="a folder that keeps the models, to be written once")
    options = parser.parse_args()
    kept = f"precision {options.precision}, K and V {options.kv_dtype}"
    report = Report(f"kinds of layers beside {PEER}, {kept}", options.json)
    device = open_device(times=options.parts)
    report.device(device)
    from peers import gguf_file, llama

    if gguf_file.package() is None:
        report.note("left out: without the gguf package there are no files; ./dev peers installs it")
        return
    peer = llama if llama.installed() else None
    if peer is None and not options.parts:
        report.note(f"{PEER} is left out: ./dev peers installs it")
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.kind or family_models.SHAPES:
            file = family_models.file(kind, options.files or Path(folder))
            if options.parts:
                parts(report, kind, file, device, options.precision)
                continue
            other = peer if family_models.SHAPES[kind].peer else None
            sides = Sides(file, other, CLOCKS[options.clock], options.precision, options.kv_dtype)
            measure(report, kind, sides, options.case or list(GOALS), options.history, options.rounds)
            sides.close()
    report.close(draw)


if __name__ == "__main__":
    main()
