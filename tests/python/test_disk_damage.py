"""Damage: whatever a file of the disk tier has become, it is a miss with a name, and never a wrong byte.

One small entry is taken apart: every byte flipped, every length, other names, other kinds of files. What follows is
always the same: the folder opens, the entry is not used or refused when its bytes are read, the tokens are computed
again (the model compares what it reads), and a page-out works.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from circles import SOAK
from disk_worker import TierModel, go_on, make, words
from processes import run_python

TEXT = words(60, 5)
FINGERPRINT = "f"
WORKER = Path(__file__).with_name("disk_worker.py")


def small(dtype: str = "float32", head_dim: int = 1) -> list[Any]:
    return [kv.caches.CausalCache([0], 1, head_dim, 64, dtype=dtype, device="host")]


def open_small(folder: Path, caches: Any = None, **options: Any) -> tuple[kv.PrefixCache, TierModel]:
    caches = caches or small()
    options = {"fingerprint": FINGERPRINT, "host_bytes": "1MiB", "disk_bytes": "1MiB", **options}
    return kv.PrefixCache(caches, disk=folder, **options), TierModel(caches)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name != "lock")


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    """The one file of a folder `tmp_path/folder`."""
    cache, model = open_small(tmp_path / "folder")
    go_on(cache, model, TEXT)
    assert cache.flush()
    cache.close()
    (path,) = files_of(tmp_path / "folder")
    return path


def outcome(folder: Path, **options: Any) -> tuple[int, str, dict[str, int]]:
    """(tokens reused, the reason for less, files refused) of a cache that opens the folder and goes on with TEXT."""
    cache, model = open_small(folder, **options)
    refused = cache.stats()["disk"]["refused"]
    session = go_on(cache, model, [*TEXT, 1])
    assert session.reused in (0, 5)
    assert cache.check() == []
    failures = cache.stats()["checksum_failures"]
    assert (failures == 1) == (session.reason.code == "checksum" if session.reason else False)
    assert go_on(cache, model, [*TEXT, 1]).reused == 5  # computed again, or there
    cache.close()
    return session.reused, session.reason.code if session.reason else "", refused


def put_back(path: Path, content: bytes) -> None:
    for other in files_of(path.parent):
        other.unlink()
    path.write_bytes(content)


def image_begin(content: bytes) -> int:
    """Where the first image begins: behind the JSON and the header that it names."""
    (length,) = struct.unpack_from("<Q", content)
    return 8 + length + json.loads(content[8 : 8 + length])["kvtrie.header"]["data_offsets"][1]


def test_the_entry_itself_is_used(entry: Path) -> None:
    assert outcome(entry.parent) == (5, "", {})


def test_every_byte_flipped_once(entry: Path) -> None:
    content = entry.read_bytes()
    begin = image_begin(content)
    assert len(content) == begin + 5 * 2 * 4
    faults: dict[str, int] = {}
    for at in range(0, len(content), 1 if SOAK else 5):
        put_back(entry, content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        reused, reason, refused = outcome(entry.parent)
        if at < begin:  # found when the folder is opened
            assert (reused, sum(refused.values())) == (0, 1), at
            faults[next(iter(refused))] = faults.get(next(iter(refused)), 0) + 1
        else:  # when its bytes are read
            assert (reused, reason, refused) == (0, "checksum", {}), at
    print(f"{len(content)} bytes, of them in images {len(content) - begin}; faults of the others: {faults}")
    allowed = {"magic", "version", "truncated", "checksum", "size"}
    assert (allowed - {"size"} if SOAK else {"checksum"}) <= set(faults) <= allowed


def test_every_length(entry: Path) -> None:
    content = entry.read_bytes()
    for length in range(0, len(content), 1 if SOAK else 5):
        put_back(entry, content[:length])
        reused, _, refused = outcome(entry.parent)
        assert (reused, sum(refused.values())) == (0, 1), length
        assert set(refused) <= {"truncated", "magic"}, length
    put_back(entry, content + b"\0")
    assert outcome(entry.parent) == (0, "", {"size": 1})


def test_what_is_damaged_goes_and_strangers_stay(entry: Path) -> None:
    folder = entry.parent
    damaged = folder / ("0" * 64 + ".00000000.kvtrie")
    damaged.write_bytes(entry.read_bytes()[:-1])
    stranger, stray = folder / "notes.txt", folder / f"tmp-{entry.name}.7"
    stranger.write_text("mine")
    stray.write_bytes(b"half")
    assert outcome(folder) == (5, "", {"magic": 1, "truncated": 1})
    assert not damaged.exists() and not stray.exists()
    assert stranger.read_text() == "mine"


def test_other_fingerprint(entry: Path) -> None:
    """The same name, other weights: computed again, and the other model's file stays for it."""
    assert outcome(entry.parent, fingerprint="g") == (0, "", {"fingerprint": 1})
    assert outcome(entry.parent) == (5, "", {"fingerprint": 1})


@pytest.mark.parametrize(("dtype", "head_dim"), [("float16", 1), ("float32", 2), ("float16", 2)])
def test_other_caches(entry: Path, dtype: str, head_dim: int) -> None:
    """Another dtype or shape: refused, and left alone for the caches that it is of."""
    assert outcome(entry.parent, caches=small(dtype, head_dim)) == (0, "", {"layout": 1})
    assert entry.exists()
    assert outcome(entry.parent) == (5, "", {"layout": 1})


def test_the_cap_counts_what_is_used_only(entry: Path) -> None:
    """Files of other caches are no reason to evict own ones, and the other way round."""
    size = entry.stat().st_size
    cache, model = open_small(entry.parent, caches=small("float16"), disk_bytes=size)
    go_on(cache, model, TEXT)
    assert cache.flush()
    assert cache.stats()["disk"]["bytes"] <= size
    cache.close()
    assert entry.exists()
    assert outcome(entry.parent) == (5, "", {"layout": 1})


def test_names_that_were_swapped(tmp_path: Path) -> None:
    """Another tenant's file under this one's name is nobody's: what a file is of must follow from its own header."""
    folder = tmp_path / "folder"
    cache, model = open_small(folder)
    for namespace in ("a", "b"):
        go_on(cache, model, TEXT, namespace)
    assert cache.flush()
    cache.close()
    first, second = files_of(folder)
    first.rename(tmp_path / "aside"), second.rename(first), (tmp_path / "aside").rename(second)
    cache, model = open_small(folder)
    assert cache.stats()["disk"]["refused"] == {"tokens": 2}
    assert [cache.plan(TEXT, name).matched for name in ("a", "b")] == [0, 0]
    cache.close()


def test_names_that_run_together(tmp_path: Path) -> None:
    """Moving a letter from the namespace to the fingerprint, or adding a zero, makes another name."""
    folder = tmp_path / "folder"
    cache, model = open_small(folder, fingerprint="ab")
    go_on(cache, model, TEXT, "c")
    assert cache.flush()
    cache.close()
    for fingerprint, namespace in (("a", "bc"), ("abc", ""), ("ab", "c\0"), ("ab\0", "c"), ("ab", "")):
        cache, _ = open_small(folder, fingerprint=fingerprint)
        assert cache.plan(TEXT, namespace).matched == 0, (fingerprint, namespace)
        cache.close()
    cache, _ = open_small(folder, fingerprint="ab")
    assert cache.plan(TEXT, "c").matched == 5
    cache.close()


def test_other_version(entry: Path) -> None:
    content = bytearray(entry.read_bytes())
    (length,) = struct.unpack_from("<Q", content)
    struct.pack_into("<I", content, 8 + length + 8, 2)
    put_back(entry, bytes(content))
    assert outcome(entry.parent) == (0, "", {"version": 1})
    assert entry.read_bytes() == content  # left alone: a newer kvtrie may want it


def make_symlink(path: Path, content: bytes) -> None:
    target = path.parent.parent / "elsewhere"
    target.write_bytes(content)
    path.symlink_to(target)


KINDS_OF_FILES = {
    "symlink": make_symlink,
    "dangling": lambda path, _: path.symlink_to("nowhere"),
    "fifo": lambda path, _: os.mkfifo(path),
    "folder": lambda path, _: path.mkdir(),
    "empty": lambda path, _: path.write_bytes(b""),
}


@pytest.mark.parametrize("kind", KINDS_OF_FILES)
def test_no_regular_file(entry: Path, kind: str) -> None:
    """Never followed, never waited for; a link's target is not touched."""
    content = entry.read_bytes()
    entry.unlink()
    KINDS_OF_FILES[kind](entry, content)
    reused, _, refused = outcome(entry.parent)
    assert reused == 0
    assert refused == ({"truncated": 1} if kind == "empty" else {"not_regular": 1})
    if kind == "symlink":
        assert entry.resolve().read_bytes() == content


def declares(content: bytes, what: str) -> bytes:
    """The entry with 1 TiB declared somewhere."""
    changed = bytearray(content)
    (length,) = struct.unpack_from("<Q", content)
    header = 8 + length
    if what == "json":
        struct.pack_into("<Q", changed, 0, 1 << 40)
    elif what == "header":
        struct.pack_into("<Q", changed, header + 16, 1 << 40)
    elif what == "tokens":
        struct.pack_into("<I", changed, header + 36, 0xFFFFFFFF)
    else:
        assert what == "image"  # the last section's bytes, in front of its checksum and the header's
        struct.pack_into("<Q", changed, image_begin(content) - 24, 1 << 40)
    return bytes(changed)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("what", ["json", "header", "tokens", "image"])
def test_a_file_that_declares_1_tib(entry: Path, what: str, sparse: bool) -> None:
    """Opened with 64 MiB of address space to spare; also when the file is as long as it says."""
    entry.write_bytes(declares(entry.read_bytes(), what))
    if sparse:
        os.truncate(entry, 1 << 40)
    ended = run_python(WORKER, "limited", entry.parent, 64 << 20)
    assert ended.returncode == 0, ended.stderr
    stats = json.loads(ended.stdout)
    assert sum(stats["refused"].values()) == 1
    assert set(stats["refused"]) <= {"size", "truncated", "checksum", "magic"}


def test_damage_while_it_is_open(entry: Path) -> None:
    """Changed, cut short, replaced or gone behind the cache's back: a miss, and the tier goes on."""
    folder, content = entry.parent, entry.read_bytes()

    def replaced() -> None:
        (folder / "other").write_bytes(content)
        os.utime(folder / "other", ns=(1, 1))
        (folder / "other").rename(entry)

    def changed() -> None:
        with entry.open("r+b") as file:
            file.seek(len(content) - 3)
            file.write(b"\xff")

    for harm in (changed, lambda: os.truncate(entry, len(content) - 9), replaced, entry.unlink):
        put_back(entry, content)
        cache, model = open_small(folder)
        assert cache.plan([*TEXT, 1]).reusable == 5
        harm()
        session = go_on(cache, model, [*TEXT, 1])
        assert (session.reused, session.reason.code) == (0, "checksum")
        assert go_on(cache, model, [*TEXT, 1]).reused == 5
        assert cache.flush()
        assert cache.check() == []
        cache.close()
        cache, model = open_small(folder)
        assert go_on(cache, model, [*TEXT, 1]).reused == 5
        cache.close()


def test_an_orphan_goes(tmp_path: Path) -> None:
    """Without the file it goes on from, a snapshot is of no use: removed, counted, logged."""
    folder = tmp_path / "folder"
    cache, model = make("dense", disk=folder)
    trunk, branches = words(61, 70), [words(seed, 20) for seed in (62, 63)]
    for branch in branches:
        go_on(cache, model, trunk + branch)
        assert cache.flush()
    cache.close()
    shapes = {path: kv._core._inspect_folder(str(folder)) for path in files_of(folder)}
    assert len(shapes) == 2
    (top,) = (each["name"] for each in next(iter(shapes.values()))["files"] if each["start"] == 0)
    (folder / top).unlink()
    cache, model = make("dense", disk=folder)
    assert cache.stats()["unusable_snapshots"] == 1
    assert cache.stats()["nodes"] == 0
    for branch in branches:
        assert go_on(cache, model, trunk + branch).reused in (0, 70)
    cache.close()
