"""What does the distance to a shared store cost a prompt that it has?

A prompt of 16 blocks of 256 tokens lies in a store of this process, whose every call takes as long as a round trip to a
server would. It is fetched by `begin` with a store that answers one key at a time, and with one that answers many, in
turns; K and V are small (128 bytes a token), so that round trips are what is measured.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Optional

import numpy as np

import kvtrie as kv
from report import Report, Rows, arguments
from timing import race

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "python"))
from fakes import CodingModel, make_cache, run

TOKENS = [(11 * i) % 3000 for i in range(16 * 256 + 40)]
MILLISECONDS = (0.2, 1.0, 5.0)


class Far:
    """A dict at a distance."""

    def __init__(self, values: dict[str, bytes], seconds: float) -> None:
        self.values, self.seconds = values, seconds
        self.calls = self.fetches = 0

    def get(self, key: str) -> Optional[bytes]:
        self._travel()
        return self.values.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def delete(self, key: str) -> None:
        self.values.pop(key, None)

    def _travel(self) -> None:
        self.calls += 1
        time.sleep(self.seconds)


class FarTogether(Far):
    """One that answers many keys at once."""

    def get_many(self, keys: list[str], most: int, seconds: Optional[float]) -> list[Optional[bytes]]:  # noqa: ARG002
        self._travel()
        return [self.values.get(key) for key in keys]


def open_cache(store: Any) -> kv.PrefixCache:
    """With room for the prompt in every tier."""
    return make_cache(
        capacity=8192, device="host", host_bytes="64MiB", store=store, fingerprint="f", store_deadline=None
    )


def fetch(store: Far) -> float:
    """Seconds of a `begin` of a new cache."""
    with open_cache(store) as cache:
        store.calls = 0
        start = time.perf_counter()
        with cache.begin(TOKENS) as session:
            taken = time.perf_counter() - start
            store.fetches = store.calls  # closing sends in the background
            assert session.reused == len(TOKENS) - 1
        return taken


def main() -> None:
    """A row for each distance."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    report = Report("a prompt of 16 blocks out of a shared store", options.json)
    filled = Far({}, 0.0)
    with open_cache(filled) as cache:
        run(cache, TOKENS, CodingModel(check=False))
        assert cache.flush()
    report.note("ms a call    one at a time   together ms   calls of each")
    for milliseconds in MILLISECONDS:
        sides = {kind.__name__: kind(filled.values, milliseconds / 1000) for kind in (Far, FarTogether)}
        times: dict[str, list[float]] = {name: [] for name in sides}
        race(
            {name: lambda name=name: times[name].append(fetch(sides[name])) or times[name][-1] for name in sides},
            rounds=options.rounds,
            warm_up=1,
            clocked=tuple(sides),
        )
        taken = {name: 1000 * float(np.median(times[name][1:])) for name in sides}
        calls = {name: side.fetches for name, side in sides.items()}
        report.row(
            f"{milliseconds:9.1f}   {taken['Far']:14.1f}   {taken['FarTogether']:11.1f}   "
            f"{calls['Far']} and {calls['FarTogether']}",
            milliseconds=milliseconds,
            taken=taken,
            calls=calls,
        )
    report.close(draw)


def draw(axes: Any, rows: Rows) -> None:
    """Milliseconds for each distance, both ways."""
    for place, name in enumerate(("Far", "FarTogether")):
        at = [index + 0.4 * place - 0.2 for index in range(len(rows))]
        axes.bar(at, [row["taken"][name] for row in rows], 0.38, label=("one at a time", "together")[place])
    axes.set_xticks(range(len(rows)), [f"{row['milliseconds']:g}" for row in rows])
    axes.set(ylabel="ms of begin", xlabel="ms of a call of the store")
    axes.legend()


if __name__ == "__main__":
    main()
