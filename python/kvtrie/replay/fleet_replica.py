"""One replica of a simulated fleet: its memory, its queue, and what it says about itself.

Its memory is a ``Replay``: a real prefix cache without bytes. Requests wait in the order of their arrival. One prompt
at a time is computed, at a rate; then its answer is decoded beside others, each token in the same time however many
there are, up to a number of sessions:

    waiting: c, d     computing: b  [==fetch==|====compute====]     decoding: a  [............]
                                                              ^ first token of b

A prompt is known to the memory from when its computation starts: nothing else on this replica is computed before it is
done. So is its answer, a little early. What is decoded takes no memory of its own.

Units: cells (fleet_trace.py) in the memory, tokens and seconds elsewhere.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .. import _core
from ..ray.scale.routing import Replica, matched
from ..ray.scale.summaries import short
from .fleet_trace import Arrival, Cells

_HEAD_BYTES = 24  # of a summary: its version, tokens that wait, requests
_FINGERPRINT_BYTES = 4  # scale/summaries.py


@dataclass
class Job:
    """A request on its way. ``number``: counts them; ``router``: that sent it. ``new``: tokens that it seemed to have
    to compute when it came; ``first_token``: when that came, None before."""

    arrival: Arrival
    number: int
    router: int
    new: int = 0
    first_token: float | None = None


@dataclass(frozen=True)
class Memory:
    """The memory of each replica: ``cells``, and which victim goes first."""

    cells: int
    policy: str
    kinds: Cells


@dataclass
class Asked:
    """Totals in tokens: ``requested`` of all prompts that were begun here, of which ``reused`` and ``fetched`` were not
    computed; ``seconds`` of computing and fetching."""

    requested: int = 0
    reused: int = 0
    fetched: int = 0
    seconds: float = 0.0


class SimulatedReplica:
    """``view``: what routers know of it. ``life``: counts its failures; what was planned in an earlier one is void."""

    def __init__(self, number: int, memory: Memory) -> None:
        self._memory = memory
        self.number = number
        self.asked = Asked()
        self.life = -1
        self.longest = 0
        self.restart()

    def restart(self) -> list[Job]:
        """Empty, as after a failure; the jobs that were here."""
        lost = [*self._active.values(), *self.queue] if self.life >= 0 else []
        self.life += 1
        self._replay = _core.Replay(self._memory.cells, self._memory.policy, self._memory.kinds.whole)
        self.queue: deque[Job] = deque()
        self.computing = False
        self._active: dict[int, Job] = {}
        self._until = 0.0  # when what is computed now will be done
        self._queued_new = 0
        self._changed = True
        self.view: Replica[int] = Replica(self.number, version=self.life << 32)
        return lost

    def enqueue(self, job: Job) -> None:
        job.new = job.arrival.prompt.tokens - matched(job.arrival.prompt, self.view.known)
        self.queue.append(job)
        self._queued_new += job.new
        self._count()

    def next_job(self, sessions: int) -> Job | None:
        """The one to be computed now, if any is."""
        if self.computing or not self.queue or len(self._active) >= sessions:
            return None
        job = self.queue.popleft()
        self._queued_new -= job.new
        self._active[job.number] = job
        self.computing = True
        return job

    def reuse(self, job: Job, now: float) -> int:
        """Tokens of its prompt that are known here; it is, from now on."""
        arrival = job.arrival
        _, _, cells = self._replay.serve(arrival.cells, arrival.output, arrival.namespace, now)
        self._changed = True
        return self._memory.kinds.tokens(cells)

    def busy(self, until: float) -> None:
        self._until = until

    def finish(self, job: Job) -> None:
        del self._active[job.number]
        self._count()

    def tell(self, now: float, rate: float, size: int) -> tuple[frozenset[int], int]:
        """Makes a summary of at most ``size`` fingerprints for ``view``; the one before, and the new one's bytes."""
        before = self.view.known
        if self._changed and size:
            self.view.known = frozenset(short(self._replay.summary(size)).tolist())
            self._changed = False
        running = (self._until - now) * rate if self.computing else 0
        self.view.waiting = self._queued_new + max(0, int(running))
        self.view.version += 1
        return before, _HEAD_BYTES + _FINGERPRINT_BYTES * len(self.view.known)

    def _count(self) -> None:
        self.view.requests = len(self.queue) + len(self._active)


@dataclass
class Totals:
    """The counts of one run, beside those of each replica. ``waits``: seconds to each first token."""

    arrived: int = 0
    answered: int = 0
    failures: int = 0
    rerouted: int = 0
    summary_bytes: int = 0
    longest: int = 0
    waits: list[float] = field(default_factory=list)
