"""`check()` finds nothing wrong whenever it is called: between two layers of an open step, and while others save."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from processes import PATIENCE
from random_models import VOCAB, random_model

pytestmark = pytest.mark.usefixtures("nothing_left_over")

SEED = 20251124


class CheckedStep:
    """A step that checks its cache before and after each layer."""

    def __init__(self, step: Any, cache: Any, found: set[str]) -> None:
        self._step, self._cache, self._found = step, cache, found

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._step, name)
        if name not in ("attend", "attend_qkv", "conv", "gated_delta"):
            return value

        def checked(*arguments: Any, **options: Any) -> Any:
            self._found.update(self._cache.check())
            result = value(*arguments, **options)
            self._found.update(self._cache.check())
            return result

        return checked


@pytest.mark.parametrize("kind", ["dense", "window", "hybrid"])
def test_between_two_layers_of_an_open_step(kind: str) -> None:
    model = random_model(kind)
    model.replays = False
    cache = kv.PrefixCache(model.caches(512))
    found: set[str] = set()
    for prompt in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 9], [1, 2, 3, 4, 5, 6, 7, 8]):
        session = cache.begin(prompt)
        for step in session.prefill(chunk=3):
            model(CheckedStep(step, cache, found))
        branch = session.branch()
        for each in (session, branch):
            each.append(prompt[-1])
        model(CheckedStep(cache.batch([session, branch]), cache, found))
    assert found == set()


@pytest.mark.parametrize("kind", ["dense", pytest.param("window", marks=pytest.mark.ci)])
def test_while_another_thread_saves(kind: str, tmp_path: Path) -> None:
    """With host memory for a few prompts only, so that saving reads files through it."""
    print(f"seed {SEED}")
    model = random_model(kind)
    cache = kv.PrefixCache(model.caches(256), host_bytes="64 KiB", disk=tmp_path / "own", fingerprint="x")
    random, found, over = np.random.default_rng(SEED), set[str](), threading.Event()

    def watch() -> None:
        while not over.is_set():
            found.update(cache.check())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    for turn in range(16):
        with cache.begin([int(token) for token in random.integers(0, VOCAB, 60)]) as session:
            for step in session.prefill():
                model(step)
        if turn % 4 == 3:
            with contextlib.suppress(kv.FormatError):  # host memory is full
                cache.save(tmp_path / "own" if turn % 8 == 3 else tmp_path / "other")
    over.set()
    watcher.join(PATIENCE)
    assert found == set()


def test_what_was_evicted_while_its_checksums_are_taken() -> None:
    """Paging out ends with the checksums, after the tree is free for others: these may evict what is still read."""
    cache = kv.PrefixCache(kv.CausalCache(1, 2, 512, 2048, dtype="float32", device="host"), host_bytes="64MiB")
    prompt, found, looks, over = list(range(2000)), set[str](), [0], threading.Event()
    rows = np.ones((len(prompt), 2, 512), np.float32)

    def evict() -> None:
        while not over.is_set():
            if cache.evict(prompt):
                looks[0] += 1
            found.update(cache.check())

    others = threading.Thread(target=evict, daemon=True)
    others.start()
    while looks[0] < 25:  # 16 MiB each
        with cache.begin(prompt, use=False) as session:
            for step in session.prefill(chunk=2048):
                with contextlib.suppress(kv.ClosedError):
                    step.put(0, rows[: len(step.tokens)], rows[: len(step.tokens)])
        cache.page_out(prompt)
    over.set()
    others.join(PATIENCE)
    assert found == set()
