"""Which of several replicas answers a prompt: the policies, without any engine around them.

    router = Affinity(seed=1)
    ranking = router.rank(prompt, replicas)      # the best first
    router.sent(prompt, "replica-3")

A *prompt* is its length and fingerprints (``kv.trie.fingerprints``), one for each whole block of 64 tokens. A *replica*
is what is known of it: the fingerprints of its summary (``PrefixCache.summary``), about a second old, and its load.
Everything is weighed in tokens to compute. For a prompt of n tokens of which replica r knows m(r):

    cost(r) = tokens that wait there + REQUEST_TOKENS * requests that are under way there + WEIGHT * (n - m(r))

The least cost is first: a replica that knows the prompt gets it until its queue costs more than computing the prompt
again elsewhere, which is also how a prompt that many ask for comes to be known by several. WEIGHT is above 1, as what
is computed again delays all that come later, too (docs/scale.md). Where no replica knows a tenth of the prompt,
the less loaded of two that are drawn gets it ("power of two choices"; Mitzenmacher, 2001), so that several routers that
know the same do not all choose the same.

Requests that a router sent since a replica's last summary count as known there and as waiting there.

The router of Ray Serve (router.py) and the simulator (kvtrie.replay.fleet) are both made of these. Threads: none of
their own; one router belongs to one thread. Units: tokens.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

BLOCK = 64  # tokens between two fingerprints of a prompt (csrc/trie/fingerprint.h)
REQUEST_TOKENS = 64  # what a request that is under way costs the next one: its share of the steps
WEIGHT = 3.0  # of a token to compute against one that waits (docs/scale.md: affinity under overload)
LEAST_SHARE = 0.1  # of a prompt, below which nobody is said to know it
REMEMBERED = 4096  # fingerprints that a router keeps of what it sent to each replica
SUMMARIES = 3  # of a replica, after which what was sent before is in them, or no longer there

Id = TypeVar("Id", bound=Hashable)


@dataclass(frozen=True)
class Prompt:
    """``tokens``: its length. ``fingerprints``: of its whole blocks of ``block`` tokens; they may end early."""

    tokens: int
    fingerprints: Sequence[int] = ()
    block: int = BLOCK


@dataclass
class Replica(Generic[Id]):
    """A router's knowledge of one replica. ``known``: the fingerprints of its last summary; ``waiting``: tokens of
    prompts that it had still to compute then; ``requests``: those that are under way there now; ``version``: of the
    summary, another one for each."""

    id: Id
    known: frozenset[int] = frozenset()
    waiting: int = 0
    requests: int = 0
    version: int = 0


def matched(prompt: Prompt, known: frozenset[int]) -> int:
    """How many tokens of the prompt are known where these fingerprints come from, as far as they tell."""
    for at in range(len(prompt.fingerprints) - 1, -1, -1):
        if prompt.fingerprints[at] in known:
            return (at + 1) * prompt.block
    return 0


class Policy(Protocol[Id]):
    """The policy that chooses."""

    def rank(self, prompt: Prompt, replicas: Sequence[Replica[Id]]) -> list[int]:
        """The replicas' numbers, the best first: whoever cannot take the prompt leaves it to the next."""

    def sent(self, prompt: Prompt, replica: Replica[Id], request: Hashable = None) -> None:
        """A prompt went there. ``request``: by which ``done`` will name it; None: it will not."""

    def done(self, replica: Id, request: Hashable) -> None:
        """Its answer has ended."""


class Random(Generic[Id]):
    """Any of them."""

    def __init__(self, seed: int | None = None) -> None:
        self._dice = random.Random(seed)

    def rank(self, prompt: Prompt, replicas: Sequence[Replica[Id]]) -> list[int]:
        """In any order."""
        return self._dice.sample(range(len(replicas)), len(replicas))

    def sent(self, prompt: Prompt, replica: Replica[Id], request: Hashable = None) -> None:
        """Nothing is remembered."""

    def done(self, replica: Id, request: Hashable) -> None:
        """Nothing was."""


class RoundRobin(Generic[Id]):
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def rank(self, prompt: Prompt, replicas: Sequence[Replica[Id]]) -> list[int]:
        """From the one behind the last."""
        count = len(replicas)
        self._next += 1
        return [(self._next - 1 + step) % count for step in range(count)]

    def sent(self, prompt: Prompt, replica: Replica[Id], request: Hashable = None) -> None:
        """Nothing is remembered."""

    def done(self, replica: Id, request: Hashable) -> None:
        """Nothing was."""


class PowerOfTwo(Generic[Id]):
    """The less loaded of two that are drawn, whatever they know; then the others by their load."""

    def __init__(self, seed: int | None = None) -> None:
        self._dice = random.Random(seed)
        self.ledger: Ledger[Id] = Ledger()

    def rank(self, prompt: Prompt, replicas: Sequence[Replica[Id]]) -> list[int]:
        """See the class."""
        loads = [self.ledger.load(each) for each in replicas]
        return two_choices(loads, self._dice)

    def sent(self, prompt: Prompt, replica: Replica[Id], request: Hashable = None) -> None:
        """It waits there now."""
        self.ledger.sent(prompt, replica, prompt.tokens, request)

    def done(self, replica: Id, request: Hashable) -> None:
        """It waits no more."""
        self.ledger.done(replica, request)


class Affinity(Generic[Id]):
    """The least cost, as the module's head has it. ``shared``: the share of computing a token that fetching it from a
    shared store takes; where it is given, what any replica knows costs the others no more than that. ``weight``: of
    what it would have to compute against what waits there."""

    def __init__(self, seed: int | None = None, shared: float | None = None, weight: float = WEIGHT) -> None:
        self._dice = random.Random(seed)
        self._shared = shared
        self._weight = weight
        self.ledger: Ledger[Id] = Ledger()

    def rank(self, prompt: Prompt, replicas: Sequence[Replica[Id]]) -> list[int]:
        """By cost; where nobody knows the prompt, by two choices."""
        known = [self.ledger.matched(prompt, each) for each in replicas]
        loads = [self.ledger.load(each) for each in replicas]
        most = max(known, default=0)
        if most < max(prompt.block, LEAST_SHARE * prompt.tokens):
            return two_choices(loads, self._dice)
        costs = [load + self._weight * self._work(prompt.tokens, own, most) for load, own in zip(loads, known)]
        order = self._dice.sample(range(len(replicas)), len(replicas))  # ties: any
        return sorted(order, key=costs.__getitem__)

    def _work(self, tokens: int, own: int, most: int) -> float:
        if self._shared is None:
            return tokens - own
        return tokens - most + self._shared * (most - own)

    def sent(self, prompt: Prompt, replica: Replica[Id], request: Hashable = None) -> None:
        """It is known and waits there now."""
        self.ledger.sent(prompt, replica, prompt.tokens - self.ledger.matched(prompt, replica), request)

    def done(self, replica: Id, request: Hashable) -> None:
        """It waits no more."""
        self.ledger.done(replica, request)


@dataclass
class _Since:
    """The requests that were sent since a replica's summary of that ``version``. ``waiting``: tokens to compute by
    request; one that nobody will name as done has a key of its own."""

    version: int
    waiting: dict[Hashable, int] = field(default_factory=dict)


@dataclass
class _Page:
    """The requests that were sent to one replica. ``recent``: fingerprints, the latest last, and how many summaries
    there were."""

    since: _Since
    recent: OrderedDict[int, int] = field(default_factory=OrderedDict)
    summaries: int = 0


class Ledger(Generic[Id]):
    """The requests of one router that summaries do not report yet.

    Waiting tokens are a sum over requests, and a new summary takes the place of all of them by one assignment. So
    wherever an exception comes between two statements, no request is counted twice, or after it has ended.
    """

    def __init__(self) -> None:
        self._pages: dict[Id, _Page] = {}

    def matched(self, prompt: Prompt, replica: Replica[Id]) -> int:
        """Tokens that it knows by its summary or will know by what was sent to it."""
        page = self._turned(replica)
        by_summary = matched(prompt, replica.known)
        if page is None:
            return by_summary
        for at in range(len(prompt.fingerprints) - 1, by_summary // prompt.block - 1, -1):
            if prompt.fingerprints[at] in page.recent:
                return (at + 1) * prompt.block
        return by_summary

    def load(self, replica: Replica[Id]) -> float:
        """Tokens that are in front of a new request there."""
        waiting = replica.waiting
        if page := self._turned(replica):
            waiting += sum(page.since.waiting.values())
        return waiting + REQUEST_TOKENS * replica.requests

    def sent(self, prompt: Prompt, replica: Replica[Id], new: int, request: Hashable = None) -> None:
        """``new``: tokens that it has to compute for it."""
        page = self._pages.setdefault(replica.id, _Page(_Since(replica.version)))
        self._turned(replica)
        page.since.waiting[object() if request is None else request] = new
        for each in prompt.fingerprints:
            page.recent[each] = page.summaries
            page.recent.move_to_end(each)
        while len(page.recent) > REMEMBERED:
            page.recent.popitem(last=False)

    def done(self, replica: Id, request: Hashable) -> None:
        """Its tokens to compute do not wait any more."""
        page = self._pages.get(replica)
        if page is not None:
            page.since.waiting.pop(request, None)

    def keep(self, ids: Iterable[Id]) -> None:
        """Forgets the others: they are there no more."""
        kept = set(ids)
        for gone in [each for each in self._pages if each not in kept]:
            del self._pages[gone]

    def _turned(self, replica: Replica[Id]) -> _Page | None:
        """Its page, where a new summary has taken the place of what was sent before it."""
        page = self._pages.get(replica.id)
        if page is not None and page.since.version != replica.version:
            page.since, page.summaries = _Since(replica.version), page.summaries + 1
        if page is not None:
            while page.recent and next(iter(page.recent.values())) + SUMMARIES <= page.summaries:
                page.recent.popitem(last=False)
        return page


def two_choices(loads: Sequence[float], dice: random.Random) -> list[int]:
    """The less loaded of two that are drawn, then the other, then the others by load."""
    if len(loads) < 2:
        return list(range(len(loads)))
    pair = sorted(dice.sample(range(len(loads)), 2), key=loads.__getitem__)
    return [*pair, *sorted((each for each in range(len(loads)) if each not in pair), key=loads.__getitem__)]


def policy_named(name: str, seed: int | None = None, shared: float | None = None, weight: float = WEIGHT) -> Policy[Id]:
    """One of them: "affinity", "two_choices", "round_robin" or "random"; the rest are arguments of ``Affinity``."""
    if name == "affinity":
        return Affinity(seed, shared, weight)
    if name == "two_choices":
        return PowerOfTwo(seed)
    return RoundRobin() if name == "round_robin" else Random(seed)
