"""Models with short convolutions or Mamba-2: states return from every tier and after a restart, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from config_sweep import Case, build, save, tokens

pytestmark = [pytest.mark.usefixtures("nothing_left_over"), pytest.mark.ci]

FAMILIES = ("lfm2", "granitemoehybrid", "falcon_h1", "nemotron_h", "olmo_hybrid", "kimi_linear")
FIRST = tokens().tolist()
SECOND = [*FIRST[:20], *FIRST[:12]]


def loaded(name: str, folder: Path) -> Any:
    case = Case(name, {})
    save(build(case), case.file(), folder)
    return kv.models.load(folder, dtype="float32")


def caches(model: Any, capacity: int, slots: int) -> Any:
    return model.caches(capacity=capacity, dtype="float32", slots=slots, warm_up=False)


def told(model: Any, cache: kv.PrefixCache, text: list[int]) -> tuple[int, Any]:
    """How much of ``text`` was reused, and the logits behind its last token."""
    with cache.begin(text) as session:
        last = [np.array(model(step)) for step in session.prefill(chunk=16)]
        return session.reused, last[-1]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_branch_reuses_what_a_point_has(name: str, tmp_path: Path) -> None:
    """A, B, A, B: the second branch that diverges where the first did goes on from there."""
    model = loaded(name, tmp_path)
    with kv.PrefixCache(caches(model, 256, 24), host_bytes=0, checkpoint_every=64) as cache:
        seen = [told(model, cache, text)[0] for text in (FIRST, SECOND, FIRST, SECOND, [*FIRST[:20], 3, 4, 5])]
        assert seen == [0, 0, len(FIRST) - 1, len(SECOND) - 1, 20]
        assert not cache.check()


@pytest.mark.parametrize("name", FAMILIES)
def test_states_return_from_the_host_and_after_a_restart(name: str, tmp_path: Path) -> None:
    model = loaded(name, tmp_path / "model")
    with kv.PrefixCache(caches(model, 256, 16), host_bytes=0) as cache:
        wanted = {len(text): told(model, cache, text)[1] for text in (FIRST, SECOND)}
    options: dict[str, Any] = {"fingerprint": model.fingerprint, "host_bytes": "1MiB", "disk": tmp_path / "disk"}
    with kv.PrefixCache(caches(model, 48, 4), **options) as cache:  # room for one of them
        for _ in range(2):
            for text in (FIRST, SECOND):
                reused, logits = told(model, cache, text)
                np.testing.assert_array_equal(logits, wanted[len(text)])
        assert reused == len(SECOND) - 1
        cache.flush()
    with kv.PrefixCache(caches(model, 48, 4), **options) as cache:
        for text in (FIRST, SECOND):
            reused, logits = told(model, cache, text)
            assert reused == len(text) - 1
            np.testing.assert_array_equal(logits, wanted[len(text)])
        assert not cache.check()
