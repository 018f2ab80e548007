"""What a process of test_folders.py does: a cache whose folder is taken away, replaced, or does not take writes.

    folder_worker.py SCENARIO FOLDER [nobody]

Each scenario plays conversations whose every row is compared, before, during and after; at the end it prints JSON. With
`nobody` it becomes that user first, after all is imported: root may do everything everywhere.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import kvtrie as kv
from disk_worker import TierModel, go_on, make, words

TEXTS = [words(seed, 150) for seed in range(6)]
LATER = [words(seed, 150) for seed in range(20, 26)]
HOST = 150_000  # bytes: about half of the texts


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Place:
    """A folder and the caches on it; every conversation is read with the model that compares."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, Clock()
        self.cache: Any = None
        self.model: Optional[TierModel] = None
        self.compared = 0

    def open(self, folder: Optional[Path] = None, **options: Any) -> Any:
        settings = {"host_bytes": HOST, "disk_bytes": "1MiB", "clock": self.clock, **options}
        self.cache, self.model = make("hybrid", disk=folder or self.folder, **settings)
        return self.cache

    def play(self, texts: list[list[int]]) -> int:
        """Tokens that were reused; every row and state that is read is compared."""
        assert self.model is not None
        reused = sum(go_on(self.cache, self.model, text).reused for text in texts)
        assert self.cache.check() == [], self.cache.check()
        return reused

    def fill(self) -> None:
        self.open()
        self.play(TEXTS)
        assert self.cache.flush()

    def refused(self, **options: Any) -> str:
        """What opening says: one of the library's own errors."""
        try:
            self.open(**options)
        except kv.Error as error:
            return f"{type(error).__name__}: {error}"
        self.cache.close()
        return "opened"

    def in_trouble(self) -> dict[str, Any]:
        """Everything goes on where the disk takes nothing or has nothing, and says what is wrong."""
        self.play(TEXTS + LATER)
        flushed = self.cache.flush()
        self.cache.evict(TEXTS[0])
        self.cache.page_out(TEXTS[1], to="disk")
        self.play(LATER + TEXTS)
        disk = self.cache.stats()["disk"]
        failures = disk["failed_writes"] + disk["failed_reads"] + disk["failed_removes"]
        return {"flushed": flushed, "failures": failures, "last": disk["last_failure"], "writing": disk["writing"]}

    def recovered(self) -> dict[str, Any]:
        """The disk is back: what was not written is written within a minute, and the next cache has it."""
        self.clock.now += 40
        self.cache.stats()
        self.play(TEXTS + LATER)
        self.clock.now += 40
        for text in TEXTS + LATER:  # one by one: what waits for a slow disk fills host memory, and others are lost
            self.play([text])
            flushed = self.cache.flush()
        self.cache.close()
        self.open()
        reused = self.play(TEXTS + LATER)
        self.cache.close()
        return {"flushed afterwards": flushed, "reused": reused}


def closed_to_us(place: Place) -> Any:
    place.fill()
    place.cache.close()
    place.folder.chmod(0)
    said = place.refused()
    place.folder.chmod(0o700)
    place.open()
    return {"said": said, "reused": place.play(TEXTS)}


def read_only_folder(place: Place) -> Any:
    place.fill()
    place.cache.close()
    place.folder.chmod(0o500)
    said = place.refused()
    place.folder.chmod(0o700)
    place.open()
    return {"said": said, "reused": place.play(TEXTS)}


def parent_read_only(place: Place) -> Any:
    place.folder.mkdir()
    place.folder.chmod(0o500)
    said = place.refused()
    inside = Place(place.folder / "inside").refused()
    place.folder.chmod(0o700)
    return {"said": said, "inside": inside}


def not_ours(place: Place) -> Any:
    return {"said": place.refused()}  # the test made it, as root


def unreadable_file(place: Place) -> Any:
    place.fill()
    place.cache.close()
    names = sorted(name for name in os.listdir(place.folder) if name.endswith(".kvtrie"))
    (place.folder / names[0]).chmod(0)
    place.open()
    refused = place.cache.stats()["disk"]["refused"]
    reused = place.play(TEXTS)
    return {"refused": refused, "reused": reused, "files": len(names)}


def taken_away(place: Place) -> Any:
    place.fill()
    place.folder.chmod(0)
    trouble = place.in_trouble()
    place.folder.chmod(0o700)
    return {**trouble, **place.recovered()}


def made_read_only(place: Place) -> Any:
    place.fill()
    place.folder.chmod(0o500)
    trouble = place.in_trouble()
    place.folder.chmod(0o700)
    return {**trouble, **place.recovered()}


def removed(place: Place) -> Any:
    place.fill()
    shutil.rmtree(place.folder)
    trouble = place.in_trouble()
    place.cache.close()
    return {**trouble, "left": place.folder.exists()}


def renamed(place: Place) -> Any:
    place.fill()
    elsewhere = place.folder.with_name("elsewhere")
    place.folder.rename(elsewhere)
    trouble = place.in_trouble()
    elsewhere.rename(place.folder)
    return {**trouble, **place.recovered()}


def replaced(place: Place) -> Any:
    """Another cache has a new folder under the same name: neither touches what is the other's."""
    place.fill()
    place.folder.rename(place.folder.with_name("elsewhere"))
    place.folder.mkdir(mode=0o700)
    other = Place(place.folder)
    other.open()
    other.play(LATER[:2])
    assert other.cache.flush()
    names = sorted(os.listdir(place.folder))
    trouble = place.in_trouble()
    place.cache.close()
    same = sorted(os.listdir(place.folder)) == names
    disk = other.cache.stats()["disk"]
    held = sum((place.folder / name).stat().st_size for name in names if name != "lock")
    reused = other.play(LATER[:2])
    other.cache.close()
    return {**trouble, "same": same, "counted": disk["bytes"] == held, "reused": reused}


def mounted(place: Place, *options: str) -> None:
    place.folder.parent.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(place.folder.parent)], check=True)


def read_only_mount(place: Place) -> Any:
    """The file system takes no writes for a while, as one does after errors."""
    mounted(place)
    place.fill()
    above = str(place.folder.parent)
    subprocess.run(["mount", "--bind", above, above], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", above], check=True)
    trouble = place.in_trouble()
    subprocess.run(["mount", "-o", "remount,bind,rw", above], check=True)
    return {**trouble, **place.recovered()}


def read_only_from_the_start(place: Place) -> Any:
    mounted(place)
    place.fill()
    place.cache.close()
    subprocess.run(["mount", "-o", "remount,ro", str(place.folder.parent)], check=True)
    said = place.refused()
    subprocess.run(["mount", "-o", "remount,rw", str(place.folder.parent)], check=True)
    place.open()
    return {"said": said, "reused": place.play(TEXTS)}


def full_and_back(place: Place) -> Any:
    mounted(place, "-o", "size=2m")
    place.fill()
    ballast = place.folder.parent / "ballast"
    space = os.statvfs(place.folder)
    ballast.write_bytes(bytes(space.f_bavail * space.f_frsize - 4096))
    trouble = place.in_trouble()
    ballast.unlink()
    return {**trouble, **place.recovered()}


def unplugged(place: Place) -> Any:
    """The file system goes while the cache is open, and comes back under the same name."""
    mounted(place)
    place.fill()
    saved = place.folder.parent.with_name("saved")
    saved.mkdir()
    subprocess.run(["mount", "--move", str(place.folder.parent), str(saved)], check=True)
    trouble = place.in_trouble()
    subprocess.run(["mount", "--move", str(saved), str(place.folder.parent)], check=True)
    return {**trouble, **place.recovered()}


def another_disk(place: Place) -> Any:
    """The file system goes for good; an empty one takes its place."""
    mounted(place)
    place.fill()
    subprocess.run(["umount", "-l", str(place.folder.parent)], check=True)
    mounted(place)
    trouble = place.in_trouble()
    place.cache.close()
    place.open()
    return {**trouble, "reused": place.play(TEXTS)}


SCENARIOS: dict[str, Callable[[Place], Any]] = {
    scenario.__name__: scenario
    for scenario in (
        closed_to_us,
        read_only_folder,
        parent_read_only,
        not_ours,
        unreadable_file,
        taken_away,
        made_read_only,
        removed,
        renamed,
        replaced,
        read_only_mount,
        read_only_from_the_start,
        full_and_back,
        unplugged,
        another_disk,
    )
}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    Place(folder).refused(folder="/nowhere/at/all")  # what is imported late is there before another user asks for it
    if sys.argv[3:] == ["nobody"]:
        user = pwd.getpwnam("nobody")
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        os.umask(stat.S_IRWXG | stat.S_IRWXO)
    print(json.dumps(SCENARIOS[name](Place(folder))))


if __name__ == "__main__":
    main()
