"""How near does a decode step of recurrent layers come to the memory, whose states it reads and writes?

One row of each of 8 conversations, over as many layers as have 256 MiB of states together, so that they come from
memory; in turns with two threads that add up as many bytes (bench/yardsticks/read.cpp):

ssd     the scan of Mamba-2, 32 heads of 64 x 128
delta   the gated delta rule, 16 heads of 128 x 128
conv    a convolution of 4 taps over 6,144 channels

The rate counts each state twice, as read and as written; a processor that fetches a line before it writes it moves half
as much again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import kvtrie as kv
from bench_matmul import Reader
from report import Report, arguments
from timing import race

CONVERSATIONS, BYTES, TAPS = 8, 256 << 20, 4
STATES = {"ssd": (32, 64, 128), "delta": (16, 128, 128), "conv": (TAPS - 1, 6144)}
STARTS = list(range(CONVERSATIONS))


def inputs_of(kind: str, random: np.random.Generator, device: Any) -> Callable[[Any], Any]:
    """The step of one layer, given its states."""

    def numbers(*shape: int) -> Any:
        return kv.tensor(random.uniform(0.0, 0.1, shape).astype(np.float32), device=device)

    if kind == "conv":
        x, weight = numbers(CONVERSATIONS, STATES[kind][1]), numbers(STATES[kind][1], TAPS)
        return lambda states: kv.ops.causal_conv1d(x, weight, states, STARTS)
    heads, width, dim = STATES[kind]
    values, gates = numbers(CONVERSATIONS, heads, width), numbers(CONVERSATIONS, heads)
    if kind == "ssd":
        a, d = numbers(heads), numbers(heads)
        b, c = numbers(CONVERSATIONS, 1, dim), numbers(CONVERSATIONS, 1, dim)
        return lambda states: kv.ops.ssd(values, gates, a, b, c, d, states=states, row_starts=STARTS)
    q, k = numbers(CONVERSATIONS, heads, dim), numbers(CONVERSATIONS, heads, dim)
    return lambda states: kv.ops.gated_delta(q, k, values, gates, gates, states, STARTS)


class Layers:
    """A step through all layers, waited for at its end."""

    def __init__(self, kind: str, device: Any) -> None:
        random = np.random.default_rng(3)
        self._device, self._step = device, inputs_of(kind, random, device)
        shape = (CONVERSATIONS, *STATES[kind])
        each = 4 * int(np.prod(shape))
        zeros = np.zeros(shape, np.float32)
        self._states = [kv.tensor(zeros, device=device) for _ in range(BYTES // each)]
        self.bytes = 2 * each * len(self._states)

    def __call__(self) -> None:
        for states in self._states:
            found = self._step(states)
        np.asarray(found[0])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    report = Report("decode steps of recurrent layers beside the memory's rate", options.json)
    device = kv.Device()
    report.device(device)
    read = Reader(np.ones(BYTES // 4, np.float32), 1)
    for kind in STATES:
        layers = Layers(kind, device)
        found = race({"step": layers, "read": read}, rounds=options.rounds, warm_up=2, clocked=("read",))
        scale = layers.bytes / read.bytes
        share = found.ratio("read", to="step")
        shares = {name: getattr(share, name) * scale for name in ("median", "low", "high")}
        rate, bandwidth = layers.bytes / found["step"].median / 1e9, read.bytes / found["read"].median / 1e9
        text = f"{kind:<6} {found['step']}  {rate:.1f} GB/s of {bandwidth:.1f} read: {shares['median']:.2f}"
        text += f" ({shares['low']:.2f} .. {shares['high']:.2f})"
        report.row(text, kind=kind, step=found["step"], read=found["read"], bytes=layers.bytes, share=shares)
    report.close()


if __name__ == "__main__":
    main()
