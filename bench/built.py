"""Programs and libraries of bench/ that CMake has built, the newest of all build folders."""

from __future__ import annotations

from pathlib import Path

_BUILD = Path(__file__).resolve().parent.parent / "build"


def newest(name: str) -> Path | None:
    """The program or library ``name`` (of a library without its suffix), or None."""
    found = [*_BUILD.glob(f"*/bench/{name}"), *_BUILD.glob(f"*/bench/lib{name}.*")]
    return max(found, key=lambda file: file.stat().st_mtime, default=None)


def built(name: str) -> Path:
    """The same; ends the program where it is not built."""
    found = newest(name)
    if found is None:
        raise SystemExit(f"{name} is not built: ./dev bench builds it, as the CMake target of that name")
    return found
