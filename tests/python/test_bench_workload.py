"""The day of chats that bench_chats.py plays: its shares, its prompts, and that it is the same for every engine."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import workload
from workload import EDIT, NEW, NEXT, REPEAT, SWITCH, Day

VOCABULARY = 4096


def play(day: Day, requests: int, said: int = 1) -> list[Any]:
    """The requests; every answer repeats the token ``said``."""
    played = []
    for _ in range(requests):
        played.append(day.next())
        day.answer([said] * played[-1].answer_length)
    return played


def play_watched(day: Day, requests: int) -> list[tuple[Any, list[list[int]]]]:
    """Each request with all lines as they stood before it."""
    played = []
    for _ in range(requests):
        before = [list(line.tokens) for line in day.lines]
        played.append((day.next(), before))
        day.answer([1] * played[-1][0].answer_length)
    return played


def common(a: list[int], b: list[int]) -> int:
    return next((index for index, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def test_shares_are_those_of_the_day() -> None:
    counts = Counter(request.operation for request in play(Day(7, VOCABULARY), 3000))
    for operation, share in workload.SHARES.items():
        assert counts[operation] / 30 == pytest.approx(share, abs=3), operation
    assert sum(workload.SHARES.values()) == 100


def test_same_seed_same_day() -> None:
    first, again, other = (play(Day(seed, VOCABULARY), 60) for seed in (3, 3, 4))
    assert first == again
    assert [request.prompt for request in first] != [request.prompt for request in other]


def test_structure_does_not_depend_on_answers() -> None:
    def shape(said: int) -> list[tuple[Any, ...]]:
        played = play(Day(5, VOCABULARY), 200, said)
        return [(r.operation, len(r.prompt), r.answer_length, r.line, r.source) for r in played]

    assert shape(1) == shape(2)


def test_lengths_stay_in_bounds() -> None:
    played = play(Day(1, VOCABULARY), 2000)
    lengths = sorted(len(request.prompt) for request in played)
    assert min(workload.SYSTEM_LENGTHS) < lengths[0] < 700
    assert 1800 < lengths[len(lengths) * 9 // 10] <= lengths[-1] <= workload.LONGEST
    assert all(16 <= request.answer_length <= 64 for request in played)
    assert all(workload.FIRST_WORD <= token < VOCABULARY for r in played[:20] for token in r.prompt if token != 1)


@pytest.mark.parametrize("seed", [1, 2])
def test_prompts_are_what_the_operations_say(seed: int) -> None:
    day = Day(seed, VOCABULARY)
    systems = [list(system) for system in day._systems]
    current = None
    for request, before in play_watched(day, 300):
        prompt, source = request.prompt, request.source
        if request.operation == NEW:
            assert source is None
            assert request.line == len(before)
            assert any(prompt[: len(system)] == system for system in systems)
            assert all(common(prompt, line) <= max(workload.SYSTEM_LENGTHS) for line in before)
        else:
            shared = common(prompt, before[source])
        if request.operation in (NEXT, SWITCH):
            assert shared == len(before[source]) < len(prompt)
            assert request.line == source
            assert (source == current) == (request.operation == NEXT)
        if request.operation == REPEAT:
            assert shared == len(prompt) < len(before[source])
        if request.operation == EDIT:
            assert min(workload.SYSTEM_LENGTHS) <= shared < min(len(prompt), len(before[source]))
        if request.operation in (EDIT, REPEAT):
            assert source == current
            assert request.line == len(before)
        current = request.line


def test_an_edit_leaves_the_old_branch() -> None:
    day = Day(1, VOCABULARY)
    edits = [(request, before) for request, before in play_watched(day, 200) if request.operation == EDIT]
    assert len(edits) > 10
    request, before = edits[0]
    assert day.lines[request.source].tokens[: len(before[request.source])] == before[request.source]
    assert day.lines[request.source].conversation == day.lines[request.line].conversation


def test_refuses_answers_out_of_turn() -> None:
    day = Day(1, VOCABULARY)
    with pytest.raises(ValueError, match=r"\[workload\] answer"):
        day.answer([1])
    request = day.next()
    with pytest.raises(ValueError, match=r"\[workload\] next"):
        day.next()
    with pytest.raises(ValueError, match=r"\[workload\] answer"):
        day.answer([1] * (request.answer_length + 1))


def test_numbers_of_the_generator() -> None:
    """splitmix64's first outputs for seed 0 (Steele et al. 2014; the JDK's SplittableRandom gives the same)."""
    random = workload.Random(0)
    outputs = [random.below(1 << 64) for _ in range(3)]
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
