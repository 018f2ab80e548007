"""Figures in Prometheus' form, read from cache, batcher and journal when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from ..errors import ClosedError
from .journal import BUCKETS, Sums

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from .engine import Engine

_NOW = {
    "tokens": "Tokens that are known in any tier",
    "device_bytes": "Bytes of idle and live state on the device",
    "host_bytes": "Bytes of idle state in host memory",
    "disk_tokens": "Tokens that the disk has",
    "sessions": "Live sessions",
}
_DRAFTED = {
    "proposed_tokens": "Tokens that were guessed and checked",
    "accepted_tokens": "Those of them that were right",
}


class Figures(Collector):
    """One registry for each server, so that several can be in one process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """All of them."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The text that Prometheus reads."""
        sums, batcher = self._engine.journal.sums, self._engine.batcher.stats()
        for name, value in sums.totals.items():
            yield CounterMetricFamily(f"kvtrie_{name}", f"{name.replace('_', ' ').capitalize()} in all", value=value)
        outcomes = CounterMetricFamily("kvtrie_requests", "Answers that have ended", labels=["outcome"])
        for outcome, count in sorted(sums.outcomes.items()):
            outcomes.add_metric([outcome], count)
        yield outcomes
        refused = CounterMetricFamily(
            "kvtrie_refused_requests", "Answers to requests that were errors", labels=["status"]
        )
        for status, count in sorted(self._engine.journal.refused.items()):
            refused.add_metric([str(status)], count)
        yield refused
        yield GaugeMetricFamily("kvtrie_requests_active", "Answers that have a place in the steps", batcher["active"])
        yield GaugeMetricFamily("kvtrie_requests_waiting", "Answers that wait for one", batcher["waiting"])
        yield CounterMetricFamily("kvtrie_steps", "Steps that were computed", value=batcher["steps"])
        yield from self._of_the_cache()
        yield _first_tokens(sums)

    def _of_the_cache(self) -> Iterator[Metric]:
        try:
            stats = self._engine.cache.stats()
        except ClosedError:
            return
        for name, what in _NOW.items():
            if name in stats:
                yield GaugeMetricFamily(f"kvtrie_cache_{name}", what, float(stats[name]))
        for name, what in _DRAFTED.items():
            yield CounterMetricFamily(f"kvtrie_draft_{name}", what, value=stats[name])


def _first_tokens(sums: Sums) -> Metric:
    counts = [sum(sums.first_tokens[: at + 1]) for at in range(len(sums.first_tokens))]
    edges = [*map(str, BUCKETS), "+Inf"]
    first = HistogramMetricFamily("kvtrie_seconds_to_first_token", "From the request to its first token, in seconds")
    first.add_metric([], list(zip(edges, counts)), sums.first_seconds)
    return first
