"""One run of a simulated fleet: events in virtual time, from the first arrival to the last answer.

    arrival --router--> queue of a replica --> fetched, computed --> first token --> decoded --> answered, published
                             ^                                                          |
                             +------------------ routed again <------- a failure -------+

Events of one time happen in the order in which they were planned. What was planned for a replica that failed since is
void: each of its requests goes through the same router again, as if it came then, but for the time of its arrival.

Threads: none. Units: seconds of the trace after ``load``, tokens, bytes. The same arguments give the same counts.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from .fleet_options import FleetOptions
from .fleet_replica import Job, Memory, SimulatedReplica, Totals
from .fleet_routers import Routers
from .fleet_store import FleetStore
from .fleet_trace import Arrival

_GROUPS = 8  # of replicas, which make their summaries one group after the other within the interval


class FleetRun:
    """``replicas`` of them with ``memory`` each; ``run`` once."""

    def __init__(self, options: FleetOptions, memory: Memory, replicas: int, routing: str) -> None:
        self._options, self._memory = options, memory
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._dice = random.Random(options.seed + 2)
        self._waiting: deque[Job] = deque()  # while no replica is there
        self._more = True
        self._routers = Routers(options, routing)
        self.now = 0.0
        self.replicas = [SimulatedReplica(number, memory) for number in range(replicas)]
        self._up = {each.number: each.view for each in self.replicas}
        self.totals = Totals()
        self.store = self._make_store(replicas) if routing.endswith("+store") else None

    def _make_store(self, replicas: int) -> FleetStore:
        options, kinds = self._options, self._memory.kinds
        tokens = options.store_capacity or replicas * kinds.tokens(self._memory.cells)
        return FleetStore(options.store_bandwidth, kinds.block * options.bytes_per_token, max(1, tokens // kinds.block))

    def run(self, arrivals: Iterator[Arrival], watch: Callable[[int], None] | None = None) -> None:
        """Serves all of them. ``watch`` gets the number of answers after each."""
        self._plan_arrival(arrivals)
        if self._routers.needs_size is not None:
            for group in range(_GROUPS):
                self._at(self._options.summary_every * group / _GROUPS, partial(self._tell, group))
        if self._options.fail_every:
            self._at(self._dice.expovariate(1 / self._options.fail_every), self._fail)
        while self._more or self.totals.answered < self.totals.arrived:
            self.now, _, happen = heapq.heappop(self._events)
            answered = self.totals.answered
            happen()
            if watch is not None and self.totals.answered > answered:
                watch(self.totals.answered)

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(time, self.now), next(self._order), happen))

    def _plan_arrival(self, arrivals: Iterator[Arrival]) -> None:
        arrival = next(arrivals, None)
        if arrival is None:
            self._more = False
        else:
            self._at(arrival.time, partial(self._arrive, arrival, arrivals))

    def _arrive(self, arrival: Arrival, arrivals: Iterator[Arrival]) -> None:
        self.totals.arrived += 1
        self._route(Job(arrival, self.totals.arrived, self._routers.choose()))
        self._plan_arrival(arrivals)

    def _route(self, job: Job) -> None:
        if not self._up:
            self._waiting.append(job)
            self.totals.longest = max(self.totals.longest, len(self._waiting))
            return
        replica = self.replicas[self._routers.route(job, self._up)]
        replica.enqueue(job)
        self._start(replica)
        replica.longest = max(replica.longest, len(replica.queue))

    def _start(self, replica: SimulatedReplica) -> None:
        job = replica.next_job(self._options.sessions)
        if job is None:
            return
        until = self.now + self._work(replica, job)
        replica.busy(until)
        self._at(until, partial(self._computed, replica, replica.life, job))

    def _work(self, replica: SimulatedReplica, job: Job) -> float:
        """Seconds until the prompt is computed, which begins now."""
        tokens, rate = job.arrival.prompt.tokens, self._options.rate
        reused = replica.reuse(job, self.now)
        known, seconds = self._fetched(job, reused)
        seconds += (tokens - known) / rate
        asked = replica.asked
        asked.requested += tokens
        asked.reused += reused
        asked.fetched += known - reused
        asked.seconds += seconds
        return seconds

    def _fetched(self, job: Job, reused: int) -> tuple[int, float]:
        """(tokens that are known then, seconds that it takes)."""
        if self.store is None:
            return reused, 0.0
        kinds, rate = self._memory.kinds, self._options.rate
        deep, seconds = self.store.fetch(job.arrival.path, reused // kinds.block, kinds.block / rate, self.now)
        most = job.arrival.prompt.tokens - (0 if kinds.whole else 1)
        return max(reused, min(deep * kinds.block, most)), seconds

    def _computed(self, replica: SimulatedReplica, life: int, job: Job) -> None:
        if replica.life != life:
            return
        replica.computing = False
        if job.first_token is None:
            job.first_token = self.now
            self.totals.waits.append(self.now - job.arrival.time)
        self._at(self.now + job.arrival.answer * self._options.decode, partial(self._answered, replica, life, job))
        self._start(replica)

    def _answered(self, replica: SimulatedReplica, life: int, job: Job) -> None:
        if replica.life != life:
            return
        self.totals.answered += 1
        replica.finish(job)
        self._routers.done(job, replica.number)
        if self.store is not None:
            self.store.publish(job.arrival.whole_path(), self.now)
        self._start(replica)

    def _tell(self, group: int) -> None:
        """The summaries of one group of replicas reach all routers."""
        options, size = self._options, self._routers.needs_size
        for number in range(group, len(self.replicas), _GROUPS):
            if number in self._up:
                before, size_bytes = self.replicas[number].tell(self.now, options.rate, size or 0)
                self._routers.told(number, before, self.replicas[number].view.known)
                self.totals.summary_bytes += size_bytes * options.routers
        self._at(self.now + options.summary_every, partial(self._tell, group))

    def _fail(self) -> None:
        self._at(self.now + self._dice.expovariate(1 / self._options.fail_every), self._fail)
        if not self._up:
            return
        replica = self.replicas[self._dice.choice(list(self._up))]
        del self._up[replica.number]
        self._routers.told(replica.number, replica.view.known, frozenset())
        self._routers.keep(self._up)
        lost = replica.restart()
        self.totals.failures += 1
        self.totals.rerouted += len(lost)
        self._at(self.now + self._options.fail_for, partial(self._return, replica))
        for job in lost:
            self._route(job)

    def _return(self, replica: SimulatedReplica) -> None:
        self._up[replica.number] = replica.view
        while self._waiting:
            self._route(self._waiting.popleft())
