"""A stream says something at once and all the time, however long its prompt takes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

import kvtrie as kv
from kvtrie.serve import streams
from processes import PATIENCE, wait_for
from serving import TINY, Served, served

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
LONG = "How many pages does a cache of this size have? " * 12


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "SILENCE", 0.05)
        with served(kv.models.load(TINY), temperature=0.0) as running:
            yield running


@contextmanager
def held(server: Served) -> Iterator[threading.Event]:
    """The second step of the model, and those behind it, begin once the event is set, as it is at the end."""
    kind, go, steps = server.engine.model.__class__, threading.Event(), iter(range(1 << 30))
    compute = kind.__call__

    def call(self: Any, step: Any, *rest: Any) -> Any:
        if next(steps):
            assert go.wait(PATIENCE)
        return compute(self, step, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "__call__", call)
        try:
            yield go
        finally:
            go.set()


def lines_of(server: Served, path: str, go: threading.Event, sign: str, signs: int = 3, **fields: Any) -> list[str]:
    """All lines of a stream; the model goes on once so many of them begin with ``sign``."""
    body = {"prompt": LONG} if path == TEXT else {"messages": [{"role": "user", "content": LONG}]}
    lines = []
    given = {**body, "max_tokens": 2, "stream": True, "cache_prompt": False, **fields}
    with httpx.stream("POST", server.url + path, json=given, timeout=PATIENCE) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            lines += [line] if line else []
            if sum(each.startswith(sign) for each in lines) == signs:
                go.set()
    return lines


@pytest.mark.parametrize("progress", [False, True])
def test_a_message_starts_at_once_and_pings_while_the_prompt_is_computed(server: Served, progress: bool) -> None:
    with held(server) as go:
        lines = lines_of(server, MESSAGES, go, "event: ping", return_progress=progress)
    assert lines[0] == "event: message_start"
    usage = json.loads(lines[1][6:])["message"]["usage"]
    pings = [json.loads(lines[at + 1][6:]) for at, line in enumerate(lines) if line == "event: ping"]
    assert len(pings) >= 3
    assert all(ping["type"] == "ping" for ping in pings)
    for ping in pings[:3]:
        assert ("prompt_progress" in ping) == progress
    if progress:
        steps = [ping["prompt_progress"] for ping in pings[:3]]
        assert {each["total"] for each in steps} == {usage["input_tokens"]}
        assert 0 <= steps[0]["processed"] <= steps[2]["processed"] < steps[2]["total"]
    assert lines[-2] == "event: message_stop"


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_the_other_api_has_comments(server: Served, path: str) -> None:
    with held(server) as go:
        lines = lines_of(server, path, go, ":")
    assert sum(line == ": working" for line in lines) >= 3
    assert all(line.startswith((": working", "data: ")) for line in lines)
    assert lines[-1] == "data: [DONE]"


def test_progress_of_the_other_api_is_in_chunks_without_choices(server: Served) -> None:
    with held(server) as go:
        lines = lines_of(server, CHAT, go, 'data: {"id"', 4, return_progress=True)
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    told = [chunk for chunk in chunks if "prompt_progress" in chunk]
    assert len(told) >= 3 and all(chunk["choices"] == [] for chunk in told)
    assert told[-1]["prompt_progress"]["processed"] < told[-1]["prompt_progress"]["total"]


def test_what_will_be_reused_stands_in_the_first_event(server: Served) -> None:
    body = {"messages": [{"role": "user", "content": "A question that comes again."}], "max_tokens": 1, "stream": True}
    firsts, lasts = [], []
    for _ in range(2):
        text = httpx.post(server.url + MESSAGES, json=body, timeout=PATIENCE).text
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        firsts.append(events[0]["message"]["usage"])
        lasts.append(next(each["usage"] for each in events if each["type"] == "message_delta"))
    assert firsts[1]["cache_read_input_tokens"] == lasts[1]["cache_read_input_tokens"] > 4
    assert firsts[1]["input_tokens"] == lasts[1]["input_tokens"]


def test_a_client_that_leaves_in_the_silence_ends_its_request(server: Served) -> None:
    body = {"prompt": LONG, "max_tokens": 2, "stream": True, "cache_prompt": False}
    before = server.engine.batcher.stats()["cancelled"]
    with held(server) as go:
        with httpx.stream("POST", server.url + TEXT, json=body, timeout=PATIENCE) as response:
            lines = response.iter_lines()
            assert next(lines) == ": working"
        wait_for(lambda: server.engine.journal.entries[-1].outcome == "cancelled")
        go.set()
    wait_for(lambda: server.engine.batcher.stats()["cancelled"] == before + 1)
    wait_for(server.is_idle)
    assert server.engine.cache.check() == []


# ---- alone -----------------------------------------------------------------------------------------------------------


def test_signs_come_only_where_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SILENCE", 0.001)

    async def run() -> list[bytes]:
        silent, said = asyncio.Event(), 0
        closed: list[bool] = []

        def sign() -> bytes:
            nonlocal said
            said += 1
            if said == 3:
                silent.set()
            return b"sign"

        async def parts() -> AsyncGenerator[bytes, None]:
            try:
                yield b"a"
                yield b"b"
                await silent.wait()
                yield b"c"
                raise OSError("broken")
            finally:
                closed.append(True)

        found: list[bytes] = []

        async def read() -> None:
            async for part in streams.kept_alive(parts(), sign):
                found.append(part)

        with pytest.raises(OSError, match="broken"):
            await read()
        assert closed == [True]
        return found

    found = asyncio.run(run())
    assert found[:2] == [b"a", b"b"] and found[-1] == b"c" and found[2:5] == [b"sign"] * 3


def test_a_stream_that_is_left_closes_its_parts() -> None:
    async def run() -> None:
        waits, closed = asyncio.Event(), asyncio.Event()

        async def parts() -> AsyncGenerator[bytes, None]:
            try:
                waits.set()
                await asyncio.Event().wait()
                yield b""
            finally:
                closed.set()

        async def read() -> None:
            async for _ in streams.kept_alive(parts(), lambda: b""):
                pass

        task = asyncio.create_task(read())
        await waits.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert closed.is_set()

    asyncio.run(run())
