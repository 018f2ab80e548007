"""``kv.trie.fingerprints`` and ``PrefixCache.summary`` from Python; what is in them: prefix_cache_summary_test.cpp."""

from __future__ import annotations

import numpy as np
import pytest

import kvtrie as kv
from fakes import CodingModel, compute, make_cache


def test_they_meet() -> None:
    cache = make_cache(2048)
    tokens = np.arange(1000, dtype=np.int32)
    with cache, cache.begin(tokens, namespace="a") as session:
        compute(session, CodingModel())
        own = kv.trie.fingerprints(tokens, "a")
        assert own.dtype == np.uint64
        assert own.shape == (15,)
        known = cache.summary()
        assert known.dtype == np.uint64
        assert set(known.tolist()) < set(own.tolist())
        assert own[-1] in known
        assert not set(known.tolist()) & set(kv.trie.fingerprints(tokens, "b").tolist())
        assert cache.summary(most=1).tolist() == [own[-1]]
        assert cache.summary(0).size == 0
    with pytest.raises(kv.errors.ClosedError):
        cache.summary()


def test_what_is_refused() -> None:
    cache = make_cache(2048)
    for wrong in (-1, 1 << 31):
        with pytest.raises(kv.errors.ArgumentError, match=r"\[summary\] most"):
            cache.summary(wrong)
    with pytest.raises(kv.errors.ArgumentTypeError, match=r"\[summary\] most"):
        cache.summary(1.5)  # type: ignore[arg-type]
    with pytest.raises(kv.errors.ArgumentTypeError, match=r"\[fingerprints\]"):
        kv.trie.fingerprints("text")  # type: ignore[arg-type]
    with pytest.raises(kv.errors.ArgumentTypeError, match=r"\[fingerprints\] namespace"):
        kv.trie.fingerprints([1], 5)  # type: ignore[arg-type]
    assert kv.trie.fingerprints([]).size == 0
