"""The options of a simulated fleet: every number that is not in the trace, with its unit and its default."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .._arguments import refusal, shown, whole
from ..errors import ArgumentError
from ..ray.scale.routing import WEIGHT
from ..ray.scale.summaries import SIZE

MOST_REPLICAS = 100_000
ROUTINGS = ("random", "round_robin", "two_choices", "affinity", "affinity+store")
_POLICIES = ("random", "round_robin", "two_choices", "affinity")


@dataclass(frozen=True)
class FleetOptions:
    """The replicas, the routers, the store, what fails, and how fast requests come.

    The defaults are those of a model of 8 billion parameters on a GPU of 2023: ``rate``: tokens per second that one
    replica computes of prompts; ``decode``: seconds for each token of an answer; ``sessions``: most that are computed
    and answered at once by one replica; ``bytes_per_token``: of K and V, 128 KiB for 32 layers of 8 heads of 128 in
    float16. ``policy``: which victim goes first, as in ``simulate``.

    ``summary_every``: seconds between two summaries of a replica, of at most ``summary_size`` fingerprints;
    ``routers``: how many there are, each with a ledger of its own; ``candidates``: of how many replicas one chooses,
    those that know most of the prompt and others (``kvtrie.ray.scale.shortlist``); 0: of all. ``weight``: of a token to
    compute against one that waits, for affinity.

    ``store_bandwidth``: bytes per second into the shared store, and as many out of it; ``store_capacity``: tokens; 0:
    as many as all replicas hold. ``shared``: what affinity+store takes fetching a token for, in times of computing it;
    0: what it takes when the store is idle.

    ``fail_every``: mean seconds between two failures of any replica (0: none), which is away for ``fail_for`` seconds.
    ``load``: divides the times of arrivals. ``copy_per``: one copy of the trace for so many replicas (0: the trace as
    it is). ``seconds``: of the trace, before ``load``; 0: all. ``seed``: of all that is drawn.
    """

    policy: str = "lru"
    rate: float = 10_000.0
    decode: float = 0.02
    sessions: int = 64
    bytes_per_token: int = 128 << 10
    summary_every: float = 1.0
    summary_size: int = SIZE
    routers: int = 1
    candidates: int = 0
    weight: float = WEIGHT
    store_bandwidth: float = 25e9
    store_capacity: int = 0
    shared: float = 0.0
    fail_every: float = 0.0
    fail_for: float = 60.0
    load: float = 1.0
    copy_per: int = 0
    seconds: float = 0.0
    seed: int = 0

    def check(self) -> None:
        """``ArgumentError`` or ``ArgumentTypeError`` for the first field that makes no sense."""
        for name, least in (("sessions", 1), ("bytes_per_token", 1), ("routers", 1)):
            whole(getattr(self, name), "simulate", name, least, 1 << 30)
        for name in ("summary_size", "candidates", "store_capacity", "copy_per", "seed"):
            whole(getattr(self, name), "simulate", name, 0, 1 << 53)
        for name in ("rate", "weight", "summary_every", "store_bandwidth", "fail_for", "load"):
            positive(getattr(self, name), name, zero=False)
        for name in ("decode", "shared", "fail_every", "seconds"):
            positive(getattr(self, name), name, zero=True)
        if self.candidates == 1:
            raise ArgumentError("[simulate] candidates: got 1, allowed 0 (all) or at least 2")

    @property
    def fetch_share(self) -> float:
        """How long fetching a token seems to take to a router, in times of computing it; at most 1."""
        return min(1.0, self.shared or self.bytes_per_token / self.store_bandwidth * self.rate)


def positive(value: object, name: str, zero: bool) -> float:
    """A finite number above 0, or 0 where ``zero`` says so."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise refusal(value, "simulate", name, "a number")
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ArgumentError(f"[simulate] {name}: got {value}, allowed {'0 or' if zero else 'a number'} above 0")
    return float(value)


def routings_of(routing: object) -> list[str]:
    """The names asked for, in order, each once; "all" are ``ROUTINGS``. Any policy may have "+store" behind it."""
    if isinstance(routing, str) and routing == "all":
        return list(ROUTINGS)
    names = [routing] if isinstance(routing, str) else routing
    allowed = f"all, {', '.join(_POLICIES)}, each also with +store"
    if not isinstance(names, (list, tuple)):
        raise refusal(routing, "simulate", "routing", allowed)
    for name in names:
        if not isinstance(name, str) or name.removesuffix("+store") not in _POLICIES:
            raise ArgumentError(f"[simulate] routing: got {shown(name)}, allowed {allowed}")
    if not names:
        raise ArgumentError(f"[simulate] routing: got none, allowed {allowed}")
    return list(dict.fromkeys(names))


def replicas_of(replicas: object) -> list[int]:
    """One count or several, each once."""
    counts = replicas if isinstance(replicas, (list, tuple)) else [replicas]
    if not counts:
        raise ArgumentError("[simulate] replicas: got none, allowed at least 1")
    return list(dict.fromkeys(whole(each, "simulate", "replicas", 1, MOST_REPLICAS) for each in counts))
