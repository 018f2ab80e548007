"""One generation of a batch, and which of them take part in a step.

Lengths are counted in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ._prompt_logprobs import PromptLogprobs
from ._values import Reason
from .generate import Generation

_WORTH_WAITING = 32  # tokens that somebody else is computing; for fewer nobody waits a step


class Beginning(NamedTuple):
    """What the cache had of a prompt when its session began."""

    matched: int
    """Tokens of the prompt that were known."""
    reused: int
    """Those that it went on from; others that came in meanwhile are not counted."""
    tier: str
    """Where they were before."""
    reason: Reason
    """Why fewer are reused than are known."""


class Waiting:
    """A generation with what its session begins from."""

    def __init__(
        self,
        generation: Generation,
        prompt: npt.NDArray[np.int32],
        namespace: str,
        checkpoints: frozenset[int] = frozenset(),
        alone: bool = False,
        told: PromptLogprobs | None = None,
    ) -> None:
        self.generation = generation
        self.prompt = prompt
        self.namespace = namespace
        self.checkpoints = checkpoints
        self.alone = alone  # it reuses nothing, and nothing of it is kept
        self.told = told  # what the model gives the prompt's tokens, where that was asked for
        self.beginning: Beginning | None = None  # of its first session
        self.taken = False  # by its batch
        self.computed = 0  # rows of the prompt; more than it has where room had to be given back

    def note_beginning(self) -> None:
        """REQUIRES: a session that has just begun."""
        if self.beginning is None:
            session = self.generation.live
            self.beginning = Beginning(session.matched, session.reused, session.tier, session.reason)

    @property
    def reused(self) -> int:
        """Tokens of the prompt that were not computed for it: found at its beginning, or computed by another one."""
        return max(0, len(self.prompt) - self.computed)

    @property
    def uncomputed(self) -> int:
        """Tokens of the prompt that are not there yet; all of them until it has begun."""
        if self.generation.finish_reason is not None:
            return 0
        session = self.generation.session
        return len(self.prompt) if session is None else max(0, len(self.prompt) - session.length)

    def tokens(self) -> npt.NDArray[np.int32]:
        """All that a session of it begins with: after it had to give its room back, what was generated, too."""
        return np.concatenate([self.prompt, np.asarray(self.generation.tokens, np.int32)])

    @property
    def in_prompt(self) -> bool:
        """Whether it has more to compute than the token that was chosen last. REQUIRES: a session."""
        session = self.generation.live
        return session.recorded - session.length > 1

    @property
    def to_checkpoint(self) -> int:
        """Rows up to the next length where it keeps a restore point; 0 where none is ahead. REQUIRES: a session."""
        if not self.checkpoints:
            return 0
        now = int(self.generation.live.length)
        return min((length - now for length in self.checkpoints if length > now), default=0)


def leading(pending: Sequence[Waiting]) -> list[Waiting]:
    """Those that take part in a step: all but those that would compute what another one is about to compute.

    Of two that share a prefix the one that is further leads, of two as far the first. The other one waits until what
    they share is there, then goes on from it. A leader never waits for whoever waits for it, so somebody takes part.
    """
    lengths = [int(each.generation.live.length) for each in pending]
    texts = [each.tokens() if each.in_prompt and not each.alone else None for each in pending]

    def waits_for(at: int, other: int) -> bool:
        text, ahead = texts[at], texts[other]
        if text is None or ahead is None or pending[at].namespace != pending[other].namespace:
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
