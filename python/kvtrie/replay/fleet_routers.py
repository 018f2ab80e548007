"""The routers of a simulated fleet: the policies of ``kvtrie.ray.scale.routing``, each router with its own ledger.

A request goes to any router. All know the same summaries; what each sent since, only itself. With ``candidates``, each
weighs a shortlist (``kvtrie.ray.scale.shortlist``) instead of all replicas.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from ..ray.scale.routing import Affinity, Policy, PowerOfTwo, Replica, policy_named
from ..ray.scale.shortlist import Index, Shortlist
from .fleet_options import FleetOptions
from .fleet_replica import Job


class Routers:
    """All of them. ``needs_size``: fingerprints that they want of a summary; None where they want none at all."""

    def __init__(self, options: FleetOptions, routing: str) -> None:
        name, _, store = routing.partition("+")
        shared = options.fetch_share if store else None
        seeds = [options.seed + 1000 * each for each in range(options.routers)]
        self._policies: list[Policy[int]] = [policy_named(name, seed, shared, options.weight) for seed in seeds]
        self._dice = random.Random(options.seed + 1)
        self._index: Index[int] = Index()
        listed = options.candidates > 0 and name == "affinity"
        self._lists = [Shortlist(self._index, options.candidates, seed) for seed in seeds] if listed else []
        self.needs_size = {"affinity": options.summary_size, "two_choices": 0}.get(name)

    def choose(self) -> int:
        """The router that the next request comes to."""
        return self._dice.randrange(len(self._policies))

    def route(self, job: Job, up: Mapping[int, Replica[int]]) -> int:
        """The number of the replica that gets the job, one of ``up``."""
        policy, prompt = self._policies[job.router], job.arrival.prompt
        some = list(up.values())
        if self._lists:
            listed = self._lists[job.router].of(prompt, list(up))
            some = [up[each] for each in listed if each in up]
        chosen = some[policy.rank(prompt, some)[0]]
        policy.sent(prompt, chosen, job.number)
        if self._lists:
            self._lists[job.router].sent(prompt, chosen.id)
        return chosen.id

    def done(self, job: Job, replica: int) -> None:
        """It was answered there."""
        self._policies[job.router].done(replica, job.number)

    def told(self, replica: int, before: frozenset[int], now: frozenset[int]) -> None:
        """A replica has a new summary; an empty one where it is gone."""
        if self._lists and before is not now:
            self._index.turn(replica, now)

    def keep(self, up: Iterable[int]) -> None:
        """The others are gone."""
        kept = set(up)
        for policy in self._policies:
            if isinstance(policy, (Affinity, PowerOfTwo)):
                policy.ledger.keep(kept)
