"""How near does a decode step of recurrent layers come to the memory, whose states it reads and writes?

One row of each of 8 conversations, over as many layers as have 256 MiB of states together, so that they come from
memory; new states go where those of the layer before last went:

ssd     the scan of Mamba-2, 32 heads of 64 x 128
delta   the gated delta rule, 16 heads of 128 x 128
conv    a convolution of 4 taps over 6,144 channels

The seconds are those of the kernels by the device's own clock, as a model's step launches all of them at once; a
convolution's states take less time than launching it alone. In turns with two threads that add up as many bytes
(``read``), and with two that rewrite them, layer by layer to the same places (``rewrite``; bench/yardsticks/read.cpp).
The rate counts each state twice, as read and as written: rewriting says how much of the read rate that can be.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

import kvtrie as kv
from bench_matmul import Reader
from built import built
from gpu.rows import open_device
from report import Report, arguments
from timing import Race, Spread, race

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


class Share(Spread):
    """One rate of another."""

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} .. {self.high:.2f})"


class Rewriter:
    """Rewrites ``numbers`` with two threads, ``each`` of them to one of two places in turns; a call gives seconds."""

    def __init__(self, numbers: np.ndarray, each: int) -> None:
        self._rewrite = ctypes.CDLL(str(built("yardstick_read"))).rewrite_yardstick
        self._rewrite.restype = ctypes.c_double
        self._numbers, self._each = numbers, each
        self._to = np.zeros(2 * each, np.float32)
        self.bytes = 8 * (numbers.size // each * each)

    def __call__(self) -> float:
        addresses = (ctypes.c_void_p(array.ctypes.data) for array in (self._numbers, self._to))
        return float(self._rewrite(*addresses, ctypes.c_size_t(self._numbers.size), ctypes.c_size_t(self._each)))


class Layers:
    """A step through all layers; a call gives the seconds of its kernels."""

    def __init__(self, kind: str, device: Any) -> None:
        random = np.random.default_rng(3)
        self._device, self._step = device, inputs_of(kind, random, device)
        shape = (CONVERSATIONS, *STATES[kind])
        zeros = np.zeros(shape, np.float32)
        self.numbers = zeros.size
        self._states = [kv.tensor(zeros, device=device) for _ in range(BYTES // zeros.nbytes)]
        self.bytes = 2 * zeros.nbytes * len(self._states)

    def __call__(self) -> float:
        self._device._take_launch_times()
        for states in self._states:
            self._step(states)
        return float(sum(each[5] - each[4] for each in self._device._take_launch_times())) / 1e9


def share_of(found: Race, yardstick: str, scale: float) -> Spread:
    """The rate of a step, which moves ``scale`` times the bytes of ``yardstick``, of that one's."""
    share = found.ratio(yardstick, to="step")
    return Share(share.median * scale, share.low * scale, share.high * scale, share.repeats)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    report = Report("decode steps of recurrent layers beside the memory's rate", options.json)
    device = open_device(times=True)
    report.device(device)
    numbers = np.ones(BYTES // 4, np.float32)
    read = Reader(numbers, 1)
    for kind in STATES:
        layers = Layers(kind, device)
        rewrite = Rewriter(numbers, layers.numbers)
        sides: dict[str, Any] = {"step": layers, "read": read, "rewrite": rewrite}
        found = race(sides, rounds=options.rounds, warm_up=2, clocked=tuple(sides))
        shares = {name: share_of(found, name, layers.bytes / sides[name].bytes) for name in ("read", "rewrite")}
        rates = ", ".join(f"{name} {side.bytes / found[name].median / 1e9:.1f}" for name, side in sides.items())
        text = (
            f"{kind:<6} {found['step']}  GB/s: {rates}   of reading {shares['read']}, of rewriting {shares['rewrite']}"
        )
        timings = {name: found[name] for name in sides}
        report.row(text, kind=kind, **timings, bytes=layers.bytes, share=shares["read"], of_rewrite=shares["rewrite"])
    report.close()


if __name__ == "__main__":
    main()
