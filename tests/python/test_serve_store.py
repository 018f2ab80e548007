"""Servers that share a store: what one answered another does not compute, and a store that stalls has its deadline."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from processes import PATIENCE
from redis_server import RedisServer
from serving import Process

QUESTION: dict[str, Any] = {
    "messages": [{"role": "user", "content": " ".join(f"word{at}" for at in range(120))}],
    "max_tokens": 6,
    "temperature": 0,
}


def cached(server: Process) -> tuple[int, int, str]:
    """Of one answer: tokens of its prompt, those that were known, its text."""
    answer = server.post("/v1/chat/completions", QUESTION)
    usage = answer["usage"]
    known = usage["prompt_tokens_details"]["cached_tokens"]
    return usage["prompt_tokens"], known, answer["choices"][0]["message"]["content"]


def started(url: str, *arguments: str) -> Process:
    return Process("--disk", "none", "--context", "2048", "--store", url, *arguments)


@pytest.mark.ci
def test_servers_share_a_store_and_wait_for_it_no_longer_than_they_are_told(server: RedisServer) -> None:
    url = server.url(f"timeout={PATIENCE}&retries=5")
    first = started(url)
    tokens, known, said = cached(first)
    assert (tokens > 256, known) == (True, 0)
    assert first.post("/flush") == {"saved": True}
    second = started(url, "--store-deadline", str(PATIENCE))
    assert cached(second) == (tokens, tokens - 1, said)
    third = started(url, "--store-deadline", "0.3")
    server.freeze()
    start = time.monotonic()
    assert cached(third) == (tokens, 0, said)
    assert time.monotonic() - start < PATIENCE / 2, "not when the store's own time is over"
    server.thaw()
    for each in (first, second, third):
        assert each.end(signal.SIGTERM) in (0, -signal.SIGTERM)
