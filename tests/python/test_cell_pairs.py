"""K and V in formats of their own: each is read as its own format has it, and no other pair ever answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from bounds import ATTENTION, close
from random_models import VOCAB, random_model
from test_caches import causal_attention
from test_q8_cells import logits, quantised

PLACES = ["host", None]
PAIRS = [("q8_0", "float16"), ("float16", "q8_0"), ("float32", "q8_0"), ("q8_0", "q4h"), ("q4h", "q4h")]
BYTES = {"float32": 4.0, "float16": 2.0, "q8_0": 34 / 32, "q4h": 18 / 32}


def turned(blocks: np.ndarray, factor: float) -> np.ndarray:
    """[n, 32] times a Hadamard matrix and a factor, in the order of sums that cells have."""
    for apart in (1, 2, 4, 8, 16):
        pairs = blocks.reshape(-1, 16 // apart, 2, apart)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        blocks = np.stack([low + high, low - high], 2).reshape(-1, 32)
    return blocks * np.float32(factor)


def four_bits(x: np.ndarray) -> np.ndarray:
    """The numbers of q4h: turned blocks on 16 steps, of which the largest number is the eighth on its side."""
    z = turned(x.reshape(-1, 32), 0.25)
    largest = np.take_along_axis(z, np.abs(z).argmax(1)[:, None], 1)
    step = (np.abs(largest) / 8).astype(np.float16).astype(np.float32) * -np.sign(largest)
    unit = np.divide(z.astype(np.float64), step, out=np.zeros(z.shape), where=step != 0)
    whole = np.sign(unit) * np.ceil(np.abs(unit) - 0.5)  # of two that are as near, the one next to 0
    return turned((whole.clip(-8, 7) * step).astype(np.float32), 0.125).reshape(x.shape)


def kept(x: np.ndarray, dtype: str) -> np.ndarray:
    """The numbers that a format leaves of x."""
    ways = {"q8_0": quantised, "q4h": four_bits}
    return ways[dtype](x) if dtype in ways else x.astype(dtype).astype(np.float32)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", PAIRS)
def test_each_side_is_kept_in_its_own_format(dtype: tuple[str, str], place: Any) -> None:
    random = np.random.default_rng(1)
    caches = kv.caches.CausalCache(2, 3, 64, 100, v_head_dim=32, dtype=dtype, device=place)
    name = "/".join(dict.fromkeys(dtype))
    assert caches.dtype == name
    assert f", {name}, " in repr(caches)
    assert caches.nbytes == 100 * 2 * 3 * (64 * BYTES[dtype[0]] + 32 * BYTES[dtype[1]])
    k, v, q = (random.standard_normal((40, heads, dim), np.float32) for heads, dim in ((3, 64), (3, 32), (6, 64)))
    with kv.PrefixCache(caches) as cache, cache.begin(range(40)) as session:
        for step in session.prefill(chunk=17):
            at = slice(step.positions[0], step.positions[-1] + 1)
            for layer in (0, 1):
                step.put(layer, k[at], v[at])
                wanted = causal_attention(q[at], kept(k[: at.stop], dtype[0]), kept(v[: at.stop], dtype[1]), 0.125)
                close(step.attend(layer, q[at]), wanted, ATTENTION, each=True)
        for layer in (0, 1):
            for got, put, each in zip(session.kv(layer), (k, v), dtype):
                assert got.dtype == np.dtype("float16" if each == "float16" else "float32")
                np.testing.assert_array_equal(got, kept(put, each))
        assert cache.check() == []


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("dense", "q8_0/float16"), ("window", "float16/q8_0"), ("dense", "q4h"), ("hybrid", "q8_0/q4h")],
)
def test_cached_is_cold_bit_by_bit_wherever_cells_went(kind: str, dtype: str, tmp_path: Path) -> None:
    """From the device, host memory, disk, after a restart, and in a branch."""
    model = random_model(kind, head_dim=32, **({"sliding_window": 8} if kind == "window" else {}))
    text = np.random.default_rng(5).integers(0, VOCAB, 40).tolist()

    def opened(**tiers: Any) -> Any:
        return kv.PrefixCache(model.caches(512, dtype, warm_up=False), fingerprint="pairs", **tiers)

    with opened(host_bytes=0) as cache, cache.begin(text) as session:
        wanted = logits(model, session)
    tiers: dict[str, Any] = {"host_bytes": "1MiB", "disk": tmp_path, "disk_bytes": "4MiB", "checkpoint_every": 8}
    found = []
    for to in ("host", "disk"):
        with opened(**tiers) as cache:
            with cache.begin(text) as session:
                logits(model, session)
            cache.page_out(text, to=to)
            with cache.begin(text) as session, session.branch() as other:
                found.append((session.tier, session.reused > 0))
                assert logits(model, session) == wanted[session.reused :]
                assert [each for each in logits(model, other) if each not in wanted] == []
            assert cache.check() == []
    with opened(**tiers) as cache, cache.begin(text) as session:
        found.append((session.tier, session.reused > 0))
        assert logits(model, session) == wanted[session.reused :]
    assert found[1:] == [("disk", True), ("disk", True)]
    names = {cache[1] for each in kv._core._inspect_folder(str(tmp_path), None)["files"] for cache in each["caches"]}
    assert names - {"float32"} == {dtype}  # states of a hybrid are float32


@pytest.mark.parametrize("reads", ["q8_0", "float16", "float16/q8_0", "q8_0/q4h"])
def test_files_of_another_pair_do_not_answer(reads: str, tmp_path: Path) -> None:
    model = random_model("dense", head_dim=32)
    tokens = list(range(40))

    def opened(dtype: str) -> Any:
        caches = model.caches(512, dtype, warm_up=False)
        return kv.PrefixCache(caches, host_bytes="1MiB", disk=tmp_path, disk_bytes="4MiB", fingerprint="pairs")

    with opened("q8_0/float16") as cache:
        with cache.begin(tokens) as session:
            logits(model, session)
        cache.page_out(tokens, to="disk")
    with opened(reads) as cache, cache.begin(tokens) as session:
        assert (session.reused, session.tier) == (0, "none")
        logits(model, session)
    with opened("q8_0/float16") as cache, cache.begin(tokens) as session:
        assert session.reused == 39


def test_steps_that_are_replayed_have_the_bits_of_launches() -> None:
    """Caches of one model whose pairs begin alike: no kernel is built for the one and run for the other."""
    model = random_model("dense", head_dim=32)
    text = np.random.default_rng(6).integers(0, VOCAB, 30).tolist()
    for dtype in ("q8_0/float16", "q8_0", "q8_0/q4h", "q4h"):
        rows = []
        for replays in (True, False):
            model.replays = replays
            caches = model.caches(256, dtype, warm_up=False)
            with kv.PrefixCache(caches, host_bytes=0) as cache, cache.begin(text) as session:
                rows.append(logits(model, session))
        assert rows[0] == rows[1], dtype


def test_what_is_no_pair_is_refused_by_name() -> None:
    def made(dtype: Any, **options: Any) -> Any:
        return kv.caches.CausalCache(1, 2, 64, 16, dtype=dtype, device="host", **options)

    known = r"allowed float32, float16.* or two of them for K and V"
    for wrong in ("q8_0/q9", "q8_0/", "q8_0/float16/q8_0", ("q8_0", "q9")):
        with pytest.raises((ValueError, TypeError), match=rf"\[CausalCache\] dtype: got .*, {known}"):
            made(wrong)
    for none in ((), ("q8_0",), ("q8_0", "q8_0", "q8_0")):
        with pytest.raises(kv.errors.ArgumentError, match=rf"dtype: got {len(none)} formats, allowed one, or two"):
            made(none)
        with pytest.raises(kv.errors.ArgumentError, match=rf"dtype: got {len(none)} formats, allowed one, or two"):
            random_model("dense").caches(16, none)
    with pytest.raises(kv.errors.ArgumentError, match=r"dtype: got q8_0/float16, allowed one format with latent_dim"):
        made(("q8_0", "float16"), v_head_dim=0, latent_dim=32)
    with pytest.raises(kv.errors.ArgumentError, match=r"v_head_dim: got 48, allowed multiples of 32, a block of q8_0"):
        made("float16/q8_0", v_head_dim=48)
    assert made("float16/q8_0", v_head_dim=32).dtype == "float16/q8_0"
    assert made(["float16", np.float16]).dtype == "float16"


@pytest.mark.parametrize("place", PLACES)
def test_removals_one_by_one_keep_four_bits_anew_once_in_a_while(place: Any) -> None:
    """Above so many numbers of positions keys settle: blocks that turn are kept anew; others, and values, stay."""
    base, dim, count, keep, removals = 10000.0, 64, 40, 4, 18
    c = kv.caches.CausalCache([0], 2, dim, 128, dtype="q4h", rope={"base": base}, device=place)
    random = np.random.default_rng(3)

    def write(rows: int) -> None:
        first = c.length(0)
        c.start_forward(range(first, first + rows), [0] * rows)
        k = random.standard_normal((rows, 2, dim), np.float32)
        c.put(0, k, 2 * k)

    write(count)
    before, values = (np.asarray(each) for each in c.get(0)[:2])
    for _ in range(removals):
        c.remove(0, keep, keep + 1)
        write(1)
    angles = -removals * base ** (-np.arange(dim // 2) / (dim // 2))
    a, b = np.split(before[keep + removals :].astype(np.float64), 2, -1)
    moved = np.concatenate([a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], -1)
    got, got_values = (np.asarray(each)[:-removals] for each in c.get(0)[:2])
    np.testing.assert_array_equal(got[:keep], before[:keep])
    np.testing.assert_array_equal(got_values, np.concatenate([values[:keep], values[keep + removals :]]))
    off = (got[keep:] - moved).reshape(-1, 32)
    largest = np.abs(turned(moved.astype(np.float32).reshape(-1, 32), 0.25)).max(1)
    # Each of 32 numbers is off by a step of an eighth at most, and H / 8 of them by sqrt(32) / 8 of their length.
    assert (np.linalg.norm(off, axis=1) <= 1.01 * largest / 8 * np.sqrt(32) * np.sqrt(32) / 8).all()
    assert np.abs(off).max() > 0.01
    assert c.check() == []
