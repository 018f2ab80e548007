"""What the parts of a run on a GPU share: the file their figures go to, the device, and its time by kernel.

A part is a process of its own with a limit. Each figure is a line of JSON that is on disk before the next is taken, so
a part that is ended has lost nothing but what it was at. Sizes shrink where a CPU emulates a GPU: figures of one say
nothing about speed, that the parts run does.

Device time is the sum of what each launch took by the device's own clock (``Device._open_with_times``): kernels alone,
without what passes between them. Units: microseconds and bytes.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import kvtrie as kv
from timing import summarise

Launch = tuple[str, str, list[int], list[int], int, int]  # kernel, options, global, local, begun, ended


class Rows:
    """Figures of one part: printed for people, and a line of JSON each in ``file``."""

    def __init__(self, part: str, file: Path) -> None:
        self.part = part
        self._file = file
        self._begun = time.perf_counter()

    def say(self, text: str, **values: Any) -> None:
        """``text`` for people, if any, ``values`` for programs."""
        if text:
            print(text, flush=True)
        row = {"part": self.part, "at": round(time.perf_counter() - self._begun, 2), **values}
        with self._file.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def attempt(self, name: str, work: Callable[[], Any]) -> Any:
        """What ``work`` gives; where it fails that is a row, and the part goes on."""
        try:
            return work()
        except Exception as error:
            self.say(f"{name}: {type(error).__name__}: {str(error)[:300]}", what=name, error=str(error)[:2000])
            return None


def open_device(times: bool) -> Any:
    """The device of this process; ``times``: one that keeps the times of its launches."""
    chosen = kv._devices.select()
    if times:
        chosen._open_with_times()
    return kv.Device(chosen)


def is_gpu(device: Any) -> bool:
    """Whether it is one, and not emulated."""
    return bool(device.kind == "gpu" and "(as " not in device.name)


def device_us(device: Any, works: Sequence[Callable[[], Any]], repeats: int = 5) -> tuple[float, float]:
    """Device microseconds of one of ``works``: the median over rounds of all of them, and launches of one.

    The works of a round are alike but for what they read, so that none finds it in a cache.
    """
    works[0]()
    device._take_launch_times()
    found, launches = [], 0.0
    for _ in range(repeats):
        for work in works:
            work()
        times = device._take_launch_times()
        found.append(sum(each[5] - each[4] for each in times) / 1e3 / len(works))
        launches = len(times) / len(works)
    return summarise(found).median, launches


class ByKernel(NamedTuple):
    """Launches of one kernel with the same options and sizes."""

    kernel: str
    options: str
    work_items: list[int]
    group: list[int]
    launches: int
    us: float  # of all of them


def by_kernel(launches: Sequence[Launch]) -> list[ByKernel]:
    """Device time summed by kernel, the most first."""
    sums: dict[tuple[str, str, tuple[int, ...], tuple[int, ...]], list[float]] = {}
    for kernel, options, work_items, group, begun, ended in launches:
        found = sums.setdefault((kernel, options, tuple(work_items), tuple(group)), [0, 0.0])
        found[0] += 1
        found[1] += (ended - begun) / 1e3
    table = [ByKernel(k, o, list(w), list(g), int(n), us) for (k, o, w, g), (n, us) in sums.items()]
    return sorted(table, key=lambda row: -row.us)


def table_lines(table: Sequence[ByKernel], most: int = 14) -> list[str]:
    """The table for people: the kernels that take most."""
    whole = sum(row.us for row in table)
    lines = [f"{'kernel':22} {'launches':>8} {'us':>9} {'each':>8} {'share':>6}  work-items / group, options"]
    for row in table[:most]:
        sizes = "x".join(str(n) for n in row.work_items if n) + "/" + "x".join(str(n) for n in row.group if n)
        share = 100 * row.us / whole if whole else 0.0
        lines.append(
            f"{row.kernel:22} {row.launches:8} {row.us:9.1f} {row.us / row.launches:8.2f} {share:5.1f}%"
            f"  {sizes}, {short(row.options)}"
        )
    if len(table) > most:
        rest = table[most:]
        us = sum(row.us for row in rest)
        lines.append(f"{'the others':22} {sum(row.launches for row in rest):8} {us:9.1f}")
    return lines


def in_order(launches: Sequence[Launch], most: int = 14) -> str:
    """Launches from the middle on, one after the other: about a layer, of which products of one size are told apart."""
    first = max(len(launches) // 2 - most // 2, 0)
    shown = [f"{each[0]} {(each[5] - each[4]) / 1e3:.1f}" for each in launches[first : first + most]]
    return f"from launch {first} on: {', '.join(shown)}"


def short(options: str, most: int = 70) -> str:
    """Build options without what says little: -DA=1 -DB -> A=1 B."""
    text = re.sub(r"-D", "", options)
    return text if len(text) <= most else text[: most - 2] + ".."
