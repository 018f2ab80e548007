"""The settings of a server. Times are in seconds, sizes in bytes, lengths in tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CONTEXT = 8192  # tokens, where the model takes more and nobody asks for more
CONVERSATIONS = 4  # of the longest, that the device has room for unless told


@dataclass(frozen=True)
class Settings:
    """``context``: the longest conversation, its answer included. ``max_tokens``: the longest answer where a request
    does not say. ``max_body``, ``body_seconds``: a request's body, and how long it may take to arrive;
    ``max_objects``: objects and arrays in it, ``max_values``: values that follow a comma, beside 16 for each token of
    the context; ``head_seconds``: how long a head may take.
    ``max_choices``: answers of one request (``n``).

    ``keys``: the namespace that each API key has; without any, all have the namespace "default". ``admin_key``: what
    the live page and ``/metrics`` ask for where there are keys; None: they are closed then.
    ``hosts``, ``origins``: by which names it may be reached where there are no keys, and from pages of which origins
    (visitors.py). ``volatile``: patterns of lines that are taken out of system messages, beside those that are known
    (volatile.py). ``ignored``: names of fields of requests that are ignored beside those of fields.py.
    ``freeze_clock``: how the time in chat templates is held still (clocks.py).
    ``kept_responses``: how many ``previous_response_id`` may go on from; ``responses``: the file that has them, or None
    for memory (responses_store.py). ``draft``: the drafters of all answers, in the order in which they are asked
    (docs/drafts.md).
    """

    context: int
    max_tokens: int = 4096
    temperature: float = 1.0
    max_sessions: int = 8
    max_waiting: int = 64
    max_body: int = 16 << 20
    body_seconds: float = 30.0
    max_objects: int = 1 << 15
    max_values: int = 1 << 17
    head_seconds: float = 10.0
    max_choices: int = 16
    keys: Mapping[str, str] = field(default_factory=dict)
    admin_key: str | None = None
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    origins: tuple[str, ...] = ()
    volatile: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    freeze_clock: str | None = None
    kept_responses: int = 10_000
    responses: Path | None = None
    draft: tuple[str, ...] = ()
