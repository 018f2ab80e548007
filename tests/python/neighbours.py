"""Two tenants of one cache, one of whom tries to tell what the other one does.

An attacker may make every call that takes a namespace, with its own, and sees all that these calls give or raise, and
its own `usage()`. `stats()`, `nodes()` and what else names no namespace is the operator's, and so are `flush`,
`set_limits` and forms of `evict` and `page_out` with ``nbytes``.

    python tests/python/neighbours.py        figures: by time, and by how full the cache is, with and without quotas
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, Optional

import kvtrie as kv
from kinds_fakes import KindsModel, make_caches
from processes import PATIENCE

ATTACKER, VICTIM = "attacker", "victim"
KINDS = ("dense", "window", "hybrid", "all")
WORDS = 12  # tokens that prompts consist of
TRIES = 3  # of each timed call
# Host memory that is short, without files; and files, with room for all. Where both are short, what goes depends on how
# fast files are written, which no seed says.
TIERS: dict[str, dict[str, Any]] = {
    "host": {"host_bytes": 24_000},
    "disk": {"host_bytes": "1MiB", "disk_bytes": "8MiB", "fingerprint": "none"},
}


def caches_of(kind: str) -> list[Any]:
    return make_caches(kind, 120, window_capacity=96, slots=24, window=8, chunk=8)


class Player:
    """Random calls of one tenant; `seen` is all that it could see of them."""

    def __init__(self, cache: kv.PrefixCache, model: KindsModel, name: str, seed: int, prefixes: int = 4) -> None:
        self.cache, self.model, self.name = cache, model, name
        self.random = random.Random(f"{name} {seed}")
        base = random.Random(name)
        self.prefixes = [[base.randrange(WORDS) for _ in range(24)] for _ in range(prefixes)]
        self.sessions: list[Any] = []
        self.seen: list[tuple[Any, ...]] = []

    def prompt(self) -> list[int]:
        prefix = self.random.choice(self.prefixes)
        more = [self.random.randrange(WORDS) for _ in range(self.random.randrange(1, 12))]
        return prefix[: self.random.randrange(1, 25)] + more

    def step(self) -> None:
        calls = (
            (self.begin, 6), (self.compute, 8), (self.append, 4), (self.close, 4), (self.branch, 2), (self.rewind, 2),
            (self.checkpoint, 1), (self.pin, 1), (self.unpin, 1), (self.plan, 2), (self.restore, 1), (self.page_out, 1),
            (self.evict, 1),
        )  # fmt: skip
        (call,) = self.random.choices([call for call, _ in calls], [weight for _, weight in calls])
        try:
            result: Any = call()
        except kv.errors.CacheFullError as full:
            result = ("CacheFullError", str(full), full.needed, full.free, full.freeable, full.held_live)
        except kv.Error as error:
            result = (type(error).__name__, str(error))
        usage = self.cache.usage(self.name) if self.counted() else None
        self.seen.append((call.__name__, result, repr(usage)))

    def counted(self) -> bool:
        try:
            self.cache.usage(self.name)
        except kv.errors.NotSupportedError:
            return False
        return True

    def session(self) -> Any:
        return self.random.choice(self.sessions) if self.sessions else None

    def begin(self) -> Any:
        if len(self.sessions) == 3:
            return self.close()
        session = self.cache.begin(self.prompt(), self.name)
        self.sessions.append(session)
        return session.matched, session.reused, str(session.reason.code), session.tier, session.bytes_moved

    def compute(self) -> Any:
        session = self.session()
        if session is None:
            return None
        steps = session.prefill(chunk=self.random.choice((4, 64)))
        rows = 0
        for step in steps:
            rows += len(step.tokens)
            self.model(step)
        return rows, session.length

    def append(self) -> Any:
        session = self.session()
        if session is None or len(session.tokens) > 60:
            return None
        session.append([self.random.randrange(WORDS)])
        step = session.decode()
        self.model(step)
        return session.length

    def close(self) -> Any:
        if self.sessions:
            self.sessions.pop(self.random.randrange(len(self.sessions))).close()

    def branch(self) -> Any:
        session = self.session()
        if session is None or len(self.sessions) == 3:
            return None
        self.sessions.append(session.branch())
        return session.length

    def rewind(self) -> Any:
        session = self.session()
        if session is None:
            return None
        length = self.random.randrange(len(session.tokens) + 1)
        can = session.can_rewind(length)
        session.rewind(length)
        return can, session.length

    def checkpoint(self) -> Any:
        session = self.session()
        return None if session is None else session.checkpoint()

    def pin(self) -> Any:
        return self.cache.pin(self.prompt(), self.name)

    def unpin(self) -> Any:
        return self.cache.unpin(self.prompt(), self.name)

    def plan(self) -> Any:
        plan = self.cache.plan(self.prompt(), self.name)
        return plan.matched, plan.reusable, plan.tier, plan.bytes_moved, str(plan.reason.code)

    def restore(self) -> Any:
        return self.cache.restore(self.prompt(), self.name)

    def page_out(self) -> Any:
        return self.cache.page_out(self.prompt(), namespace=self.name)

    def evict(self) -> Any:
        return self.cache.evict(self.prompt(), namespace=self.name)


def wait_for_writes(cache: kv.PrefixCache) -> None:
    """What is in which tier then depends on calls alone, not on how fast files are written."""
    begun = time.monotonic()
    while cache.stats()["pending_writes"]:
        assert time.monotonic() - begun < PATIENCE
        time.sleep(0)


def trace(
    kind: str,
    attacker: int,
    victim: Optional[int],
    quotas: Optional[dict[str, Any]],
    steps: int,
    policy: str = "lru",
    tier: str = "host",
) -> list[tuple[Any, ...]]:
    """What the attacker of that seed sees while the victim of another seed is busy; None: while it does nothing."""
    caches = caches_of(kind)
    model = KindsModel(caches)
    with (
        tempfile.TemporaryDirectory() as folder,
        kv.PrefixCache(
            caches, disk=folder + "/disk" if tier == "disk" else None, growth=4, policy=policy, checkpoint_every=8,
            load="always", clock=lambda: 0.0, quotas=quotas, **TIERS[tier],
        ) as cache,
    ):  # fmt: skip
        players = [Player(cache, model, ATTACKER, attacker)]
        if victim is not None:
            players.append(Player(cache, model, VICTIM, victim))
        turns = random.Random(victim)
        for _ in range(steps):
            for player in players[1:] * turns.randrange(3):
                player.step()
                wait_for_writes(cache)
            players[0].step()
            wait_for_writes(cache)
        findings = cache.check()
        assert findings == [], findings[0]
        return players[0].seen


def halves() -> dict[str, Any]:
    """A quota for each of the two, with its floor as high as its most: each has its half, whatever the other does."""
    return {ATTACKER: {"most": 0.5, "least": 0.5}, VICTIM: {"most": 0.5, "least": 0.5}}


def first_difference(one: Sequence[Any], other: Sequence[Any]) -> Optional[int]:
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), None)


# ---- by time ---------------------------------------------------------------------------------------------------------


def timings(
    probe: Callable[[list[int]], float], known: list[list[int]], unknown: list[list[int]]
) -> list[tuple[float, bool]]:
    """(seconds, whether the prompt was of those that are known), in random order, so that drift is in both alike.

    The least of ``TRIES`` is what a call takes that nothing else on the machine interrupts.
    """
    asked = [(prompt, True) for prompt in known] + [(prompt, False) for prompt in unknown]
    random.Random(5).shuffle(asked)
    return [(min(probe(prompt) for _ in range(TRIES)), is_known) for prompt, is_known in asked]


def share_told(samples: list[tuple[float, bool]]) -> float:
    """How often the best threshold of one half of the samples is right on the other half; 0.5 is chance.

    The halves take turns, so that neither is of a time in which the machine was slower.
    """
    half = len(samples) // 2
    learnt, judged = samples[::2], samples[1::2]

    def right(samples: list[tuple[float, bool]], limit: float, longer_is_known: bool) -> int:
        return sum(((seconds > limit) == longer_is_known) == is_known for seconds, is_known in samples)

    limits = sorted(seconds for seconds, _ in learnt)[:: max(1, half // 200)]
    rules = [(limit, longer) for limit in limits for longer in (True, False)]
    limit, longer = max(rules, key=lambda rule: right(learnt, *rule))
    return right(judged, limit, longer) / len(judged)


def time_attack(count: int, length: int, namespace: str) -> dict[str, float]:
    """How often times of the attacker's calls tell prompts that `namespace` knows from others, by call."""
    caches = make_caches("dense", 2 * count * length, device="null")
    model = KindsModel(caches, check=False)
    with kv.PrefixCache(caches, host_bytes=0, clock=lambda: 0.0) as cache:
        # The first token says which prompt it is, so that nothing the attacker begins matches what it began before.
        prompts = [[1000 + i, *random.Random(i).choices(range(WORDS), k=length - 1)] for i in range(2 * count)]
        random.Random(3).shuffle(prompts)
        known, unknown = prompts[:count], prompts[count:]
        for prompt in known:
            with cache.begin(prompt, namespace) as session:
                for step in session.prefill():
                    model(step)

        def plan(prompt: list[int]) -> float:
            begun = time.perf_counter()
            cache.plan(prompt, ATTACKER)
            return time.perf_counter() - begun

        def first_token(prompt: list[int]) -> float:
            begun = time.perf_counter()
            with cache.begin(prompt, ATTACKER, publish=False) as session:
                for step in session.prefill():
                    model(step)
                return time.perf_counter() - begun

        return {call.__name__: share_told(timings(call, known, unknown)) for call in (plan, first_token)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="pairs of victims for each kind")
    parser.add_argument("--steps", type=int, default=150, help="calls of the attacker in a run")
    parser.add_argument("--prompts", type=int, default=1000, help="known and unknown prompts each")
    options = parser.parse_args()
    print(f"by time, {options.prompts} known and {options.prompts} unknown prompts of 64 tokens: told right")
    for namespace, whose in ((VICTIM, "the victim's"), (ATTACKER, "its own")):
        shares = time_attack(options.prompts, 64, namespace)
        print(f"  {whose:13} " + ", ".join(f"{call} {share:.1%}" for call, share in shares.items()))
    print(f"by fullness, {options.runs} pairs of victims, {options.steps} calls: pairs between which it can tell")
    for kind, tier in [(kind, tier) for kind in KINDS for tier in TIERS]:
        told = {}
        for label, quotas in (("no quotas", None), ("halves", halves())):
            pairs = [
                [trace(kind, run, 2 * run + i, quotas, options.steps, tier=tier) for i in range(2)]
                for run in range(options.runs)
            ]
            told[label] = sum(one != other for one, other in pairs)
        print(f"  {kind:8} {tier} " + ", ".join(f"{label} {count} of {options.runs}" for label, count in told.items()))


if __name__ == "__main__":
    main()
