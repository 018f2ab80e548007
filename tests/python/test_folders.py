"""The folder of a disk tier under other users, other mounts and other names, closed and while a cache has it open.

Each scenario is a process of its own (folder_worker.py): some as an ordinary user, as root may do everything, some in a
mount namespace of their own. Whatever the folder does, every row that is read is right, check() finds nothing, and what
works again is used again.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from processes import run_command, run_python

WORKER = Path(__file__).with_name("folder_worker.py")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


@pytest.fixture
def ours() -> Iterator[Path]:
    """A folder that the user `nobody` has, where others cannot keep it from what lies above."""
    with tempfile.TemporaryDirectory(prefix="kvtrie-folders-", dir="/tmp") as name:
        os.chown(name, pwd.getpwnam("nobody").pw_uid, -1)
        yield Path(name)


def result_of(done: Any) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def as_nobody(scenario: str, folder: Path) -> dict[str, Any]:
    return result_of(run_python(WORKER, scenario, folder, "nobody"))


def in_own_mounts(scenario: str, folder: Path) -> dict[str, Any]:
    """In a private mount namespace; skips with the reason where there are none."""
    command = ["unshare", "--mount", "--propagation", "private"]
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    tried = run_command(*command, "mount", "-t", "tmpfs", "tmpfs", folder)
    if tried.returncode != 0:
        pytest.skip(f"no mount namespace: {tried.stderr.strip()}")
    return result_of(run_python(WORKER, scenario, folder / "disk" / "folder", before=command))


# ---- refused by name, and left as it was ----------------------------------------------------------------------------


@as_root
@pytest.mark.parametrize("scenario", ["closed_to_us", "parent_read_only"])
def test_a_folder_that_cannot_be_used(scenario: str, ours: Path) -> None:
    found = as_nobody(scenario, ours / "folder")
    for said in (found["said"], found.get("inside", found["said"])):
        assert said.startswith("FormatError: [disk] disk: got") and "Permission denied" in said
    assert found.get("reused", 1) > 0  # once it can be used, all is there


@as_root
def test_a_folder_of_somebody_else(tmp_path: Path, ours: Path) -> None:
    folder = ours / "folder"
    folder.mkdir(mode=0o755)  # root's
    assert "Permission denied" in as_nobody("not_ours", folder)["said"]
    assert list(folder.iterdir()) == []


def test_a_file_system_that_takes_no_writes(tmp_path: Path) -> None:
    found = in_own_mounts("read_only_from_the_start", tmp_path)
    assert found["said"].startswith("FormatError") and "Read-only file system" in found["said"]
    assert found["reused"] > 0


@as_root
def test_a_file_that_may_not_be_read(ours: Path) -> None:
    found = as_nobody("unreadable_file", ours / "folder")
    assert found["refused"] == {"io": 1}
    assert found["reused"] > 0


@as_root
def test_a_folder_that_may_only_be_read(ours: Path) -> None:
    """What is there is used; the lock is there, too."""
    found = as_nobody("read_only_folder", ours / "folder")
    assert found["said"] == "opened"
    assert found["reused"] > 0


# ---- while a cache has it open --------------------------------------------------------------------------------------


def expect_survived(found: dict[str, Any]) -> None:
    assert found["flushed"] is False
    assert found["failures"] >= 3 and found["last"]


@as_root
@pytest.mark.parametrize(
    "scenario",
    ["taken_away", pytest.param("made_read_only", marks=pytest.mark.ci), pytest.param("renamed", marks=pytest.mark.ci)],
)
def test_it_is_taken_and_given_back(scenario: str, ours: Path) -> None:
    found = as_nobody(scenario, ours / "folder")
    expect_survived(found)
    assert found["flushed afterwards"] is True
    assert found["reused"] > 1500  # of 1,800: the next cache has nearly all of it


@pytest.mark.parametrize(
    "scenario",
    [
        "full_and_back",
        pytest.param("read_only_mount", marks=pytest.mark.ci),
        pytest.param("unplugged", marks=pytest.mark.ci),
    ],
)
def test_a_disk_that_comes_back(scenario: str, tmp_path: Path) -> None:
    found = in_own_mounts(scenario, tmp_path)
    expect_survived(found)
    assert found["flushed afterwards"] is True
    assert found["reused"] > 1500


def test_another_disk_takes_its_place(tmp_path: Path) -> None:
    found = in_own_mounts("another_disk", tmp_path)
    expect_survived(found)
    assert found["reused"] == 0


def test_it_is_removed(tmp_path: Path) -> None:
    found = result_of(run_python(WORKER, "removed", tmp_path / "folder"))
    expect_survived(found)
    assert found["left"] is False


def test_another_cache_has_a_folder_of_its_name(tmp_path: Path) -> None:
    """Neither writes to, or removes from, the folder of the other."""
    found = result_of(run_python(WORKER, "replaced", tmp_path / "folder"))
    expect_survived(found)
    assert found["same"] and found["counted"]
    assert found["reused"] == 298
