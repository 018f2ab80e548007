"""Every error of kvtrie. A call that raises one has changed nothing.

Messages have the form ``[where] what: got N, allowed M``. Wrong arguments are also ``ValueError`` or ``TypeError``, so
that code that knows nothing of kvtrie catches them.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BusyError",
    "CacheFullError",
    "ClosedError",
    "DeviceError",
    "DownloadError",
    "Error",
    "FormatError",
    "IgnoredWarning",
    "InternalError",
    "NotRestorableError",
    "NotSupportedError",
    "StoreError",
]


class Error(Exception):
    """The base of every error that kvtrie raises."""


class ArgumentError(Error, ValueError):
    """A value out of its range; the message names the argument, the value and the limit."""


class ArgumentTypeError(Error, TypeError):
    """A value of the wrong type, dtype or rank; the message names the argument and what is allowed."""


class CacheFullError(Error, MemoryError):
    """A claim does not fit, even after everything that may go has gone.

    Counts are in cells of the cache that was short (in bytes where bytes were asked for): ``needed`` by the refused
    call, ``free`` at once, ``freeable`` by evicting what nobody needs, ``held_live`` by live sessions.
    """

    needed: int = 0
    free: int = 0
    freeable: int = 0
    held_live: int = 0


class NotRestorableError(Error, ValueError):
    """There is no state at the wanted length. ``nearest``: the longest length that can be reached; -1 when unknown."""

    nearest: int = -1


class NotSupportedError(Error):
    """The operation has no meaning for this cache, model or device."""


class DeviceError(Error):
    """OpenCL or CLBlast reported a failure, or there is no device."""


class StoreError(Error):
    """A call of a shared store failed: no answer in time, no connection, or an error of the server."""


class DownloadError(Error):
    """The file cannot be had; the message says why. Nothing that is half written has its name."""


class FormatError(Error):
    """Bytes or files that are not what they say."""


class ClosedError(Error):
    """The object was closed, or is gone."""


class BusyError(Error):
    """Another call is under way on an object that takes one at a time."""


class IgnoredWarning(UserWarning):
    """Something that was asked for has no effect here. Reported once, through ``warnings``."""


class InternalError(Error):
    """A mistake in kvtrie: an invariant of its own did not hold. Please report it."""
