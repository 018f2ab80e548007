"""Figures in Prometheus' form, read from cache, batcher and journal when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from .journal import Entry

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from .engine import Engine

_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
_NOW = {
    "tokens": "Tokens that are known in any tier",
    "device_bytes": "Bytes of idle and live state on the device",
    "host_bytes": "Bytes of idle state in host memory",
    "disk_tokens": "Tokens that the disk has",
    "sessions": "Live sessions",
}


class Figures(Collector):
    """One registry for each server, so that several can be in one process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._counts = [0] * (len(_BUCKETS) + 1)
        self._sum = 0.0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        engine.journal.observers.append(self._observe)

    def text(self) -> bytes:
        """All of them."""
        return generate_latest(self._registry)

    def _observe(self, entry: Entry) -> None:
        if entry.seconds_to_first is None or entry.outcome == "running":
            return
        place = next((at for at, most in enumerate(_BUCKETS) if entry.seconds_to_first <= most), len(_BUCKETS))
        self._counts[place] += 1
        self._sum += entry.seconds_to_first

    def collect(self) -> Iterator[Metric]:
        """What Prometheus reads."""
        journal, batcher = self._engine.journal, self._engine.batcher.stats()
        for name, value in journal.totals.items():
            yield CounterMetricFamily(f"kvtrie_{name}", f"{name.replace('_', ' ').capitalize()} in all", value=value)
        outcomes = CounterMetricFamily("kvtrie_requests", "Answers that have ended", labels=["outcome"])
        for outcome, count in sorted(journal.outcomes.items()):
            outcomes.add_metric([outcome], count)
        yield outcomes
        yield GaugeMetricFamily("kvtrie_requests_active", "Answers that have a place in the steps", batcher["active"])
        yield GaugeMetricFamily("kvtrie_requests_waiting", "Answers that wait for one", batcher["waiting"])
        yield CounterMetricFamily("kvtrie_steps", "Steps that were computed", value=batcher["steps"])
        stats = {} if self._engine.cache.closed else self._engine.cache.stats()
        for name, what in _NOW.items():
            if name in stats:
                yield GaugeMetricFamily(f"kvtrie_cache_{name}", what, float(stats[name]))
        yield self._first_tokens()

    def _first_tokens(self) -> Metric:
        sums = [sum(self._counts[: at + 1]) for at in range(len(self._counts))]
        edges = [*map(str, _BUCKETS), "+Inf"]
        first = HistogramMetricFamily(
            "kvtrie_seconds_to_first_token", "From the request to its first token, in seconds"
        )
        first.add_metric([], list(zip(edges, sums)), self._sum)
        return first
