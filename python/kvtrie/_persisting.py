"""A thread of ours pays its debts to others, such as telling them that it has ended, however often it fails.

Without memory a call fails, and a moment later it may not. Threads: any. Units: seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["persist"]

_MOMENT = 0.01


def persist(work: Callable[[], None]) -> None:
    """Does ``work``, which may be done again after any exception, until it raises none."""
    while not _succeeds(work):
        time.sleep(_MOMENT)


def _succeeds(work: Callable[[], None]) -> bool:
    try:
        work()
    except BaseException:
        return False
    return True
