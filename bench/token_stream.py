"""Token ids from the stream of an answer over HTTP, and when each came.

Streams are server-sent events, one JSON object each. ``tokens_of`` gives the ids of one: servers differ in where they
have them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class TokenStream:
    """``times``: of ``time.perf_counter``, one for each event that had tokens. ``last``: the last event."""

    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)


def read(lines: Iterable[bytes], tokens_of: Callable[[dict[str, Any]], Iterable[int]], count: int) -> TokenStream:
    """The whole stream. Raises RuntimeError where it has not ``count`` tokens."""
    stream = TokenStream()
    for line in lines:
        if not line.startswith(b"data: {"):
            continue
        stream.last = json.loads(line[6:])
        found = list(tokens_of(stream.last))
        if found:
            stream.times.append(time.perf_counter())
            stream.tokens += found
    if len(stream.tokens) != count:
        raise RuntimeError(f"[token_stream] got {len(stream.tokens)} of {count} tokens; last event {stream.last}")
    return stream


def of_choices(event: dict[str, Any]) -> list[int]:
    """As ``kvtrie serve`` has them, where ``return_token_ids`` asks for them."""
    return [token for choice in event.get("choices", ()) for token in choice["token_ids"]]


def of_llama(event: dict[str, Any]) -> list[int]:
    """As llama.cpp's ``/completion`` has them, where ``return_tokens`` asks for them."""
    return list(event.get("tokens", ()))
