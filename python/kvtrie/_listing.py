"""Drivers that end the process while it lists devices: found out in child processes, and hidden from the loader.

Concept. To list devices the loader opens a *set* of drivers: those of .icd files, and those that the environment names.
One of them may end the process, by itself or beside another one. So before a process lists devices with a set that is
new, a child process does. When that ends the child, further children find out which driver it is: the first one sees
one driver, the next ones one more each. Drivers that ended a child are *left out*: this process, and what it starts,
see a folder with the other ones.

The verdict is a file in the cache folder, for this set, as its files are now, and this build of the library. To read it
takes 0.4 ms, the child an eighth of a second (PoCL, Zen 5).

Which ends of a child say something of a driver, and where no child is started: see ``_probe.py``.

Threads: any; the first that lists devices probes, others wait.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from . import _child, _core, _kept, _opencl, _probe
from ._locks import make_lock
from .errors import Error

_KIND = "listing"  # of kept files
_LINKER = "/etc/ld.so.cache"  # changes when a library comes, goes or is replaced

_lock = make_lock()
_left_out: Optional[dict[str, str]] = None  # None: nobody has asked yet


class Driver(NamedTuple):
    """``name``: the .icd file, or what the environment says. ``library``: what the loader opens."""

    name: str
    library: str


def prepare() -> None:
    """Hides what ends the process. Called by the C++ bindings before they list devices; the first call does it all."""
    global _left_out
    with _lock:
        if _left_out is None:
            _left_out = _hidden()


def trust() -> None:
    """In children that try drivers: the loader sees what the environment shows it."""
    global _left_out
    _left_out = {}


def left_out() -> dict[str, str]:
    """The drivers that are left out, each with how it ended a child."""
    return dict(_left_out or {})


def _hidden() -> dict[str, str]:
    drivers = _drivers()
    file = _probe.kept_file(_KIND, *_stamps(drivers)) if drivers and not _is_ours(drivers) else None
    if file is None or not _child.possible():
        return {}
    found = _read(file)
    if found is None:
        found = _verdict(drivers)
        if found is None:
            return {}
        _kept.keep(file, json.dumps(found))
    if found:
        folder = file.with_suffix(".vendors")
        _show(folder, [driver for driver in drivers if driver.name not in found])
        os.environ.update(_environment(folder))
    return found


def _drivers() -> list[Driver]:
    """The libraries that the loader will open."""
    found = []
    for file in _opencl.system_drivers():
        with contextlib.suppress(OSError, UnicodeDecodeError):  # the loader cannot read it either
            found.append(Driver(str(file), _opencl.library_of(file)))
    known = {driver.library for driver in found}
    named = [Driver(library, library) for library in _opencl.named_drivers() if library not in known]
    return found + named if named and _opencl.loader_knows(_opencl.NAMES[1]) else found


def _is_ours(drivers: Sequence[Driver]) -> bool:
    """Whether the process that started this one has hidden some."""
    folder = Path(drivers[0].name).parent
    return folder.name.startswith(f"{_KIND}-") and folder.parent == Path(_kept.cache_folder())


def _stamps(drivers: Sequence[Driver]) -> list[Any]:
    """Everything that changes with the drivers: a library without a path is looked for by the linker."""
    paths = [path for driver in drivers for path in driver]
    return [drivers, os.environ.get("LD_LIBRARY_PATH", ""), *map(_stamp, [*paths, _LINKER])]


def _stamp(path: str) -> Optional[tuple[int, int]]:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _read(file: Path) -> Optional[dict[str, str]]:
    try:
        return {str(name): str(how) for name, how in json.loads(file.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        return None


def _verdict(drivers: Sequence[Driver]) -> Optional[dict[str, str]]:
    """The drivers to leave out; None where children say nothing of them."""
    try:
        end = _probe.run_child(__name__)
        if end.survived or end.unknown:
            return {} if end.survived else None
        found = _deadly(drivers)
    except OSError:  # no more processes, no room
        return None
    for name, how in (found or {}).items():
        logging.getLogger("kvtrie").warning("[devices] driver %s is left out: it ends the process (%s)", name, how)
    return found or None


def _deadly(drivers: Sequence[Driver]) -> Optional[dict[str, str]]:
    """Drivers that end a child that sees them, where those before them did not; None where a child says nothing."""
    import tempfile

    survivors: list[Driver] = []
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="kvtrie-") as place:
        for driver in drivers:
            folder = Path(place, str(len(survivors) + len(found)))
            _show(folder, [*survivors, driver])
            end = _probe.run_child(__name__, environment=_environment(folder))
            if end.unknown:
                return None
            if end.survived:
                survivors.append(driver)
            else:
                found[driver.name] = end.how
    return found


def _show(folder: Path, drivers: Sequence[Driver]) -> None:
    """A folder in which a loader finds these and no others."""
    folder.mkdir(mode=0o700, exist_ok=True)
    files = {folder / f"{number:02}-{Path(driver.name).stem}.icd": driver for number, driver in enumerate(drivers)}
    for other in set(folder.glob("*.icd")) - set(files):  # of a verdict that was lost
        other.unlink(missing_ok=True)
    for file, driver in files.items():
        _kept.keep(file, f"{driver.library}\n")


def _environment(folder: Path) -> dict[str, str]:
    return dict(zip(_opencl.NAMES, (str(folder), "")))


def main() -> None:
    """The child."""
    trust()
    with _probe.trial(), contextlib.suppress(Error):  # what is wrong is said to whoever lists them
        _core.devices()
