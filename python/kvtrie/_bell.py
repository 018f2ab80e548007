"""How one thread wakes another one, or a coroutine: the one place where threads of the library meet event loops.

Neither kind has a lock that a signal's handler, a finalizer or a forked process could find taken.
"""

from __future__ import annotations

import asyncio
import contextlib
from queue import Empty, SimpleQueue

__all__ = ["Bell", "ThreadBell"]


class Bell:
    """Of the event loop that runs where this is made; one coroutine of it listens, any thread rings.

    A ring before anybody listens is heard later; several are heard as one.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()

    @property
    def mute(self) -> bool:
        """Whether its loop was closed, so that nobody hears it."""
        return self._loop.is_closed()

    def ring(self) -> bool:
        """Takes no lock of the library. False where the loop was closed meanwhile: nobody hears it there."""
        try:
            self._loop.call_soon_threadsafe(self._rung.set)
        except RuntimeError:
            return False
        return True

    async def heard(self) -> None:
        """Until it rings."""
        await self._rung.wait()
        self._rung.clear()


class ThreadBell:
    """The same for one thread that listens."""

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> bool:
        """True, as :meth:`Bell.ring`."""
        self._rings.put(None)
        return True

    def heard(self, timeout: float | None = None) -> None:
        """Until it rings, or ``timeout`` seconds have passed."""
        with contextlib.suppress(Empty):
            self._rings.get(timeout=timeout)
