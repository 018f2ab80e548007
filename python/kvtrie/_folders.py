"""Folders of the user's that may not be there: a home, a cache; and one for a driver that cannot do without.

Containers and services run without HOME, as a user id that has no entry, in folders that are read-only or somebody
else's. A folder that nobody knows is None here, never one named ``~`` in the working directory: only absolute paths
count, as the XDG base directory specification has it. The standard library alone is imported.

Threads: any; ``prepare`` is called before OpenCL is loaded.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Optional

_TEMPORARY = ("/tmp", "/var/tmp")
_POCL = "POCL_CACHE_DIR"  # without a folder that it can write, this driver has no device


def home() -> Optional[Path]:
    """HOME, else what the system has for this user id; None where neither is an absolute path."""
    named = os.environ.get("HOME")
    if not named:
        import pwd

        try:
            named = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return None
    return Path(named) if os.path.isabs(named) else None


def expanded(path: str) -> Optional[str]:
    """The path with the home in place of a leading ``~``, as a shell has it; None where nobody knows a home."""
    if path != "~" and not path.startswith("~/"):
        return path
    place = home()
    return None if place is None else str(place) + path[1:]


def cache_base() -> Optional[Path]:
    """XDG_CACHE_HOME, else .cache in the home; None where there is neither."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):
        return Path(named)
    place = home()
    return None if place is None else place / ".cache"


def why_not(folder: Path) -> str:
    """Why this process should not keep its state in a folder, which need not exist; "" where it may.

    Somebody else's folder, and one that others may write to, is none: they could put something else there.
    """
    for place in (folder, *folder.absolute().parents):
        try:
            status = place.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{place}: {error.strerror}"
        if not stat.S_ISDIR(status.st_mode):
            return f"{place} is no folder"
        if place == folder and status.st_uid != os.getuid():
            return f"{place} belongs to user {status.st_uid}, and this is user {os.getuid()}"
        if place == folder and status.st_mode & 0o022:
            return f"others may write to {place}"
        return "" if os.access(place, os.W_OK | os.X_OK) else f"{place} cannot be written"
    return f"{folder}: there is no such place"


def prepare() -> None:
    """Names a folder for pocl's programs where it would find none: its default needs a home that can be written."""
    if os.environ.get(_POCL):
        return
    base = cache_base()
    if base is not None and _can_make(base / "pocl" / "kcache"):
        return
    named = expanded(os.environ.get("KVTRIE_CACHE_DIR", ""))
    places = [Path(named, "pocl")] if named else []
    places += [Path(each, f"kvtrie-{os.getuid()}") for each in (os.environ.get("TMPDIR", ""), *_TEMPORARY) if each]
    for place in places:
        if _made(place):
            os.environ[_POCL] = str(place)
            return


def _can_make(folder: Path) -> bool:
    """Whether the folder is there and can be written, or can be made."""
    near = next((each for each in (folder, *folder.parents) if os.path.lexists(each)), folder)
    return near.is_dir() and os.access(near, os.W_OK | os.X_OK)


def _made(folder: Path) -> bool:
    """Makes it for this user alone; False where it cannot, or where it is another's."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return not folder.is_symlink() and not why_not(folder)
    except OSError:
        return False
