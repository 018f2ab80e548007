"""The one timer of all benches: warm-up, repeats, medians and spread, and the machine's name.

This machine or that is noisy. Sides that are compared run in turns (:func:`race`), so that what disturbs one disturbs
the others alike, and a ratio is the median of the ratios of the rounds.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Spread:
    """A number measured several times: its median and the middle half."""

    median: float
    low: float
    high: float
    repeats: int


class Timing(Spread):
    """Seconds of one thing measured."""

    def __str__(self) -> str:
        return f"{human(self.median):>9} ({human(self.low)} .. {human(self.high)}, n={self.repeats})"


class Ratio(Spread):
    """How many times as long one side takes as another."""

    def __str__(self) -> str:
        return f"{self.median:.2f} x ({self.low:.2f} .. {self.high:.2f})"


def human(seconds: float) -> str:
    """Seconds with a unit people read."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def measure(
    call: Callable[[], Any],
    *,
    repeats: int = 50,
    warm_up: int = 5,
    calls: int = 1,
    before: Callable[[], Any] | None = None,
    after: Callable[[Any], Any] | None = None,
) -> Timing:
    """Time ``call``; ``before`` and ``after`` (given call's result) run outside the clock.

    ``calls``: how often it is called on one reading of the clock, for what takes less than some microseconds.
    """
    samples = []
    for index in range(warm_up + repeats):
        if before is not None:
            before()
        start = time.perf_counter()
        for _ in range(calls):
            result = call()
        elapsed = (time.perf_counter() - start) / calls
        if after is not None:
            after(result)
        if index >= warm_up:
            samples.append(elapsed)
    return summarise(samples)


def processor_seconds(call: Callable[[], object], calls: int = 1) -> float:
    """Seconds of all threads of this process in a call: what else the machine does counts for little."""
    begin = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - begin) / calls


class Race:
    """The samples of sides that ran in turns; ``samples[side][round]`` in seconds."""

    def __init__(self, samples: Mapping[str, list[float]]) -> None:
        self.samples = samples

    def __getitem__(self, side: str) -> Timing:
        return summarise(self.samples[side])

    def ratio(self, side: str, to: str) -> Ratio:
        """Seconds of ``side`` over those of ``to``, round by round: above 1 means that ``to`` is faster."""
        return _middle(Ratio, [a / b for a, b in zip(self.samples[side], self.samples[to])])


def race(
    sides: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = 30,
    warm_up: int = 3,
    calls: int = 1,
    clocked: Iterable[str] = (),
) -> Race:
    """Time all sides in turns, one sample each a round, in an order that turns round every time.

    ``clocked``: sides that return the seconds they took, by their own clock (another process, a device's events).
    """
    own_clock = set(clocked)
    samples: dict[str, list[float]] = {side: [] for side in sides}
    for index in range(warm_up + rounds):
        for side in sorted(sides) if index % 2 else sorted(sides, reverse=True):
            start = time.perf_counter()
            for _ in range(calls):
                result = sides[side]()
            elapsed = (time.perf_counter() - start) / calls
            if index >= warm_up:
                samples[side].append(float(result) if side in own_clock else elapsed)
            result = None  # freed in nobody's time, not in that of the next side
    return Race(samples)


def summarise(samples: Iterable[float]) -> Timing:
    """Median and quartiles of samples that were taken elsewhere."""
    return _middle(Timing, samples)


def _middle(kind: Any, samples: Iterable[float]) -> Any:
    ordered = sorted(samples)
    quarter = len(ordered) // 4
    return kind(statistics.median(ordered), ordered[quarter], ordered[-1 - quarter], len(ordered))


# By the processor's flag, widest first.
LEVELS = {"avx512f": "avx512", "avx2": "avx2", "sse4_2": "sse4", "asimd": "neon"}


def machine() -> str:
    """What the figures were taken on."""
    name = _processor("model name") or platform.processor() or platform.machine()
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    level = f"{lesser_level()} on {_widest()}" if lesser_level() else _widest()
    return f"{name} ({level}), {os.cpu_count()} cores, {system}"


def processor_level() -> str:
    """The widest vectors that both sides may use, as a name for figures that hang on it; else the architecture."""
    return lesser_level() or _widest()


def lesser_level() -> str:
    """The level below the processor's own that both sides are held to, by ``./dev bench --as LEVEL``; else ""."""
    return os.environ.get("KVTRIE_BENCH_LEVEL", "")


def openblas_kernels_wanted() -> str | None:
    """The OPENBLAS_CORETYPE of its best kernels for ``processor_level()``; None where it chooses them itself."""
    return {"avx512": "SkylakeX", "avx2": "Haswell" if lesser_level() else None}.get(processor_level())


def _widest() -> str:
    flags = (_processor("flags") or _processor("Features")).split()
    return next((level for flag, level in LEVELS.items() if flag in flags), platform.machine())


def _processor(what: str) -> str:
    """What the system says of the first processor, "" where it says nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(what)), "")
