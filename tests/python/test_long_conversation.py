"""200 turns of a hybrid model in a small pool: slots never run out, and only the last turn is computed.

64 slots and 16,384 cells; the model checks every key and state it is given (kinds_fakes.py). ./dev test plays 80 turns,
which use up the slots as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from circles import CIRCLE
from kinds_fakes import KindsModel, make, make_caches, points_of, words

pytestmark = pytest.mark.usefixtures("nothing_left_over")

TURNS = 80 if CIRCLE == "test" else 200
SAID, ANSWER = 72, 8  # tokens of a question and of an answer
SLOTS, CELLS = 64, 16_384
CHUNK = 512


def answer(cache: Any, model: KindsModel, text: list[int], count: int) -> tuple[Any, list[int]]:
    """Begins with `text`, computes it and generates; the closed session and what it said."""
    with cache.begin(text) as session:
        made = list(kv.generate(model, session, max_tokens=count, ignore_eos=True, chunk=CHUNK))
    return session, made


def test_each_turn_begins_anew() -> None:
    """As a server does: every request brings the whole conversation."""
    cache, model = make("hybrid", CELLS, slots=SLOTS)
    text: list[int] = []
    failures: list[str] = []
    for turn in range(TURNS):
        known = len(text) - 1  # the last token said was recorded, never computed
        text += words(turn, SAID)
        before = model.rows
        try:
            session, made = answer(cache, model, text, ANSWER)
        except kv.Error as error:
            failures.append(f"turn {turn}: {error}")
            continue
        assert session.reused == max(known, 0), f"turn {turn}"
        assert model.rows - before == len(text) - max(known, 0) + ANSWER - 1
        text += made
        assert cache.check() == [], f"turn {turn}"
    assert failures == []
    assert len(text) == TURNS * (SAID + ANSWER)
    stats = cache.stats()
    assert stats["caches"][0]["held_cells"] == stats["tokens"] == len(text) - 1
    assert stats["dropped_points"] > 0
    assert stats["evicted_tokens"] == 0


def test_one_session_goes_on() -> None:
    """As a notebook does: one session, appended to."""
    cache, model = make("hybrid", CELLS, slots=SLOTS)
    session = cache.begin(words(1000, SAID))
    for turn in range(TURNS - 1):
        before = model.rows
        list(kv.generate(model, session, max_tokens=ANSWER, ignore_eos=True, chunk=CHUNK))
        assert model.rows - before == SAID + (turn > 0) + ANSWER - 1
        session.append(words(turn, SAID))
        assert cache.check() == [], f"turn {turn}"
    text = [int(token) for token in session.tokens]
    session.close()
    assert cache.stats()["dropped_points"] > 0
    again, _ = answer(cache, model, text, 0)
    assert again.reused == len(text) - SAID - 1


def test_spaced_points_are_thinned_and_those_near_the_end_kept() -> None:
    """After many turns an edit in a recent one loses little; one far back loses no more than the gaps there."""
    cache, model = make("hybrid", CELLS, slots=SLOTS, spacing=64)
    text: list[int] = []
    for turn in range(TURNS // 2):
        text += words(turn, SAID)
        text += answer(cache, model, text, ANSWER)[1]
    points = sorted(points_of(cache))
    assert len(points) <= SLOTS
    assert max(np.diff([*points, len(text)])) <= len(text) // 4
    last_turn = len(text) - SAID - ANSWER
    assert points[-1] == len(text) - 1
    assert any(last_turn - 2 <= point <= last_turn for point in points)
    edited = [*text[: last_turn + 10], 96 - text[last_turn + 10], *words(500, 20)]
    assert answer(cache, model, edited, 0)[0].reused >= last_turn - 1
    assert cache.check() == []


@pytest.mark.parametrize("seed", range(2 if CIRCLE == "test" else 6))
def test_turns_that_change_what_was_said(seed: int) -> None:
    """Appending, leaving out the last answer's thoughts, editing: an extension loses nothing, the rest little."""
    spacing = 8
    cache, model = make("hybrid", 2048, slots=512, spacing=spacing)
    random = np.random.default_rng(seed)
    text, extended = words(seed, 30), True
    for turn in range(12):
        session, made = answer(cache, model, text, 10)
        lost = session.matched - session.reused
        assert lost in (0, 1) if extended else lost < spacing, (turn, session.matched, session.reused)
        assert cache.check() == []
        what = random.integers(3)
        extended = what == 0
        if what == 0:
            text = [*text, *made]
        elif what == 1:
            text = [*text, *made[4:]]
        else:
            text = text[: int(random.integers(1, len(text)))]
        text += words(1000 * seed + turn, 15)


@pytest.mark.parametrize("slots", [2, 3, 8])
def test_few_slots(slots: int) -> None:
    """A live session needs two; whatever is left holds restore points. The count of computed rows pays for it."""
    cache, model = make("hybrid", 2048, slots=slots, spacing=64)
    text: list[int] = []
    for turn in range(20):
        known = len(text) - 1
        text += words(turn, 40)
        session, made = answer(cache, model, text, 4)
        if turn > 0:
            assert session.reused == known
        text += made
        assert cache.check() == [], f"turn {turn}"
    assert len(points_of(cache)) <= slots


def test_too_few_slots_are_refused_and_nothing_changes() -> None:
    caches = make_caches("hybrid", 512, slots=2)
    model, cache = KindsModel(caches), kv.PrefixCache(caches, host_bytes=0)
    sessions = [cache.begin(words(seed, 20)) for seed in range(2)]
    for step in sessions[0].prefill():
        model(step)
    sessions[0].append(5)
    model(sessions[0].decode())  # one slot of its own, one it moves to: the second session has none
    held = cache.stats()
    step = sessions[1].decode()
    sessions[0].append(6)
    with pytest.raises(kv.errors.CacheFullError) as info:
        sessions[0].decode()
    assert (info.value.needed, info.value.free) == (1, 0)
    assert sessions[0].length == 21
    del step
    sessions[1].close()
    model(sessions[0].decode())
    assert cache.stats()["caches"] != held["caches"]
    assert cache.check() == []
