"""The work of ``simulate``: its arguments as values, and the replays of one call."""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Optional, Union

from .. import _core
from .._arguments import converting, each_of, progress_of, refusal, shown
from ..errors import ArgumentError
from .bar import bar
from .formats import read
from .optimum import Optimum
from .parameters import Workload
from .report import Report, Row
from .synthetic import synthesize
from .token_trace import of_records
from .traces import Request, Trace, of_requests

POLICIES = ("lru", "slru", "cost", "optimum")
Capacity = Union[int, str]
Progress = Callable[[int, Optional[int]], None]

_CAPACITY = re.compile(r"(\d+(?:\.\d+)?)\s*(k|M|G|Ki|Mi|Gi|b)?")
_UNITS = {None: 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


class Runs:
    """All replays of one call, fed in one pass over the trace."""

    def __init__(self, trace: Trace, capacities: list[int], policies: list[str], kinds: dict[str, int]) -> None:
        self._trace = trace
        self._wanted = [(policy, capacity) for policy in policies for capacity in capacities]
        self._symbols = {capacity: capacity // trace.symbol_tokens for capacity in capacities}
        self._replays = {
            (policy, capacity): _core.Replay(
                self._symbols[capacity], policy=policy, whole=trace.whole, find_partings=True, **kinds
            )
            for policy, capacity in self._wanted
            if policy != "optimum"
        }
        self._optimum = Optimum(trace.whole) if "optimum" in policies else None
        self._seconds = dict.fromkeys(self._wanted, 0.0)
        self._counts = {wanted: [0, 0] for wanted in self._replays}

    def report(self, watch: Optional[Progress]) -> Report:
        requests = 0
        for request in self._trace:
            self._serve(request)
            requests += 1
            if watch is not None:
                watch(requests, self._trace.count)
        rows = [self._row(policy, capacity) for policy, capacity in self._wanted]
        return Report(self._trace.name, requests, self._trace.symbol_tokens, rows)

    def _serve(self, request: Request) -> None:
        for wanted, replay in self._replays.items():
            begin = time.perf_counter()
            requested, _, reused = replay.serve(request.tokens, request.output, request.namespace, request.time)
            self._counts[wanted][0] += requested
            self._counts[wanted][1] += reused
            self._seconds[wanted] += time.perf_counter() - begin
        if self._optimum is not None:
            self._optimum.add(request)

    def _row(self, policy: str, capacity: int) -> Row:
        size = self._trace.symbol_tokens
        if policy == "optimum":
            assert self._optimum is not None
            begin = time.perf_counter()
            found = self._optimum.result(self._symbols[capacity])
            requested, reused, evicted = found.requested, found.reused, found.evicted
            seconds = time.perf_counter() - begin
        else:
            evicted = self._replays[policy, capacity].stats()["evicted_tokens"]
            requested, reused = self._counts[policy, capacity]
            seconds = self._seconds[policy, capacity]
        return Row(policy, capacity, requested * size, reused * size, evicted * size, seconds)


def trace_of(trace: Any, block: int, expand: bool) -> Trace:
    if isinstance(trace, Trace):
        return trace
    if isinstance(trace, Workload):
        return of_records(synthesize(trace), trace.describe())
    if isinstance(trace, str) or hasattr(trace, "__fspath__"):
        return read(trace, block, expand)
    allowed = "a path, a Trace, a Workload or Request objects"
    return of_requests(each_of(trace, Request, "simulate", "trace", allowed))


def listed(value: Any) -> list[Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        return [value]
    with converting(value, "simulate", "capacity, policy", "one or a list of them"):
        return list(islice(value, 1 << 16))


def tokens_of(capacity: Capacity, symbol_tokens: int) -> int:
    """A capacity in tokens, a whole number of symbols."""
    allowed = f'{symbol_tokens} to {(2**31 - 1) * symbol_tokens} tokens, as an int or a text like "2.6M" or "2000b"'
    if isinstance(capacity, str):
        found = _CAPACITY.fullmatch(capacity.strip())
        if found is None:
            raise ArgumentError(f"[simulate] capacity: got {capacity!r}, allowed {allowed}")
        unit = symbol_tokens if found[2] == "b" else _UNITS[found[2]]
        whole, _, part = found[1].partition(".")
        tokens = int(whole + part) * unit // int("1" + "0" * len(part))
    elif isinstance(capacity, bool):
        raise refusal(capacity, "simulate", "capacity", allowed)
    else:
        with converting(capacity, "simulate", "capacity", allowed):
            tokens = operator.index(capacity)
    if not symbol_tokens <= tokens < (1 << 31) * symbol_tokens:
        raise ArgumentError(f"[simulate] capacity: got {shown(capacity)}, allowed {allowed}")
    return tokens - tokens % symbol_tokens


def policies_of(policy: Any) -> list[str]:
    names = list(POLICIES) if isinstance(policy, str) and policy == "all" else listed(policy)
    for name in names:
        if not isinstance(name, str) or name not in POLICIES:
            raise ArgumentError(f"[simulate] policy: got {shown(name)}, allowed all, {', '.join(POLICIES)}")
    if not names:
        raise ArgumentError("[simulate] policy: got none, allowed at least 1")
    return list(dict.fromkeys(names))


@contextmanager
def watcher(progress: bool | Progress) -> Iterator[Optional[Progress]]:
    progress_of(progress, "simulate")
    if callable(progress):
        yield progress
    elif progress:
        with bar() as show:
            yield show
    else:
        yield None
