"""Trees of drafts of one session: one path is taken, and of all others no trace is left in any kind of cache.

K and V name their prefix (kinds_fakes.py), so a row of another path is recognised wherever it were read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from fakes import compute, run
from kinds_fakes import KindsModel, image, make, make_caches, words
from test_propose import KINDS, SMALL
from test_propose_ends import Fails, HalfModel, elsewhere, usage

pytestmark = pytest.mark.usefixtures("nothing_left_over")

TEXT = words(1, 45)
PATHS = [[4, 5, 6, 7], [4, 5, 8], [4, 9, 10, 11, 12], [13]]


@pytest.fixture(params=[*KINDS, "latent"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def propose_tree(model: KindsModel, session: Any, paths: Sequence[Sequence[int]]) -> kv.Step:
    """A step with these paths, computed."""
    step: kv.Step = session.propose_tree(paths)
    model.drafts = {id(step): [list(path) for path in paths]}
    model(step)
    model.drafts = {}
    return step


def begun(cache: kv.PrefixCache, model: KindsModel, **options: Any) -> Any:
    """A session with ``TEXT`` computed, and a token recorded."""
    session = cache.begin(TEXT, **options)
    compute(session, model)
    session.append(3)
    return session


@pytest.mark.parametrize("path", range(len(PATHS)))
def test_one_path_stays_and_no_other_was_ever_there(kind: str, path: int, place: Any) -> None:
    for right in range(len(PATHS[path]) + 1):
        cache, model = make(kind, device=place, **SMALL)
        with begun(cache, model) as session:
            before = cache.stats()
            step = propose_tree(model, session, PATHS)
            assert (step.undecided, step.complete) == (True, False)
            assert step.drafted.tolist() == [len(each) for each in PATHS]
            assert all(each is session for each in step.sessions) and len(step.sessions) == len(PATHS)
            assert np.bincount(step.sequences).tolist() == [1 + len(each) for each in PATHS]
            assert step.last_rows.tolist() == (np.cumsum([1 + len(each) for each in PATHS]) - 1).tolist()
            assert (session.length, session.recorded) == (45, 46)
            noted: list[object] = []
            step.accept(right, [(noted, each) for each in PATHS[path][:right]], path=path)
            assert (step.complete, step.undecided, noted) == (True, False, PATHS[path][:right])
            assert session.tokens.tolist() == [*TEXT, 3, *PATHS[path][:right]]
            assert session.length == 46 + right
            for number, other in enumerate(PATHS):
                known = cache.plan([*TEXT, 3, *other, 1]).matched
                common = next((i for i, (a, b) in enumerate(zip(other, PATHS[path])) if a != b), min(len(other), right))
                assert known == 46 + (right if number == path else min(common, right)), other
            assert cache.check() == []
            session.append(words(9, 4))
            compute(session, model)  # reads all that it sees: none of it is of another path
            stats = cache.stats()
            assert stats["proposed_tokens"] - before["proposed_tokens"] == sum(map(len, PATHS))
            assert stats["accepted_tokens"] - before["accepted_tokens"] == right
            assert stats["sessions"] == before["sessions"]
        assert cache.check() == []
        cache.close()


def test_pools_are_as_full_as_without_drafts(kind: str) -> None:
    """Cells and slots: those of plain decoding at the same place, whichever path was taken."""

    def free(path: int | None) -> list[int]:
        cache, model = make(kind, growth=0, **SMALL)
        with begun(cache, model) as session:
            if path is None:
                session.append([4, 9])
                for step in session.prefill(3):
                    model(step)
            else:
                paths = [[4, 9, *words(4, 3)], [4, 9, *words(5, 6)], [4, 1]]
                propose_tree(model, session, paths[path:] + paths[:path]).accept(2, path=(3 - path) % 3)
            assert session.tokens.tolist() == [*TEXT, 3, 4, 9]
            stats = cache.stats()
        return [each["free_cells"] for each in stats["caches"]] + (
            [] if path is None else [each["free_slots"] for each in stats["recurrent"]]
        )

    plain, (first, *others) = free(None), [free(path) for path in range(3)]
    assert first[: len(plain)] == plain
    assert others == [first, first]


@pytest.mark.parametrize(
    "ask",
    [
        lambda session, _: session.append(1),
        lambda session, _: session.decode(),
        lambda session, _: session.propose_tree([[1], [2]]),
        lambda session, _: session.branch().close(),
        lambda session, _: session.rewind(32),
        lambda session, _: session.checkpoint(),
        lambda session, cache: cache.batch([session]),
        lambda session, _: session.rollback(1),
        lambda session, _: session.close(),
        lambda session, _: elsewhere(session.close),
        lambda _, cache: elsewhere(cache.close),
    ],
)
@pytest.mark.parametrize("stage", ["opened", "half computed", "undecided"])
def test_whatever_else_is_asked_for_drops_it(kind: str, stage: str, ask: Callable[[Any, Any], object]) -> None:
    cache, model = make(kind, growth=0, **SMALL)
    empty = usage(cache)
    session = begun(cache, model)
    step = propose_tree(model, session, PATHS) if stage == "undecided" else session.propose_tree(PATHS)
    if stage == "half computed":
        half = HalfModel(model)
        half.paths = PATHS
        with pytest.raises(Fails):
            half(step)
    kept = ask(session, cache)
    assert step.dropped
    with pytest.raises((kv.errors.ClosedError, kv.errors.ArgumentError)):
        step.accept(1, path=2)
    del kept, step
    if not (session.closed or cache.closed):
        session.append([6, 7])
        compute(session, model)
        session.close()
    if not cache.closed:
        assert cache.check() == []
        assert cache.plan([*TEXT, 3, *PATHS[2]]).matched <= 46
        run(cache, [*TEXT, 3, 9], model)
    cache.close()
    assert usage(cache) == empty


def test_arguments_are_checked() -> None:
    cache, model = make("all", **SMALL)
    with begun(cache, model) as session:
        for paths, match in (
            ([], "paths: got none, allowed 1 or more"),
            ([[1], []], r"paths\[1\]: got 0 tokens, allowed 1 or more"),
            ([[1], [-1]], r"got -1"),
            ([[1], words(3, 513)], "got 559 in the session, allowed 512"),
        ):
            with pytest.raises(kv.errors.ArgumentError, match=match):
                session.propose_tree(paths)
        for wrong in ("text", 3, [1, 2], None):
            with pytest.raises(kv.errors.ArgumentTypeError):
                session.propose_tree(wrong)
        step = propose_tree(model, session, PATHS)
        for counts, path, match in (
            (1, None, "path: got none for a tree of drafts, allowed 0 to 3"),
            ([1, 0, 0, 0], None, "path: got none"),
            ([1, 0, 0, 0], 0, "counts: got 4 with a path, allowed 1"),
            (1, 4, "path: got 4, allowed 0 to 3"),
            (2, 3, r"counts\[0\]: got 2, allowed 0 to 1"),
        ):
            with pytest.raises(kv.errors.ArgumentError, match=match):
                step.accept(counts, path=path)
        assert step.undecided
        step.accept(1, path=3)
        with pytest.raises(kv.errors.ArgumentError, match="complete"):
            step.accept(1, path=3)
        session.append(1)
        line = propose_tree(model, session, [[5, 6]])
        with pytest.raises(kv.errors.ArgumentError, match="path: got 1, allowed 0 to 0"):
            line.accept(1, path=1)
        line.accept(1)
        session.append(1)
        with cache.begin(words(7, 9)) as other:
            compute(other, model)
            other.append(2)
            both = cache.batch([session, other], drafts=[[1], [2]])
            model(both)
            with pytest.raises(kv.errors.ArgumentError, match="path: got 0 in a step of 2 sessions, allowed none"):
                both.accept(1, path=0)
            both.accept([1, 1])
        session.append(1)
        compute(session, model)
        with pytest.raises(kv.errors.ArgumentError, match="nothing left to compute"):
            session.propose_tree(PATHS)
    assert cache.check() == []


def test_without_room_it_is_refused_and_nothing_changed(kind: str) -> None:
    cache, model = make(kind, slots=6, growth=0, **{**SMALL, "capacity": 60})
    with begun(cache, model) as session:
        before = usage(cache), session.length, session.recorded, cache.stats()["nodes"]
        with pytest.raises(kv.errors.CacheFullError):
            session.propose_tree([words(seed, 9) for seed in range(5)])
        assert (usage(cache), session.length, session.recorded, cache.stats()["nodes"]) == before
        propose_tree(model, session, [[5], [6]]).accept(1, path=1)
        assert session.tokens.tolist() == [*TEXT, 3, 6]
    assert cache.check() == []


def test_quotas_hold_for_trees() -> None:
    """What all paths take is the namespace's own."""
    caches = make_caches("dense", 512)
    cache = kv.PrefixCache(caches, quotas={"default": {"most": {"cells": 60}}}, growth=0)
    model = KindsModel(caches)
    with begun(cache, model) as session:
        with pytest.raises(kv.errors.CacheFullError):
            session.propose_tree([*PATHS, [14]])  # 18 rows behind 45
        propose_tree(model, session, PATHS[:3]).accept(3, path=2)
        assert cache.usage("default")["cells"][0]["used"] == 49
    assert cache.check() == []


@pytest.mark.parametrize("publish", [True, False])
def test_media_and_a_prompt_before_the_tree(kind: str, publish: bool) -> None:
    """What is recorded and not computed has rows along each path, media and spans included."""
    cache, model = make(kind, **SMALL)
    text = [*words(1, 10), *image("a dog", 7), 2]
    with cache.begin(text, publish=publish) as session:
        step = propose_tree(model, session, PATHS)
        assert len(step.tokens) == sum(len(text) + len(path) for path in PATHS)
        step.accept(4, path=2)
        assert session.tokens.tolist() == [*text, *PATHS[2][:4]]
        session.append(9)
        compute(session, model)
        session.append(1)
        propose_tree(model, session, PATHS).accept(2, path=1)
        session.append(9)
        compute(session, model)
    assert cache.plan([*text, *PATHS[2]]).matched == (22 if publish else 0)
    assert cache.check() == []


def test_another_thread_looks_at_it(kind: str) -> None:
    cache, model = make(kind, **SMALL)
    session = begun(cache, model)
    step = propose_tree(model, session, PATHS)

    def look() -> None:
        assert (session.length, session.recorded) == (45, 46)
        assert session.tokens.tolist() == [*TEXT, 3]
        for suffix in (False, True):
            session.continuations(4, 3, suffix=suffix)
        assert cache.check() == []
        cache.stats()

    elsewhere(look)
    assert step.undecided
    step.accept(3, path=2)
    session.close()
    assert cache.check() == []
    cache.close()


def test_closed_by_another_thread_while_it_is_decided(kind: str) -> None:
    """Whoever comes first: the path is there, or nothing of it is."""

    def play() -> None:
        cache, model = make(kind, growth=0, **SMALL)
        empty = usage(cache)
        session = begun(cache, model)
        step = propose_tree(model, session, PATHS)
        closer = threading.Thread(target=session.close)
        closer.start()
        try:
            step.accept(3, path=2)
        except kv.errors.ClosedError:
            assert step.dropped
        closer.join()
        del step
        assert session.closed and cache.check() == []
        assert cache.plan([*TEXT, 3, *PATHS[2], 1]).matched in (45, 49)
        cache.close()
        assert usage(cache) == empty

    for _ in range(6):
        play()


def test_random_trees(kind: str) -> None:
    """Paths that part anywhere, dropped now and then, beside others on the same tree."""
    print("seed 41")
    random = np.random.default_rng(41)
    cache, model = make(kind, slots=96, **SMALL)
    twins: list[tuple[Any, list[int]]] = []
    for _ in range(120):
        if len(twins) < 3:
            text = words(int(random.integers(3)), int(random.integers(1, 40)))
            session = cache.begin(text)
            compute(session, model)
            twins.append((session, text))
        session, text = twins[int(random.integers(len(twins)))]
        token = int(random.integers(3))
        session.append(token)
        text.append(token)
        paths = [random.integers(0, 3, random.integers(1, 5)).tolist() for _ in range(random.integers(1, 5))]
        step = propose_tree(model, session, paths)
        path = int(random.integers(len(paths)))
        right = int(random.integers(len(paths[path]) + 1))
        if random.random() < 0.1:
            del step
        else:
            step.accept(right, path=path)
            text += paths[path][:right]
        assert cache.check() == []
        for each, own in twins:
            assert each.tokens.tolist() == own
        if random.random() < 0.2 or len(text) > 90:
            twins.remove((session, text))
            session.close()
    for session, _ in twins:
        compute(session, model)
        session.close()
    assert cache.check() == []
    run(cache, words(0, 40), model)


# ---- what the tree knows ---------------------------------------------------------------------------------------------


def test_continuations_are_those_of_the_namespace(kind: str) -> None:
    cache, model = make(kind, **SMALL)
    for more, namespace in (([1, 2, 3], "default"), ([1, 5, 6], "default"), ([1, 5, 7], "default"), ([9, 9], "other")):
        run(cache, [*TEXT, *more], model, namespace=namespace)
    with cache.begin(TEXT) as session:
        assert [each.tolist() for each in session.continuations(8, 9)] == [[1, 5, 7], [1, 5, 6], [1, 2, 3]]
        assert [each.tolist() for each in session.continuations(8, 2)] == [[1, 5, 7], [1, 5, 6]]
        assert [each.tolist() for each in session.continuations(2, 9)] == [[1, 5], [1, 2]]
        assert [each.tolist() for each in session.continuations(8, 9, suffix=True)] == [[1, 5, 7], [1, 5, 6], [1, 2, 3]]
        assert session.continuations(8, 0) == session.continuations(0, 8) == []
        assert session.continuation(8).tolist() == [1, 5, 7]
    with cache.begin(TEXT, use=False, publish=False) as session:
        assert session.continuations(8, 3) == session.continuations(8, 3, suffix=True) == []
    with pytest.raises(kv.errors.ClosedError):
        session.continuations(8, 3)
