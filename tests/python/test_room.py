"""Room: what goes when cells run short, the host tier, pins, and what the cache shows of itself.

The model checks every history it is given (fakes.py), so bytes that come back from the host are compared, not only
counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from fakes import BYTES_PER_TOKEN, A, B, CodingModel, compute, make_cache, run, spans_of

pytestmark = pytest.mark.usefixtures("nothing_left_over")


# ---- room ------------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_goes_first_tail_first(model: CodingModel) -> None:
    cache = make_cache(64, growth=0)
    run(cache, range(20), model)
    run(cache, range(100, 120), model)
    run(cache, range(20), model)  # used again
    run(cache, range(200, 230), model)  # 24 cells are free: 6 must go
    assert cache.plan(range(20)).matched == 20
    assert cache.plan(range(100, 120)).matched == 14
    assert cache.stats()["evicted_tokens"] == 6
    assert cache.check() == []


def test_with_a_host_tier_state_moves_instead_of_going(place: Any, model: CodingModel) -> None:
    cache = make_cache(64, device=place, host_bytes=100 * BYTES_PER_TOKEN, growth=0)
    prompts = [[base + i for i in range(40)] for base in (0, 1000, 2000)]
    for prompt in prompts:
        run(cache, prompt, model)
    assert cache.stats()["evicted_tokens"] == 0
    assert cache.stats()["host_tokens"] == 120 - 64
    for prompt in prompts * 2:
        session = run(cache, prompt, model)  # the model checks the bytes that came back
        assert session.reused == 39
        assert (session.tier == "host") == (session.bytes_moved > 0)
    assert cache.stats()["checksum_failures"] == 0
    assert model.rows == 120 + 6
    assert cache.check() == []


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bytes_come_back_as_they_were(dtype: str, device: Any) -> None:
    layers = kv.caches.CausalCache(1, 2, 8, 200, v_head_dim=4, dtype=dtype)
    cache = kv.PrefixCache(layers, host_bytes="1MiB")
    random = np.random.default_rng(3)
    k, v = (random.standard_normal((150, 2, dim)).astype(np.float32) for dim in (8, 4))
    tokens = list(range(150))
    k[3, 0, :3] = [np.nan, np.inf, -0.0]

    def stored() -> tuple[bytes, bytes]:
        with cache.begin([*tokens, 7], publish=False) as session:
            step = session.decode()
            assert list(step.tokens) == [7]
            step.put(0, np.zeros((1, 2, 8)), np.zeros((1, 2, 4)))
            return tuple(np.asarray(part)[:150].tobytes() for part in step.get(0)[:2])  # type: ignore[return-value]

    with cache.begin(tokens) as session:
        for step in session.prefill():
            step.put(0, k, v)
    before = stored()
    freed = cache.page_out(tokens)
    assert freed == 150 * layers.nbytes // 200
    assert [node.tier for node in cache.nodes()] == ["host"]
    assert cache.restore(tokens) == 150
    assert [node.tier for node in cache.nodes()] == ["device"]
    assert stored() == before
    assert cache.stats()["page_in_bytes"] == freed


def test_page_out_and_evict_take_the_unshared_tail(model: CodingModel) -> None:
    cache = make_cache(128, host_bytes="1MiB")
    run(cache, A, model)
    run(cache, B, model)
    assert cache.page_out(A) == 10 * BYTES_PER_TOKEN
    assert cache.page_out(A) == 0
    assert spans_of(cache) == [(0, 30, "device"), (30, 40, "host"), (30, 40, "device")]
    with cache.begin(B) as session:
        assert cache.page_out(B) == 1 * BYTES_PER_TOKEN  # the session uses 39 tokens of it
        assert cache.evict(B) == 1 * BYTES_PER_TOKEN
        assert session.length == 39
    assert cache.evict(A) == 10 * BYTES_PER_TOKEN
    assert cache.evict([555]) == 0
    assert cache.plan(A).matched == 30
    assert cache.check() == []


def test_freeing_a_number_of_bytes(model: CodingModel) -> None:
    cache = make_cache(128, host_bytes="1MiB")
    run(cache, A, model)
    assert cache.page_out(nbytes=5 * BYTES_PER_TOKEN) == 5 * BYTES_PER_TOKEN
    assert cache.evict(nbytes=1) == 6 * BYTES_PER_TOKEN  # a device token, and what stood on it
    before = (cache.stats(), spans_of(cache))
    for free in (cache.page_out, cache.evict):
        with pytest.raises(kv.errors.CacheFullError) as info:
            free(nbytes="1GiB")
        assert info.value.needed == 2**30
        assert info.value.freeable < 2**30
    assert (cache.stats(), spans_of(cache)) == before
    assert cache.page_out(nbytes=0) == 0


def test_no_host_tier(model: CodingModel) -> None:
    for none in (0, None, "0"):
        cache = make_cache(host_bytes=none)
        run(cache, A, model)
        assert (cache.host_bytes, cache.stats()["host_cap_bytes"]) == (0, 0)
        with pytest.raises(kv.errors.NotSupportedError, match="host tier"):
            cache.page_out(A)
        with pytest.raises(kv.errors.NotSupportedError, match="host tier"):
            cache.page_out(nbytes=1)
        run(cache, range(1000, 1060), model)
        assert cache.stats()["host_bytes"] == 0


def test_a_full_host_tier_never_exceeds_its_cap(model: CodingModel) -> None:
    cache = make_cache(64, host_bytes=20 * BYTES_PER_TOKEN, growth=0)
    for base in range(0, 5000, 500):
        run(cache, range(base, base + 50), model)
        now = cache.stats()
        assert now["host_bytes"] <= now["host_cap_bytes"] == 20 * BYTES_PER_TOKEN
        assert now["host_peak_bytes"] <= 20 * BYTES_PER_TOKEN
        assert cache.check() == []


def test_automatic_host_bytes() -> None:
    cache = make_cache(host_bytes="auto")
    assert cache.host_bytes == 4 * cache.caches[0].nbytes


def test_pins_resist(model: CodingModel) -> None:
    cache = make_cache(64, growth=0)
    run(cache, range(20), model)
    assert cache.pin(range(20)) == 20
    assert [node.pinned for node in cache.nodes()] == [True]
    assert cache.stats()["pinned_tokens"] == 20
    for base in (1000, 2000, 3000):
        run(cache, range(base, base + 40), model)
    assert cache.plan(range(20)).reusable == 19
    assert cache.unpin(range(20)) == 20
    assert cache.unpin(range(20)) == 0
    run(cache, range(4000, 4060), model)
    assert cache.plan(range(20)).matched < 20
    assert cache.pin([77]) == 0
    assert cache.check() == []


def test_pins_keep_under_their_cap(model: CodingModel) -> None:
    cache = make_cache(64)
    run(cache, range(60), model)
    assert cache.pin(range(60)) == 32  # half of the pool
    assert cache.stats()["pinned_tokens"] == 32


def test_user_points(model: CodingModel) -> None:
    cache = make_cache(64)
    with cache.begin(A) as session:
        compute(session, model)
        assert session.checkpoint() == 40
    assert [node.user for node in cache.nodes()] == [True]
    assert cache.stats()["user_points"] == 1


def test_live_sessions_are_never_evicted(model: CodingModel) -> None:
    cache = make_cache(64, growth=0)
    with cache.begin(A) as session:
        compute(session, model)
        other = cache.begin(range(1000, 1030))
        with pytest.raises(kv.errors.CacheFullError) as info:
            compute(other, model)
        assert info.value.needed >= 30
        assert info.value.held_live >= 40
        other.close()
        assert session.length == 40
        with pytest.raises(kv.errors.CacheFullError):
            cache.evict(nbytes=1)
        session.append(1)
        model(session.decode())
    run(cache, range(1000, 1030), model)
    assert cache.check() == []


def test_ages_come_from_the_clock(model: CodingModel) -> None:
    now = [100.0]
    cache = make_cache(clock=lambda: now[0])
    run(cache, A, model)
    now[0] = 107.5
    assert [node.age for node in cache.nodes()] == [7.5]


# ---- looking inside --------------------------------------------------------------------------------------------------


def test_nodes_form_a_tree(model: CodingModel) -> None:
    cache = make_cache(128)
    run(cache, A, model)
    with cache.begin(B) as session:
        compute(session, model)
        top, left, right = cache.nodes()
        assert (top.parent, top.children, left.parent, right.parent) == (None, [left, right], top, top)
        assert (left.live, right.live, top.live) == (0, 1, 0)
        assert [*top.tokens, *right.tokens] == B
        assert sum(node.nbytes for node in (top, left, right)) == 50 * BYTES_PER_TOKEN == cache.stats()["device_bytes"]
        assert "1 live" in repr(right)


def test_drawings(model: CodingModel) -> None:
    cache = make_cache(128)
    assert "(empty)" in cache.tree()
    run(cache, A, model)
    assert "[0,40)" in cache.tree()
    assert cache.to_dot().startswith("digraph")
    assert "<svg" in cache.to_svg(lambda tokens: " ".join(map(str, tokens)))
    assert "<svg" in cache._repr_html_()
    cache.close()
    assert "closed" in cache._repr_html_()


def test_close_gives_everything_back(model: CodingModel) -> None:
    cache = make_cache(128, host_bytes="1MiB")
    layers = cache.caches[0]
    with cache:
        session = cache.begin(A)
        compute(session, model)
        cache.pin(A)
        run(cache, B, model)
        cache.page_out(B)
    assert cache.closed
    assert session.closed
    cache.close()
    assert layers.free_cells == layers.capacity
    assert cache.stats()["host_bytes"] == 0
    assert kv.PrefixCache(layers).stats()["nodes"] == 0  # it may belong to another one now
