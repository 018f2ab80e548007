"""The time that a chat template writes into a prompt, held still where that was asked for.

Concept. Some templates write today's date near the beginning, with ``strftime_now``. When it changes, nothing behind it
is found again, in the middle of a conversation, too. ``--freeze-clock`` holds it:

    conversation        each conversation keeps the time of its first request
    start               all keep the time at which the server began
    2026-11-27          all have this day; 2026-11-27T08:30 this minute

A conversation is known by its beginning, up to the first words of a user, as clients send all of it each time, and by
the namespace. So two that begin alike have one clock, and one whose beginning was changed or summarised is a new one.
A request of which nothing is to be kept has the time of its conversation, and is not remembered.
One that nobody went on with for a day is forgotten: its next request has the time that it is then. Clocks are in
memory, so after a restart a conversation begins a new one.

Bounded: ``MOST`` conversations, those that nobody asked for the longest go first; each is a digest and a time.
Units: seconds; times are local ones, without a zone, as templates write them. Threads: any.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import ArgumentError
from ..models.tokenizer import Tokenizer
from .asked_for import ONCE
from .json_values import JsonView

MOST = 10_000
FORGOTTEN = 86_400.0  # seconds after its last request
ADVICE = (
    "the chat template writes the time there, and it has changed; --freeze-clock conversation lets a conversation "
    "keep that of its first request"
)

Now = Callable[[], datetime.datetime]


def writes_time(tokenizer: Tokenizer) -> bool:
    """Whether its chat template may ask for it."""
    return any("strftime_now" in text for text in tokenizer.chat_templates.values())


class _Known(NamedTuple):
    began: datetime.datetime
    last: float  # request, of a clock that only goes on


class Clocks:
    """``frozen``: as ``--freeze-clock`` has it; None: templates write the time that it is.

    Raises ``kv.errors.ArgumentError`` for what is none of these."""

    def __init__(
        self, frozen: str | None = None, now: Now = datetime.datetime.now, ticks: Callable[[], float] = time.monotonic
    ) -> None:
        self._by_conversation = frozen == "conversation"
        self._fixed = None if frozen is None or self._by_conversation else _fixed(frozen, now)
        self._now, self._ticks = now, ticks
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._written: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()  # where the time goes on

    @property
    def runs(self) -> bool:
        """Whether the time may change within a conversation."""
        return self._fixed is None and not self._by_conversation

    def at(self, namespace: str, messages: Sequence[JsonView]) -> datetime.datetime:
        """The time for a prompt of these messages."""
        if self._fixed is not None or not self._by_conversation:
            return self._fixed or self._now()
        key, tick = _beginning(namespace, messages), self._ticks()
        with self._lock:
            known = self._known.get(key)
            began = known.began if known is not None and tick - known.last < FORGOTTEN else self._now()
            if ONCE in namespace:
                return began
            self._known[key] = _Known(began, tick)
            self._known.move_to_end(key)
            while len(self._known) > MOST:
                self._known.popitem(last=False)
        return began

    def has_changed(self, namespace: str, messages: Sequence[JsonView], times: tuple[str, ...]) -> bool:
        """Whether a conversation had other ``times`` in its last prompt. Remembers them."""
        if not self.runs or not times or ONCE in namespace:
            return False
        key = _beginning(namespace, messages)
        with self._lock:
            before = self._written.pop(key, times)
            self._written[key] = times
            while len(self._written) > MOST:
                self._written.popitem(last=False)
        return before != times


def _fixed(frozen: str, now: Now) -> datetime.datetime:
    if frozen == "start":
        return now()
    try:
        return datetime.datetime.fromisoformat(frozen)
    except ValueError as error:
        said = f"got {frozen[:100]!r}, allowed conversation, start, or a day such as 2026-11-27"
        raise ArgumentError(f"[serve] --freeze-clock: {said}") from error


def _beginning(namespace: str, messages: Sequence[JsonView]) -> bytes:
    """A digest of the messages up to the first of a user."""
    users = (at for at, message in enumerate(messages) if message.get("role") == "user")
    shown = [dict(message) for message in messages[: next(users, len(messages) - 1) + 1]]
    said = json.dumps([namespace.partition(ONCE)[0], shown], sort_keys=True, default=str)
    return hashlib.sha256(said.encode("utf-8", "replace")).digest()
