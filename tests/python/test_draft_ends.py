"""Generation with drafts that an exception, a signal's handler or another thread stops anywhere: no token is lost.

Steps of drafts themselves: test_propose_ends.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from circles import CIRCLE
from fakes import run
from interruptions import Visit
from kinds_fakes import VOCAB, History, KindsModel, make
from kvtrie._drafting import Costs
from test_propose import SMALL
from test_propose_ends import TEXT, elsewhere

pytestmark = pytest.mark.usefixtures("nothing_left_over")

PLAYS = {"test": 30, "ci": 120, "soak": 1 << 20}[CIRCLE]  # points that are tried


class RowsModel(KindsModel):
    """Gives the logits of all rows of a step of one session, whose drafts it knows by the step itself."""

    def __init__(self, model: KindsModel) -> None:
        super().__init__([])
        self.layers = model.layers

    def __call__(self, step: Any, all_rows: bool = False) -> Any:
        tokens, drafted = np.asarray(step.tokens).tolist(), int(step.drafted.sum())
        drafts = tokens[len(tokens) - drafted :]
        known = [*step.sessions[0].tokens.tolist(), *drafts]
        self.drafts = {id(step): [drafts]}
        last = super().__call__(step)
        self.drafts = {}
        if not all_rows:
            return last
        rows = [likeliest(known[: position + 1]) for position in np.asarray(step.positions)]
        return np.eye(VOCAB, dtype=np.float32)[rows]


def likeliest(tokens: list[int]) -> int:
    """What the logits of KindsModel say behind ``tokens``."""
    return int(History("default", tokens).codes[0, len(tokens)]) % VOCAB


COUNT = 12


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are as long as may be, whatever they cost."""
    monkeypatch.setattr(Costs, "shares", lambda _self, _chances, limits, *_: [min(most, 3) for most in limits])


def answer_of(text: list[int]) -> list[int]:
    tokens = list(text)
    while len(tokens) < len(text) + COUNT:
        tokens.append(likeliest(tokens))
    return tokens[len(text) :]


ANSWER = answer_of(TEXT)


def half_right(tokens: Any, most: int) -> list[int]:
    """The answer with every third token wrong."""
    at = len(tokens) - len(TEXT)
    return [token if (at + i) % 3 else (token + 1) % VOCAB for i, token in enumerate(ANSWER[at : at + most])]


class Stop(KeyboardInterrupt):
    """An interrupt, at any point."""


def generation(model: RowsModel, session: Any, **options: Any) -> Any:
    return kv.generate(model, session, COUNT, ignore_eos=True, draft=[half_right, "suffix", "tree"], **options)


def read_on(made: Any) -> Iterator[int]:
    """What its reader is given, however often he is interrupted."""
    while True:
        try:
            yield next(made)
        except StopIteration:
            return


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("kind", ["dense", "hybrid", "all"])
def test_an_exception_at_any_point_of_drafting_costs_no_token(kind: str) -> None:
    """KeyboardInterrupt comes where a handler raises it: everywhere. Reading on gives the rest."""

    def play(at: int) -> int:
        def raises(_place: object) -> None:
            raise Stop

        cache, model = make(kind, **SMALL)
        rows = RowsModel(model)
        with cache.begin(TEXT) as session:
            made = generation(rows, session)
            given: list[int] = []
            visit = Visit(raises if at else None, at)
            with contextlib.suppress(Stop), visit:
                given.extend(read_on(made))
            given_before = len(made.tokens)
            assert made.tokens == ANSWER[:given_before], f"at {visit.place}"
            list(read_on(made))
            assert made.tokens == ANSWER, f"at {visit.place}"
            assert session.tokens.tolist() == [*TEXT, *ANSWER], f"at {visit.place}"
            assert made.accepted <= made.proposed
        assert cache.check() == [], f"at {visit.place}"
        cache.close()
        return visit.count

    points = play(0)
    assert points > 100
    for at in range(1, points, max(1, points // PLAYS)):
        play(at)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("what", ["session", "cache"])
def test_closed_elsewhere_at_any_point_of_drafting(what: str) -> None:
    """The reader is told so, with all tokens that were taken before; nothing is left of drafts."""

    def play(at: int) -> int:
        cache, model = make("hybrid", **SMALL)
        rows = RowsModel(model)
        session = cache.begin(TEXT)
        made = generation(rows, session)
        visit = Visit((lambda _place: elsewhere((session if what == "session" else cache).close)) if at else None, at)
        with contextlib.suppress(kv.errors.ClosedError), visit:
            list(read_on(made))
        assert made.tokens == ANSWER[: len(made.tokens)], f"at {visit.place}"
        assert at or made.tokens == ANSWER
        if what == "session" or not at:
            session.close()
            assert cache.check() == [], f"at {visit.place}"
            run(cache, [*TEXT, 3], model)
        cache.close()
        assert session.closed
        return visit.count

    points = play(0)
    for at in range(1, points, max(1, points // PLAYS)):
        play(at)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, MemoryError, kv.errors.DeviceError])
@pytest.mark.parametrize("where", ["drafter", "processor", "model"])
def test_callbacks_that_raise(where: str, error: type[BaseException]) -> None:
    """The n-th call of a drafter, a processor or the model raises: it comes out, and reading on gives the rest."""

    def play(at: int) -> int:
        calls = [0]

        def meets(name: str) -> None:
            if name == where:
                calls[0] += 1
                if calls[0] == at:
                    raise error(name)

        def drafter(tokens: Any, most: int) -> list[int]:
            meets("drafter")
            return half_right(tokens, most)

        def processor(_tokens: Any, row: Any) -> Any:
            meets("processor")
            return row

        cache, model = make("hybrid", **SMALL)
        rows = RowsModel(model)

        def asked(step: Any, all_rows: bool = False) -> Any:
            meets("model")
            return rows(step, all_rows)

        with cache.begin(TEXT) as session:
            made = kv.generate(asked, session, COUNT, ignore_eos=True, draft=drafter, logits_processors=processor)
            raised = 0
            while True:
                try:
                    list(read_on(made))
                    break
                except error:
                    raised += 1
                    assert made.tokens == ANSWER[: len(made.tokens)]
            assert raised == (0 < at <= calls[0])
            assert made.tokens == ANSWER and session.tokens.tolist() == [*TEXT, *ANSWER]
        assert cache.check() == []
        cache.close()
        return calls[0]

    count = play(0)
    assert count > 3
    for at in range(1, count + 1):
        play(at)
