"""Which device is the best one, and where compiled programs are kept. Called by the C++ bindings."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from . import _core, _health
from .errors import ArgumentError, ArgumentTypeError, DeviceError

_KINDS = ("gpu", "cpu", "accelerator")  # best first: an accelerator may be an emulator of one
_selected: dict[str, _core.Device] = {}


def select(name: Any = None) -> _core.Device:
    """The best device whose platform or device name contains ``name``; None: the environment variable KVTRIE_DEVICE."""
    if isinstance(name, _core.Device):
        return name
    if name is not None and not isinstance(name, str):
        raise ArgumentTypeError(f"[Device] name: got {name!r} ({type(name).__name__}), allowed a str or None")
    wanted = name if name is not None else os.environ.get("KVTRIE_DEVICE", "")
    if wanted not in _selected:
        _selected[wanted] = _best(wanted, "name" if name is not None else "KVTRIE_DEVICE")
    return _selected[wanted]


def _best(wanted: str, argument: str) -> _core.Device:
    found = _core.devices()
    if not found:
        from . import _listing

        left_out = [f"{name} is left out, which ends the process ({how})" for name, how in _listing.left_out().items()]
        advice = "; ".join([*left_out, _health.driver_advice()[0]])
        raise DeviceError(f"[Device] no OpenCL device: {advice} (`python -m kvtrie doctor` says more)")
    fitting = [device for device in found if wanted.lower() in f"{device.platform} {device.name}".lower()]
    if not fitting:
        names = ", ".join(repr(device.name) for device in found)
        raise ArgumentError(f"[Device] {argument}: got {wanted!r}, allowed part of one of {names}")
    return min(fitting, key=_rank)


def _rank(device: _core.Device) -> tuple[int, int, int]:
    kind = _KINDS.index(device.kind) if device.kind in _KINDS else len(_KINDS)
    return kind, -int(device.capabilities["compute_units"]), device.index


def pose() -> str:
    """What every device is to pose as, for tests: the environment variable KVTRIE_POSE (docs/devices.md)."""
    return os.environ.get("KVTRIE_POSE", "")


def cache_folder() -> str:
    """The folder for compiled programs, made with mode 0700; "" when it cannot be written.

    KVTRIE_CACHE_DIR, else ``kvtrie`` in XDG_CACHE_HOME or ~/.cache. Whoever can write there can run code in this
    process, so a folder that others may write to is not used.
    """
    named: Any = os.environ.get("KVTRIE_CACHE_DIR")
    try:
        folder = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvtrie"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):
        return ""
    ours = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return str(folder) if ours and os.access(folder, os.W_OK) else ""


def kept_file(kind: str, *about: Any) -> Path | None:
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


def forget() -> None:
    """Releases the selection; at the end of the interpreter."""
    _selected.clear()
