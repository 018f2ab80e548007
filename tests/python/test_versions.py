"""Versions: what an earlier one wrote is read for ever, or is a named miss; golden_folders.py says what is kept.

A version of the formats (docs/format.md, docs/store.md) does not change: what is written today is what is kept,
byte for byte. A change that shows here needs a new version, with folders of its own beside those of the old one.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from fakes import DictStore
from golden_folders import (
    FOLDERS,
    GOLDENS,
    MADE,
    SHARED,
    STORES,
    VERSION,
    compute,
    go_on,
    in_another_process,
    kept,
    open_cache,
    read_values,
)

IN_FOLDERS, IN_STORES = [*kept(FOLDERS)], [*kept(STORES)]


def name_of(folder: Path) -> str:
    return str(folder.relative_to(GOLDENS))


def expected_of(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(folder.with_suffix(".json").read_text(encoding="utf-8"))
    return found


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.kvtrie")}


def assert_same(made: dict[str, bytes], golden: dict[str, bytes]) -> None:
    assert sorted(made) == sorted(golden)
    assert [key for key in made if made[key] != golden[key]] == []


@pytest.mark.parametrize("folder", IN_FOLDERS, ids=name_of)
def test_a_kept_folder_gives_what_it_gave(folder: Path, tmp_path: Path) -> None:
    """Each conversation alone, in a cache that knows nothing else; the model compares every row that comes back."""
    copy = tmp_path / "folder"
    shutil.copytree(folder, copy)
    expected = expected_of(folder)
    asked = [{key: value for key, value in each.items() if key not in ("reused", "tier")} for each in expected]
    assert go_on(folder.name, asked, disk=copy, disk_bytes="64MiB") == expected
    assert files_of(copy) == files_of(folder)  # reading changes nothing


@pytest.mark.parametrize("folder", IN_FOLDERS, ids=name_of)
def test_a_kept_folder_is_refused_whole_or_not_at_all(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "folder"
    shutil.copytree(folder, copy)
    cache, _ = open_cache(folder.name, disk=copy, disk_bytes="64MiB")
    disk = cache.stats()["disk"]
    cache.close()
    assert (disk["refused"], disk["files"]) == ({}, len(files_of(folder)))
    stranger, _ = open_cache(folder.name, disk=copy, disk_bytes="64MiB", fingerprint="other weights")
    disk = stranger.stats()["disk"]
    stranger.close()
    assert (disk["refused"], disk["files"]) == ({"fingerprint": len(files_of(folder))}, 0)
    assert files_of(copy) == files_of(folder)


@pytest.mark.parametrize("folder", IN_STORES, ids=name_of)
def test_kept_values_of_a_store_give_what_they_gave(folder: Path) -> None:
    expected = expected_of(folder)
    asked = [{key: value for key, value in each.items() if key not in ("reused", "tier")} for each in expected]
    store = DictStore(read_values(folder))
    assert go_on(folder.name, asked, store=store, store_deadline=None) == expected
    assert store.values == read_values(folder)


@pytest.mark.parametrize("name", MADE)
def test_today_writes_what_is_kept(name: str, tmp_path: Path) -> None:
    in_another_process("write", name, tmp_path / "folder")
    assert_same(files_of(tmp_path / "folder"), files_of(FOLDERS / f"version-{VERSION}" / name))


@pytest.mark.parametrize("name", SHARED)
def test_today_sends_what_is_kept(name: str, tmp_path: Path) -> None:
    in_another_process("send", name, tmp_path / "store")
    assert_same(read_values(tmp_path / "store"), read_values(STORES / f"version-{VERSION}" / name))


@pytest.mark.parametrize("name", ["dense-float16", "hybrid-float32"])
def test_what_is_kept_can_be_saved_again(name: str, tmp_path: Path) -> None:
    kept_folder = FOLDERS / f"version-{VERSION}" / name
    shutil.copytree(kept_folder, tmp_path / "kept")
    cache, _ = open_cache(name, disk=tmp_path / "kept", disk_bytes="64MiB")
    cache.save(tmp_path / "saved")
    cache.close()
    again, _ = open_cache(name, disk=tmp_path / "saved", disk_bytes="64MiB")
    assert again.stats()["disk"]["refused"] == {}
    again.close()
    expected = expected_of(kept_folder)
    assert go_on(name, expected, disk=tmp_path / "saved", disk_bytes="64MiB") == expected


def test_every_version_is_kept() -> None:
    for root, names in ((FOLDERS, MADE), (STORES, SHARED)):
        for version in range(1, VERSION + 1):
            assert {path.name for path in (root / f"version-{version}").iterdir() if path.is_dir()} >= set(names)


@pytest.mark.parametrize("version", [0, 2, 3, 2**32 - 1])
def test_another_version_is_a_named_miss(version: int, tmp_path: Path) -> None:
    """In a whole folder: nothing is used, nothing is touched, and the conversations are computed again."""
    name = "dense-float32"
    copy = tmp_path / "folder"
    shutil.copytree(FOLDERS / f"version-{VERSION}" / name, copy)
    for path in copy.glob("*.kvtrie"):
        content = path.read_bytes()
        magic = content.index(b"KVTRIE\0\1")
        path.write_bytes(content[: magic + 8] + version.to_bytes(4, "little") + content[magic + 12 :])
    before = files_of(copy)
    cache, model = open_cache(name, disk=copy, disk_bytes="64MiB")
    assert cache.stats()["disk"]["refused"] == {"version": len(before)}
    for conversation in expected_of(FOLDERS / f"version-{VERSION}" / name):
        assert compute(cache, model, conversation, publish=False).reused == 0
    cache.close()
    assert {key: value for key, value in files_of(copy).items() if key in before} == before


def test_a_value_of_another_version_is_a_named_miss() -> None:
    name = "dense-float32"
    values = read_values(STORES / f"version-{VERSION}" / name)
    other = {key: value[:8] + (7).to_bytes(4, "little") + value[12:] for key, value in values.items()}
    cache, model = open_cache(name, store=DictStore(other))
    for conversation in expected_of(STORES / f"version-{VERSION}" / name):
        assert compute(cache, model, conversation, publish=False).reused == 0
    faults = cache.stats()["store"]["faults"]
    cache.close()
    assert isinstance(cache, kv.PrefixCache)
    assert set(faults) == {"version"}
    assert faults["version"] > 0
