"""What do branch, rewind, stepping to another session and begin cost, and do they grow with the conversation?

Known cost: a node pointer, a list of spans and a lock for branch and rewind; for begin also one pass over the tokens.
Bytes are the device's own count of K/V moved (``Device.memory()["kv_bytes_moved"]``), not the planner's.
Targets: branch, rewind and the step to another live session under 20 us and at 64k tokens at most 1.3 times 1k;
begin on resident state 20 us + 1 ns a token from an int32 array.
"""

from __future__ import annotations

import numpy as np

import kvtrie as kv
from report import Report, arguments
from timing import Timing, human, measure

LAYERS = 8
LENGTHS = (1024, 4096, 16384, 65536)


def filled(cache: kv.PrefixCache, tokens: np.ndarray, dim: int) -> kv.Session:
    """A session whose whole prompt is computed; the K/V are zeros, since only the bookkeeping is timed here."""
    session = cache.begin(tokens)
    for step in session.prefill(chunk=4096):
        rows = np.zeros((len(step.tokens), 1, dim), np.float16)
        for layer in range(LAYERS):
            step.put(layer, rows, rows)
    return session


def main() -> None:
    """Print one row for each operation and length."""
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    repeats = options.repeats
    report = Report("branch, rewind, step to another session, begin: time and K/V bytes moved", options.json)
    device = kv.Device()
    report.device(device)
    dim = 16
    medians: dict[str, list[float]] = {}
    for length in LENGTHS:
        cache = kv.PrefixCache(kv.CausalCache(range(LAYERS), 1, dim, length + 1024), host_bytes=0)
        tokens = np.random.default_rng(length).integers(0, 32000, length, dtype=np.int32)
        session = filled(cache, tokens, dim)
        moved = device.memory()["kv_bytes_moved"]
        rows = {
            "branch": measure(session.branch, repeats=repeats, after=lambda twin: twin.close()),
            "rewind": measure_rewind(session, length, repeats),
            "step": measure_step(session, length, repeats),
            "begin": measure(lambda: cache.begin(tokens), repeats=repeats, after=lambda twin: twin.close()),
        }
        as_list = tokens.tolist()
        rows["begin, list"] = measure(lambda: cache.begin(as_list), repeats=20, after=lambda twin: twin.close())
        bytes_moved = device.memory()["kv_bytes_moved"] - moved
        for name, timing in rows.items():
            medians.setdefault(name, []).append(timing.median)
            report.row(
                f"{length:>6} tokens  {name:<12} {timing}   {bytes_moved} K/V bytes",
                length=length,
                name=name,
                timing=timing,
            )
        session.close()
        cache.close()
    for name, values in medians.items():
        report.row(f"{name:<12} 64k / 1k: {values[-1] / values[0]:.2f}   ({human(values[0])} -> {human(values[-1])})")
    report.close()


def measure_rewind(session: kv.Session, length: int, repeats: int) -> Timing:
    """Rewinding half way, each time on a fresh branch made outside the clock."""
    twins: list[kv.Session] = []
    return measure(
        lambda: twins[-1].rewind(length // 2),
        repeats=repeats,
        before=lambda: twins.append(session.branch()),
        after=lambda _: twins.pop().close(),
    )


def measure_step(session: kv.Session, length: int, repeats: int) -> Timing:
    """Claiming the cells of a decode step on a session that did not run last; the model's work is not in it."""
    return measure(
        session.decode,
        repeats=repeats,
        before=lambda: session.append(1),
        after=lambda _: session.rewind(length),
    )


if __name__ == "__main__":
    main()
