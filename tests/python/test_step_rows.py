"""Whose the rows of a shared step are, against counting them one by one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kvtrie._step_rows import bounds_of
from random_models import random_model
from test_draft import make_cache, prompt

pytestmark = pytest.mark.usefixtures("nothing_left_over")


def test_bounds_are_where_the_next_session_begins() -> None:
    print("seed 44")
    random = np.random.default_rng(44)
    for _ in range(100):
        counts = random.integers(0, 5, random.integers(1, 7)).tolist()
        sequences = [at for at, count in enumerate(counts) for _ in range(count)]
        bounds = bounds_of(SimpleNamespace(sequences=np.asarray(sequences, np.int32)), len(counts))
        assert len(bounds) == len(counts) + 1
        for at in range(len(counts)):
            assert sequences[bounds[at] : bounds[at + 1]] == [at] * counts[at]
        assert bounds[-1] == len(sequences)


def test_rows_of_a_batch_lie_as_they_should() -> None:
    """Prompts of several lengths, and drafts beside them."""
    model = random_model("dense")
    texts = [prompt(at, length) for at, length in enumerate((3, 9, 1, 6))]
    with make_cache(model) as cache:
        sessions = [cache.begin(text) for text in texts]
        step = cache.batch(sessions, chunk=6, drafts=[[5, 6], [], [7], []])
        bounds = bounds_of(step, len(texts))
        assert np.diff(bounds).tolist() == [5, 6, 2, 6]
        for at, text in enumerate(texts):
            own = np.asarray(step.tokens)[bounds[at] : bounds[at + 1]].tolist()
            assert own == [*text, *[[5, 6], [], [7], []][at]][:6]
            assert step.positions[bounds[at]] == 0
        for session in sessions:
            session.close()
