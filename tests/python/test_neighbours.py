"""What a tenant learns of another one: by how full the cache is, and by time (neighbours.py)."""

from __future__ import annotations

import pytest

from neighbours import ATTACKER, KINDS, VICTIM, first_difference, halves, share_told, time_attack, trace

STEPS = 120
CASES = [(kind, policy, "host") for kind in KINDS for policy in ("lru", "slru", "cost")]
CASES += [(kind, "lru", "disk") for kind in KINDS]
QUICK = {
    *zip(KINDS, ("cost", "slru", "lru", "cost", "slru", "lru"), ["host"] * 6),
    (KINDS[0], "lru", "disk"),
}  # each once


@pytest.mark.parametrize(
    ("kind", "policy", "tier"), [case if case in QUICK else pytest.param(*case, marks=pytest.mark.ci) for case in CASES]
)
def test_with_a_floor_as_high_as_its_most_a_tenant_sees_nothing_of_the_other(kind: str, policy: str, tier: str) -> None:
    alone = trace(kind, 1, None, halves(), STEPS, policy, tier)
    assert {call for call, _, _ in alone} >= {"begin", "compute", "close", "plan", "page_out", "evict"}
    for victim in (10, 11):
        seen = trace(kind, 1, victim, halves(), STEPS, policy, tier)
        at = first_difference(alone, seen)
        assert at is None, f"seeds 1 and {victim}, call {at}: {alone[at]} alone, {seen[at]} beside the victim"


@pytest.mark.parametrize("kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.ci) for kind in KINDS[1:])])
def test_the_same_attacker_sees_the_other_where_there_are_no_floors(kind: str) -> None:
    """So that the test above can fail."""
    for quotas in (None, {ATTACKER: {"most": 0.5}, VICTIM: {"most": 1.0}}):
        one, other = (trace(kind, 1, victim, quotas, STEPS) for victim in (10, 11))
        assert one != other


@pytest.mark.ci
def test_times_do_not_tell_what_another_tenant_knows() -> None:
    """By chance alone a share is further from a half than five standard deviations once in 1.7 million times."""
    count = 600
    for call, share in time_attack(count, 64, VICTIM).items():
        assert abs(share - 0.5) < 5 * 0.5 / count**0.5, f"{call} tells {share:.1%} of the prompts"


@pytest.mark.ci
def test_the_same_judge_tells_what_the_tenant_itself_knows() -> None:
    assert share_told([(float(i // 2 % 2), bool(i // 2 % 2)) for i in range(400)]) == 1
    assert time_attack(150, 512, ATTACKER)["first_token"] > 0.5 + 5 * 0.5 / 150**0.5  # as above; it is some 0.97
