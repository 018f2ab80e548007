"""Memory that was freed, back to the system.

Reading a vocabulary, packing weights and compiling kernels take memory for a moment. glibc keeps what is freed between
blocks that stay, since the program might want it again; a server that has loaded its model does not. Threads: any.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """glibc's ``malloc_trim``; None where the C library has none."""
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes, found.restype = [ctypes.c_size_t], ctypes.c_int
    return found


def give_back() -> None:
    """Returns whole pages that nothing uses to the system, where the C library can: some milliseconds."""
    trim = _trim()
    if trim is not None:
        trim(0)
