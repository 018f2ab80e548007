"""Our policies (routing.py) as a request router of Ray Serve.

    docs.ray.io/en/latest/serve/advanced-guides/custom-request-router.html

Ray calls ``choose_replicas`` until a replica takes the request, ``on_request_routed`` when one has, and reports
replicas that come, go, or have new statistics (summaries.py) by ``update_replicas``. One is in each process that has a
handle of the deployment. Threads: one event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Optional

from ray.serve.request_router import PendingRequest, ReplicaID, ReplicaResult, RequestRouter, RunningReplica

from .asgi_call import Call
from .routing import Affinity, Policy, PowerOfTwo, Prompt, Replica, policy_named
from .shortlist import Index, Shortlist
from .summaries import known_of, number_of

_EXPECTED = 4096  # requests, at most, of which a router remembers where they were to go


class Router(RequestRouter):
    """``policy``, ``seed``, ``shared``: as in ``ScaleOptions``. With more than twice ``candidates`` replicas, affinity
    weighs as many of them for each prompt (shortlist.py)."""

    def initialize_state(
        self, policy: str = "affinity", seed: int | None = None, shared: float | None = None, candidates: int = 16
    ) -> None:
        """Called once by Ray, with ``request_router_kwargs``."""
        self._policy: Policy[ReplicaID] = policy_named(policy, seed, shared)
        self._seen: dict[ReplicaID, Replica[ReplicaID]] = {}
        self._candidates = candidates
        self._index: Index[ReplicaID] = Index()
        self._shortlist = Shortlist(self._index, candidates, seed)
        self._expected: OrderedDict[str, ReplicaID] = OrderedDict()  # by requests that Ray has not sent yet

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """The replicas that are there now, with their last reports; those that are gone are forgotten."""
        super().update_replicas(replicas)
        present = {each.replica_id for each in replicas}
        for gone in self._seen.keys() - present:
            self._forget(gone)
        if isinstance(self._policy, (Affinity, PowerOfTwo)):
            self._policy.ledger.keep(present)
        for each in replicas:
            self._read(each)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """It is not asked again, though Ray's list of replicas may still have it."""
        super().on_replica_actor_died(replica_id)
        self._forget(replica_id)

    def _forget(self, replica_id: ReplicaID) -> None:
        """Last of all that it was seen: what an exception leaves undone, the next call does."""
        if replica_id in self._seen:
            self._index.turn(replica_id, frozenset())
            self._seen.pop(replica_id, None)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: Optional[PendingRequest] = None
    ) -> list[list[RunningReplica]]:
        """Some or all of them, the best first, each a rank of its own: Ray asks one after the other whether it has
        room, and comes here again where none has."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # else it would ask on without a pause
        prompt = _prompt_of(pending_request)
        some = self._listed(prompt, candidate_replicas)
        order = self._policy.rank(prompt, [self._view(each) for each in some])
        if order and pending_request is not None:
            self._expect(pending_request, some[order[0]].replica_id)
        return [[some[each]] for each in order]

    def _expect(self, pending_request: PendingRequest, replica_id: ReplicaID) -> None:
        """It will most likely go there: whoever asks next, before Ray has sent it, is to know."""
        request = pending_request.metadata.internal_request_id
        before = self._expected.get(request)
        if before is not None:
            self._policy.done(before, request)
        prompt = _prompt_of(pending_request)
        self._expected[request] = replica_id  # from here on it is known where it is counted
        self._expected.move_to_end(request)
        self._policy.sent(prompt, self._seen[replica_id], request)
        self._shortlist.sent(prompt, replica_id)
        while len(self._expected) > _EXPECTED:  # of those that were cancelled before they were sent
            self._expected.popitem(last=False)

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult) -> None:
        """It is there now."""
        request = pending_request.metadata.internal_request_id
        if replica_id in self._seen and self._expected.get(request) != replica_id:
            self._expect(pending_request, replica_id)
        self._expected.pop(request, None)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """It has its answer, or will get none from there."""
        self._policy.done(replica_id, internal_request_id)

    def _listed(self, prompt: Prompt, replicas: list[RunningReplica]) -> list[RunningReplica]:
        if not isinstance(self._policy, Affinity) or len(replicas) <= 2 * self._candidates:
            return replicas
        by_id = {each.replica_id: each for each in replicas}
        return [by_id[each] for each in self._shortlist.of(prompt, list(by_id)) if each in by_id]

    def _read(self, replica: RunningReplica) -> Replica[ReplicaID]:
        """Its last report. That is read once for each version."""
        stats, made = replica.routing_stats or {}, replica.replica_id
        seen = self._seen.setdefault(made, Replica(made))
        version = number_of(stats, "version")
        if version != seen.version:
            known, waiting = known_of(stats), number_of(stats, "waiting")
            self._index.turn(made, known)
            seen.known, seen.waiting, seen.version = known, waiting, version  # all at once, and last
        return seen

    def _view(self, replica: RunningReplica) -> Replica[ReplicaID]:
        """The same, with the requests that are under way there now."""
        seen = self._read(replica)
        queued = self.replica_queue_len_cache.get(replica.replica_id)
        seen.requests = number_of(replica.routing_stats or {}, "requests") if queued is None else queued
        return seen


def _prompt_of(pending: Optional[PendingRequest]) -> Prompt:
    arguments: Sequence[object] = () if pending is None else pending.args
    call = next((each for each in arguments if isinstance(each, Call)), None)
    return Prompt(0) if call is None else Prompt(call.tokens, call.fingerprints)
