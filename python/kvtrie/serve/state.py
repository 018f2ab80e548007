"""Where a server keeps what it computed, for after a restart: a folder by the model's fingerprint.

    $XDG_CACHE_HOME/kvtrie/serve/FINGERPRINT        (~/.cache where the variable is not set)

One cache at a time has a folder; another server of the same model needs another one, or none.
"""

from __future__ import annotations

import os
from pathlib import Path

_SHARE = 10  # of the free space, with what is there already: one part of so many


def default_folder(fingerprint: str) -> Path:
    """The folder of a model."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "kvtrie" / "serve" / fingerprint[:32]


def default_bytes(folder: Path) -> int:
    """A tenth of what is free on its file system, and of what the folder has already."""
    present = 0
    if folder.is_dir():
        present = sum(each.stat(follow_symlinks=False).st_size for each in os.scandir(folder) if each.is_file())
    near = next(path for path in (folder, *folder.parents) if path.is_dir())
    space = os.statvfs(near)
    return (present + space.f_bavail * space.f_frsize) // _SHARE
