"""Answers as server-sent events, and what happens to them when the client leaves.

A client that leaves cancels the task that works for it, which cancels its requests; they end at the next step, and
what they computed stays in the cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from typing import Optional, TypeVar

from fastapi import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from .answer import Answer, Piece
from .failures import error_object, refusal_of
from .json_values import JsonObject
from .wire import json_bytes

_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
SILENCE = 1.0  # seconds; behind as many without an event there is a sign of life
COMMENT = b": working\n\n"  # what clients of server-sent events skip
T = TypeVar("T")
CLOSED = 499  # as nginx calls a request whose client left; nobody reads it


def event(value: object, name: str | None = None) -> bytes:
    """One event with JSON in it."""
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json_bytes(value) + b"\n\n"


class Answering:
    """A block that makes a response of answers: they end where it raises, as nobody else has them."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = answers

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for answer in self._answers:
                answer.cancel()


class _Events(StreamingResponse):
    """Ends its answers however it ends, also where it never began."""

    answers: Sequence[Answer] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            for answer in self.answers:
                answer.cancel()


def events(parts: AsyncIterator[bytes], answers: Sequence[Answer], path: str = "/v1/") -> StreamingResponse:
    """A response that is being made of ``answers``. An error on the way is one more event, as both APIs have it."""

    async def guarded() -> AsyncIterator[bytes]:
        try:
            async for part in parts:
                yield part
        except Exception as error:
            yield event(error_object(path, refusal_of(error)), "error" if path != "/v1/" else None)
        finally:
            await parts.aclose()  # type: ignore[attr-defined]  # all of them are generators

    response = _Events(guarded(), media_type="text/event-stream", headers=_HEADERS)
    response.answers = answers
    return response


def lines(parts: AsyncIterator[JsonObject], answers: Sequence[Answer]) -> StreamingResponse:
    """The same as lines of JSON, as Ollama's clients read them. An error on the way is the last line."""

    async def guarded() -> AsyncIterator[bytes]:
        try:
            async for part in parts:
                yield _line(part)
        except Exception as error:
            yield _line(error_object("/api/", refusal_of(error)))
        finally:
            await parts.aclose()  # type: ignore[attr-defined]  # as above

    response = _Events(guarded(), media_type="application/x-ndjson", headers=_HEADERS)
    response.answers = answers
    return response


def _line(value: JsonObject) -> bytes:
    return json_bytes(value) + b"\n"


async def kept_alive(parts: AsyncGenerator[bytes, None], sign: Callable[[], bytes]) -> AsyncIterator[bytes]:
    """The parts, and a sign of life after each ``SILENCE`` in which none came: what says nothing for long, proxies and
    clients take for dead, and ask again."""
    coming: asyncio.Task[Optional[bytes]] | None = None
    try:
        while True:
            coming = asyncio.create_task(_next(parts))
            while not (await asyncio.wait((coming,), timeout=SILENCE))[0]:
                yield sign()
            part = coming.result()
            if part is None:
                return
            yield part
    finally:
        if coming is not None and not coming.done():
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await parts.aclose()


def progress_of(answer: Answer) -> dict[str, int] | None:
    """How much of the prompt is known or computed, in tokens; None once it all is."""
    total, left = answer.prompt_tokens, answer.uncomputed
    return None if left <= 0 else {"total": total, "processed": total - left}


async def merged(answers: Sequence[Answer]) -> AsyncIterator[tuple[int, Optional[Piece]]]:
    """Pieces of several answers as they come, with the answer's number; None where one has ended.

    Tasks that read need not report how they end, which an exception could keep them from: they are looked at.
    """
    sources = [answer.__aiter__() for answer in answers]
    waiting: dict[asyncio.Task[Optional[Piece]], int] = {}
    try:
        if len(answers) == 1:  # the usual case, which needs no task for each piece
            async for piece in sources[0]:
                yield 0, piece
            yield 0, None
            return
        for number, source in enumerate(sources):
            waiting[asyncio.create_task(_next(source))] = number
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=waiting.__getitem__):
                number, found = waiting.pop(task), task.result()
                if found is not None:
                    waiting[asyncio.create_task(_next(sources[number]))] = number
                yield number, found
    finally:
        for task in waiting:
            task.cancel()
        for answer in answers:
            answer.cancel()


async def _next(source: AsyncIterator[T]) -> Optional[T]:
    """None: there is none."""
    try:
        return await source.__anext__()
    except StopAsyncIteration:
        return None


async def until_gone(request: Request, work: Coroutine[object, object, Response]) -> Response:
    """The response, unless the client leaves before it is there."""
    tasks: list[asyncio.Task[Response] | asyncio.Task[None]] = []
    try:
        task = asyncio.create_task(work)
        tasks.append(task)
        gone = asyncio.create_task(_gone(request))
        tasks.append(gone)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gone.result()  # raises where it failed: then the client may be there
        return Response(status_code=CLOSED)
    finally:
        for each in tasks:
            each.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
