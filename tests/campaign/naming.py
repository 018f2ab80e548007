"""The model of the campaign: every row and state that it stores names namespace, prefix, layer and position.

It is `KindsModel` of tests/python/kinds_fakes.py, which compares all that a step can read, for threads that drop each
other's steps: where a session no longer has the tokens of a step, the step has to refuse to take anything.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np

import kvtrie as kv
from kinds_fakes import Floats, History, Ints, KindsModel


class ModelFailed(Exception):
    """What a model raises in the middle of a step, when it is told to."""


class FrozenStep:
    """A step whose sessions have the tokens that they had at one moment, whatever other threads do with them."""

    def __init__(self, step: Any) -> None:
        self._step = step
        self.sessions = [SimpleNamespace(namespace=each.namespace, tokens=each.tokens.copy()) for each in step.sessions]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def of_now(self) -> bool:
        """Whether those are the tokens that the step computes."""
        sequences, positions, tokens = (np.asarray(each) for each in (self.sequences, self.positions, self.tokens))
        for index, session in enumerate(self.sessions):
            part = sequences == index
            if positions[part][-1] >= len(session.tokens) or (session.tokens[positions[part]] != tokens[part]).any():
                return False
        return True


class NamingModel(KindsModel):
    """One thread's model: ``compared`` rows and states were read back and were right; ``failed`` times it raised.

    ``dice``: where there is one, some calls raise ``ModelFailed`` between two layers.
    """

    def __init__(self, caches: Sequence[Any], dice: Optional[random.Random] = None) -> None:
        super().__init__(caches)
        self.dice = dice
        self.compared = self.failed = self.stale = 0
        self._until: Optional[int] = None  # layers until it raises

    def __call__(self, step: Any) -> Floats:
        self._until = self.dice.randrange(len(self.layers) + 1) if self.dice and self.dice.random() < 0.06 else None
        frozen = FrozenStep(step)
        if not frozen.of_now():
            self.stale += 1
            self._must_refuse(step)
        self.captured.clear()
        return super().__call__(frozen)

    def _must_refuse(self, step: Any) -> None:
        """Raises ``ClosedError``, as every call on a dropped step does."""
        layer, cache = self.layers[0]
        if isinstance(cache, kv.caches.RecurrentCache):
            step.states(layer)
        else:
            rows = len(step.tokens)
            shapes = (rows, cache.kv_heads, cache.head_dim), (rows, cache.kv_heads, cache.v_head_dim)
            step.put(layer, *(np.zeros(shape, np.float32) for shape in shapes))
        raise AssertionError("a step whose session has other tokens by now took its rows")

    def _fail(self) -> None:
        if self._until is not None:
            self._until -= 1
            if self._until < 0:
                self.failed += 1
                raise ModelFailed("told to")

    def _store_rows(self, step: Any, layer: int, cache: Any, histories: list[History], parts: list[Ints]) -> None:
        self._fail()
        super()._store_rows(step, layer, cache, histories, parts)

    def _check_rows(  # type: ignore[override]
        self, cache: Any, layer: int, history: History, part: Ints, seen: Any, k: Floats, v: Floats
    ) -> None:
        KindsModel._check_rows(cache, layer, history, part, seen, k, v)
        self.compared += int(seen.any(0).sum())

    def _move_states(self, step: Any, layer: int, cache: Any, histories: list[History], parts: list[Ints]) -> None:
        self._fail()
        super()._move_states(step, layer, cache, histories, parts)
        self.compared += len(histories)
