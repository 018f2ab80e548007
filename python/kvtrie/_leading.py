"""Which answers of a batch take part in a step: nobody computes what another one is about to compute.

Lengths are counted in tokens. Threads: that of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ._decoding import Decoding

__all__ = ["leading"]

_WORTH_WAITING = 32  # tokens that somebody else is computing; for fewer nobody waits a step


def leading(pending: Sequence[Decoding]) -> list[Decoding]:
    """The generations that take part in a step: all but those that would compute what another one is about to compute.

    Of two that share a prefix the one that is further leads, of two as far the first. The other one waits until what
    they share is there, then goes on from it. A leader never waits for whoever waits for it, so somebody takes part.
    """
    lengths = [int(each.live.length) for each in pending]
    texts = [each.all_tokens() if each.in_prompt and not each.origin.alone else None for each in pending]

    def waits_for(at: int, other: int) -> bool:
        text, ahead = texts[at], texts[other]
        if text is None or ahead is None or pending[at].origin.namespace != pending[other].origin.namespace:
            return False
        if (lengths[other], at) <= (lengths[at], other):  # it is no leader of this one
            return False
        shared = _in_common(text, ahead)
        return lengths[other] < shared and shared - lengths[at] >= _WORTH_WAITING

    everyone = range(len(pending))
    return [each for at, each in enumerate(pending) if not any(waits_for(at, other) for other in everyone)]


def _in_common(a: npt.NDArray[np.int32], b: npt.NDArray[np.int32]) -> int:
    """How many tokens two texts have in common at their beginnings."""
    count = min(len(a), len(b))
    differ = np.flatnonzero(a[:count] != b[:count])
    return int(differ[0]) if differ.size else count
