"""Restore points: where a prompt can be gone on from, why not deeper, where points are made, and which one goes first.

All kinds of caches; the models check every key and state they are given (kinds_fakes.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from fakes import compute, run
from kinds_fakes import KindsModel, diverging, image, make, make_caches, points_of, words
from kvtrie._message_ends import message_ends

pytestmark = pytest.mark.usefixtures("nothing_left_over")

RECURRENT = ("hybrid", "recurrent alone", "all")
WINDOWED = ("window", "chunk", "window alone", "chunk alone")
KINDS = ("dense", *WINDOWED, *RECURRENT)
SMALL: dict[str, Any] = {"capacity": 512, "window": 16, "chunk": 16, "spacing": 16}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ---- reasons ---------------------------------------------------------------------------------------------------------


def test_no_state_where_the_match_ends() -> None:
    cache, model = make("hybrid", **SMALL)
    a = words(1, 60)
    run(cache, a, model)
    b = diverging(a, 40, 0, 60)
    plan = cache.plan(b)
    assert (plan.matched, plan.reusable, plan.reason.code) == (40, 32, "no_state")
    assert plan.reason.startswith("no_state: the recurrent layers have no state")
    session = run(cache, b, model)
    assert (session.matched, session.reused, session.reason.code) == (40, 32, "no_state")
    assert (cache.plan(a).reusable, cache.plan(a).reason.code) == (59, "last_token")
    assert (cache.plan(b[:40]).reusable, cache.plan(b[:40]).reason.code) == (32, "no_state")
    plan = cache.plan(diverging(a, 40, 1, 60))
    assert (plan.reusable, plan.reason.code, plan.reason) == (40, "none", "")


@pytest.mark.parametrize(("kind", "least"), [("window", 0), ("chunk", 32)])
def test_window_incomplete(kind: str, least: int) -> None:
    """Cells outside every window went for somebody else: the end of the prompt is there, its middle is not.

    The border of a chunk needs nothing before it.
    """
    cache, model = make(kind, window_capacity=80, growth=0, **SMALL)
    a = words(1, 60)
    run(cache, a, model)
    run(cache, words(2, 60), model)
    assert (cache.plan(a).reusable, cache.plan(a).reason.code) == (59, "last_token")
    b = diverging(a, 35, 0, 60)
    plan = cache.plan(b)
    assert (plan.matched, plan.reusable, plan.reason.code) == (35, least, "window_incomplete")
    assert "gone" in plan.reason.text
    assert run(cache, a, model).reused == 59
    session = run(cache, b, model)
    assert (session.matched, session.reused, session.reason.code) == (35, least, "window_incomplete")
    assert cache.check() == []


def test_atomic_span() -> None:
    cache, model = make("dense", **SMALL)
    prompt = [*words(1, 20), *image("reason", 10)]
    run(cache, prompt, model)
    plan = cache.plan(prompt)
    assert (plan.matched, plan.reusable, plan.reason.code) == (30, 20, "atomic_span")
    session = run(cache, prompt, model)
    assert (session.matched, session.reused, session.reason.code) == (30, 20, "atomic_span")


def test_a_plan_changes_nothing_and_begin_keeps_to_it(kind: str) -> None:
    cache, model = make(kind, window_capacity=120, **SMALL)
    random = np.random.default_rng(3)
    texts = [words(1, 70)]
    for seed in range(30):
        base = texts[random.integers(len(texts))]
        texts.append(diverging(base, int(random.integers(len(base))), seed, 70))
    for text in [*texts, *texts[::-1]]:
        before = cache.stats(), [(node.start, node.end, node.point) for node in cache.nodes()]
        plan = cache.plan(text)
        assert (cache.stats(), [(node.start, node.end, node.point) for node in cache.nodes()]) == before
        session = run(cache, text, model)
        assert (session.matched, session.reused) == (plan.matched, plan.reusable)
        assert (session.reason, session.tier) == (plan.reason, plan.tier)
        assert cache.check() == []


# ---- where points are made -------------------------------------------------------------------------------------------


def test_points_of_one_prompt() -> None:
    cache, model = make("hybrid", slots=64)
    run(cache, words(1, 2200), model, chunk=4096)
    assert points_of(cache) == {
        512: "spaced",
        1024: "spaced",
        1536: "spaced",
        2048: "spaced",
        2199: "end",
        2200: "end",
    }
    stats = cache.stats()
    assert stats["restore_points"] == 6
    assert stats["recurrent"][0]["capacity_slots"] - stats["recurrent"][0]["free_slots"] == 6
    with cache.begin(words(2, 100)) as session:
        compute(session, model)
        session.append(5)
        model(session.decode())
        assert cache.stats()["recurrent"][0]["free_slots"] == 64 - 6 - 1 - 1  # point 99, and the live one


def test_a_capture_is_scheduled_where_the_match_ends() -> None:
    """So the third prompt goes on from there, in every chunk length and without a cut."""
    for chunk in (3, 16, 512):
        cache, model = make("hybrid", **{**SMALL, "spacing": 512})
        a = words(1, 60)
        reused = [run(cache, a, model, chunk=chunk).reused]
        for seed in range(3):
            reused.append(run(cache, diverging(a, 37, seed, 60), model, chunk=chunk).reused)
        assert reused == [0, 0, 37, 37]
        assert points_of(cache)[37] == "branch"
        assert cache.stats()["steps"] == sum(-(-(60 - got) // chunk) for got in reused)
        assert cache.check() == []


def test_captures_are_inside_a_step_not_at_its_ends() -> None:
    """One forward crosses several scheduled lengths and is never cut for them."""
    cache, model = make("hybrid", **SMALL)
    run(cache, words(1, 100), model)
    assert cache.stats()["steps"] == 1
    assert model.captured == [16, 32, 48, 64, 80, 96, 99]
    assert sorted(points_of(cache)) == [16, 32, 48, 64, 80, 96, 99, 100]


def test_decoded_tokens_get_points_too() -> None:
    cache, model = make("hybrid", **SMALL)
    with cache.begin(words(1, 30)) as session:
        compute(session, model)
        for token in range(40):
            session.append(token)
            model(session.decode())
        assert sorted(points_of(cache)) == [16, 29, 32, 48, 64]
    assert points_of(cache)[70] == "end"
    assert cache.check() == []


def test_a_cancelled_prefill_goes_on_where_it_stopped(kind: str) -> None:
    """A 47-token prompt in steps of 9, cancelled after 18 and again after 36 tokens."""
    cache, model = make(kind, **{**SMALL, "spacing": 8})
    prompt, reused = words(1, 47), []
    for _ in range(3):
        with cache.begin(prompt) as session:
            reused.append((session.matched, session.reused))
            for count, step in enumerate(session.prefill(chunk=9), 1):
                model(step)
                if count == 2:
                    break
    assert reused == [(0, 0), (18, 18), (36, 36)]
    other = run(cache, diverging(prompt, 18, 0, 40), model)
    assert (other.matched, other.reused) == (18, 18)
    other = run(cache, diverging(prompt, 17, 0, 40), model)
    assert other.matched == 17
    assert other.reused == (16 if kind in RECURRENT else 17)
    assert run(cache, prompt, model).reused == 46
    assert cache.check() == []


def test_points_beyond_the_prompt_are_none() -> None:
    """A spacing that is never crossed makes nothing."""
    cache, model = make("hybrid", 512, spacing=64)
    run(cache, words(1, 63), model)
    assert points_of(cache) == {62: "end", 63: "end"}


def test_a_session_that_is_not_published_leaves_no_point() -> None:
    cache, model = make("hybrid", **SMALL)
    run(cache, words(1, 60), model, publish=False)
    stats = cache.stats()
    assert (stats["restore_points"], stats["captures"], stats["recurrent"][0]["free_slots"]) == (0, 0, 64)


# ---- which point goes first ------------------------------------------------------------------------------------------


def test_a_checkpoint_survives_pressure_longest() -> None:
    cache, model = make("hybrid", 4096, spacing=16, slots=12)
    a = words(1, 61)
    with cache.begin(a[:40]) as session:
        compute(session, model)
        assert session.checkpoint() == 40
        session.append(a[40:])
        compute(session, model)
    assert points_of(cache)[40] == "user"
    assert cache.stats()["user_points"] == 1
    for seed in range(20):
        run(cache, words(100 + seed, 200), model)
        assert cache.plan(diverging(a, 45, seed, 61)).reusable == 40
        assert cache.check() == []
    assert cache.stats()["dropped_points"] > 20
    session = run(cache, diverging(a, 45, 0, 61), model)
    assert (session.matched, session.reused, session.reason.code) == (45, 40, "no_state")


def test_user_points_go_last_oldest_first() -> None:
    """Only when nothing else is left."""
    cache, model = make("hybrid", 4096, spacing=512, slots=4)
    texts = [words(seed, 20) for seed in range(3)]
    for text in texts:
        with cache.begin(text) as session:
            compute(session, model)
            session.checkpoint()
    assert sorted(points_of(cache).values()).count("user") == 1  # by length, so one of three
    assert cache.stats()["user_points"] == 3
    with cache.begin(words(9, 30)) as one, cache.begin(words(10, 30)) as two:
        for session in (one, two):
            compute(session, model)
        assert cache.stats()["user_points"] == 2
        assert cache.plan([*texts[0], 5]).reusable == 0
        assert [cache.plan([*text, 5]).reusable for text in texts[1:]] == [20, 20]
    assert cache.check() == []


def test_spaced_points_thin_where_gaps_are_smallest_for_their_age() -> None:
    cache, model = make("hybrid", 8192, spacing=64, slots=14)
    text = words(1, 2048)
    with cache.begin(text) as session:
        compute(session, model, 128)
    points = [length for length, name in sorted(points_of(cache).items()) if name == "spaced"]
    assert len(points_of(cache)) <= 14
    gaps = np.diff([0, *points])
    half = len(gaps) // 2
    assert gaps[:half].mean() > 1.5 * gaps[half:].mean()  # far back wide, near the end narrow
    assert points[-1] >= 2048 - 2 * 64
    assert max(gaps) <= 2048 // 2
    for at in (points[0] + 5, points[3] + 5, points[-1] + 5):
        below = max(length for length in points_of(cache) if length <= at)
        assert run(cache, diverging(text, at, 0, at + 10), model).reused == below
    assert cache.check() == []


def test_points_that_are_used_again_outlive_those_that_are_not() -> None:
    cache, model = make("hybrid", 8192, spacing=512, slots=10)
    texts = [words(seed, 40) for seed in range(4)]
    for text in texts:
        run(cache, text, model)
    for seed in range(12):
        assert run(cache, texts[0], model).reused == 39  # restored again and again
        run(cache, words(50 + seed, 40), model)
    assert cache.plan(texts[0]).reusable == 39
    assert [cache.plan(text).reusable for text in texts[1:]] == [0, 0, 0]
    assert cache.check() == []


def test_pinned_points_stay() -> None:
    cache, model = make("hybrid", 8192, spacing=512, slots=8)
    text = words(1, 40)
    run(cache, text, model)
    assert cache.pin(text) == 40
    for seed in range(12):
        run(cache, words(50 + seed, 40), model)
    assert cache.plan([*text, 3]).reusable == 40
    assert cache.unpin(text) == 40
    for seed in range(12):
        run(cache, words(80 + seed, 40), model)
    assert cache.plan([*text, 3]).reusable == 0
    assert cache.check() == []


# ---- where messages end ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_state_is_kept_where_a_message_ends(kind: str) -> None:
    """An edited message costs its own tokens, and no more, whatever the distance of spaced points."""
    cache, model = make(kind, **{**SMALL, "spacing": 64})
    a = words(1, 120)
    session = cache.begin(a, message_ends=[40, 43, 90])
    compute(session, model)
    session.close()
    assert {40: "spaced", 90: "spaced", 119: "end"}.items() <= points_of(cache).items()
    assert 43 not in points_of(cache)  # three tokens are computed sooner than a state is kept
    assert 64 not in points_of(cache)  # 40 and 90 stand in for it
    for at, reused in ((45, 40), (100, 90), (39, 0)):
        assert run(cache, diverging(a, at, at, 120), model).reused == reused
    assert cache.check() == []


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_state_is_kept_where_others_parted_behind_the_same_tokens(kind: str) -> None:
    """A form with two fields: once two prompts parted at each, a new one is kept there without a word."""
    cache, model = make(kind, **{**SMALL, "capacity": 2048, "spacing": 512})
    first, second = words(1, 70), words(2, 40)

    def form(name: int, town: int) -> list[int]:
        return [*first, *words(10 + name, 40), *second, *words(100 + town, 40)]

    for name, town in ((1, 1), (2, 2), (3, 3), (1, 4), (1, 5)):
        run(cache, form(name, town), model)
    run(cache, form(6, 6), model)
    session = run(cache, form(6, 7), model)
    assert (session.matched, session.reused) == (150, 150)
    assert cache.check() == []


@pytest.mark.parametrize("kind", ["dense", *WINDOWED])
def test_without_states_message_ends_change_nothing(kind: str) -> None:
    made = []
    for ends in ([], [40, 90]):
        cache, model = make(kind, **SMALL)
        session = cache.begin(words(1, 120), message_ends=ends)
        compute(session, model)
        session.close()
        made.append(points_of(cache))
    assert made[0] == made[1]


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_prompt_within_a_conversation_begins_a_message(kind: str) -> None:
    cache, model = make(kind, **{**SMALL, "spacing": 64})
    session = cache.begin(words(1, 30))
    compute(session, model)
    session.append(9)  # an answer, whose last token is computed with what follows
    compute(session, model)
    session.append(8)
    session.append(words(2, 20))
    compute(session, model)
    assert points_of(cache)[32] == "spaced"
    session.close()


def test_two_branches_and_a_rewind_keep_the_ends_ahead() -> None:
    cache, model = make("hybrid", **{**SMALL, "spacing": 64})
    session = cache.begin(words(1, 120), message_ends=[40, 80])
    twin = session.branch()
    session.rewind(60)
    compute(session, model)
    compute(twin, model)
    assert {40, 80} <= points_of(cache).keys()
    session.append(words(3, 40))
    compute(session, model)
    assert run(cache, [*words(1, 60), *words(4, 9)], model).reused >= 40
    session.close()
    twin.close()
    assert cache.check() == []


@pytest.mark.parametrize("ends", [[0], [5, 5], [9, 8], [61], [-1]])
def test_message_ends_ascend_within_the_prompt(ends: list[int]) -> None:
    cache, _ = make("hybrid", **SMALL)
    with pytest.raises(kv.errors.ArgumentError, match=r"\[begin\] message_ends.*: got "):
        cache.begin(words(1, 60), message_ends=ends)
    assert cache.check() == []


class ChatTokens:
    """A tokenizer with two special tokens, as a chat has them in front of a role."""

    all_special_ids = (90, 91)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


def test_special_tokens_say_where_messages_end() -> None:
    caches = make_caches("hybrid")
    model = KindsModel(caches)
    cache = kv.PrefixCache(caches, checkpoint_every=64, tokenizer=ChatTokens(), host_bytes=0)
    header = [90, 7, 91]
    prompt = [*header, *words(1, 30), *header, *words(2, 30), *header]
    run(cache, prompt, model)
    assert sorted(points_of(cache)) == [36, len(prompt) - 1, len(prompt)]
    assert message_ends(prompt, np.asarray([90, 91])).tolist() == [3, 36]
    assert message_ends([1, 2, 3], np.asarray([90, 91])).tolist() == []
    assert message_ends([], np.asarray([90])).tolist() == []
