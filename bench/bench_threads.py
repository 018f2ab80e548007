"""What does it bring that each of the driver's threads is bound to a processor (csrc/ops/driver_threads.h)?

Greedy steps of one conversation, each by itself on the clock, on random models at two histories: with threads bound,
as ``kv.Device`` does it, and left where the system puts them (POCL_AFFINITY=0). A process has one or the other, so each
sample is a process, in turns. Once its steps follow each other, and once each few come after a pause, as answers do.

``--beside N``: as many other processes keep a processor busy each.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench_decode import Ours
from random_models import build
from report import Report, arguments
from timing import human, summarise

KINDS = ("tiny", "dense-28m")
HISTORIES = (16, 2048)
PAUSES = (0.0, 0.03)  # seconds
RUNS, WARM, STEPS = 12, 6, 32
SIDES = {"bound": {}, "left": {"POCL_AFFINITY": "0"}}


def steps(kind: str) -> list[dict[str, Any]]:
    """Median and 90 % of the seconds of a step, in this process."""
    model, found = build(kind, dtype="float16"), []
    for history in HISTORIES:
        random = np.random.default_rng(history)
        prompt = random.integers(3, model.config.vocab_size, history, dtype=np.int32)
        ours = Ours(model, prompt, prompt[:1])
        for pause in PAUSES:
            seconds = [each for _ in range(RUNS) for each in run(ours, pause)]
            half, most = np.percentile(seconds, [50, 90])
            found.append({"history": history, "pause": pause, "median": float(half), "p90": float(most)})
        ours.cache.close()
    return found


def run(ours: Ours, pause: float) -> Iterator[float]:
    """Each step's seconds."""
    ours.cut(1)
    time.sleep(pause)
    ours.run(WARM)
    for _ in range(STEPS):
        begun = time.perf_counter()
        ours.run(1)
        yield time.perf_counter() - begun


def child(kind: str, variables: dict[str, str]) -> list[dict[str, Any]]:
    """The same in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "POCL_AFFINITY"} | variables
    done = subprocess.run(
        [sys.executable, __file__, "--child", kind], check=True, capture_output=True, text=True, env=environment
    )
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Other processes, each on a processor."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure(report: Report, kind: str, rounds: int) -> None:
    runs: dict[str, list[list[dict[str, Any]]]] = {side: [] for side in SIDES}
    for index in range(rounds + 1):
        for side, variables in SIDES.items():
            found = child(kind, variables)
            if index > 0:  # the first ones compile
                runs[side].append(found)
    for at, case in enumerate(runs["bound"][0]):
        values, ratios = {}, {}
        for what in ("median", "p90"):
            values[what] = {side: summarise(each[at][what] for each in runs[side]) for side in SIDES}
            ratios[what] = summarise(
                left[at][what] / bound[at][what] for bound, left in zip(runs["bound"], runs["left"], strict=True)
            )
        halves, most = values["median"], values["p90"]
        report.row(
            f"{kind:<10} history {case['history']:<5} pause {human(case['pause']):>6}   bound"
            f" {human(halves['bound'].median):>7} (90 %: {human(most['bound'].median)}), left"
            f" {human(halves['left'].median):>7} ({human(most['left'].median)})   left takes"
            f" {ratios['median'].median:.2f} x ({ratios['median'].low:.2f} .. {ratios['median'].high:.2f}),"
            f" 90 %: {ratios['p90'].median:.2f} x ({ratios['p90'].low:.2f} .. {ratios['p90'].high:.2f})",
            model=kind,
            history=case["history"],
            pause=case["pause"],
            **{side: halves[side] for side in SIDES},
            **{f"{side}_p90": most[side] for side in SIDES},
            ratio=ratios["median"],
            ratio_p90=ratios["p90"],
        )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--beside", type=int, default=0, metavar="N", help="other processes that are busy")
    parser.add_argument("--child", choices=KINDS, help="measure in this process and print JSON")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(steps(options.child)))
        return
    report = Report("seconds of a decode step with the driver's threads bound and left alone", options.json)
    with busy(options.beside):
        for kind in options.kinds:
            measure(report, kind, options.rounds)
    report.close()


if __name__ == "__main__":
    main()
