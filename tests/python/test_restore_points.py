"""Restore points: where a prompt can be gone on from, why not deeper, which point goes first, and back from the host.

All kinds of caches; the models check every key and state they are given (kinds_fakes.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from fakes import compute, run
from kinds_fakes import KindsModel, image, make, points_of, words

RECURRENT = ("hybrid", "recurrent alone", "all")
FORGETTING = ("window", "chunk", "window alone", "chunk alone")
KINDS = ("dense", *FORGETTING, *RECURRENT)
SMALL: dict[str, Any] = {"capacity": 512, "window": 16, "chunk": 16, "spacing": 16}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def parted(text: list[int], at: int, seed: int, length: int) -> list[int]:
    """`text` up to `at`, then something else."""
    return [*text[:at], (text[at] + 1 + seed) % 97, *words(1000 + seed, length - at - 1)]


# ---- reasons ---------------------------------------------------------------------------------------------------------


def test_no_state_where_the_match_ends() -> None:
    cache, model = make("hybrid", **SMALL)
    a = words(1, 60)
    run(cache, a, model)
    b = parted(a, 40, 0, 60)
    plan = cache.plan(b)
    assert (plan.matched, plan.reusable, plan.reason.code) == (40, 32, "no_state")
    assert plan.reason.startswith("no_state: the recurrent layers have no state")
    session = run(cache, b, model)
    assert (session.matched, session.reused, session.reason.code) == (40, 32, "no_state")
    assert (cache.plan(a).reusable, cache.plan(a).reason.code) == (59, "last_token")
    assert cache.plan(b[:40]).reason.code == "last_token"
    assert (cache.plan(b[:41]).reusable, cache.plan(b[:41]).reason) == (40, "")


def test_window_incomplete() -> None:
    """Cells outside every window went for somebody else's: the end of the prompt is there, the middle is not."""
    cache, model = make("window", window_capacity=80, growth=0, **SMALL)
    a = words(1, 60)
    run(cache, a, model)
    run(cache, words(2, 60), model)
    b = parted(a, 40, 0, 60)
    plan = cache.plan(b)
    assert plan.matched == 40
    assert plan.reusable < 40
    assert plan.reason.code == "window_incomplete"
    session = run(cache, b, model)
    assert (session.matched, session.reused, session.reason.code) == (40, plan.reusable, "window_incomplete")
    assert (cache.plan(a).reusable, cache.plan(a).reason.code) == (59, "last_token")
    assert run(cache, a, model).reused == 59
    assert cache.check() == []


def test_chunk_incomplete() -> None:
    """A border of chunks needs nothing before it."""
    cache, model = make("chunk", window_capacity=70, growth=0, **SMALL)
    a = words(1, 60)
    run(cache, a, model)
    run(cache, words(2, 60), model)
    plan = cache.plan(parted(a, 40, 0, 60))
    assert (plan.matched, plan.reusable, plan.reason.code) == (40, 32, "window_incomplete")
    assert run(cache, parted(a, 40, 0, 60), model).reused == 32
    assert run(cache, a, model).reused == 59
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
        texts.append(parted(base, int(random.integers(len(base))), seed, 70))
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
            reused.append(run(cache, parted(a, 37, seed, 60), model, chunk=chunk).reused)
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
    """A 47-token prompt in steps of 9, given up after 18 and again after 36 tokens."""
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
    other = run(cache, parted(prompt, 18, 0, 40), model)
    assert (other.matched, other.reused) == (18, 18)
    other = run(cache, parted(prompt, 17, 0, 40), model)
    assert other.matched == 17
    assert other.reused == (16 if kind in RECURRENT else 17)
    assert run(cache, prompt, model).reused == 45 if kind == "never" else 46
    assert cache.check() == []


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
        assert cache.plan(parted(a, 45, seed, 61)).reusable == 40
        assert cache.check() == []
    assert cache.stats()["dropped_points"] > 50
    session = run(cache, parted(a, 45, 0, 61), model)
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
        assert run(cache, parted(text, at, 0, at + 10), model).reused == below
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


# ---- to the host and back --------------------------------------------------------------------------------------------


def test_everything_comes_back_as_it_was(kind: str) -> None:
    """Windows, chunks and states; the model compares them number for number."""
    cache, model = make(kind, host_bytes="8MiB", **SMALL)
    a = words(1, 90)
    b = parted(a, 50, 0, 90)
    for text in (a, b):
        run(cache, text, model)
    device_bytes = cache.stats()["device_bytes"]
    assert cache.page_out(nbytes=device_bytes) >= device_bytes
    assert {node.tier for node in cache.nodes()} == {"host"}
    assert all(each["free_cells"] == each["capacity_cells"] for each in cache.stats()["caches"])
    assert all(each["free_slots"] == each["capacity_slots"] for each in cache.stats()["recurrent"])
    for text in (a, b, a):
        plan = cache.plan(text)
        session = run(cache, text, model)
        assert (session.matched, session.reused) == (90, 89)
        assert (session.tier, session.bytes_moved) == (plan.tier, plan.bytes_moved)
        assert cache.check() == []
    stats = cache.stats()
    assert stats["checksum_failures"] == 0
    assert stats["page_in_bytes"] > 0


@pytest.mark.parametrize("kind", ["window", "hybrid", "all"])
def test_only_what_is_needed_comes_back(kind: str) -> None:
    """The window before the end, not the whole of it, and one state."""
    cache, model = make(kind, host_bytes="8MiB", **SMALL)
    text = words(1, 400)
    run(cache, text, model)
    cache.page_out(nbytes=cache.stats()["device_bytes"])
    plan = cache.plan(text)
    cells = {"window": 399 * 28 + 15 * 3 * 28, "hybrid": 399 * 28, "all": 399 * 2 * 28 + 15 * 2 * 28 + 15 * 28}[kind]
    states = {"window": 0, "hybrid": 3, "all": 2}[kind] * (3 * 4 + 2 * 2 * 3) * 4
    assert plan.bytes_moved == cells + states
    session = run(cache, text, model)
    assert session.bytes_moved == plan.bytes_moved


@pytest.mark.parametrize("kind", ["window", "chunk", "hybrid", "all"])
def test_under_pressure_points_move_to_the_host(kind: str) -> None:
    """Slots and window cells for one prompt; with a host tier nothing is lost."""
    cache, model = make(
        kind, 2048, window=16, chunk=16, spacing=32, slots=6, window_capacity=80, growth=0, host_bytes="8MiB"
    )
    texts = [words(seed, 70) for seed in range(6)]
    for text in texts:
        run(cache, text, model)
    for text in (*texts, *texts[::-1]):
        session = run(cache, text, model)
        assert session.reused == 69
        assert cache.check() == []
    assert cache.stats()["page_ins"] > 0
    assert cache.stats()["checksum_failures"] == 0


# ---- rewind and branch -----------------------------------------------------------------------------------------------


def test_rewinding_goes_to_points_only() -> None:
    cache, model = make("hybrid", **SMALL)
    text = words(1, 60)
    with cache.begin(text) as session:
        compute(session, model)
        points = [0, 16, 32, 48, 59, 60]
        assert [length for length in range(61) if session.can_rewind(length)] == points
        for length in (1, 15, 17, 31, 47, 50, 58):
            with pytest.raises(kv.NotRestorable) as refused:
                session.rewind(length)
            assert refused.value.nearest == max(point for point in points if point <= length)
            assert session.length == 60
        for wrong in (-1, 61):
            with pytest.raises(kv.NotRestorable):
                session.rewind(wrong)
        for length in (59, 48, 32, 16, 0):
            session.rewind(length)
            assert session.length == length
            session.append(text[length:])
            compute(session, model, 10)
        session.rewind(32)
        session.append(words(2, 20))
        compute(session, model)
    assert cache.check() == []


@pytest.mark.parametrize("memory", [16, 24])
def test_rewinding_in_a_window(memory: int) -> None:
    """What the tree still holds can be gone back to, also where the session itself let go."""
    caches = [kv.CausalCache([0, 1], 1, 4, 256, dtype="float32", device="host", window=16, memory=memory)]
    model, cache = KindsModel(caches), kv.PrefixCache(caches, host_bytes=0)
    text = words(1, 60)
    with cache.begin(text) as session:
        compute(session, model)
        assert all(session.can_rewind(length) for length in range(61))
        for length in (59, 50, 30, 45, 3, 0):
            session.rewind(min(length, session.length))
            at = session.length
            session.append(text[at:])
            compute(session, model, 7)
        twin = session.branch()
        twin.rewind(20)
        twin.append(words(3, 10))
        compute(twin, model)
        twin.close()
    with cache.begin(text, publish=False, use=False) as session:
        compute(session, model)
        reachable = [length for length in range(61) if session.can_rewind(length)]
        assert reachable == [*range(61)] if memory > 60 else reachable[-1] == 60
        low = 60 - (memory - 16)
        assert set(range(low, 61)) <= set(reachable)
        with pytest.raises(kv.NotRestorable) as refused:
            session.rewind(30)
        assert session.can_rewind(refused.value.nearest)
        assert refused.value.nearest <= 30
        assert session.length == 60
    assert cache.check() == []


def test_branches(kind: str) -> None:
    """A branch starts at the very token, not at a point; branches of branches go their own ways."""
    cache, model = make(kind, **SMALL)
    with cache.begin(words(1, 45)) as trunk:
        compute(trunk, model)
        twins = [trunk.branch() for _ in range(3)]
        for token, twin in enumerate(twins):
            assert (twin.length, twin.reused) == (45, 45)
            twin.append([token, *words(token, 20)])
            compute(twin, model, 6)
        deeper = twins[0].branch()
        deeper.append([9, 9])
        model(cache.batch([deeper]))
        for session in (trunk, *twins, deeper):
            session.append(50)
        model(cache.batch([trunk, *twins, deeper]))
        assert cache.check() == []
        for session in (*twins, deeper):
            session.close()
    assert cache.check() == []
    assert run(cache, [*words(1, 45), 1, *words(1, 20), 50], model).reused == 66


def test_two_live_conversations_token_by_token(kind: str) -> None:
    """On one shared prefix, alone and in one step, with a window full several times over."""
    cache, model = make(kind, **SMALL)
    shared = words(1, 20)
    sessions = [cache.begin([*shared, 40 + index]) for index in range(2)]
    for session in sessions:
        compute(session, model, 8)
    for count in range(40):
        for index, session in enumerate(sessions):
            session.append((7 * count + index) % 97)
            if count % 3:
                model(session.decode())
        if count % 3 == 0:
            model(cache.batch(sessions))
    assert cache.check() == []
    texts = [session.tokens.tolist() for session in sessions]
    for session in sessions:
        session.close()
    for text in texts:
        assert run(cache, [*text, 1], model).reused == 61
    assert cache.check() == []


def test_two_prefills_at_once_adopt_from_each_other(kind: str) -> None:
    """The second of two equal prompts computes about what the first one has not published yet."""
    cache, model = make(kind, **SMALL)
    prompt = words(1, 64)
    with cache.begin(prompt) as one, cache.begin(prompt) as two:
        steps = [one.prefill(chunk=16), two.prefill(chunk=16)]
        while len(one.remaining) or len(two.remaining):
            for session, prefill in zip((one, two), steps):
                if len(session.remaining):
                    model(next(prefill))
    assert model.rows <= 64 + 17
    assert run(cache, prompt, model).reused == 63
    assert cache.check() == []


# ---- small and odd ---------------------------------------------------------------------------------------------------


def test_a_prompt_of_one_token(kind: str) -> None:
    cache, model = make(kind, **SMALL)
    assert [run(cache, [5], model).reused for _ in range(3)] == [0, 0, 0]
    assert run(cache, [5], model, reuse_all=True).reused == 1
    assert run(cache, [5, 6], model).reused == 1
    assert run(cache, [5], model).reused == 0
    assert cache.check() == []


def test_a_prompt_that_is_the_stored_one_less_its_end(kind: str) -> None:
    """One and two tokens shorter: at least one is computed, never more than back to the last point."""
    cache, model = make(kind, **SMALL)
    text = words(1, 60)
    run(cache, text, model)
    recurrent = kind in RECURRENT
    assert run(cache, text[:-1], model).reused == (48 if recurrent else 58)
    assert run(cache, text[:-1], model).reused == 58
    assert run(cache, text[:-1], model, reuse_all=True).reused == 59
    assert run(cache, text[:-2], model, reuse_all=True).reused == 58
    assert run(cache, text, model, reuse_all=True).reused == 60
    assert run(cache, [*text, 1], model).reused == 60
    assert cache.check() == []


def test_points_beyond_the_prompt_are_none() -> None:
    """A spacing that is never crossed makes nothing."""
    cache, model = make("hybrid", 512, spacing=64)
    run(cache, words(1, 63), model)
    assert points_of(cache) == {62: "end", 63: "end"}


def test_a_model_without_state() -> None:
    """No cache at all: every prompt is computed, steps are complete when made."""
    cache, model = kv.PrefixCache([]), KindsModel([])
    text = words(1, 40)
    for _ in range(2):
        with cache.begin(text) as session:
            assert (session.matched, session.reused) == (0, 0)
            assert compute(session, model, 16) == 3
            assert session.length == 40
            session.append(4)
            model(session.decode())
            twin = session.branch()
            twin.rewind(20)
            assert (twin.length, session.length) == (20, 41)
            twin.close()
    assert cache.nodes() == []
    assert cache.plan(text).reusable == 0
    assert cache.check() == []


@pytest.mark.parametrize("kind", ["recurrent alone", "window alone", "chunk alone"])
def test_kinds_alone(kind: str) -> None:
    """Without full attention beside it, nodes hold what is left: nothing at all is no node."""
    cache, model = make(kind, window_capacity=64, slots=8, growth=0, **SMALL)
    texts = [words(seed, 60) for seed in range(5)]
    for text in texts:
        run(cache, text, model)
        assert run(cache, text, model).reused == 59
        assert cache.check() == []
    assert cache.stats()["tokens"] < 5 * 60
    for text in texts:
        run(cache, text, model)
        assert cache.check() == []
    cache.evict(nbytes=cache.stats()["device_bytes"])
    assert cache.nodes() == []


def test_layers_that_are_not_contiguous_and_widths_that_differ() -> None:
    """K wider than V, V wider than K, V of no width at all, and one half of a recurrent state alone."""
    caches = [
        kv.CausalCache([8, 1], 2, 8, 256, v_head_dim=4, dtype="float32", device="host"),
        kv.CausalCache([3], 1, 4, 256, v_head_dim=0, dtype="float32", device="host", window=16),
        kv.CausalCache([0, 9], 3, 4, 256, v_head_dim=12, dtype="float32", device="host", chunk=16),
        kv.RecurrentCache([6], 3, 4, 0, 0, 0, 32, device="host"),
        kv.RecurrentCache([2, 5], 0, 0, 2, 3, 4, 32, device="host"),
    ]
    model = KindsModel(caches)
    cache = kv.PrefixCache(caches, host_bytes="4MiB", checkpoint_every=16)
    assert [layer for layer, _ in model.layers] == [0, 1, 2, 3, 5, 6, 8, 9]
    a = words(1, 60)
    reused = [run(cache, text, model).reused for text in (a, parted(a, 40, 0, 60), parted(a, 40, 1, 60), a)]
    assert reused == [0, 32, 40, 59]
    cache.page_out(nbytes=cache.stats()["device_bytes"])
    assert run(cache, a, model).reused == 59
    with cache.begin(a) as session:
        compute(session, model)
        session.rewind(48)
        session.append(words(2, 20))
        compute(session, model, 5)
    assert cache.check() == []


@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("kind", ["window", "window alone", "chunk", "all"])
def test_around_the_window(kind: str, offset: int) -> None:
    """Prompts of w-1, w, w+1 tokens, matches that end there, and one of twice that."""
    for base in (16, 32):
        cache, model = make(kind, **{**SMALL, "spacing": 4})
        length = base + offset
        text = words(1, length)
        assert [run(cache, text, model).reused for _ in range(2)] == [0, length - 1]
        longer = [*text, *words(2, 20)]
        assert run(cache, longer, model).reused == length
        assert run(cache, parted(longer, length, 0, 50), model).reused == length
        with cache.begin(longer) as session:
            compute(session, model, 5)
            session.rewind(length)
            for token in range(20):
                session.append(token)
                model(session.decode())
        assert cache.check() == []


def test_a_failing_model_leaves_no_point_and_no_slot() -> None:
    cache, model = make("all", **SMALL)
    run(cache, words(1, 40), model)
    before = cache.stats()["recurrent"], points_of(cache)
    with cache.begin(words(2, 100)) as session:
        step = next(session.prefill())
        conv, delta = step.states(5)
        count = len(step.boundaries()[0]) + 1
        assert count == 8
        with pytest.raises(kv.ArgumentError):
            step.put_states(5, np.zeros((count - 1, 3, 4), np.float32), np.zeros((count - 1, 2, 2, 3), np.float32))
        step.put_states(5, np.zeros((count, 3, 4), np.float32), np.zeros((count, 2, 2, 3), np.float32))
        del conv, delta
        assert session.length == 0
    assert (cache.stats()["recurrent"], points_of(cache)) == before
    assert cache.check() == []
