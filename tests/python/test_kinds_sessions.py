"""Sessions over every kind of cache: to the host and back, rewinds, branches, two at once, and odd shapes.

The models check every key and state they are given (kinds_fakes.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from fakes import compute, run
from kinds_fakes import KindsModel, diverging, make, points_of, words

pytestmark = pytest.mark.usefixtures("nothing_left_over")

RECURRENT = ("hybrid", "recurrent alone", "all")
KINDS = ("dense", "window", "chunk", "window alone", "chunk alone", *RECURRENT)
SMALL: dict[str, Any] = {"capacity": 512, "window": 16, "chunk": 16, "spacing": 16}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ---- to the host and back --------------------------------------------------------------------------------------------


def test_everything_comes_back_as_it_was(kind: str, place: Any) -> None:
    """Windows, chunks and states; the model compares them number for number."""
    cache, model = make(kind, host_bytes="8MiB", device=place, **SMALL)
    a = words(1, 90)
    b = diverging(a, 50, 0, 90)
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
            with pytest.raises(kv.errors.NotRestorableError) as refused:
                session.rewind(length)
            assert refused.value.nearest == max(point for point in points if point <= length)
            assert session.length == 60
        for wrong in (-1, 61):
            with pytest.raises(kv.errors.NotRestorableError):
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
    caches = [kv.caches.CausalCache([0, 1], 1, 4, 256, dtype="float32", device="host", window=16, memory=memory)]
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
        with pytest.raises(kv.errors.NotRestorableError) as refused:
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
    end = 65 if kind in RECURRENT else 66  # 65: before the last of the tokens appended together
    assert run(cache, [*words(1, 45), 1, *words(1, 20), 50], model).reused == end


def test_two_live_conversations_token_by_token(kind: str, place: Any) -> None:
    """On one shared prefix, alone and in one step, with a window full several times over."""
    cache, model = make(kind, device=place, **SMALL)
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


def test_pressure_leaves_what_is_live_alone(kind: str) -> None:
    """Pools of little more than one conversation: others come and go, the live one goes on as if alone."""
    options = {**SMALL, "capacity": 200, "window_capacity": 150, "slots": 8, "growth": 0}
    cache, model = make(kind, **options)
    with cache.begin(words(1, 60)) as session:
        compute(session, model)
        for seed in range(10):
            run(cache, words(100 + seed, 100), model)
            session.append(seed)
            model(session.decode())
            assert cache.check() == []
        text = session.tokens.tolist()
    assert run(cache, [*text, 1], model).reused == 70


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
    known = []
    for seed in range(40):
        text = words(seed, 60)
        run(cache, text, model)
        assert run(cache, text, model).reused == 59
        assert cache.check() == []
        known.append(cache.stats()["tokens"])
    assert known[-1] <= 2 * known[9]
    cache.evict(nbytes=cache.stats()["device_bytes"])
    assert cache.nodes() == []


def test_layers_that_are_not_contiguous_and_widths_that_differ() -> None:
    """K wider than V, V wider than K, V of no width at all, and one half of a recurrent state alone."""
    caches = [
        kv.caches.CausalCache([8, 1], 2, 8, 256, v_head_dim=4, dtype="float32", device="host"),
        kv.caches.CausalCache([3], 1, 4, 256, v_head_dim=0, dtype="float32", device="host", window=16),
        kv.caches.CausalCache([0, 9], 3, 4, 256, v_head_dim=12, dtype="float32", device="host", chunk=16),
        kv.caches.RecurrentCache([6], 3, 4, 0, 0, 0, 32, device="host"),
        kv.caches.RecurrentCache([2, 5], 0, 0, 2, 3, 4, 32, device="host"),
    ]
    model = KindsModel(caches)
    cache = kv.PrefixCache(caches, host_bytes="4MiB", checkpoint_every=16)
    assert [layer for layer, _ in model.layers] == [0, 1, 2, 3, 5, 6, 8, 9]
    a = words(1, 60)
    reused = [run(cache, text, model).reused for text in (a, diverging(a, 40, 0, 60), diverging(a, 40, 1, 60), a)]
    assert reused == [0, 32, 40, 59]
    cache.page_out(nbytes=cache.stats()["device_bytes"])
    assert run(cache, a, model).reused == 59
    with cache.begin(a) as session:
        compute(session, model)
        session.rewind(59)  # the points below stayed on the host
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
        assert run(cache, diverging(longer, length, 0, 50), model).reused == length
        with cache.begin(longer) as session:
            compute(session, model, 5)
            session.rewind(length)
            for token in range(20):
                session.append(token)
                model(session.decode())
        assert cache.check() == []


def test_a_step_names_the_states_that_are_there() -> None:
    """None for the half that a recurrent cache has not."""
    caches = [
        kv.caches.RecurrentCache([0], 3, 4, 0, 0, 0, 8, device="host"),
        kv.caches.RecurrentCache([1], 0, 0, 2, 3, 4, 8, device="host"),
    ]
    with kv.PrefixCache(caches).begin([1, 2, 3]) as session:
        step = session.decode()
        assert step.states(0)[0].shape == (1, 3, 4)
        assert step.states(1)[1].shape == (1, 2, 3, 4)
        assert (step.states(0)[1], step.states(1)[0]) == (None, None)


def test_a_failing_model_leaves_no_point_and_no_slot() -> None:
    cache, model = make("all", **SMALL)
    run(cache, words(1, 40), model)
    before = cache.stats()["recurrent"], points_of(cache)
    with cache.begin(words(2, 100)) as session:
        step = next(session.prefill())
        count = len(step.boundaries()[0]) + 1
        assert count == 8
        with pytest.raises(kv.errors.ArgumentError):
            step.put_states(5, np.zeros((count - 1, 3, 4), np.float32), np.zeros((count - 1, 2, 2, 3), np.float32))
        step.put_states(5, np.zeros((count, 3, 4), np.float32), np.zeros((count, 2, 2, 3), np.float32))
        assert session.length == 0
    assert (cache.stats()["recurrent"], points_of(cache)) == before
    assert cache.check() == []


@pytest.mark.parametrize("chunk", [*(pytest.param(each, marks=pytest.mark.ci) for each in (255, 256)), 257])
def test_growth_at_the_borders_of_a_reservation(kind: str, chunk: int) -> None:
    """Steps that end just before, at and behind what was reserved, with another session's cells right behind."""
    cache, model = make(kind, capacity=2048, growth=256)
    long = cache.begin(words(1, 2 * chunk + 3))
    other = cache.begin(words(2, 300))
    while len(long.remaining) or len(other.remaining):
        model(cache.batch([session for session in (long, other) if len(session.remaining)], chunk=chunk))
    for token in (5, 6, 7):
        for session in (long, other):
            session.append(token)
            model(session.decode())
    assert (long.length, other.length) == (2 * chunk + 6, 303)
    long.close()
    other.close()
    assert cache.check() == []
