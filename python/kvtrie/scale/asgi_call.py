"""One HTTP request as a value, and an application's answer to it as a stream of values: how both travel between
processes.

    Call  --answered(app, call)-->  Head, bytes, bytes, ...

Ends: who stops reading (a cancelled task, a closed generator) is a client that left, which the application is told; its
task is waited for. What the application raises before its head comes out of the generator. Threads: one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Union

from starlette.types import ASGIApp, Message, Scope

_AHEAD = 16  # messages that an application may be in front of its reader


@dataclass(frozen=True)
class Call:
    """``headers``: in lower case, as they came. ``prompt``: its prompt as text, which Ray's own prefix router reads;
    ``tokens``, ``fingerprints``: of the prompt, for ours (routing.py)."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    prompt: str = ""
    tokens: int = 0
    fingerprints: tuple[int, ...] = ()


@dataclass(frozen=True)
class Head:
    """How an answer begins."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]


Answer = AsyncIterator[Union[Head, bytes]]


async def answered(app: ASGIApp, call: Call) -> Answer:
    """The application's answer: its head, then its body as it comes."""
    queue: asyncio.Queue[Message | None] = asyncio.Queue(_AHEAD)
    given, gone = asyncio.Event(), asyncio.Event()

    async def receive() -> Message:
        if not given.is_set():
            given.set()
            return {"type": "http.request", "body": call.body, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message | None) -> None:
        if gone.is_set() and message is not None:
            raise OSError("the client has left")  # as the specification has it from 2.4 on
        if not gone.is_set():
            await queue.put(message)

    async def run() -> None:
        try:
            await app(_scope(call), receive, send)
        finally:
            await send(None)

    task = asyncio.create_task(run())
    try:
        while (message := await queue.get()) is not None:
            if message["type"] == "http.response.start":
                yield Head(message["status"], tuple(message.get("headers", ())))
            elif message.get("body"):
                yield message["body"]
        await task
    finally:
        gone.set()
        while not queue.empty():  # whoever waits to put something goes on
            queue.get_nowait()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # seen: the reader has left, or has it already


def _scope(call: Call) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},  # so that whoever streams listens for who leaves
        "http_version": "1.1",
        "method": call.method,
        "scheme": "http",
        "path": call.path,
        "raw_path": call.path.encode(),
        "root_path": "",
        "query_string": call.query,
        "headers": list(call.headers),
        "client": None,
        "server": None,
        "state": {},
    }
