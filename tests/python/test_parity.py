"""Cached against cold, teacher-forced on the same tokens, and bytes that come back as they went.

Cold runs use a cache of their own and chunks of 1, 7, 64 and 512. Logits agree within a relative tolerance; greedy
tokens are equal wherever the cold run's first two logits are further apart than twice the largest difference that was
measured in that run (which is less than the tolerance, so more positions must agree); positions below it are counted.
Bit-equality is asked where cells and chunks are the same: after page-out and page-in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from bounds import LOGITS, LOGITS_OF_FLOAT16_CELLS, LOGITS_OF_Q8_CELLS, close
from reference_llama import random_llama

VOCAB = 200
SEED = 2026


@pytest.fixture(scope="module")
def model() -> Any:
    config, weights = random_llama(seed=SEED, layers=2, hidden=64, heads=4, kv_heads=2, vocab=VOCAB, head_dim=32)
    return kv.models.from_weights(config, weights)


@pytest.fixture(scope="module")
def texts() -> list[Any]:
    """Four texts: two branches of a shared beginning, one branch of a branch, one of its own."""
    random = np.random.default_rng(SEED)
    draw = lambda n: random.integers(0, VOCAB, n, dtype=np.int32)  # noqa: E731
    shared, own = draw(300), draw(200)
    first = np.concatenate([shared, draw(150)])
    return [first, np.concatenate([shared, draw(170)]), np.concatenate([first[:380], draw(60)]), own]


def all_logits(model: Any, cache: Any, tokens: Any, chunk: int, forced: Any = ()) -> tuple[Any, int]:
    """Logits of what had to be computed for ``tokens`` and then ``forced``, and how many tokens were reused."""
    parts = []
    with cache.begin(tokens) as session:
        for step in session.prefill(chunk=chunk):
            parts.append(np.asarray(model(step, all_rows=True)))
        for token in forced:
            session.append(int(token))
            parts.append(np.asarray(model(session.decode(), all_rows=True)))
        return np.concatenate(parts), session.reused


@pytest.mark.parametrize("dtype", ["float32", "float16", "q8_0"])
def test_cached_logits_agree_with_cold_ones(model: Any, texts: list[Any], dtype: str) -> None:
    bound = {"float32": LOGITS, "float16": LOGITS_OF_FLOAT16_CELLS, "q8_0": LOGITS_OF_Q8_CELLS}[dtype]
    warm = kv.PrefixCache(model.caches(capacity=4096, dtype=dtype), host_bytes=0)
    forced = np.random.default_rng(SEED + 1).integers(0, VOCAB, 12, dtype=np.int32)
    close_calls = positions = flipped = 0
    worst = 0.0
    for text in texts:
        warm_runs = [all_logits(model, warm, text, 64, forced) for _ in range(2)]
        for chunk in (1, 7, 64, 512):
            cold_cache = kv.PrefixCache(model.caches(capacity=1024, dtype=dtype), host_bytes=0)
            whole, nothing = all_logits(model, cold_cache, text, chunk, forced)
            cold_cache.close()
            assert nothing == 0
            for got, reused in warm_runs:
                cold = whole[reused:]
                difference = np.abs(got - cold).max()
                close(got, cold, bound)
                worst = max(worst, difference / np.abs(cold).max())
                top = np.sort(cold, axis=1)[:, -2:]
                clear = top[:, 1] - top[:, 0] > 2 * difference
                assert (got.argmax(1) == cold.argmax(1))[clear].all()
                flipped += int((got.argmax(1) != cold.argmax(1)).sum())
                close_calls += int((~clear).sum())
                positions += len(clear)
    print(
        f"seed {SEED}, {dtype}: worst difference {worst:.1e}; of {positions} positions {close_calls} too close to "
        f"call, {flipped} with another greedy token"
    )
    assert close_calls < 0.01 * positions
    warm.close()


@pytest.mark.parametrize("dtype", ["float32", "float16", "q8_0"])
def test_going_on_after_page_out_and_page_in_is_bit_equal(model: Any, texts: list[Any], dtype: str) -> None:
    text = texts[0]
    forced = np.random.default_rng(SEED + 2).integers(0, VOCAB, 8, dtype=np.int32)

    def run(page: bool) -> Any:
        cache = kv.PrefixCache(model.caches(capacity=1024, dtype=dtype), host_bytes="64MiB")
        with cache.begin(text[:400]) as session:
            for step in session.prefill(chunk=128):
                model(step)
        if page:
            assert cache.page_out(tokens=text[:400]) > 0
            plan = cache.plan(text)
            assert (plan.tier, plan.reusable) == ("host", 400)
        logits, reused = all_logits(model, cache, text, 64, forced)
        assert reused == 400
        assert cache.check() == []
        cache.close()
        return logits

    stayed, returned = run(False), run(True)
    assert stayed.tobytes() == returned.tobytes()


@pytest.mark.parametrize("cut", [200, 130, 64, 63, 1])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bytes_come_back_as_they_went(dtype: str, cut: int) -> None:
    random = np.random.default_rng(SEED + 3)
    layers, heads, dim, count = 3, 2, 24, 200
    cache = kv.PrefixCache(kv.caches.CausalCache(range(layers), heads, dim, 512, dtype=dtype), host_bytes="64MiB")
    tokens = np.arange(count, dtype=np.int32)
    shape = (count, heads, dim)
    rows = {(layer, part): random.standard_normal(shape).astype(dtype) for layer in range(layers) for part in "kv"}
    with cache.begin(tokens) as session:
        for step in session.prefill(chunk=count):
            for layer in range(layers):
                step.put(layer, rows[layer, "k"], rows[layer, "v"])
    assert cache.page_out(tokens=tokens) == sum(part.nbytes for part in rows.values())
    with cache.begin(tokens[:cut], reuse_all=True) as session:
        assert (session.reused, session.tier) == (cut, "host")
        session.append(7)
        step = session.decode()
        for layer in range(layers):
            step.put(layer, rows[layer, "k"][:1], rows[layer, "v"][:1])
            k, v, _ = step.get(layer)
            assert k.numpy()[:cut].tobytes() == rows[layer, "k"][:cut].tobytes()
            assert v.numpy()[:cut].tobytes() == rows[layer, "v"][:cut].tobytes()
    assert cache.check() == []
    cache.close()
