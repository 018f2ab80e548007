"""How decode steps go to a GPU: what KVTRIE_ONE_LAUNCH says, and what is measured where it says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import kvtrie as kv
from kvtrie.models import step_form
from random_models import random_model


class FakeGpu:
    """Says that it is a GPU with matrix instructions; keeps what it was told."""

    kind = "gpu"

    def __init__(self) -> None:
        self.told: list[bool | None] = []

    def _has_matrix_instructions(self) -> bool:
        return True

    def _step_in_one_launch(self, one: bool | None) -> None:
        self.told.append(one)

    def finish(self) -> None:
        pass


class FakeModel:
    """A model on a fake GPU. ``seconds``: what a step takes, launched and replayed; None: it cannot be recorded."""

    def __init__(self, launched: float, replayed: float | None) -> None:
        self.device, self.replays = FakeGpu(), True
        self.launched, self.replayed = launched, replayed
        self.now, self.steps = 0.0, 0
        self.graphs = SimpleNamespace(stats={"replays": 0})
        self._real = random_model("dense")

    def caches(self, capacity: int, dtype: str, *, warm_up: bool) -> Any:
        return self._real.caches(capacity, dtype, warm_up=warm_up)

    def __call__(self, step: Any) -> None:
        self._real(step)
        self.steps += 1
        recorded = self.replays and self.replayed is not None
        self.graphs.stats["replays"] += int(recorded)
        self.now += self.replayed if recorded else self.launched  # type: ignore[operator]


def chosen(monkeypatch: pytest.MonkeyPatch, word: str, launched: float = 2.0,
           replayed: float | None = 1.0) -> FakeModel:  # fmt: skip
    model = FakeModel(launched, replayed)
    monkeypatch.setenv(step_form.NAME, word)
    monkeypatch.setattr(step_form, "time", SimpleNamespace(perf_counter=lambda: model.now))
    step_form.choose_step_form(model, "float16")  # type: ignore[arg-type]
    return model


@pytest.mark.parametrize(("word", "told"), [("", [None]), ("0", [None]), ("1", [True])])
def test_the_word_is_obeyed_without_a_step(monkeypatch: pytest.MonkeyPatch, word: str, told: list[bool | None]) -> None:
    model = chosen(monkeypatch, word)
    assert model.device.told == told
    assert model.replays
    assert model.steps == 0


@pytest.mark.parametrize(("launched", "replayed", "wins"), [(2.0, 1.0, True), (1.0, 2.0, False), (1.0, None, False)])
def test_the_faster_form_is_taken(
    monkeypatch: pytest.MonkeyPatch, launched: float, replayed: float | None, wins: bool
) -> None:
    model = chosen(monkeypatch, "measured", launched, replayed)
    assert model.device.told == [True]
    assert model.replays is wins


def test_nothing_is_measured_beside_the_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel(2.0, 1.0)
    monkeypatch.setenv(step_form.NAME, "measured")
    step_form.choose_step_form(model, "float16", measures=False)  # type: ignore[arg-type]
    assert model.device.told == [None]
    assert model.steps == 0


def test_another_word_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(step_form.NAME, "sometimes")
    with pytest.raises(kv.errors.ArgumentError, match="KVTRIE_ONE_LAUNCH: got 'sometimes', allowed 0, 1 or measured"):
        random_model("dense").warm_up("float16")


def test_other_devices_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU device, which replays by itself, is told nothing."""
    monkeypatch.setenv(step_form.NAME, "measured")
    model = random_model("dense")
    step_form.choose_step_form(model, "float16")
    assert model.replays
