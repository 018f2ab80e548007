"""Locks that outlive a fork: what a thread of the parent held, nobody in the child could ever let go.

For what is guarded but for moments and is whole at each of them, such as an entry of a dict. What a forked process is
refused altogether needs none (_live.py).
"""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["Lock"]


class Lock:
    """``threading.Lock`` for ``with``, free in a forked process. Threads: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        if self._lock.locked():  # else this thread forked while it held it, and is in the child now
            self._lock.release()

    def renew(self) -> None:
        """In the child."""
        self._lock = threading.Lock()


_all: weakref.WeakSet[Lock] = weakref.WeakSet()


def _renew_all() -> None:
    for each in list(_all):
        each.renew()


os.register_at_fork(after_in_child=_renew_all)
