"""How steps of drafts end that nobody decided about, and calls around them: nothing of a draft is left, in any kind.

A table of stages (how far the step has come) and of ends (what then happens to it). Generation with drafts, stopped
anywhere: test_draft_ends.py. Memory that is short, and devices that fail: test_allocations.py, tests/cpp/fault_talk.h.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

import kvtrie as kv
from fakes import compute, run
from kinds_fakes import KindsModel, make, words
from processes import PATIENCE, run_python
from test_propose import KINDS, SMALL, propose

pytestmark = pytest.mark.usefixtures("nothing_left_over")

TEXT, DRAFTS = words(1, 30), [4, 5, 6]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def elsewhere(call: Callable[[], object]) -> None:
    """By another thread, to its end."""
    failed: list[BaseException] = []

    def there() -> None:
        try:
            call()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=there)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


class Fails(kv.errors.DeviceError):
    """What a model raises in the middle of a step."""


class HalfModel:
    """Computes some layers of a step, the first ones, and raises then."""

    def __init__(self, model: KindsModel) -> None:
        self.model = KindsModel([])
        self.paths = [DRAFTS]
        self.model.layers = model.layers[: len(model.layers) // 2]

    def __call__(self, step: Any) -> None:
        self.model.drafts = {id(step): self.paths}
        self.model(step)
        raise Fails("[test] the device failed")


def opened(cache: kv.PrefixCache, model: KindsModel, session: Any) -> Any:
    return session.propose(DRAFTS)


def half_computed(cache: kv.PrefixCache, model: KindsModel, session: Any) -> Any:
    step = session.propose(DRAFTS)
    with pytest.raises(Fails):
        HalfModel(model)(step)
    return step


def undecided(cache: kv.PrefixCache, model: KindsModel, session: Any) -> Any:
    step = propose(cache, model, [session], [DRAFTS])
    assert step.undecided
    return step


def refused_once(cache: kv.PrefixCache, model: KindsModel, session: Any) -> Any:
    """Somebody asked for more than there is: nothing happened."""
    step = undecided(cache, model, session)
    with pytest.raises(kv.errors.ArgumentError):
        step.accept(len(DRAFTS) + 1)
    with pytest.raises(kv.errors.ArgumentTypeError):
        step.accept(1, [([], 1, 2)])
    return step


STAGES: dict[str, Callable[[kv.PrefixCache, KindsModel, Any], Any]] = {
    "opened": opened,
    "half computed": half_computed,
    "undecided": undecided,
    "refused once": refused_once,
}


def closed_by_itself(cache: kv.PrefixCache, session: Any, step: Any) -> None:
    session.close()


def session_closed_elsewhere(cache: kv.PrefixCache, session: Any, step: Any) -> None:
    elsewhere(session.close)


def cache_closed_elsewhere(cache: kv.PrefixCache, session: Any, step: Any) -> None:
    elsewhere(cache.close)


def left(cache: kv.PrefixCache, session: Any, step: Any) -> None:
    with pytest.raises(KeyboardInterrupt), session:
        raise KeyboardInterrupt


def rolled_back(cache: kv.PrefixCache, session: Any, step: Any) -> None:
    session.rollback(1)
    session.append(3)


def evicted(cache: kv.PrefixCache, session: Any, step: Any) -> None:
    """What the session stands on stays; the step is not asked for."""

    def evict() -> None:
        with contextlib.suppress(kv.errors.CacheFullError):
            cache.evict(nbytes=64)

    elsewhere(evict)


def looked_at(cache: kv.PrefixCache, session: Any, step: Any) -> None:
    """By another thread; none of it disturbs the step."""

    def look() -> None:
        assert (session.length, session.recorded) == (len(TEXT), len(TEXT) + 1)
        assert session.tokens.tolist() == [*TEXT, 3]
        for suffix in (False, True):
            assert session.continuation(4, suffix=suffix).tolist() == []
        assert cache.check() == []
        cache.stats()

    elsewhere(look)


ENDS: dict[str, tuple[Callable[[kv.PrefixCache, Any, Any], None], bool]] = {  # and whether the step is dropped by it
    "closed": (closed_by_itself, True),
    "session closed elsewhere": (session_closed_elsewhere, True),
    "cache closed elsewhere": (cache_closed_elsewhere, True),
    "left by an interrupt": (left, True),
    "rolled back": (rolled_back, True),
    "evicted around": (evicted, False),
    "looked at": (looked_at, False),
}


def usage(cache: kv.PrefixCache) -> list[int]:
    """Free cells and slots, of each cache."""
    stats = cache.stats()
    return [*(each["free_cells"] for each in stats["caches"]), *(each["free_slots"] for each in stats["recurrent"])]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("stage", STAGES)
def test_an_end_of_an_undecided_step(kind: str, stage: str, end: str) -> None:
    cache, model = make(kind, growth=0, **SMALL)
    empty = usage(cache)
    session = cache.begin(TEXT)
    compute(session, model)
    session.append(3)
    step = STAGES[stage](cache, model, session)
    act, drops = ENDS[end]
    act(cache, session, step)
    assert step.dropped == drops
    if drops:
        with pytest.raises(kv.errors.ClosedError):
            step.accept(1)
    elif step.undecided:
        step.accept(2)
        assert session.tokens.tolist() == [*TEXT, 3, 4, 5]
    assert not step.undecided
    goes_on(cache, model, session)
    del step
    if not cache.closed:
        assert cache.plan([*TEXT, 3, *DRAFTS, 1]).matched <= len(TEXT) + 3
    cache.close()
    assert usage(cache) == empty


def goes_on(cache: kv.PrefixCache, model: KindsModel, session: Any) -> None:
    """The session where it lives, else another one; they read all that they see."""
    if cache.closed or session.closed:
        with pytest.raises(kv.errors.ClosedError):
            session.propose(DRAFTS)
        with pytest.raises(kv.errors.ClosedError):
            session.continuation(1, suffix=True)
        with pytest.raises(kv.errors.ClosedError):
            session.rollback(1)
    else:
        session.append([8, 9])
        compute(session, model)
        session.close()
    if not cache.closed:
        run(cache, [*TEXT, 3, 9], model)
        assert cache.check() == []


@pytest.mark.parametrize("computed", [False, True])
def test_one_of_several_sessions_closes(kind: str, computed: bool) -> None:
    """The step goes as a whole, and the others go on."""
    cache, model = make(kind, growth=0, **SMALL)
    texts = [words(seed, 20 + seed) for seed in range(3)]
    sessions = [cache.begin(text) for text in texts]
    for session in sessions:
        compute(session, model)
        session.append(1)
    drafts = [[4, 5], [], [6]]
    step = propose(cache, model, sessions, drafts) if computed else cache.batch(sessions, drafts=drafts)
    elsewhere(sessions[0].close)
    assert step.dropped
    with pytest.raises(kv.errors.ClosedError):
        step.accept([1, 0, 1])
    for session, text in zip(sessions[1:], texts[1:]):
        assert session.tokens.tolist() == [*text, 1]
        compute(session, model)
        session.close()
    assert cache.check() == []


def test_no_slots_for_drafts(kind: str) -> None:
    """What is refused changed nothing; whoever needs fewer goes on."""
    cache, model = make(kind, slots=4, **{**SMALL, "capacity": 48})
    with cache.begin(TEXT) as session:
        compute(session, model)
        session.append(3)
        before = usage(cache), session.length, session.recorded
        with pytest.raises((kv.errors.CacheFullError, kv.errors.ArgumentError)):
            session.propose(words(2, 40))
        with pytest.raises((kv.errors.CacheFullError, kv.errors.ArgumentError)):
            cache.batch([session], drafts=[words(2, 40)])
        assert (usage(cache), session.length, session.recorded) == before
        propose(cache, model, [session], [[5]]).accept(1)
        assert session.length == len(TEXT) + 2
    assert cache.check() == []


# --- the interpreter's end -------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys, threading
import numpy as np
import kvtrie as kv
from fakes import compute
from kinds_fakes import make, words
from test_propose import SMALL, propose

how, kind = sys.argv[1:]
cache, model = make(kind, **SMALL)
session = cache.begin(words(1, 30))
compute(session, model)
session.append(3)
step = propose(cache, model, [session], [[4, 5, 6]])
assert step.undecided
if how == "exit":
    sys.exit(0)
if how == "thread":
    held = threading.Event()
    def keep(step):
        held.set()
        while True:
            step.undecided, session.continuation(4, suffix=True)
    threading.Thread(target=keep, args=(step,), daemon=True).start()
    held.wait()
if how == "cycle":
    step_holder = [step]
    step_holder.append(step_holder)
    del step
if how == "fork":
    child = os.fork()
    if child == 0:
        try:
            step.accept(1)
        except kv.errors.Error:
            sys.exit(0)
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    step.accept(3)
    assert session.length == 34
print("ended", how)
"""


@pytest.mark.parametrize("how", ["plain", "exit", "thread", "cycle", "fork"])
@pytest.mark.parametrize("kind", ["dense", "all"])
def test_an_interpreter_ends_with_an_undecided_step(how: str, kind: str) -> None:
    done = run_python("-c", PROGRAM, how, kind)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-2000:]
    assert done.stdout == ("" if how == "exit" else f"ended {how}\n")
