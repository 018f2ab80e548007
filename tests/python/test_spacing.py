"""How far apart restore points are by default: close where a state is a few rows, and what a prompt then reuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from config_sweep import Case, build, save
from kvtrie._spacing import NARROW, WIDE, spacing

pytestmark = pytest.mark.usefixtures("nothing_left_over")


def causal(heads: int = 2) -> kv.caches.CausalCache:
    return kv.caches.CausalCache([0], heads, 8, 64, dtype="float32", device="host")  # 128 bytes a token and two heads


def conv(dim: int, layers: int = 1) -> kv.caches.RecurrentCache:
    return kv.caches.RecurrentCache(list(range(1, 1 + layers)), 2, dim, 0, 0, 0, 4, dtype="float32", device="host")


@pytest.mark.parametrize(
    ("caches", "tokens"),
    [
        (lambda: [causal()], WIDE),
        (lambda: [conv(8)], WIDE),  # no K and V that it would be small beside
        (lambda: [causal(), conv(256)], NARROW),  # 2048 bytes: as K and V of 16 tokens
        (lambda: [causal(), conv(257)], WIDE),
        (lambda: [causal(), conv(256, layers=2)], WIDE),
        (lambda: [causal(4), conv(256, layers=2)], NARROW),
        (
            lambda: [causal(), kv.caches.RecurrentCache([1], 0, 0, 1, 2, 2, 4, device="host")],
            WIDE,
        ),  # of matrices, however small
    ],
)
def test_points_stand_close_where_a_state_is_small(caches: Any, tokens: int) -> None:
    held = caches()
    assert spacing(held) == tokens
    with kv.PrefixCache(held) as cache:
        assert cache.checkpoint_every == tokens
    with kv.PrefixCache(caches(), checkpoint_every=33) as cache:
        assert cache.checkpoint_every == 33


@pytest.mark.ci
def test_a_prompt_that_parts_in_the_middle_reuses_all_but_fifteen_tokens(tmp_path: Path) -> None:
    """LFM2: the first prompt that leaves a history anywhere goes on from the point before."""
    case = Case("lfm2", {"max_position_embeddings": 512})
    save(build(case), case.file(), tmp_path)
    model = kv.models.load(tmp_path, dtype="float32")
    text = np.random.default_rng(1).integers(1, 90, 300).tolist()
    with kv.PrefixCache(model.caches(capacity=1024, dtype="float32", warm_up=False)) as cache:
        with cache.begin(text) as session:
            for step in session.prefill(chunk=64):
                model(step)
        for at in (170, 20, 45, 298):
            with cache.begin([*text[:at], 91, 92, 93]) as session:
                assert session.reused == at // NARROW * NARROW
        assert not cache.check()


def test_slots_are_refused_where_no_layer_keeps_states() -> None:
    model = kv.models.load("examples/tiny")
    with pytest.raises(kv.errors.ArgumentError, match=r"slots: got 8, allowed None"):
        model.caches(capacity=64, slots=8, warm_up=False)
