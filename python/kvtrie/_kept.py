"""The cache folder and its files: compiled programs, and what was found out about drivers and models."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from . import _core
from ._folders import cache_base, expanded, why_not


def cache_place() -> Path | None:
    """Where the cache folder is, or would be: KVTRIE_CACHE_DIR, else ``kvtrie`` in XDG_CACHE_HOME or ~/.cache.

    None where nobody knows a home.
    """
    named = os.environ.get("KVTRIE_CACHE_DIR")
    if named:
        given = expanded(named)
        return None if given is None else Path(given)
    base = cache_base()
    return None if base is None else base / "kvtrie"


def cache_folder() -> str:
    """The cache folder, made with mode 0700; "" when it cannot be written.

    Whoever can write there can run code in this process, so a folder that others may write to is not used.
    """
    folder = cache_place()
    if folder is None:
        return ""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return ""
    return "" if why_not(folder) else str(folder)


def kept_file(kind: str, *about: object) -> Path | None:
    """The file KIND-... in the cache folder for what was found out about these, with this build of the library.

    None where nothing is kept.
    """
    import hashlib

    folder = cache_folder()
    if not folder:
        return None
    library = os.stat(_core.__file__)
    key = (*about, _core.__version__, library.st_size, library.st_mtime_ns)
    return Path(folder, f"{kind}-{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}")


def keep(file: Path, text: str) -> None:
    """Writes it whole or not at all: others may be reading it. Nothing is said where it cannot be written."""
    with contextlib.suppress(OSError):
        written = file.with_name(f"{file.name}.{os.getpid()}")
        written.write_text(text, encoding="utf-8")
        written.replace(file)
