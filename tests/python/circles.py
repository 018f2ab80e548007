"""How much is played: the circle that ``KVTRIE_CIRCLE`` names.

``test``, which is ``./dev test``, has all that holds a promise in seconds; ``ci`` adds what takes longer, the tests
that are marked ``@pytest.mark.ci``; ``soak`` adds those marked ``@pytest.mark.soak``, and makes others longer.
"""

from __future__ import annotations

import os

CIRCLES = ("test", "ci", "soak")
CIRCLE = os.environ.get("KVTRIE_CIRCLE", "test")
if CIRCLE not in CIRCLES:
    raise ValueError(f"[tests] KVTRIE_CIRCLE: got {CIRCLE}, allowed {', '.join(CIRCLES)}")
SOAK = CIRCLE == "soak"


def beyond() -> tuple[str, ...]:
    """The marks of tests that are not played."""
    return CIRCLES[CIRCLES.index(CIRCLE) + 1 :]
