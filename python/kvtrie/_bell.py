"""How another thread wakes a coroutine: the one place where threads of the library meet event loops."""

from __future__ import annotations

import asyncio

__all__ = ["Bell"]


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
