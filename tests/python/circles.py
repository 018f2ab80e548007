"""How much is played: the circle that ``KVTRIE_CIRCLE`` names.

``test``, which is ``./dev test``, has all that holds a promise in seconds; ``ci`` adds what takes longer, the tests
that are marked ``@pytest.mark.ci``; ``soak`` adds those marked ``@pytest.mark.soak``, and makes others longer.

A push has no time for all that is marked ``ci``. Where ``KVTRIE_DRAW`` names a commit, as in ``./dev test --ci``, one
in :data:`SHARE` of these tests is played, drawn by the commit: the same whenever it is tested, others for the next.
"""

from __future__ import annotations

import os
import zlib

CIRCLES = ("test", "ci", "soak")
CIRCLE = os.environ.get("KVTRIE_CIRCLE", "test")
if CIRCLE not in CIRCLES:
    raise ValueError(f"[tests] KVTRIE_CIRCLE: got {CIRCLE}, allowed {', '.join(CIRCLES)}")
SOAK = CIRCLE == "soak"


def beyond() -> tuple[str, ...]:
    """The marks of tests that are not played."""
    return CIRCLES[CIRCLES.index(CIRCLE) + 1 :]


SHARE = 3
DRAW = os.environ.get("KVTRIE_DRAW", "")


def drawn(name: str, share: int = SHARE) -> bool:
    """Whether it is one of those in ``share`` that the commit plays; all are, where none is named."""
    return not DRAW or zlib.crc32(f"{DRAW} {name}".encode()) % share == 0
