"""Two long prompts that share a prefix, one after the other and back again: the promise kvtrie was built for.

Reuse is counted, K/V bytes moved are counted in ``cl/`` by the device, and the logits are compared with a float64
forward pass that knows no cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from bounds import LOGITS, LOGITS_OF_FLOAT16_CELLS, close
from reference_llama import random_llama, reference_logits

BOUNDS = {"float32": LOGITS, "float16": LOGITS_OF_FLOAT16_CELLS}
VOCAB = 256
SAID = (3, 77)


@pytest.fixture(scope="module")
def llama() -> Any:
    config, weights = random_llama(seed=11, layers=3, hidden=64, heads=8, kv_heads=2, vocab=VOCAB)
    return config, weights, kv.models.from_weights(config, weights)


@pytest.fixture(scope="module")
def prompts() -> tuple[Any, Any]:
    random = np.random.default_rng(12)
    shared, a, b = (random.integers(0, VOCAB, n, dtype=np.int32) for n in (1500, 700, 700))
    b[0] = (a[0] + 1) % VOCAB
    return np.concatenate([shared, a]), np.concatenate([shared, b])


@pytest.fixture(scope="module")
def wanted(llama: Any, prompts: tuple[Any, Any]) -> list[Any]:
    """For each prompt: logits [1 + SAID, vocab] after it, and after each token that is then said."""
    config, weights, _ = llama
    return [reference_logits(config, weights, np.append(prompt, SAID))[-1 - len(SAID) :] for prompt in prompts]


def last_logits(model: Any, session: Any) -> Any:
    for step in session.prefill(chunk=512):
        logits = model(step)
    return np.asarray(logits)[-1]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_switching_reuses_all_but_one_token_and_copies_nothing(
    llama: Any, prompts: tuple[Any, Any], wanted: list[Any], dtype: str
) -> None:
    model = llama[2]
    cache = kv.PrefixCache(model.caches(capacity=4096, dtype=dtype), host_bytes=0)
    device = model.device
    reused, moved = [], []
    for index in (0, 1, 0, 1):
        before = device.memory()["kv_bytes_moved"]
        with cache.begin(prompts[index]) as session:
            logits = last_logits(model, session)
            reused.append(session.reused)
        moved.append(device.memory()["kv_bytes_moved"] - before)
        close(logits, wanted[index][0], BOUNDS[dtype])
        assert cache.check() == []
    assert reused == [0, 1500, 2199, 2199]
    assert moved == [0, 0, 0, 0]
    assert cache.stats()["tokens"] == 2900
    cache.close()


def test_one_decode_step_after_each_switch_agrees_with_the_reference(
    llama: Any, prompts: tuple[Any, Any], wanted: list[Any]
) -> None:
    model = llama[2]
    cache = kv.PrefixCache(model.caches(capacity=4096, dtype="float32"), host_bytes=0)
    sessions = [cache.begin(prompt) for prompt in prompts]
    for session in sessions:
        last_logits(model, session)
    for number, token in enumerate(SAID, 1):
        for session, after in zip(sessions, wanted):
            session.append(token)
            got = np.asarray(model(session.decode()))[-1]
            close(got, after[number], LOGITS)
    cache.close()
