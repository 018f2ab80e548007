"""Locks that outlive a fork: what a thread of the parent held, nobody in the child could ever let go.

For what is guarded but for moments and is whole at each of them, such as an entry of a dict. What a forked process is
refused altogether needs none (_live.py). They are those of the interpreter itself, to be taken by ``with``: between one
written in Python and its block a signal's handler could raise, with the lock taken for good.
"""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["make_lock"]

_all: weakref.WeakSet[threading.RLock] = weakref.WeakSet()


def make_lock() -> threading.RLock:
    """A lock that is free in a forked process, unless the thread that forked held it. Threads: any; the one that has it
    may take it again, such as in a finalizer."""
    made = threading.RLock()
    _all.add(made)
    return made


def _renew_all() -> None:
    """In the child."""
    for each in list(_all):
        if not each._is_owned():  # type: ignore[attr-defined]  # what the thread that forked holds it gives back here
            each._at_fork_reinit()  # type: ignore[attr-defined]  # as CPython's own modules do (3.9 and later)


os.register_at_fork(after_in_child=_renew_all)
