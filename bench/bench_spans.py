"""What do spans cost? Decode attention over one history that lies in spans of 16, 64 or 256 cells, or whole.

The spans are real: two sessions prefill in turns, so that each one's cells lie in runs of the chunk's length. Both
sides read the same number of keys in one step; "whole" is the same history prefilled alone. Goal: at most 10 % lost at
64.
"""

from __future__ import annotations

import numpy as np

import kvtrie as kv
from report import Report, arguments
from timing import Timing, measure

KV_HEADS, GROUP, DIM = 8, 4, 128
SPANS = (16, 64, 256, 0)  # 0: whole


def fragmented(length: int, span: int, dtype: str) -> tuple[kv.PrefixCache, kv.Session]:
    """A session of ``length`` computed tokens whose cells lie in spans of ``span``."""
    cache = kv.PrefixCache(
        kv.CausalCache([0], KV_HEADS, DIM, 2 * length + 4096, dtype=dtype), host_bytes=0, growth=0 if span else 256
    )
    random = np.random.default_rng(0)
    sessions = [cache.begin(random.integers(0, 1000, length, dtype=np.int32)) for _ in range(2 if span else 1)]
    chunk = span or length
    prefills = [session.prefill(chunk=chunk) for session in sessions]
    for _ in range(-(-length // chunk)):
        for prefill in prefills:
            step = next(prefill)
            shape = (len(step.tokens), KV_HEADS, DIM)
            step.put(0, random.standard_normal(shape, np.float32), random.standard_normal(shape, np.float32))
    return cache, sessions[0]


def decode(session: kv.Session, length: int, repeats: int) -> Timing:
    """Seconds of one decode step's attention, the device waited for."""
    random = np.random.default_rng(1)
    q = kv.tensor(random.standard_normal((1, KV_HEADS * GROUP, DIM), np.float32))
    k = kv.tensor(random.standard_normal((1, KV_HEADS, DIM), np.float32))
    steps: list[kv.Step] = []

    def before() -> None:
        session.append(1)
        steps.append(session.decode())

    def after(_: object) -> None:
        steps.clear()
        session.rewind(length)

    return measure(lambda: steps[-1].attend(0, q, k, k).numpy(), repeats=repeats, before=before, after=after)


def main() -> None:
    """Print one row for each dtype, length and span length."""
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--lengths", type=int, nargs="*", default=[4096, 16384])
    options = parser.parse_args()
    report = Report(
        f"decode attention over spans, {KV_HEADS * GROUP} heads, {KV_HEADS} kv heads, dim {DIM}", options.json
    )
    report.device(kv.Device())
    for dtype in ("float32", "float16"):
        for length in options.lengths:
            timings = {}
            for span in SPANS:
                cache, session = fragmented(length, span, dtype)
                timings[span] = decode(session, length, options.repeats)
                session.close()
                cache.close()
            size = 2 * length * KV_HEADS * DIM * (4 if dtype == "float32" else 2)
            for span, timing in timings.items():
                report.row(
                    f"{dtype} {length:>6} tokens  span {span or 'whole':>5}  {timing}  "
                    f"{size / timing.median / 1e9:5.1f} GB/s  {timing.median / timings[0].median:.2f} x whole",
                    dtype=dtype,
                    length=length,
                    span=span,
                    timing=timing,
                )
    report.close()


if __name__ == "__main__":
    main()
