"""The policies that choose a replica (scale/routing.py): against naive answers, and on a fleet of naive caches."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

import kvtrie as kv
from circles import SOAK
from kvtrie.ray.scale.routing import (
    BLOCK,
    REMEMBERED,
    REQUEST_TOKENS,
    SUMMARIES,
    WEIGHT,
    Affinity,
    PowerOfTwo,
    Prompt,
    Random,
    Replica,
    RoundRobin,
    matched,
)
from kvtrie.ray.scale.summaries import SIZE, prompt_fingerprints, short


def prompt_of(tokens: Sequence[int]) -> Prompt:
    return Prompt(len(tokens), prompt_fingerprints(np.asarray(tokens, np.int32), "default"))


def tokens_of(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(1000) for _ in range(count)]


def test_matched_is_the_deepest_that_is_known() -> None:
    dice = random.Random(1)
    for _ in range(200):
        prompt = prompt_of(tokens_of(dice, dice.randrange(2000)))
        known = frozenset(each for each in prompt.fingerprints if dice.random() < 0.1)
        naive = max((at + 1 for at, each in enumerate(prompt.fingerprints) if each in known), default=0)
        assert matched(prompt, known) == naive * BLOCK


def test_the_replica_that_knows_a_prompt_gets_it() -> None:
    dice = random.Random(2)
    tokens = tokens_of(dice, 1000)
    prompt = prompt_of([*tokens, *tokens_of(dice, 300)])
    replicas = [Replica(at) for at in range(8)]
    replicas[5].known = frozenset(prompt_of(tokens).fingerprints[-1:])
    policy: Affinity[int] = Affinity(seed=1)
    assert all(policy.rank(prompt, replicas)[0] == 5 for _ in range(50))
    assert sorted(policy.rank(prompt, replicas)) == list(range(8))


def test_until_its_queue_costs_more_than_computing_it_again() -> None:
    dice = random.Random(3)
    tokens = tokens_of(dice, 1024)
    prompt = prompt_of([*tokens, *tokens_of(dice, 64)])
    policy: Affinity[int] = Affinity(seed=1)
    for waiting in range(0, 5000, 100):
        for requests in (0, 3):
            replicas = [Replica(at) for at in range(4)]
            replicas[2] = Replica(2, frozenset(prompt_of(tokens).fingerprints), waiting, requests)
            first = policy.rank(prompt, replicas)[0]
            assert (first == 2) == (waiting + REQUEST_TOKENS * requests < WEIGHT * 1024), (waiting, requests)


def test_what_nobody_knows_goes_to_the_less_loaded_of_two() -> None:
    dice = random.Random(4)
    replicas = [Replica(at, waiting=1000 * at) for at in range(10)]
    for policy in (Affinity(seed=1), PowerOfTwo(seed=1)):
        got: Counter[int] = Counter()
        for _ in range(3000):
            ranked = policy.rank(prompt_of(tokens_of(dice, 100)), replicas)
            assert sorted(ranked) == list(range(10))
            assert ranked[0] < ranked[1]
            got[ranked[0]] += 1
        # the least loaded of n wins 2 / n of the draws, the next one 2 (n - 2) / (n (n - 1)), the last none
        assert got[9] == 0
        assert 0.16 < got[0] / 3000 < 0.24
        assert got[0] > got[3] > got[7]


def test_what_was_sent_counts_until_summaries_tell() -> None:
    dice = random.Random(5)
    prompt = prompt_of(tokens_of(dice, 1000))
    replica: Replica[str] = Replica("a", version=1)
    ledger = Affinity[str](seed=1).ledger
    assert (ledger.matched(prompt, replica), ledger.load(replica)) == (0, 0)
    ledger.sent(prompt, replica, 1000)
    assert (ledger.matched(prompt, replica), ledger.load(replica)) == (1000 // BLOCK * BLOCK, 1000)
    replica.version, replica.waiting = 2, 700  # its own figure has taken the place of ours
    assert ledger.load(replica) == 700
    for version in range(3, 1 + SUMMARIES):
        replica.version = version
        assert ledger.matched(prompt, replica) > 0
    replica.version = 1 + SUMMARIES
    assert ledger.matched(prompt, replica) == 0
    ledger.sent(prompt, replica, 10)
    ledger.keep([])
    assert (ledger.matched(prompt, replica), ledger.load(replica)) == (0, 700)


def test_what_is_done_does_not_wait() -> None:
    dice = random.Random(8)
    replica: Replica[str] = Replica("a", version=1, waiting=5)
    ledger = Affinity[str](seed=1).ledger
    for request, new in (("x", 100), ("y", 30), (None, 7)):
        ledger.sent(prompt_of(tokens_of(dice, 200)), replica, new, request)
    assert ledger.load(replica) == 142
    ledger.done("a", "x")
    ledger.done("a", "x")
    ledger.done("a", "unknown")
    ledger.done("b", "y")
    assert ledger.load(replica) == 42
    replica.version = 2  # the summary counts what is left itself
    assert ledger.load(replica) == 5
    ledger.done("a", "y")
    assert ledger.load(replica) == 5


def test_a_ledger_is_bounded() -> None:
    dice = random.Random(6)
    replica: Replica[str] = Replica("a")
    ledger = Affinity[str](seed=1).ledger
    prompts = [prompt_of(tokens_of(dice, 6400)) for _ in range(100)]
    for prompt in prompts:
        ledger.sent(prompt, replica, 6400)
    assert sum(len(page.recent) for page in ledger._pages.values()) == REMEMBERED
    assert ledger.matched(prompts[-1], replica) == 6400
    assert ledger.matched(prompts[0], replica) == 0


def test_with_a_store_others_are_not_as_far_behind() -> None:
    dice = random.Random(7)
    tokens = tokens_of(dice, 1024)
    prompt = prompt_of(tokens)
    knowing = Replica(0, frozenset(prompt.fingerprints), waiting=900)
    for shared, first in ((None, 0), (0.5, 0), (0.2, 1)):
        assert Affinity[int](seed=1, shared=shared).rank(prompt, [knowing, Replica(1)])[0] == first


def test_the_simple_ones() -> None:
    replicas = [Replica(at) for at in range(5)]
    robin: RoundRobin[int] = RoundRobin()
    assert [robin.rank(Prompt(1), replicas)[0] for _ in range(7)] == [0, 1, 2, 3, 4, 0, 1]
    got = Counter(Random[int](seed=1).rank(Prompt(1), replicas)[0] for _ in range(1))
    dice: Random[int] = Random(seed=1)
    got = Counter(dice.rank(Prompt(1), replicas)[0] for _ in range(2000))
    assert min(got.values()) > 300
    for policy in (robin, dice, PowerOfTwo[int](1), Affinity[int](1)):
        assert policy.rank(Prompt(1), []) == []
        assert policy.rank(Prompt(1), replicas[:1]) == [0]


REQUESTS = 800 if SOAK else 400


class NaiveReplica:
    """Knows every prompt that it was given; computes what is new."""

    def __init__(self, number: int) -> None:
        cache = kv.caches.CausalCache(1, 1, 4, 1 << 16, dtype="float32", device="host")
        self.cache = kv.PrefixCache(cache)
        self.view: Replica[int] = Replica(number)
        self.computed = 0

    def answer(self, tokens: list[int]) -> None:
        with self.cache.begin(tokens) as session:
            for step in session.prefill(chunk=4096):
                rows = np.zeros((len(step.tokens), 1, 4), np.float32)
                step.put(0, rows, rows)
                self.computed += len(step.tokens)

    def tell(self) -> None:
        self.view.version += 1
        self.view.known = frozenset(short(self.cache.summary(SIZE)).tolist())


def day_of(policy: object, seed: int, replicas: int = 4, every: int = 8) -> int:
    """Tokens computed for chats with four system prompts; every so many requests all replicas tell what they know."""
    dice = random.Random(seed)
    fleet = [NaiveReplica(at) for at in range(replicas)]
    systems = [tokens_of(dice, 600) for _ in range(4)]
    chats = [list(dice.choice(systems)) for _ in range(40)]
    for number in range(REQUESTS):
        chat = dice.choice(chats)
        chat += tokens_of(dice, dice.randrange(60, 300))
        prompt = prompt_of(chat)
        chosen = fleet[policy.rank(prompt, [each.view for each in fleet])[0]]  # type: ignore[attr-defined]
        policy.sent(prompt, chosen.view, number)  # type: ignore[attr-defined]
        chosen.answer(chat)
        if number >= 2:  # three are under way at any time
            policy.done(chosen.view.id, number - 2)  # type: ignore[attr-defined]
        if number % every == 0:
            for each in fleet:
                each.tell()
    for each in fleet:
        each.cache.close()
    return sum(each.computed for each in fleet)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_day_on_four_replicas(seed: int) -> None:
    one = day_of(RoundRobin(), seed, replicas=1)
    ours = day_of(Affinity(seed=seed), seed)
    by_turns = day_of(RoundRobin(), seed)
    print(f"seed {seed}: one cache {one} tokens, affinity {ours / one:.3f} times as many, in turn {by_turns / one:.2f}")
    assert ours <= 1.1 * one
    assert by_turns > 1.5 * one
