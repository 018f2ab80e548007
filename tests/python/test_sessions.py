"""Sessions over one prefix cache: what is reused, what is stored, what goes when room is short.

The model writes K and V that encode namespace, tokens, layer and position, and checks every history it is given
(fakes.py), so these tests see foreign, stale and lost rows, not only counts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from fakes import BYTES_PER_TOKEN, A, B, CodingModel, compute, make_cache, run, spans_of

pytestmark = pytest.mark.usefixtures("nothing_left_over")


# ---- reuse -----------------------------------------------------------------------------------------------------------


def test_two_prompts_switched_back_and_forth(device: Any) -> None:
    """The 2200/1500 table, and that a switch moves no K/V."""
    common = np.arange(1500) % 97
    prompts = [np.concatenate([common, np.full(700, word)]).astype(np.int32) for word in (201, 202)]
    model = CodingModel(check=False)
    cache = make_cache(4096)
    reused = []
    for prompt in (*prompts, *prompts):
        before = device.memory()["kv_bytes_moved"]
        session = run(cache, prompt, model)
        reused.append((session.reused, session.matched, device.memory()["kv_bytes_moved"] - before))
    assert reused == [(0, 0, 0), (1500, 1500, 0), (2199, 2200, 0), (2199, 2200, 0)]
    assert model.rows == 2200 + 700 + 1 + 1
    assert cache.check() == []


def test_a_prompt_known_in_full_leaves_one_token(place: Any, model: CodingModel) -> None:
    cache = make_cache(device=place)
    first = run(cache, A, model)
    assert (first.matched, first.reused, first.tier, first.bytes_moved, first.reason) == (0, 0, "none", 0, "")
    assert not first.reason
    assert first.reason.code == "none"
    with cache.begin(A) as session:
        assert (session.matched, session.reused, session.tier, session.bytes_moved) == (40, 39, "device", 0)
        assert session.reason.code == "last_token"
        assert str(session.reason) == f"last_token: {session.reason.text}"
        assert list(session.remaining) == [10]
    with cache.begin(A, reuse_all=True) as session:
        assert (session.reused, session.length, len(session.remaining)) == (40, 40, 0)
        assert compute(session, model) == 0
    again = run(cache, B, model)
    assert (again.matched, again.reused) == (30, 30)
    assert spans_of(cache) == [(0, 30, "device"), (30, 40, "device"), (30, 40, "device")]


def test_the_chunk_does_not_change_what_is_stored(model: CodingModel) -> None:
    for chunk, steps in ((1, 40), (7, 6), (40, 1), (512, 1)):
        cache = make_cache()
        with cache.begin(A) as session:
            assert compute(session, model, chunk) == steps
        assert spans_of(cache) == [(0, 40, "device")]


def test_use_and_publish(model: CodingModel) -> None:
    cache = make_cache(128)
    run(cache, A, model, publish=False)
    assert cache.nodes() == []
    assert cache.stats()["caches"][0]["held_cells"] == 0
    run(cache, A, model)
    session = run(cache, A, model, use=False)
    assert (session.matched, session.reused, session.reason.code) == (40, 0, "not_used")
    assert spans_of(cache) == [(0, 40, "device")]


@pytest.mark.parametrize(("name", "other"), [("a", "b"), ("", "a"), ("a", "a "), ("ab", "a"), ("\u00e9", "e\u0301")])
def test_namespaces_share_nothing(name: str, other: str, place: Any, model: CodingModel) -> None:
    cache = make_cache(128, device=place)
    run(cache, A, model, name)
    assert run(cache, A, model, name).reused == 39  # the same tenant hits
    assert cache.plan(A, other).matched == 0
    assert run(cache, A, model, other).reused == 0  # the other one misses
    assert {node.namespace for node in cache.nodes()} == {name, other}
    assert cache.evict(A, namespace=other) == 40 * BYTES_PER_TOKEN
    assert cache.plan(A, name).matched == 40


def test_plan_has_no_side_effect(model: CodingModel) -> None:
    cache = make_cache(host_bytes="1MiB")
    run(cache, A, model)
    cache.page_out(A)
    before = (cache.stats(), spans_of(cache))
    plan = cache.plan(B)
    assert (plan.matched, plan.reusable, plan.tier, plan.bytes_moved, plan.reason) == (
        30,
        30,
        "host",
        30 * BYTES_PER_TOKEN,
        "",
    )
    assert cache.plan(A).reason.code == "last_token"
    assert (cache.stats(), spans_of(cache)) == before


@pytest.mark.parametrize(
    "tokens",
    [
        A,
        tuple(A),
        np.array(A),
        np.array(A, ">i4"),
        np.array(A, np.uint8),
        np.array(A * 2, np.uint64)[:40],
        np.array([A, A]).T[:, 0],
    ],
)
def test_tokens_in_any_form(tokens: Any, model: CodingModel) -> None:
    cache = make_cache(128)
    run(cache, A, model)
    with cache.begin(tokens) as session:
        assert session.reused == 39
        assert session.tokens.dtype == np.int32
        np.testing.assert_array_equal(session.tokens, A)
    assert cache.plan(range(100, 130)).matched == 30
    assert cache.plan(kv.tensor(A)).matched == 40
    frozen = np.array(A, np.int32)
    frozen.flags.writeable = False
    assert cache.plan(frozen).matched == 40


# ---- branch, rewind, decode ------------------------------------------------------------------------------------------


def test_append_and_decode(place: Any, model: CodingModel) -> None:
    cache = make_cache(device=place)
    with cache.begin(A) as session:
        compute(session, model)
        session.append(7)
        session.append([8, 9])
        session.append(np.array([10], np.int64))
        assert (session.length, session.recorded, list(session.remaining)) == (40, 44, [7, 8, 9, 10])
        model(session.decode())
        assert (session.length, len(session.remaining)) == (44, 0)
        np.testing.assert_array_equal(session.tokens, [*A, 7, 8, 9, 10])
    assert spans_of(cache) == [(0, 44, "device")]


def test_a_branch_may_publish_nothing(place: Any, model: CodingModel) -> None:
    """What it computes is nobody else's, and what it goes on from is everybody's."""
    cache = make_cache(device=place)
    with cache.begin(A) as trunk:
        compute(trunk, model)
        with trunk.branch(publish=False) as branch, branch.branch(publish=True) as twig:
            assert (trunk.publishes, branch.publishes, twig.publishes) == (True, False, False)
            for session, more in ((branch, [1, 2, 3]), (twig, [4])):
                session.append(more)
                compute(session, model)
            assert cache.plan([*A, 1, 2, 3, 0]).matched == cache.plan([*A, 4, 0]).matched == len(A)
        trunk.append([1, 2])
        compute(trunk, model)
        assert cache.plan([*A, 1, 2, 0]).matched == len(A) + 2
        with pytest.raises(kv.errors.ArgumentTypeError, match="publish"):
            trunk.branch(publish=1)  # type: ignore[arg-type]
    assert cache.check() == []


def test_room_is_what_may_still_be_recorded(place: Any, model: CodingModel) -> None:
    cache = make_cache(64, device=place)
    assert cache.longest == 64
    with cache.begin(A) as session:
        assert session.room == 64 - len(A)
        session.append([1, 2])
        assert session.room == 62 - len(A)
        session.append([3] * session.room)
        assert session.room == 0
        with pytest.raises(kv.errors.ArgumentError, match="allowed 64"):
            session.append(4)
    with pytest.raises(kv.errors.ClosedError):
        session.room  # noqa: B018
    with pytest.raises(kv.errors.ClosedError):
        session.publishes  # noqa: B018


def test_branches_go_their_own_way(place: Any, model: CodingModel) -> None:
    cache = make_cache(device=place)
    trunk = cache.begin(A)
    compute(trunk, model)
    branches = [trunk.branch(), copy.copy(trunk)]
    for token, branch in enumerate(branches):
        assert (branch.length, branch.reused, branch.namespace) == (40, 40, "default")
        branch.append(token)
        model(branch.decode())
    trunk.append(99)
    model(trunk.decode())
    for session in (trunk, *branches):
        session.append(50)
    model(cache.batch([*branches, trunk]))
    assert cache.stats()["caches"][0]["held_cells"] == 40 + 3 * 2
    assert cache.check() == []
    for session in (trunk, *branches):
        session.close()
    assert len(cache.nodes()) == 4


def test_edit_an_earlier_turn_and_answer_again(model: CodingModel) -> None:
    cache = make_cache(128)
    with cache.begin(A) as session:
        compute(session, model)
        session.append([50, 51, 52])
        model(session.decode())
        regenerated = session.branch()
        regenerated.rewind(40)
        regenerated.append([60, 61])
        model(regenerated.decode())
        regenerated.close()
        session.rewind(30)  # edit: everything from 30 on is said differently
        assert (session.length, len(session.tokens)) == (30, 30)
        session.append([70, 71])
        model(session.decode())
    assert spans_of(cache) == [
        (0, 30, "device"),
        (30, 40, "device"),
        (40, 43, "device"),
        (40, 42, "device"),
        (30, 32, "device"),
    ]
    assert run(cache, [*A, 50, 51, 52], model).reused == 42
    assert run(cache, [*A[:30], 70, 71, 72], model).reused == 32
    assert cache.check() == []


def test_rewind_to_every_length(model: CodingModel) -> None:
    cache = make_cache()
    session = cache.begin(A)
    compute(session, model, chunk=9)
    session.append([3, 4])
    for length in range(42, -1, -1):
        assert session.can_rewind(length)
        session.rewind(length)
        assert (session.recorded, session.length) == (length, min(length, 40))
    session.append(A)
    model(session.decode())
    for length in (-1, 41, 2**31 - 1):
        assert not session.can_rewind(length)
        with pytest.raises(kv.errors.NotRestorableError) as info:
            session.rewind(length)
        assert info.value.nearest == (0 if length < 0 else 40)
        assert isinstance(info.value, ValueError)
    assert session.length == 40
    session.close()


def test_batches_of_sessions_at_different_places(place: Any, model: CodingModel) -> None:
    cache = make_cache(256, device=place)
    run(cache, A, model)
    sessions = [cache.begin(B), cache.begin(A), cache.begin([9, 8, 7]), cache.begin(B, "other")]
    sessions[1].append([70, 71])
    step = cache.batch(sessions, chunk=4)
    assert [int(n) for n in np.bincount(step.sequences)] == [4, 2, 3, 4]  # A was known to its end
    np.testing.assert_array_equal(step.last_rows, [3, 5, 8, 12])
    np.testing.assert_array_equal(step.positions[:4], [30, 31, 32, 33])
    assert all(mine is given for mine, given in zip(step.sessions, sessions))
    model(step)
    assert [session.length for session in sessions] == [34, 42, 3, 4]
    while any(len(session.remaining) for session in sessions):
        model(cache.batch([session for session in sessions if len(session.remaining)], chunk=100))
    assert cache.check() == []
    for session in sessions:
        session.close()


def test_what_one_session_computes_another_adopts(model: CodingModel) -> None:
    cache = make_cache(128)
    first, second = cache.begin(A), cache.begin(A)
    step = next(iter(first.prefill(chunk=25)))
    model(step)
    assert compute(second, model, chunk=10) == 2  # 25 of 40 were published meanwhile
    assert cache.stats()["adopted_tokens"] == 25
    assert compute(first, model) == 1
    assert cache.stats()["caches"][0]["held_cells"] <= 41  # nothing is stored twice
    assert spans_of(cache) == [(0, 40, "device")]
    first.close()
    second.close()
    assert cache.check() == []


# ---- steps that do not end well --------------------------------------------------------------------------------------


def test_a_cancelled_prefill_goes_on_where_it_was(model: CodingModel) -> None:
    cache = make_cache()
    with cache.begin(A) as session:
        for step in session.prefill(chunk=16):
            model(step)
            break
    session = run(cache, A, model)
    assert (session.reused, model.rows) == (16, 16 + 24)


@pytest.mark.parametrize("asked", ["append", "rewind", "branch", "another loop"])
def test_a_step_that_was_dropped_is_not_called_incomplete(asked: str, model: CodingModel) -> None:
    """The message names what was done, not what the model did not do."""
    cache = make_cache()
    with cache.begin(A) as session:
        steps = session.prefill(chunk=16)
        model(next(steps))
        open_step = next(steps)
        calls: dict[str, Callable[[], object]] = {
            "append": lambda: session.append(5),
            "rewind": lambda: session.rewind(8),
            "branch": lambda: session.branch().close(),
            "another loop": lambda: next(session.prefill(chunk=16)),
        }
        calls[asked]()
        assert open_step.dropped
        with pytest.raises(
            kv.errors.ArgumentError, match="the step before was dropped, since the session was asked for something else"
        ):
            next(steps)
        compute(session, model, chunk=16)
        assert session.length == session.recorded
    assert cache.check() == []


@pytest.mark.parametrize("layers_put", [0, 1])
def test_an_error_in_the_model_leaves_session_and_tree_valid(layers_put: int, model: CodingModel) -> None:
    cache = make_cache()
    with cache.begin(A) as session:
        steps = session.prefill(chunk=16)
        model(next(steps))
        step = next(steps)  # the model puts some of its layers, and fails
        for layer in range(layers_put):
            step.put(layer, np.zeros((16, 2, 4)), np.zeros((16, 2, 4)))
        assert session.length == 16
        assert cache.check() == []
        with pytest.raises(kv.errors.ArgumentError, match="did not complete"):
            next(steps)
        assert step.dropped
        with pytest.raises(kv.errors.ClosedError):
            step.put(0, np.zeros((16, 2, 4)), np.zeros((16, 2, 4)))
        assert compute(session, model, chunk=16) == 2
    assert cache.check() == []


def test_a_loop_over_a_dropped_step_says_that_it_was_dropped(model: CodingModel) -> None:
    cache = make_cache()
    with cache.begin(A) as session:
        steps = session.prefill(chunk=16)
        step = next(steps)
        session.append(5)
        assert step.dropped
        with pytest.raises(kv.errors.ArgumentError, match=r"\[session.prefill\] the step before was dropped"):
            next(steps)
        compute(session, model)
    assert cache.check() == []


def test_a_step_is_dropped_when_its_session_is_asked_for_something_else(model: CodingModel) -> None:
    cache = make_cache()
    with cache.begin(A) as session:
        compute(session, model)
        for other in (lambda: session.append(5), lambda: session.branch().close(), lambda: session.rewind(40)):
            session.append(4)
            step = session.decode()
            assert not step.complete
            other()
            assert step.dropped
            session.rewind(40)
        session.append(4)
        step = session.decode()
    assert step.dropped
    assert cache.stats()["caches"][0]["held_cells"] == 40
    assert cache.check() == []


def test_the_arrays_of_a_step(model: CodingModel) -> None:
    cache = make_cache()
    with cache.begin(A) as session:
        step = next(iter(session.prefill(chunk=8)))
        for array, expected in ((step.tokens, A[:8]), (step.positions, range(8)), (step.sequences, [0] * 8)):
            assert (array.dtype, array.flags.writeable) == (np.int32, False)
            np.testing.assert_array_equal(array, expected)
        tokens = step.tokens
        model(step)
        assert step.complete
        del step
        np.testing.assert_array_equal(tokens, A[:8])  # the array keeps what it shows
