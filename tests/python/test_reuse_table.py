"""How much of a long prompt is computed again, for dense, window and hybrid models: the table kvtrie was built for.

Prompts of 2200 tokens, a window of 512, three of four layers recurrent, restore points every 512 tokens. Counts and
contents: the models without weights (kinds_fakes.py) check every key, value and state that they can read; with the
models of ``kv.models`` the logits are those of a fresh evaluation, and switching moves no K/V.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kinds_fakes
import kvtrie as kv
from bounds import LOGITS_OF_KINDS, close
from kinds_fakes import KindsModel, diverging, floor_of, make_caches, words
from random_models import random_model

pytestmark = pytest.mark.usefixtures("nothing_left_over")

SHARED, LENGTH, CHUNK = 1500, 2200, 512
KINDS = ("dense", "window", "hybrid")


A, NEW = words(20, LENGTH), words(21, LENGTH)
B, C = (diverging(A, SHARED, seed, LENGTH) for seed in (1, 2))
EDITED = diverging(A, LENGTH - 100, 3, LENGTH)


class Table:
    """Plays the table on one prefix cache: what each prompt reused, and the logits behind it."""

    def __init__(self, cache: Any, model: Any) -> None:
        self.cache, self.model = cache, model
        self.reused: dict[str, tuple[int, int]] = {}
        self.logits: dict[str, tuple[list[int], Any]] = {}

    def turn(self, name: str, prompt: list[int], generate: int = 0, steps: int = 0) -> list[int]:
        """One prompt; at most `steps` steps of it where that is given. What was generated."""
        with self.cache.begin(prompt) as session:
            self.reused[name] = session.reused, len(prompt)
            for count, step in enumerate(session.prefill(chunk=CHUNK), 1):
                logits = self.model(step)
                if count == steps:
                    break
            options = {"max_tokens": generate, "ignore_eos": True, "logits": logits}
            made = list(kv.generate(self.model, session, **options)) if generate else []
        if not steps:
            self.logits[name] = prompt, np.array(np.asarray(logits)[-1])
        assert self.cache.check() == [], name
        return made

    def play(self) -> None:
        self.turn("first", A)
        self.turn("identical", A)
        made = self.turn("two more", A, generate=2)
        self.turn("next turn", [*A, *made, *words(6, 30)])
        self.turn("edited", EDITED)
        self.turn("B", B)
        self.turn("C", C)
        self.turn("back to A", A)
        self.turn("back to B", B)
        self.turn("cancelled", NEW, steps=2)
        self.turn("cancelled again", NEW, steps=2)
        self.turn("resumed", NEW)


def check_table(reused: dict[str, tuple[int, int]], kind: str) -> None:
    cached = {name: got for name, (got, _) in reused.items()}
    exact = {
        "first": 0,
        "identical": 2199,
        "two more": 2199,
        "next turn": 2201,
        "C": 1500,
        "back to A": 2199,
        "back to B": 2199,
        "cancelled": 0,
        "cancelled again": 2 * CHUNK,
        "resumed": 4 * CHUNK,
    }
    assert {name: cached[name] for name in exact} == exact
    assert reused["next turn"][1] == 2232
    if kind == "hybrid":
        assert cached["edited"] >= 2048
        assert cached["B"] >= 1024
    else:
        assert (cached["edited"], cached["B"]) == (2100, 1500)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("kind", [*(pytest.param(kind, marks=pytest.mark.ci) for kind in KINDS[:2]), "hybrid"])
def test_counts_and_contents(kind: str) -> None:
    caches = make_caches(kind, 8192)
    model = KindsModel(caches)
    table = Table(kv.PrefixCache(caches, host_bytes=0), model)
    table.play()
    check_table(table.reused, kind)
    assert table.cache.stats()["computed_tokens"] == model.rows
    for prompt, logits in table.logits.values():
        fresh = make_caches(kind, 4096)
        with kv.PrefixCache(fresh).begin(prompt) as session:
            for step in session.prefill(chunk=LENGTH + 100):
                assert (np.asarray(KindsModel(fresh)(step))[-1] == logits).all()


@pytest.mark.parametrize("kind", [*(pytest.param(kind, marks=pytest.mark.ci) for kind in KINDS[:2]), "hybrid"])
def test_every_chunk_length(kind: str) -> None:
    """Where the prefill's steps end changes no count."""
    for chunk in (7, 511, 513, 4096):
        caches = make_caches(kind, 8192)
        model, cache = KindsModel(caches), kv.PrefixCache(caches, host_bytes=0)
        reused = []
        for prompt in (A, B, C, A, B):
            with cache.begin(prompt) as session:
                reused.append(session.reused)
                for step in session.prefill(chunk=chunk):
                    model(step)
        assert reused[1] == (1024 if kind == "hybrid" else 1500)
        assert (reused[0], reused[2:]) == (0, [1500, 2199, 2199])


@pytest.mark.parametrize("host_bytes", [0, "64MiB"])
def test_a_window_pool_of_2560_cells(host_bytes: Any) -> None:
    caches = make_caches("window", 8192, window_capacity=2560)
    table = Table(kv.PrefixCache(caches, host_bytes=host_bytes), KindsModel(caches))
    for name, prompt in (("A", A), ("B", B), ("A again", A), ("B again", B)):
        table.turn(name, prompt)
    reused = [got for got, _ in table.reused.values()]
    assert all(got >= least for got, least in zip(reused, (0, 0, 2199, 2199))), reused
    assert reused[1] in (0, 1500)


@pytest.mark.parametrize("kind", kinds_fakes.KINDS)
def test_the_models_notice_what_is_foreign(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check behind these tests: other keys, other states, one key too many or too few."""
    caches = make_caches(kind, 64, window=8, chunk=8)
    model, cache = KindsModel(caches), kv.PrefixCache(caches, host_bytes=0)
    with cache.begin(words(1, 20)) as session:
        for step in session.prefill():
            model(step)
        session.append(5)
        with monkeypatch.context() as patch:  # hybrids notice when the step is complete, the others before
            patch.setattr(kinds_fakes, "_WEIGHTS", kinds_fakes._WEIGHTS[:, ::-1])
            with pytest.raises(AssertionError, match="Arrays are not equal"):
                model(session.decode())
        for offset in (-1, 1):
            session.append(5)
            with monkeypatch.context() as patch:
                patch.setattr(kinds_fakes, "floor_of", lambda cache, at, by=offset: floor_of(cache, at) + by)
                with pytest.raises(AssertionError, match="Arrays are not equal"):
                    model(session.decode())
    assert cache.check() == []


# ---- models with weights ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {kind: random_model(kind) for kind in KINDS}


def fresh_logits(model: Any, prompt: list[int]) -> Any:
    with kv.PrefixCache(model.caches(capacity=2304, dtype="float32"), host_bytes=0).begin(prompt) as session:
        for step in session.prefill(chunk=CHUNK):
            logits = model(step)
    return np.asarray(logits)[-1]


def test_cached_logits_are_fresh_logits_and_nothing_moves(kind: str, models: dict[str, Any]) -> None:
    model = models[kind]
    cache = kv.PrefixCache(model.caches(capacity=8192, dtype="float32"), host_bytes=0)
    before = model.device.memory()["kv_bytes_moved"]
    table = Table(cache, model)
    table.play()
    assert model.device.memory()["kv_bytes_moved"] == before
    check_table(table.reused, kind)
    known: dict[tuple[int, ...], Any] = {}
    for prompt, logits in table.logits.values():
        key = tuple(prompt)
        if key not in known:
            known[key] = fresh_logits(model, prompt)
        close(logits, known[key], LOGITS_OF_KINDS)
