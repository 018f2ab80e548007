"""The shared store of a simulated fleet: what is there from when on, and whose bytes are on the way.

Two pipes of the same bandwidth, one in and one out, each of which carries one transfer after the other. What is
published can be fetched when its last byte is there. What would have to wait longer than ``PATIENCE`` before it is sent
is not sent: a replica sets little memory aside for that (docs/store.md). Each block is sent once, and the blocks that
were not used for longest go when there is no room, those furthest from the root first.

Units: seconds, bytes, tokens; a block is what one fingerprint stands for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

PATIENCE = 10.0  # seconds that something waits to be sent


class Pipe:
    """One direction. ``moved``: bytes so far; ``until``: when all that was handed over has passed."""

    def __init__(self, bandwidth: float) -> None:
        self._bandwidth = bandwidth
        self.moved = 0
        self.until = 0.0

    def takes(self, size: int, now: float) -> float:
        """Seconds until ``size`` bytes handed over now would have passed."""
        return max(self.until - now, 0.0) + size / self._bandwidth

    def hand_over(self, size: int, now: float) -> float:
        """When they will have."""
        self.until = now + self.takes(size, now)
        self.moved += size
        return self.until


class FleetStore:
    """The store that all replicas share. ``unsent``: bytes that were not published for want of bandwidth."""

    def __init__(self, bandwidth: float, block_bytes: int, blocks: int) -> None:
        self._block_bytes = block_bytes
        self._blocks = blocks
        self._ready: OrderedDict[int, float] = OrderedDict()
        self.inward = Pipe(bandwidth)
        self.outward = Pipe(bandwidth)
        self.unsent = 0

    def depth(self, path: Sequence[int], known: int, now: float) -> int:
        """Blocks of ``path`` up to which all behind the first ``known`` can be fetched now; ``known`` if none can."""
        for at in range(known, len(path)):
            if self._ready.get(path[at], now + 1) > now:
                return at
        return max(known, len(path))

    def fetch(self, path: Sequence[int], known: int, most: float, now: float) -> tuple[int, float]:
        """(blocks, seconds): how deep the path was fetched, if that takes no longer than ``most`` for each block."""
        deep = self.depth(path, known, now)
        size = (deep - known) * self._block_bytes
        seconds = self.outward.takes(size, now)
        if deep == known or seconds >= most * (deep - known):
            return known, 0.0
        self._touch(path[:deep])
        return deep, self.outward.hand_over(size, now) - now

    def publish(self, path: Sequence[int], now: float) -> None:
        """Sends what of ``path`` is not there nor on the way."""
        new = [each for each in path if each not in self._ready]
        size = len(new) * self._block_bytes
        if new and self.inward.takes(0, now) > PATIENCE:
            self.unsent += size
        elif new:
            there = self.inward.hand_over(size, now)
            self._ready.update(dict.fromkeys(reversed(new), there))
        self._touch(path)
        while len(self._ready) > self._blocks:
            self._ready.popitem(last=False)

    def _touch(self, path: Sequence[int]) -> None:
        for each in reversed(path):
            if each in self._ready:
                self._ready.move_to_end(each)
