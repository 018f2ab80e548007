"""The outcome of the last requests, for the live page, and sums for /metrics.

An exception may come between any two statements. So an entry is known from one assignment on (``begin``) and ends by
one (``end``), or was refused (``refuse``), and the counts follow from that: ``_books`` has what was counted with the
entries that were not, so nothing is counted twice or left out. An entry whose request nobody has any more was
cancelled: whoever answered it never got to say so.

Threads: the event loop's only, but that any may read the sums. Bounded: ``KEPT`` requests. Times in seconds, lengths in
tokens.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple, Optional, Protocol

from ..request import Request
from .json_values import JsonObject

KEPT = 200
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # of times to the first token
_RUNNING = "running"
_PLACES = {"device": "the device", "host": "host memory", "disk": "disk", "store": "the store"}
_HIDDEN = ("started", "request")  # fields that no page sees


@dataclass
class Entry:
    """One answer, from its first moment on. ``began``: of the wall clock. ``outcome``: "running", "stop", "length",
    "tool_calls", "cancelled", "failed", "refused". ``why``: in lines, what ``explain`` said
    before it began; where nobody watched, what the cache had then; or why it was refused."""

    number: int
    api: str
    namespace: str
    prompt_tokens: int
    began: float = field(default_factory=time.time)
    reused: int = 0
    generated: int = 0
    seconds_to_first: float | None = None
    seconds: float | None = None
    outcome: str = _RUNNING
    why: str = ""
    started: float = field(default_factory=time.perf_counter, repr=False)  # by a clock that never jumps
    request: Optional[weakref.ref[Request[int]]] = field(default=None, repr=False)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.outcome == _RUNNING

    def end(self, outcome: str, reused: int = 0, generated: int = 0) -> None:
        """Nothing where it has ended."""
        if self.running:
            seconds = time.perf_counter() - self.started
            self.reused, self.generated, self.seconds, self.outcome = reused, generated, seconds, outcome

    def end_if_lost(self) -> None:
        """Where nobody has its request any more."""
        if self.running and self.request is not None and self.request() is None:
            self.end("cancelled")

    def as_dict(self) -> JsonObject:
        """For JSON."""
        return {name: value for name, value in vars(self).items() if name not in _HIDDEN}


def beginning_text(request: Request[int]) -> str:
    """The known part of its prompt, in lines; "" where it was never begun. The tree is not looked at."""
    found, total = request.beginning, request.prompt_tokens
    if found is None:
        return ""
    where = f" from {_PLACES.get(found.tier, found.tier)}" if found.reused else ""
    lines = [f"{found.matched:,} of {total:,} prompt tokens were known, {found.reused:,} were reused{where}"]
    if found.reason:
        lines.append(found.reason.text)
    if request.reused > found.reused:
        lines.append(f"{request.reused - found.reused:,} more were computed by another request in the meantime")
    return "\n".join([*lines, "nobody was watching when it began, so nothing more was looked up in the tree"])


_answers: ContextVar[Optional[list[Entry]]] = ContextVar("answers", default=None)


@contextmanager
def watched_answers() -> Iterator[list[Entry]]:
    """The entries that begin within, in this task and those that it starts."""
    found: list[Entry] = []
    token = _answers.set(found)
    try:
        yield found
    finally:
        _answers.reset(token)


class Listener(Protocol):
    """The pages that look on."""

    def tell(self, entry: Entry) -> None:
        """It has begun, or changed."""


class Sums(NamedTuple):
    """Of all that have ended. ``first_tokens``: how many had theirs within each of ``BUCKETS``, and later, by none of
    the smaller ones; ``first_seconds``: until then, of all of them."""

    totals: Mapping[str, int]
    outcomes: Mapping[str, int]
    first_tokens: tuple[int, ...]
    first_seconds: float

    def including(self, entries: Iterable[Entry]) -> Sums:
        """With these, which have ended."""
        totals, outcomes, firsts, seconds = dict(self.totals), dict(self.outcomes), [*self.first_tokens], 0.0
        for entry in entries:
            totals["prompt_tokens"] += entry.prompt_tokens
            totals["reused_tokens"] += entry.reused
            totals["generated_tokens"] += entry.generated
            outcomes[entry.outcome] = outcomes.get(entry.outcome, 0) + 1
            first = entry.seconds_to_first
            if first is not None:
                firsts[next((at for at, most in enumerate(BUCKETS) if first <= most), len(BUCKETS))] += 1
                seconds += first
        return Sums(totals, outcomes, tuple(firsts), self.first_seconds + seconds)


_NOTHING = Sums(
    dict.fromkeys(("prompt_tokens", "reused_tokens", "generated_tokens"), 0), {}, (0,) * (len(BUCKETS) + 1), 0.0
)


class Journal:
    """The last entries, oldest first, and who wants to hear of them."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=KEPT)
        self._books: tuple[dict[int, Entry], Sums] = ({}, _NOTHING)  # what is not counted, by number, and what is
        self.refused: dict[int, int] = {}
        """How many were refused with each status of HTTP."""
        self.listeners: weakref.WeakSet[Listener] = weakref.WeakSet()  # people: explanations are made for them

    @property
    def entries(self) -> Sequence[Entry]:
        """The last ones."""
        self._find_lost()
        return self._entries

    @property
    def sums(self) -> Sums:
        """As they are now. Any thread."""
        self._find_lost()
        open_entries, sums = self._books
        return sums.including(entry for entry in list(open_entries.values()) if not entry.running)

    @property
    def totals(self) -> Mapping[str, int]:
        """Tokens of all that have ended."""
        return self.sums.totals

    @property
    def outcomes(self) -> Mapping[str, int]:
        """How many ended in which way."""
        return self.sums.outcomes

    def begin(self, api: str, namespace: str, request: Request[int], why: str = "") -> Entry:
        """A request that begins now."""
        open_entries, sums = self._books
        number = 1 + sum(sums.outcomes.values()) + len(open_entries)
        entry = Entry(number, api, namespace, request.prompt_tokens, why=why, request=weakref.ref(request))
        open_entries[number] = entry
        self._entries.append(entry)
        watched = _answers.get()
        if watched is not None:
            watched.append(entry)
        self._tell(entry)
        return entry

    def refuse(self, status: int, api: str, why: str) -> None:
        """Counts a request that was refused before its answer began; shown where it has an ``api``."""
        self.refused = {**self.refused, status: self.refused.get(status, 0) + 1}
        if not api:
            return
        open_entries, sums = self._books
        number = 1 + sum(sums.outcomes.values()) + len(open_entries)
        entry = Entry(number, api, "", 0, seconds=0.0, outcome="refused", why=why)
        self._books = (open_entries, sums.including([entry]))
        self._entries.append(entry)
        self._tell(entry)

    def end(self, entry: Entry, outcome: str, reused: int, generated: int) -> None:
        """Counts it; once."""
        entry.end(outcome, reused, generated)
        self._find_lost()
        open_entries, sums = self._books
        ended = {number: each for number, each in open_entries.items() if not each.running}
        left = {number: each for number, each in open_entries.items() if number not in ended}
        self._books = (left, sums.including(ended.values()))
        for each in ended.values():
            self._tell(each)

    def give_up(self, request: Request[int]) -> None:
        """Ends the entry of a request that nobody will answer, where it has one."""
        for entry in list(self._books[0].values()):
            if entry.request is not None and entry.request() is request:
                self.end(entry, "failed", 0, 0)

    def _find_lost(self) -> None:
        for entry in list(self._books[0].values()):
            entry.end_if_lost()

    def _tell(self, entry: Entry) -> None:
        for listener in list(self.listeners):
            listener.tell(entry)
