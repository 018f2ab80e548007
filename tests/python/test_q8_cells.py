"""K and V in q8_0: what is read is what a twin in numpy makes of what was put, wherever cells went and whoever shares.

Logits are compared bit by bit with those of a cache that has seen nothing else. Both compute one token at a time, so
that every product has the same shape: what a cell holds is then the same to the last bit, and any other byte shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from bounds import ATTENTION, ROTATION, close
from random_models import VOCAB, random_model
from test_caches import causal_attention

PLACES = ["host", None]
KINDS: dict[str, dict[str, Any]] = {"dense": {}, "window": {"sliding_window": 8}, "hybrid": {}}


def quantised(x: Any) -> np.ndarray:
    """The numbers of blocks of 32, each by its own scale: the largest over 127, as float16."""
    blocks = np.asarray(x, np.float32).reshape(-1, 32)
    largest = np.abs(blocks).max(1)
    scale = (largest * (np.float32(1) / np.float32(127))).astype(np.float16)
    scale = np.where(
        np.float32(127.5) * scale.astype(np.float32) < largest, np.nextafter(scale, np.float16(np.inf)), scale
    )
    wide = scale.astype(np.float64)[:, None]
    whole = np.rint(np.divide(blocks, wide, out=np.zeros(blocks.shape), where=wide > 0)).clip(-127, 127)
    return (whole * wide).astype(np.float32).reshape(np.shape(x))


@pytest.mark.parametrize("place", PLACES)
def test_rows_are_those_of_the_twin(place: Any) -> None:
    random = np.random.default_rng(1)
    caches = kv.caches.CausalCache([2, 5], 3, 64, 100, v_head_dim=32, dtype="q8_0", device=place)
    assert (caches.dtype, caches.nbytes) == ("q8_0", 100 * 2 * 3 * (64 + 32) * 34 // 32)
    k, v, q = (random.standard_normal((40, heads, dim), np.float32) for heads, dim in ((3, 64), (3, 32), (6, 64)))
    k[7] *= 1e-6
    v[:, 1] *= 4
    k[9, 2] = 0
    with kv.PrefixCache(caches) as cache, cache.begin(range(40)) as session:
        for step in session.prefill(chunk=17):
            at = slice(step.positions[0], step.positions[-1] + 1)
            for layer in (2, 5):
                step.put(layer, k[at], v[at])
                wanted = causal_attention(q[at], quantised(k[: at.stop]), quantised(v[: at.stop]), 0.125)
                close(step.attend(layer, q[at]), wanted, ATTENTION, each=True)
        for layer in (2, 5):
            for got, put in zip(session.kv(layer), (k, v)):
                assert got.dtype == np.float32
                np.testing.assert_array_equal(got, quantised(put))
        assert cache.check() == []


def logits(model: Any, session: Any) -> list[bytes]:
    """Of every token that is still to be computed, one by one."""
    return [np.asarray(model(step)).tobytes() for step in session.prefill(chunk=1)]


def cold(model: Any, tokens: list[int]) -> list[bytes]:
    with kv.PrefixCache(caches_of(model), host_bytes=0) as cache, cache.begin(tokens) as session:
        return logits(model, session)


def caches_of(model: Any, dtype: str = "q8_0") -> Any:
    return model.caches(capacity=512, dtype=dtype, warm_up=False)


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest) -> Any:
    return random_model(request.param, head_dim=32, **KINDS[request.param])


def test_cached_is_cold_bit_by_bit_wherever_cells_went(model: Any, tmp_path: Path) -> None:
    """Prompts that share beginnings, in device and host memory and on disk, and over a restart, at chance."""
    random = np.random.default_rng(7)
    texts = [random.integers(0, VOCAB, 40).tolist()]
    for cut in (30, 17, 33, 5):
        texts.append(texts[-1][:cut] + random.integers(0, VOCAB, 40 - cut).tolist())
    wanted = {at: cold(model, text) for at, text in enumerate(texts)}
    reused = set()

    def opened() -> Any:
        return kv.PrefixCache(
            caches_of(model),
            host_bytes="1MiB",
            disk=tmp_path,
            disk_bytes="4MiB",
            fingerprint="q8 test",
            checkpoint_every=8,
        )

    cache = opened()
    for _ in range(24):
        at = int(random.integers(len(texts)))
        length = int(random.integers(1, len(texts[at]) + 1))
        with cache.begin(texts[at][:length]) as session:
            reused.add((session.tier, session.reused > 0))
            assert logits(model, session) == wanted[at][session.reused : length]
            with session.branch() as other:
                other.append(texts[at][length:])
                found = logits(model, other)  # of a branch that another one went on from, less is left
                assert found == wanted[at][len(texts[at]) - len(found) :]
        doing = random.integers(6)
        if doing < 2:
            cache.page_out(texts[at][:length], to=("host", "disk")[doing])
        elif doing == 2:
            cache.close()
            cache = opened()
        assert cache.check() == []
        assert cache.stats()["checksum_failures"] == 0
    cache.close()
    assert {("device", True), ("disk", True)} <= reused


def test_two_sessions_in_one_step_have_the_bits_of_each(model: Any) -> None:
    random = np.random.default_rng(8)
    shared = random.integers(0, VOCAB, 50).tolist()
    with kv.PrefixCache(caches_of(model), host_bytes=0) as cache:
        with cache.begin(shared) as session:
            logits(model, session)
        ends = [random.integers(0, VOCAB, 3).tolist() for _ in range(3)]
        sessions = [cache.begin(shared + end[:1]) for end in ends]
        alone = [cold(model, shared + end) for end in ends]
        for at in range(3):
            rows = np.asarray(model(cache.batch(sessions)))
            for row, mine in zip(rows, alone):
                np.testing.assert_allclose(row, np.frombuffer(mine[50 + at], np.float32), rtol=0, atol=1e-2)
            for session, end in zip(sessions, ends):
                if at < 2:
                    session.append(end[at + 1])
        for session in sessions:
            session.close()
        assert cache.check() == []


@pytest.mark.parametrize(("wrote", "reads"), [("q8_0", "float16"), ("float16", "q8_0"), ("float32", "q8_0")])
def test_files_of_another_format_do_not_answer(wrote: str, reads: str, tmp_path: Path) -> None:
    model = random_model("dense", head_dim=32)
    tokens = list(range(40))

    def opened(dtype: str) -> Any:
        return kv.PrefixCache(
            caches_of(model, dtype), host_bytes="1MiB", disk=tmp_path, disk_bytes="4MiB", fingerprint="q8 test"
        )

    with opened(wrote) as cache:
        with cache.begin(tokens) as session:
            logits(model, session)
        cache.page_out(tokens, to="disk")
    files = kv._core._inspect_folder(str(tmp_path), None)["files"]
    assert [each["caches"][0][1] for each in files] == [wrote]
    with opened(reads) as cache, cache.begin(tokens) as session:
        assert (session.reused, session.tier) == (0, "none")
        logits(model, session)
        assert cache.check() == []
    with opened(wrote) as cache, cache.begin(tokens) as session:
        assert session.reused == 39


@pytest.mark.parametrize("place", PLACES)
def test_a_shift_turns_copies_and_keeps_what_is_stored(place: Any) -> None:
    base, dim, count, keep = 10000.0, 64, 40, 4
    caches = kv.caches.CausalCache(1, 2, dim, 128, dtype="q8_0", rope={"base": base}, device=place)
    k = np.random.default_rng(3).standard_normal((count, 2, dim), np.float32)
    with kv.PrefixCache(caches) as cache, cache.begin(range(count)) as session:
        session.decode().put(0, k, 2 * k)
        before, values = session.kv(0)
        for _ in range(2):
            assert session.shift(keep, limit=session.length) is None
        dropped = count - session.length
        angles = -dropped * base ** (-np.arange(dim // 2) / (dim // 2))
        a, b = np.split(before[keep + dropped :].astype(np.float64), 2, -1)
        turned = np.concatenate([a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], -1)
        got, got_values = session.kv(0)
        np.testing.assert_array_equal(got[:keep], before[:keep])
        np.testing.assert_array_equal(got_values, np.concatenate([values[:keep], values[keep + dropped :]]))
        close(got[keep:], turned, ROTATION, each=True)


def test_what_has_no_whole_blocks_is_refused() -> None:
    with pytest.raises(kv.errors.ArgumentError, match=r"head_dim: got 48, allowed multiples of 32, a block of q8_0"):
        kv.caches.CausalCache(1, 2, 48, 16, dtype="q8_0")
    with pytest.raises(kv.errors.ArgumentError, match=r"v_head_dim: got 16, allowed multiples of 32, a block of q8_0"):
        kv.caches.CausalCache(1, 2, 64, 16, v_head_dim=16, dtype="q8_0")
    with pytest.raises(kv.errors.ArgumentError, match=r"latent_dim: got 80, allowed multiples of 32, a block of q8_0"):
        kv.caches.CausalCache(1, 1, 96, 16, v_head_dim=0, latent_dim=80, dtype="q8_0")
    with pytest.raises((ValueError, TypeError), match=r"dtype: got .*q8_0.*, allowed float32"):
        kv.caches.RecurrentCache(1, 2, 8, 2, 4, 4, 8, dtype="q8_0")
    with pytest.raises(kv.errors.ArgumentError, match=r"head_dim: got 16, allowed multiples of 32"):
        random_model("dense").caches(capacity=64, dtype="q8_0")
