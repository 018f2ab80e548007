"""Answers as server-sent events, and what happens to them when the client leaves.

A client that leaves cancels the task that works for it, which cancels its requests; they end at the next step, and
what they computed stays in the cache.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Optional

from fastapi import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from .answer import Answer, Piece
from .failures import error_object, refusal_of

_CLOSED = 499  # as nginx calls a request whose client left; nobody reads it


def event(value: object, name: str | None = None) -> bytes:
    """One event with JSON in it."""
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode("utf-8", "replace")


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

    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    response = _Events(guarded(), media_type="text/event-stream", headers=headers)
    response.answers = answers
    return response


async def merged(answers: Sequence[Answer]) -> AsyncIterator[tuple[int, Optional[Piece]]]:
    """Pieces of several answers as they come, with the answer's number; None where one has ended."""
    queue: asyncio.Queue[tuple[int, Optional[Piece], Optional[BaseException]]] = asyncio.Queue()

    async def read(number: int, answer: Answer) -> None:
        try:
            async for piece in answer:
                queue.put_nowait((number, piece, None))
            queue.put_nowait((number, None, None))
        except Exception as error:
            queue.put_nowait((number, None, error))

    readers = [asyncio.create_task(read(number, answer)) for number, answer in enumerate(answers)]
    try:
        left = len(answers)
        while left:
            number, piece, error = await queue.get()
            if error is not None:
                raise error
            left -= piece is None
            yield number, piece
    finally:
        for reader, answer in zip(readers, answers):
            reader.cancel()
            answer.cancel()


async def until_gone(request: Request, work: Coroutine[object, object, Response]) -> Response:
    """The response, unless the client leaves before it is there."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return Response(status_code=_CLOSED)
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
