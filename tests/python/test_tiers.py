"""Round trips: what leaves the device comes back byte for byte, from host memory and from disk, here and elsewhere.

Every kind of cache, both dtypes, and offsets everywhere around the borders of sections (64 tokens): a prompt parts from
what was paged out after `offset` tokens, so exactly those come back. The model compares each row and state it is then
given (disk_worker.py).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from circles import CIRCLE, SOAK
from disk_worker import KINDS, TierModel, conversations, go_on, make, words
from processes import run_python

BORDERS = [0, 1, 2, 15, 16, 17, 62, 63, 64, 65, 66, 126, 127, 128, 129, 190, 198, 199]
CHANCE = [int(offset) for offset in np.random.default_rng(51).integers(3, 198, 12)]
SOME = {0, 1, 16, 63, 64, 65, 127, 128, 129, 199}
OFFSETS = range(200) if SOAK else sorted({*BORDERS, *CHANCE} if CIRCLE == "ci" else {*SOME, *CHANCE[:4]})
TEXT = words(50, 200)
WORKER = Path(__file__).with_name("disk_worker.py")


def diverging(offset: int) -> list[int]:
    """Begins like TEXT and parts from it after `offset` tokens."""
    return [*TEXT[:offset], 5000 + offset, *words(1000 + offset, 9)]


def in_another_process(*command: Any) -> Any:
    ended = run_python(WORKER, *command)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        pytest.param(kind, dtype, marks=pytest.mark.ci if (at % 2 == 0) == (dtype == "float32") else ())
        for at, kind in enumerate(KINDS)
        for dtype in ("float32", "float16")
    ],
)
def test_every_offset_comes_back(kind: str, dtype: str, tmp_path: Path) -> None:
    """From host memory, from disk, and from disk after a restart; as deep as it could be reused on the device."""
    wanted: dict[int, int] = {}
    cache, model = make(kind, dtype)
    go_on(cache, model, TEXT)
    for offset in OFFSETS:
        wanted[offset] = cache.plan(diverging(offset)).reusable
    cache.close()
    assert kind not in ("dense", "window", "chunk") or list(wanted.values()) == list(wanted)
    assert kind not in ("recurrent", "hybrid") or all(least <= offset for offset, least in wanted.items())
    assert max(wanted.values()) >= 192
    for tier in ("host", "disk", "restarted"):
        for number, offset in enumerate(OFFSETS):
            folder = None if tier == "host" else tmp_path / f"{tier}-{number}"
            cache, model = make(kind, dtype, disk=folder)
            go_on(cache, model, TEXT)
            cache.page_out(TEXT, to="host" if tier == "host" else "disk")
            if tier == "restarted":
                cache.close()
                cache, model = make(kind, dtype, disk=folder)
            session = go_on(cache, model, diverging(offset))
            name = f"{tier}, {offset}"
            assert (session.matched, session.reused) == (offset, wanted[offset]), name
            assert session.tier == ("none" if session.reused == 0 else "host" if tier == "host" else "disk"), name
            assert (session.bytes_moved > 0) == (session.reused > 0), name
            assert go_on(cache, model, TEXT).reused == wanted[199], name  # the rest is there, too
            assert cache.check() == [], name
            assert cache.stats()["checksum_failures"] == 0, name
            cache.close()


@pytest.mark.parametrize("kind", KINDS)
def test_many_conversations_through_all_tiers(kind: str, tmp_path: Path) -> None:
    """Host memory has room for a part, so what comes back comes from both tiers, again and again, at chance."""
    random = np.random.default_rng(52)
    cache, model = make(kind, disk=tmp_path / "folder", host_bytes=48 << 10)
    tiers = set()
    for turn in range(120 if SOAK else 60):
        namespace, text = conversations()[random.integers(9)]
        text = text[: random.integers(1, len(text) + 1)] + words(int(random.integers(4)), int(random.integers(3)))
        if random.integers(12) == 0:
            cache.close()
            cache, model = make(kind, disk=tmp_path / "folder", host_bytes=48 << 10)
        session = go_on(cache, model, text, namespace)
        tiers.add(session.tier)
        if random.integers(2):
            cache.page_out(text, namespace=namespace, to=["host", "disk"][turn % 2])
        assert cache.check() == []
        stats = cache.stats()
        assert stats["host_peak_bytes"] <= stats["host_cap_bytes"]
        assert stats["checksum_failures"] == stats["unusable_snapshots"] == 0
        assert stats["disk"]["refused"] == {}
    assert tiers >= {"disk", "none"}
    cache.close()


def test_on_the_device_too(device: Any, tmp_path: Path) -> None:
    for dtype in ("float32", "float16"):
        folder = tmp_path / dtype
        cache, model = make("hybrid", dtype, device=device, disk=folder)
        go_on(cache, model, TEXT)
        cache.page_out(TEXT, to="disk")
        assert cache.stats()["device_tokens"] == cache.stats()["host_tokens"] == 0
        session = go_on(cache, model, diverging(130))
        assert (session.matched, session.tier) == (130, "disk")
        cache.close()
        cache, model = make("hybrid", dtype, disk=folder)  # and on host memory what a device wrote
        assert go_on(cache, model, TEXT).reused == 199
        assert go_on(cache, model, diverging(130), publish=False).reused >= 128
        cache.close()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_any_bits_come_back(dtype: str, tmp_path: Path) -> None:
    """NaN, infinities, zeros of both signs, the smallest and the largest numbers."""
    random = np.random.default_rng(53)
    bits = random.integers(0, 2**16, (3, 150, 2, 8), np.uint16)
    k, v = (bits[i].view(np.float16).astype(np.float32) for i in (0, 1))
    k[3, 0, :5] = [np.nan, np.inf, -np.inf, -0.0, 6e-8]
    tokens = list(range(150))

    def stored(cache: Any) -> list[bytes]:
        """The history that the 150th row sees, as bytes."""
        with cache.begin(tokens, publish=False) as session:
            assert session.reused == 149
            step = next(iter(session.prefill()))
            step.put(0, k[149:], v[149:])
            return [np.asarray(part).tobytes() for part in step.get(0)[:2]]

    def open_cache() -> Any:
        caches = kv.caches.CausalCache(1, 2, 8, 300, dtype=dtype, device="host")
        return kv.PrefixCache(caches, host_bytes="1MiB", disk=tmp_path / "folder", disk_bytes="1MiB", fingerprint="x")

    cache = open_cache()
    with cache.begin(tokens[:149]) as session:
        for step in session.prefill(chunk=149):
            step.put(0, k[:149], v[:149])
    before = stored(cache)
    cache.page_out(tokens[:149], to="disk")
    cache.close()
    cache = open_cache()
    assert cache.plan(tokens).tier == "disk"
    assert stored(cache) == before
    cache.close()


# ---- other processes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "dtype"), [("dense", "float32"), ("hybrid", "float16"), ("recurrent", "float32")])
def test_another_process_goes_on(kind: str, dtype: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    wanted = in_another_process("write", folder, kind, dtype)
    found = in_another_process("read", folder, kind, dtype)
    lengths = [len(text) for _, text in conversations()]
    assert found["reused"] == wanted
    assert wanted == [length - 1 for length in lengths]  # dense anywhere; the others keep the place before the last
    assert found["tiers"] == ["disk"]


def test_a_saved_model_goes_on_in_a_new_process(tmp_path: Path) -> None:
    """Greedy continuations after a restart are those without one and those without a cache, token for token."""
    folder = tmp_path / "saved"
    before = in_another_process("save", folder)
    after = in_another_process("resume", folder)
    assert after["said"] == before["said"] == before["cold"]
    assert all(len(said) == 12 for said in after["said"])
    assert after["reused"] == before["reused"] == [199, 169, 89]
    assert after["tiers"] == ["disk"] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_saved_conversations_stand_at_their_last_restore_point(kind: str, tmp_path: Path) -> None:
    cache, model = make(kind)
    turns = {}
    for number, (namespace, text) in enumerate(conversations()):
        with cache.begin(text, namespace) as session:
            for step in session.prefill(chunk=64):
                model(step)
            session.append(7000 + number)  # said, and computed: the conversation ends behind it
            model(session.decode())
        turns[namespace, (*text, 7000 + number, 1, 2, 3)] = len(text) + 1
    cache.save(tmp_path / "saved")
    wanted = {key: cache.plan(list(key[1]), key[0]).reusable for key in turns}
    cache.close()
    assert wanted == turns
    caches = list(make(kind)[0].caches)
    with kv.PrefixCache.open(
        tmp_path / "saved", caches, fingerprint="the tests' weights", host_bytes="16MiB", disk_bytes="16MiB"
    ) as again:
        model = TierModel(caches)
        for (namespace, text), length in turns.items():
            assert go_on(again, model, text, namespace).reused == length
        assert again.check() == []
        assert model.compared > 0


def test_saving_again_replaces_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    for seed in (1, 2):
        cache, model = make("dense")
        go_on(cache, model, words(seed, 100))
        cache.save(folder)
        cache.close()
    cache, _ = make("dense", disk=folder)
    assert [cache.plan(words(seed, 100)).matched for seed in (1, 2)] == [0, 100]
    assert not [name for name in os.listdir(folder) if name.startswith("tmp-")]
    cache.close()


def test_saving_while_the_disk_tier_has_the_folder(tmp_path: Path) -> None:
    """Into its own folder a cache flushes; into that of another one it cannot."""
    cache, model = make("dense", disk=tmp_path / "own")
    other, _ = make("dense", disk=tmp_path / "other")
    go_on(cache, model, TEXT)
    cache.save(tmp_path / "own")
    assert cache.stats()["disk"]["files"] >= 1
    with pytest.raises(kv.Error, match="another cache holds open"):
        cache.save(tmp_path / "other")
    cache.close(), other.close()


def test_open_refuses_what_was_never_saved(tmp_path: Path) -> None:
    with pytest.raises(kv.errors.FormatError, match="allowed a folder that kvtrie saved to"):
        kv.PrefixCache.open(tmp_path, make("dense")[0].caches, fingerprint="x")
