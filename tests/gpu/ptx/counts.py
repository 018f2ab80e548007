"""What accesses cost on NVIDIA GPUs: sectors of 32 bytes, and wavefronts of the 32 banks of shared memory.

A wavefront serves each bank with one word of 4 bytes; lanes that ask for the same word share it. Requests of more than
128 bytes are served in parts: half of a warp at a time for 8 bytes a lane, a quarter for 16. More wavefronts than parts
are bank conflicts.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def sectors(addresses: Any, count: int) -> int:
    """Sectors that ``count`` bytes at each address [n] lie in."""
    first, last = addresses // 32, (addresses + count - 1) // 32
    return int(np.unique(np.concatenate([first, last])).size)


def wavefronts(addresses: Any, count: int) -> int:
    """Wavefronts of one request of shared memory: ``count`` bytes at each address [n]."""
    lanes = 32 if count <= 4 else 16 if count == 8 else 8
    total = 0
    for i in range(0, len(addresses), lanes):
        words = np.unique((addresses[i : i + lanes, None] + np.arange(0, count, 4)).reshape(-1) // 4)
        total += int(np.bincount(words % 32).max())
    return total
