"""Runs a Google Benchmark executable (bench/*_bench.cpp) and gives its samples, for benches whose sides are C++.

Repetitions of all benchmarks of one run are interleaved at random, so that sides are compared in turns.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from typing import Any

from built import built

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def run(name: str, *, only: str = ".", repetitions: int = 9, seconds: float = 0.05) -> dict[str, list[dict[str, Any]]]:
    """Benchmark name -> its repetitions as Google Benchmark reports them, with ``seconds`` a call added to each.

    ``only``: a regular expression over names. ``seconds``: the least time of one repetition.
    """
    command = [
        str(built(name)),
        f"--benchmark_filter={only}",
        f"--benchmark_repetitions={repetitions}",
        f"--benchmark_min_time={seconds}",
        "--benchmark_enable_random_interleaving=true",
        "--benchmark_format=json",
    ]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    samples: dict[str, list[dict[str, Any]]] = {}
    for each in _repetitions(json.loads(answer.stdout)["benchmarks"]):
        each["seconds"] = each["real_time"] * _SECONDS[each["time_unit"]]
        samples.setdefault(each["run_name"], []).append(each)
    return samples


def _repetitions(benchmarks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in benchmarks if each["run_type"] == "iteration"]
