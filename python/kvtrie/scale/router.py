"""Our policies (routing.py) as a request router of Ray Serve.

    docs.ray.io/en/latest/serve/advanced-guides/custom-request-router.html

Ray calls ``choose_replicas`` until a replica takes the request, ``on_request_routed`` when one has, and reports
replicas that come, go, or have new statistics (summaries.py) by ``update_replicas``. One is in each process that has a
handle of the deployment. Threads: one event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from ray.serve.request_router import PendingRequest, ReplicaID, ReplicaResult, RequestRouter, RunningReplica

from .asgi_call import Call
from .routing import Affinity, Policy, PowerOfTwo, Prompt, Random, Replica, RoundRobin
from .summaries import known_of, number_of


def policy_named(name: str, seed: int | None = None, shared: float | None = None) -> Policy[ReplicaID]:
    """One of routing.py's."""
    if name == "affinity":
        return Affinity(seed, shared)
    if name == "two_choices":
        return PowerOfTwo(seed)
    return RoundRobin() if name == "round_robin" else Random(seed)


class Router(RequestRouter):
    """``policy``, ``seed``, ``shared``: as in ``ScaleOptions``."""

    def initialize_state(self, policy: str = "affinity", seed: int | None = None, shared: float | None = None) -> None:
        """Called once by Ray, with ``request_router_kwargs``."""
        self._policy = policy_named(policy, seed, shared)
        self._seen: dict[ReplicaID, Replica[ReplicaID]] = {}

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Those that are gone are forgotten."""
        super().update_replicas(replicas)
        present = {each.replica_id for each in replicas}
        self._seen = {each: seen for each, seen in self._seen.items() if each in present}
        if isinstance(self._policy, (Affinity, PowerOfTwo)):
            self._policy.ledger.keep(present)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: Optional[PendingRequest] = None
    ) -> list[list[RunningReplica]]:
        """All of them, the best first, each a rank of its own: Ray asks one after the other whether it has room."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # else it would ask on without a pause
        views = [self._view(each) for each in candidate_replicas]
        order = self._policy.rank(_prompt_of(pending_request), views)
        return [[candidate_replicas[each]] for each in order]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult) -> None:
        """It is there now."""
        if replica_id in self._seen:
            request = pending_request.metadata.internal_request_id
            self._policy.sent(_prompt_of(pending_request), self._seen[replica_id], request)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """It has its answer, or will get none from there."""
        self._policy.done(replica_id, internal_request_id)

    def _view(self, replica: RunningReplica) -> Replica[ReplicaID]:
        """What is known of it. Its statistics are read once for each version."""
        stats, made = replica.routing_stats or {}, replica.replica_id
        seen = self._seen.setdefault(made, Replica(made))
        version = number_of(stats, "version")
        if version != seen.version:
            seen.version, seen.known, seen.waiting = version, known_of(stats), number_of(stats, "waiting")
        queued = self.replica_queue_len_cache.get(made)
        seen.requests = number_of(stats, "requests") if queued is None else queued
        return seen


def _prompt_of(pending: Optional[PendingRequest]) -> Prompt:
    arguments: Sequence[object] = () if pending is None else pending.args
    call = next((each for each in arguments if isinstance(each, Call)), None)
    return Prompt(0) if call is None else Prompt(call.tokens, call.fingerprints)
