"""What is it worth that a small step is one launch? A decode step of each kind of model, replayed and launched.

Random models of random_models.py, float16, as many conversations as rows, each with a history of 32 tokens, or as
many as ``--history`` says; ``--kinds`` and ``--rows`` say which.
``replayed``: the recorded step in one launch; ``launched``: the same operations one by one. The logits have the same
bits (checked). A step ends when its logits are on the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kvtrie as kv
import random_models
from colours import GUIDE
from report import Report, Rows, arguments
from timing import race

KINDS = ("dense-28m", "window", "hybrid", "experts", "indexed", "blocks", "ngrams")
ROWS = (1, 8)
HISTORY = 32


class Conversations:
    """As many conversations as a step has rows, on a cache of their own."""

    def __init__(self, model: Any, rows: int, history: int) -> None:
        self.model = model
        self.cache = kv.PrefixCache(model.caches(max(4096, rows * (history + 512))))
        texts = [
            [(row + 1 + 17 * i) % 4096 if history > HISTORY else row + 1 for i in range(history)] for row in range(rows)
        ]
        self.sessions = [self.cache.begin(text, publish=False) for text in texts]
        self.token = 0
        for session in self.sessions:
            for step in session.prefill():
                model(step)

    def step(self, replays: bool) -> np.ndarray:
        """One token for each; float32 logits [rows, vocab]."""
        self.token += 1
        for row, session in enumerate(self.sessions):
            session.append((31 * self.token + 7 * row) % 4096)
        self.model.replays = replays
        return np.asarray(self.model(self.cache.batch(self.sessions)))


def compare(report: Report, kind: str, model: Any, rows: int, given: Any) -> None:
    """One row: what a step of so many rows takes both ways, and how many launches it is."""
    sides = {side: Conversations(model, rows, given.history) for side in ("replayed", "launched")}
    for _ in range(3):  # records, and proves what is recorded
        assert np.array_equal(sides["replayed"].step(True), sides["launched"].step(False))
    found = race(
        {side: lambda side=side: sides[side].step(side == "replayed") for side in sides},  # type: ignore[misc]
        rounds=given.rounds,
    )
    ratio, launches = found.ratio("launched", "replayed"), model.graphs.stats["launches"]
    report.row(
        f"{kind:<10} {rows} rows  replayed {found['replayed']}  launched {found['launched']}  {ratio}  "
        f"of {launches} launches",
        kind=kind,
        rows=rows,
        replayed=found["replayed"],
        launched=found["launched"],
        ratio=ratio,
        launches=launches,
    )


def draw(axes: Any, rows: Rows) -> None:
    """Launched over replayed, a group of bars for each model."""
    for offset, count in enumerate(ROWS):
        own = [row for row in rows if row["rows"] == count]
        places = [index + 0.4 * offset for index in range(len(own))]
        axes.bar(places, [row["ratio"]["median"] for row in own], 0.38, label=f"{count} rows")
    axes.set_xticks([index + 0.2 for index in range(len(KINDS))], KINDS)
    axes.axhline(1.0, color=GUIDE, linewidth=0.8)
    axes.set_ylabel("time launched / replayed")
    axes.legend()


def main() -> None:
    """Print a row for each kind of model and number of rows."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--rows", nargs="*", type=int, default=ROWS)
    parser.add_argument("--history", type=int, default=HISTORY)
    options = parser.parse_args()
    report = Report("a decode step of each kind of model, replayed and launched", options.json)
    report.device(kv.Device())
    if kv.Device().kind != "cpu":
        report.note("steps are replayed on CPU devices only")
        return
    for kind in options.kinds:
        for rows in options.rows:
            model = random_models.build(kind)
            model.warm_up()
            compare(report, kind, model, rows, options)
    report.close(draw)


if __name__ == "__main__":
    main()
