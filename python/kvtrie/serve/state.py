"""Where a server keeps what it computed, for after a restart: a folder by the model's fingerprint.

    $XDG_CACHE_HOME/kvtrie/serve/FINGERPRINT        (~/.cache where the variable is not set)

One cache at a time has a folder; another server of the same model needs another one, or none. A server that nobody
told a folder goes without one where it may not keep state in its own: no home, read-only, or somebody else's.
"""

from __future__ import annotations

import os
from pathlib import Path

from .._folders import cache_base, why_not

_SHARE = 10  # of the free space, with what is there already: one part of so many


def default_folder(fingerprint: str) -> Path | None:
    """The folder of a model; None where nobody knows a place for it."""
    base = cache_base()
    return None if base is None else base / "kvtrie" / "serve" / fingerprint[:32]


def own_place(fingerprint: str) -> tuple[Path | None, str]:
    """The folder of a model, whose parents are there; or None, and why state cannot be kept."""
    folder = default_folder(fingerprint)
    if folder is None:
        return None, "there is no home for it"
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return None, f"{error.filename}: {error.strerror}"
    why = why_not(folder)
    return (None, why) if why else (folder, "")


def default_bytes(folder: Path) -> int:
    """A tenth of what is free on its file system, and of what the folder has already."""
    present = 0
    if folder.is_dir():
        present = sum(each.stat(follow_symlinks=False).st_size for each in os.scandir(folder) if each.is_file())
    near = next(path for path in (folder, *folder.parents) if path.is_dir())
    space = os.statvfs(near)
    return (present + space.f_bavail * space.f_frsize) // _SHARE
