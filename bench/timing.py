"""The one timer of all benches: warm-up, repeats, medians and spread, and the machine's name.

A bench answers one question and prints both sides of it. This machine or that is noisy: read the ratios of one run.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Timing:
    """Seconds of one thing measured: median and the middle half of the repeats."""

    median: float
    low: float
    high: float
    repeats: int

    def __str__(self) -> str:
        return f"{human(self.median):>9} ({human(self.low)} .. {human(self.high)}, n={self.repeats})"


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
    before: Callable[[], Any] | None = None,
    after: Callable[[Any], Any] | None = None,
) -> Timing:
    """Time ``call``; ``before`` and ``after`` (given call's result) run outside the clock."""
    samples = []
    for index in range(warm_up + repeats):
        if before is not None:
            before()
        start = time.perf_counter()
        result = call()
        elapsed = time.perf_counter() - start
        if after is not None:
            after(result)
        if index >= warm_up:
            samples.append(elapsed)
    return summarise(samples)


def summarise(samples: Iterable[float]) -> Timing:
    """Median and quartiles of samples that were taken elsewhere."""
    ordered = sorted(samples)
    quarter = len(ordered) // 4
    return Timing(statistics.median(ordered), ordered[quarter], ordered[-1 - quarter], len(ordered))


def machine() -> str:
    """What the figures were taken on."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    import os

    return f"{name}, {os.cpu_count()} cores, {platform.system()} {platform.release().split('-')[0]}"


class Report:
    """Prints a bench's rows as they come and writes them as JSON when ``--json FILE`` was given."""

    def __init__(self, question: str) -> None:
        self.question = question
        self.rows: list[dict[str, Any]] = []
        print(question)
        print(f"  on {machine()}")

    def device(self, device: Any) -> None:
        """Name the OpenCL device the figures belong to."""
        print(f"  device {device.name} ({device.kind})")
        self.rows.append({"device": device.name})

    def row(self, text: str, **values: Any) -> None:
        """One line for people and the same figures for programs."""
        print("  " + text)
        self.rows.append({key: asdict(value) if isinstance(value, Timing) else value for key, value in values.items()})

    def close(self) -> None:
        """Write the JSON file when one was asked for."""
        if "--json" in sys.argv:
            path = Path(sys.argv[sys.argv.index("--json") + 1])
            path.write_text(json.dumps({"question": self.question, "machine": machine(), "rows": self.rows}, indent=2))
