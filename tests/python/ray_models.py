"""Models that Ray's actors make. They are found by name, so that workers import them."""

from __future__ import annotations

import os
import signal
import time
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import kvtrie as kv
from fakes import DIM, KV_HEADS, LAYERS
from naming_model import NamingModel
from serving import TINY

CAPACITY = 640  # cells: far too few for all that the tests' prompts share


@cache
def tiny() -> Any:
    return kv.models.load(TINY)


def _noted(folder: Path) -> Any:
    (folder / str(os.getpid())).touch()
    return kv.models.load(TINY)


def noted(folder: Path) -> Any:
    """What makes the tiny model; a file in ``folder`` is called as the process that has it."""
    return partial(_noted, folder)


def tokenizer() -> Any:
    return tiny().tokenizer


class Blank:
    """Computes nothing, so that thousands of prompts take seconds: K and V are zeros, and every answer is token 1."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(vocab_size=4096, eos_token_ids=())

    def __call__(self, step: Any) -> Any:
        zeros = np.zeros((len(step.tokens), KV_HEADS, DIM), np.float32)
        for layer in range(LAYERS):
            step.put(layer, zeros, zeros)
        logits = np.zeros((len(step.sessions), self.config.vocab_size), np.float32)
        logits[:, 1] = 1.0
        return logits


def blank() -> Any:
    caches = [kv.caches.CausalCache(LAYERS, KV_HEADS, DIM, CAPACITY, dtype="float32", device="host")]
    return Blank(), kv.PrefixCache(caches)


def naming() -> Any:
    """The model whose every token names the whole text before it."""
    model = NamingModel(tiny(), check=False)
    return model, kv.PrefixCache(model.caches(capacity=CAPACITY))


class _Slow(Blank):
    """A batch of it takes longer than anybody waits."""

    def __call__(self, step: Any) -> Any:
        time.sleep(0.05)
        return super().__call__(step)


def slow() -> Any:
    return _Slow(), blank()[1]


class _Dying(NamingModel):
    """Kills its process in the step after ``steps``, once: ``mark`` says that it did."""

    def __init__(self, mark: Path, steps: int) -> None:
        super().__init__(tiny(), check=False)
        self._mark, self._left = mark, steps

    def __call__(self, step: Any, all_rows: bool = False) -> Any:
        self._left -= 1
        if self._left < 0 and not self._mark.exists():
            self._mark.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(step, all_rows)


def _dying(mark: Path, steps: int) -> Any:
    model = _Dying(mark, steps)
    return model, kv.PrefixCache(model.caches(capacity=CAPACITY))


def dying(mark: Path, steps: int) -> Any:
    """What makes one."""
    return partial(_dying, mark, steps)
