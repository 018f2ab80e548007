"""Which device is the best one, what it emulates, and where programs are kept. Called by the C++ bindings."""

from __future__ import annotations

import os

from . import _core, _health
from ._arguments import shown
from ._kept import cache_folder as cache_folder  # for the bindings
from .errors import ArgumentError, ArgumentTypeError, DeviceError

_KINDS = ("gpu", "cpu", "accelerator")  # best first: an accelerator may be an emulator of one
_selected: dict[str, _core.Device] = {}


def select(name: object = None) -> _core.Device:
    """The best device whose platform or device name contains ``name``; None: the environment variable KVTRIE_DEVICE."""
    if isinstance(name, _core.Device):
        return name
    if name is not None and not isinstance(name, str):
        raise ArgumentTypeError(f"[Device] name: got {shown(name)}, allowed a str or None")
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
        raise ArgumentError(f"[Device] {argument}: got {shown(wanted)}, allowed part of one of {names}")
    return min(fitting, key=_rank)


def _rank(device: _core.Device) -> tuple[int, int, int]:
    kind = _KINDS.index(device.kind) if device.kind in _KINDS else len(_KINDS)
    return kind, -int(device.capabilities["compute_units"]), device.index


def emulation() -> str:
    """What every device emulates, for tests: the variable KVTRIE_EMULATED_DEVICE (docs/devices.md)."""
    return os.environ.get("KVTRIE_EMULATED_DEVICE", "")


def binds_threads() -> bool:
    """Whether a CPU device's threads are put on a processor each as it is opened (docs/performance.md).

    POCL_AFFINITY, a variable of PoCL, has the last word: 0 leaves them alone.
    """
    return not os.environ.get("POCL_AFFINITY")


def forget() -> None:
    """Releases the selection; at the end of the interpreter."""
    _selected.clear()
