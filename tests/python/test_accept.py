"""What must be one is one call: ``session.accept`` records and notes a token; ``session.recompute``: logits again."""

from __future__ import annotations

import random
from typing import Any

import pytest

import kvtrie as kv
from kinds_fakes import KINDS, make, words


def prefilled(cache: kv.PrefixCache, model: Any, tokens: list[int], chunk: int = 64) -> kv.Session:
    session = cache.begin(tokens)
    for step in session.prefill(chunk=chunk):
        model(step)
    return session


def test_a_token_is_recorded_with_its_notes() -> None:
    cache, model = make("dense")
    session = prefilled(cache, model, [1, 2, 3])
    tokens: list[int] = []
    texts: list[str] = []
    assert session.accept(7, 3, [(tokens, 7), (texts, "seven")])
    assert (session.tokens.tolist(), tokens, texts) == ([1, 2, 3, 7], [7], ["seven"])
    cache.close()


def test_logits_choose_once() -> None:
    cache, model = make("dense")
    session = prefilled(cache, model, [1, 2, 3])
    tokens: list[int] = []
    assert session.accept(7, 3, [(tokens, 7)])
    for length in (0, 2, 3, 5):
        assert not session.accept(8, length, [(tokens, 8)])
    assert (session.tokens.tolist(), tokens) == ([1, 2, 3, 7], [7])
    cache.close()


@pytest.mark.parametrize(
    ("token", "length", "notes", "error"),
    [
        (-1, 3, [], kv.errors.ArgumentError),
        ("a", 3, [], kv.errors.ArgumentTypeError),
        (1, -1, [], kv.errors.ArgumentError),
        (1, 3, [1], kv.errors.ArgumentTypeError),
        (1, 3, [([], 1, 2)], kv.errors.ArgumentTypeError),
        (1, 3, [((), 1)], kv.errors.ArgumentTypeError),
        (1, 3, 5, kv.errors.ArgumentTypeError),
    ],
)
def test_what_is_refused_notes_nothing(token: Any, length: Any, notes: Any, error: type[kv.Error]) -> None:
    cache, model = make("dense")
    session = prefilled(cache, model, [1, 2, 3])
    first: list[int] = []
    given = [(first, 7), *notes] if isinstance(notes, list) else notes
    with pytest.raises(error, match=r"^\[accept\] "):
        session.accept(token, length, given)
    assert (session.tokens.tolist(), first) == ([1, 2, 3], [])
    session.close()
    with pytest.raises(kv.errors.ClosedError):
        session.accept(1, 3, [(first, 1)])
    assert first == []
    cache.close()


def test_no_room_notes_nothing() -> None:
    cache, model = make("dense", 4)
    session = prefilled(cache, model, [1, 2, 3, 4])
    tokens: list[int] = []
    with pytest.raises(kv.errors.ArgumentError):
        session.accept(5, 4, [(tokens, 5)])
    assert tokens == []
    cache.close()


@pytest.mark.parametrize("kind", [*KINDS, "window alone", "recurrent alone", "all"])
@pytest.mark.parametrize("seed", range(3))
def test_what_was_lost_is_computed_again(kind: str, seed: int) -> None:
    """At random moments: the model checks every row and state that it reads, and the logits name the whole prefix."""
    chance = random.Random(seed)
    cache, model = make(kind, window=8, chunk=8, spacing=chance.choice([4, 16]))
    text = words(seed, 40)
    session = prefilled(cache, model, text[: chance.randrange(1, 30)], chunk=chance.randrange(1, 12))
    for _ in range(30):
        length = int(session.recorded)
        before = session.tokens.tolist()
        assert session.length == length
        remain = session.recompute()
        assert 1 <= remain == length - session.length
        assert session.tokens.tolist() == before
        assert session.recompute() == remain  # nothing changes where something remains
        logits = None
        for step in session.prefill(chunk=chance.randrange(1, 12)):
            logits = model(step)
        assert logits is not None and session.length == length
        assert cache.check() == []
        session.accept(int(logits.argmax()), length)
        model(session.decode())
    cache.close()


def test_a_session_of_no_tokens_has_nothing_to_recompute() -> None:
    cache, _ = make("dense")
    session = cache.begin([1])
    session.rewind(0)
    with pytest.raises(kv.errors.ArgumentError, match=r"^\[session.recompute\] session: got 0 tokens"):
        session.recompute()
    cache.close()
