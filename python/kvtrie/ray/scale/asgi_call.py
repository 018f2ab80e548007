"""One HTTP request as a value, and an application's answer to it as a stream of values: how both travel between
processes.

    Call  --answered(app, call)-->  Head, bytes, bytes, ...

Ends: who stops reading (a cancelled task, a closed generator) is a client that left, which the application is told; its
task is waited for. An exception of the application comes out of the generator, and so does an end in the middle: an
answer that ends without an error is whole. Threads: one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Union

from starlette.types import ASGIApp, Message, Scope

from ...errors import ClosedError

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


Answer = AsyncGenerator[Union[Head, bytes], None]


async def answered(app: ASGIApp, call: Call) -> Answer:
    """The application's answer: its head, then its body as it comes.

    Raises what the application does, and ``kv.errors.ClosedError`` where it ended before its answer did: what was
    passed on is not the whole of it then. An application whose reader is gone is told, and cancelled where nobody waits
    for it.
    """
    exchange = _Exchange(call)
    task: asyncio.Task[None] | None = None
    reader = _Reader()
    try:
        task = exchange.begun(app, reader)
        while (message := await exchange.next(task)) is not None:
            if message["type"] == "http.response.start":
                yield Head(message["status"], tuple(message.get("headers", ())))
            elif message.get("body"):
                yield message["body"]
        await task
        if not exchange.whole:
            raise ClosedError("[scale] answer: the application ended in the middle of it")
    finally:
        exchange.leave()
        if task is not None:
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # seen: the reader has left, or has it already


class _Reader:
    """The reader of an answer, for as long as it is there."""


class _Exchange:
    """The messages between an application and its reader."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._given, self._gone = asyncio.Event(), asyncio.Event()
        self._queue: asyncio.Queue[Message] = asyncio.Queue(_AHEAD)
        self.whole = False
        """Whether the last message was passed on."""

    def begun(self, app: ASGIApp, reader: _Reader) -> asyncio.Task[None]:
        """The application's task, which does not outlive ``reader`` for long."""
        task = asyncio.create_task(self._run(app))
        weakref.finalize(reader, _cancel, task, asyncio.get_running_loop()).atexit = False
        return task

    async def next(self, task: asyncio.Task[None]) -> Message | None:
        """None where the application's task has ended: it need not say so itself, which it may be kept from."""
        if self._queue.empty() and not task.done():
            coming = asyncio.create_task(self._queue.get())
            try:
                await asyncio.wait({coming, task}, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    return coming.result()
            finally:
                coming.cancel()
        return None if self._queue.empty() else self._queue.get_nowait()

    def leave(self) -> None:
        """Nobody reads any more."""
        self._gone.set()
        while not self._queue.empty():  # whoever waits to put something goes on
            self._queue.get_nowait()

    async def _run(self, app: ASGIApp) -> None:
        await app(_scope(self._call), self._receive, self._send)

    async def _receive(self) -> Message:
        if not self._given.is_set():
            self._given.set()
            return {"type": "http.request", "body": self._call.body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._gone.is_set():
            raise OSError("the client has left")  # as the specification has it from 2.4 on
        await self._queue.put(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.whole = True


def _cancel(task: asyncio.Task[None], loop: asyncio.AbstractEventLoop) -> None:
    """From any thread, in which the reader may have been collected."""
    if not task.done():
        with contextlib.suppress(RuntimeError):  # the loop was closed, and the task with it
            loop.call_soon_threadsafe(task.cancel)


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
