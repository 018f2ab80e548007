"""What became of the last requests, for the live page, and sums for /metrics.

Threads: the event loop's only. Bounded: ``KEPT`` requests. Times in seconds, lengths in tokens.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .json_values import JsonObject

KEPT = 200


@dataclass
class Entry:
    """One answer, from its first moment on. ``began``: of the wall clock. ``outcome``: "running", "stop", "length",
    "tool_calls", "cancelled", "failed". ``why``: what ``explain`` said before it began, in lines; "" unless asked."""

    number: int
    api: str
    namespace: str
    prompt_tokens: int
    began: float = field(default_factory=time.time)
    reused: int = 0
    generated: int = 0
    seconds_to_first: float | None = None
    seconds: float | None = None
    outcome: str = "running"
    why: str = ""
    started: float = field(default_factory=time.perf_counter, repr=False)  # by a clock that never jumps

    def as_dict(self) -> JsonObject:
        """For JSON."""
        return {name: value for name, value in vars(self).items() if name != "started"}


class Journal:
    """The last entries, oldest first, and who wants to hear of them."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque(maxlen=KEPT)
        self.totals = {"prompt_tokens": 0, "reused_tokens": 0, "generated_tokens": 0}
        self.outcomes: dict[str, int] = {}
        self.listeners: set[Callable[[Entry], None]] = set()  # people who look on: explanations are made for them
        self.observers: list[Callable[[Entry], None]] = []  # as long as the server lives
        self._numbers = itertools.count(1)

    def begin(self, api: str, namespace: str, prompt_tokens: int) -> Entry:
        """A request that begins now."""
        entry = Entry(next(self._numbers), api, namespace, prompt_tokens)
        self.entries.append(entry)
        self._tell(entry)
        return entry

    def end(self, entry: Entry, outcome: str) -> None:
        """Counts it; once."""
        entry.outcome = outcome
        entry.seconds = time.perf_counter() - entry.started
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self.totals["prompt_tokens"] += entry.prompt_tokens
        self.totals["reused_tokens"] += entry.reused
        self.totals["generated_tokens"] += entry.generated
        self._tell(entry)

    def _tell(self, entry: Entry) -> None:
        for listener in [*self.observers, *self.listeners]:
            listener(entry)
