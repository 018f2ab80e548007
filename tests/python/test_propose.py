"""Steps of several tokens of one session, of which some are only proposed: what is wrong leaves no trace in any cache.

K and V name their prefix (kinds_fakes.py), so a row of a rejected token is recognised wherever it were read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from fakes import compute, run
from kinds_fakes import KindsModel, image, make, words

pytestmark = pytest.mark.usefixtures("nothing_left_over")

KINDS = ("dense", "window", "chunk", "window alone", "chunk alone", "hybrid", "recurrent alone", "all")
SMALL: dict[str, Any] = {"capacity": 512, "window": 16, "chunk": 16, "spacing": 16}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def propose(
    cache: kv.PrefixCache, model: KindsModel, sessions: Sequence[Any], drafts: Sequence[Sequence[int]]
) -> kv.Step:
    """A step with ``drafts``, computed. The model is told what the sessions would be with them."""
    step = sessions[0].propose(drafts[0]) if len(sessions) == 1 else cache.batch(sessions, drafts=drafts)
    model.drafts = {id(step): [list(each) for each in drafts]}
    model(step)
    model.drafts = {}
    return step


@pytest.mark.parametrize("right", range(6))
def test_what_is_accepted_stays_and_the_rest_was_never_there(kind: str, right: int, place: Any) -> None:
    cache, model = make(kind, device=place, **SMALL)
    text, drafts = words(1, 45), words(2, 5)
    with cache.begin(text) as session:
        compute(session, model)
        session.append(3)
        before = cache.stats()
        step = propose(cache, model, [session], [drafts])
        assert (step.undecided, step.complete, step.drafted.tolist()) == (True, False, [5])
        assert (session.length, session.recorded) == (45, 46)
        with pytest.raises(kv.errors.ArgumentError, match=r"\[step.accept\] counts\[0\]: got 6, allowed 0 to 5"):
            step.accept(6)
    # reading `length` did not drop it, but closing the session did
    assert step.dropped
    with cache.begin(text) as session:
        compute(session, model)
        session.append(3)
        step = propose(cache, model, [session], [drafts])
        noted: list[object] = []
        step.accept(right, [(noted, each) for each in drafts[:right]])
        assert (step.complete, step.undecided) == (True, False)
        assert noted == drafts[:right]
        assert session.tokens.tolist() == [*text, 3, *drafts[:right]]
        assert session.length == 46 + right
        assert cache.plan([*text, 3, *drafts, 1]).matched == 46 + right
        assert cache.check() == []
        with pytest.raises(kv.errors.ArgumentError, match="complete"):
            step.accept(0)
        session.append(words(9, 4))
        compute(session, model)  # reads all that it sees: none of it is of a wrong draft
        stats = cache.stats()
        assert stats["proposed_tokens"] - before["proposed_tokens"] == 5
        assert stats["accepted_tokens"] - before["accepted_tokens"] == right
    assert cache.check() == []


def test_pools_are_as_full_as_without_drafts(kind: str) -> None:
    """Cells and slots: those of plain decoding at the same place."""

    def free(wrong: int) -> list[int]:
        cache, model = make(kind, growth=0, **SMALL)
        with cache.begin(words(1, 37)) as session:
            compute(session, model)
            session.append(5)
            if wrong:
                propose(cache, model, [session], [[8, 9, *words(4, wrong)]]).accept(2)
            else:
                session.append([8, 9])
                for step in session.prefill(3):
                    model(step)
            stats = cache.stats()
        return [
            *(each["free_cells"] for each in stats["caches"]),
            *(each["free_slots"] for each in stats["recurrent"] if not wrong),
        ]

    plain = free(0)
    for wrong in (1, 6):
        drafted = free(wrong)
        assert drafted == plain[: len(drafted)]


def test_several_sessions_each_with_its_own_drafts(kind: str) -> None:
    cache, model = make(kind, **SMALL)
    texts = [words(seed, 20 + seed) for seed in range(3)]
    sessions = [cache.begin(text) for text in texts]
    for session in sessions:
        compute(session, model)
        session.append(1)
    step = propose(cache, model, sessions, [[4, 5, 6], [], [7]])
    with pytest.raises(kv.errors.ArgumentError, match="counts: got 2, allowed 3"):
        step.accept([1, 0])
    step.accept([2, 0, 0])
    assert [session.tokens.tolist()[-3:] for session in sessions] == [
        [1, 4, 5],
        [*texts[1][-2:], 1],
        [*texts[2][-2:], 1],
    ]
    for session in sessions:
        session.append([2, 3])
    model(cache.batch(sessions))
    assert cache.check() == []
    for session in sessions:
        session.close()


@pytest.mark.parametrize(
    "ask",
    [
        lambda session, _: session.append(1),
        lambda session, _: session.decode(),
        lambda session, _: session.branch().close(),
        lambda session, _: session.rewind(30),
        lambda session, _: session.checkpoint(),
        lambda session, cache: cache.batch([session]),
        lambda session, _: session.rollback(1),
    ],
)
def test_whatever_else_is_asked_for_drops_it(kind: str, ask: Callable[[Any, Any], object]) -> None:
    cache, model = make(kind, **SMALL)
    text = words(1, 30)
    with cache.begin(text) as session:
        compute(session, model)
        session.append(3)
        step = propose(cache, model, [session], [[4, 5]])
        kept = ask(session, cache)
        assert step.dropped
        with pytest.raises(kv.errors.ClosedError):
            step.accept(1)
        del kept
        assert session.length == 30 - (len(text) + 1 - session.recorded if session.recorded < 30 else 0)
        session.append([6, 7])
        compute(session, model)
        assert cache.check() == []
    assert cache.plan([*text, 3, 4, 5]).matched <= 31


def test_drafts_are_checked() -> None:
    cache, model = make("all", **SMALL)
    with cache.begin(words(1, 20)) as session:
        with pytest.raises(kv.errors.ArgumentError, match=r"tokens\[0\]: got -1"):
            session.propose([-1])
        with pytest.raises(kv.errors.ArgumentError):
            session.propose(image("a cat", 3))
        with pytest.raises(kv.errors.ArgumentTypeError):
            session.propose("text")  # type: ignore[arg-type]
        with pytest.raises(kv.errors.ArgumentError, match=r"chunk: got 5 .*, allowed 20 or more"):
            cache.batch([session], 5, [[1]])
        with pytest.raises(kv.errors.ArgumentError, match="drafts: got 2, allowed 1"):
            cache.batch([session], drafts=[[1], [2]])
        with pytest.raises(kv.errors.ArgumentError, match="got 533 in the session, allowed 512"):
            session.propose(words(3, 513))
        assert session.length == 0
        step = session.propose([])
        model(step)
        assert step.complete  # nothing to be decided about
        with pytest.raises(kv.errors.ArgumentError, match="complete"):
            step.accept(0)
        session.append(1)
        open_step = session.propose([2])
        with pytest.raises(kv.errors.ArgumentError, match="not computed"):
            open_step.accept(1)


def test_without_room_for_every_state_it_is_refused() -> None:
    cache, model = make("hybrid", slots=4, **SMALL)
    with cache.begin(words(1, 20)) as session:
        compute(session, model)
        session.append(1)
        with pytest.raises(kv.errors.CacheFullError):
            session.propose(words(2, 6))
        assert (session.length, session.recorded) == (20, 21)
        propose(cache, model, [session], [[5]]).accept(1)
        assert session.length == 22
    assert cache.check() == []


def test_media_and_spans_before_the_drafts(kind: str) -> None:
    cache, model = make(kind, **SMALL)
    with cache.begin([*words(1, 10), *image("a dog", 7)]) as session:
        propose(cache, model, [session], [[1, 2, 3]]).accept(2)
        session.append(9)
        compute(session, model)
        assert session.length == 20
    assert cache.check() == []


@pytest.mark.parametrize("count", [0, 1, 3, 17, 40])
def test_rollback_goes_anywhere(kind: str, count: int) -> None:
    """Also where caches have no state: tokens before it are computed once more."""
    cache, model = make(kind, **SMALL)
    text = words(1, 40)
    with cache.begin(text) as session:
        compute(session, model)
        remaining = session.rollback(count)
        assert session.tokens.tolist() == text[: 40 - count]
        assert remaining == 40 - count - session.length
        assert remaining == 0 or kind not in ("dense", "window", "chunk", "window alone", "chunk alone")
        session.append(words(5, 8))
        compute(session, model)
        with pytest.raises(kv.errors.ArgumentError, match=r"\[session.rollback\] count: got 99, allowed 0 to"):
            session.rollback(99)
    assert cache.check() == []


def test_random_drafts(kind: str) -> None:
    """Right and wrong ones, of one session and several, dropped now and then, beside others on the same tree."""
    print("seed 40")
    random = np.random.default_rng(40)
    cache, model = make(kind, slots=48, **SMALL)
    twins: list[tuple[Any, list[int]]] = []
    for _ in range(150):
        if len(twins) < 4:
            text = words(int(random.integers(3)), int(random.integers(1, 40)))
            session = cache.begin(text)
            compute(session, model)
            twins.append((session, text))
        chosen = [twins[i] for i in random.permutation(len(twins))[: random.integers(1, 4)]]
        for session, text in chosen:
            token = int(random.integers(3))
            session.append(token)
            text.append(token)
        drafts = [random.integers(0, 3, random.integers(0, 5)).tolist() for _ in chosen]
        step = propose(cache, model, [session for session, _ in chosen], drafts)
        counts = [int(random.integers(len(each) + 1)) for each in drafts]
        if random.random() < 0.1:
            del step
        elif any(drafts):
            step.accept(counts)
            for (_, text), each, count in zip(chosen, drafts, counts):
                text += each[:count]
        assert cache.check() == []
        for session, text in chosen:
            assert session.tokens.tolist() == text
        if random.random() < 0.3 or len(twins[0][1]) > 90:
            twins.pop(int(random.integers(len(twins))) if len(twins[0][1]) <= 90 else 0)[0].close()
    for session, _ in twins:
        compute(session, model)
        session.close()
    assert cache.check() == []
    run(cache, words(0, 40), model)


def test_drafts_of_a_session_that_is_closed_are_refused(kind: str) -> None:
    """Among others, and alone: by name, and the others go on."""
    cache, model = make(kind, **SMALL)
    with cache:
        first, second = (cache.begin(words(seed, 20)) for seed in (1, 2))
        for session in (first, second):
            compute(session, model)
            session.append(1)
        second.close()
        for sessions in ([first, second], [second, first], [second]):
            with pytest.raises(kv.errors.ClosedError):
                cache.batch(sessions, drafts=[[1]] * len(sessions))
        model(cache.batch([first]))
        assert not cache.check()
