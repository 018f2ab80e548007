"""Bodies that arrive whole, in time and within limits, before anything looks at them.

A layer around the application: whoever sends half a request, or one byte in a minute, holds a socket and no more. JSON
is read and checked in the event loop, at a cost for each value, so there are limits for these, too. Commas within
strings separate no values; strings are told from the rest only where all of it together would be too much.
"""

from __future__ import annotations

import asyncio
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .failures import Refusal, error_response

_STRUCTURE = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{,]', re.S)


class WholeBodies:
    """``most``: bytes of a body. ``seconds``: from the request's head to the body's last byte. ``objects``: most
    objects and arrays in it; ``values``: most values that follow a comma."""

    def __init__(self, app: ASGIApp, *, most: int, seconds: float, objects: int, values: int) -> None:
        self._app, self._most, self._seconds = app, most, seconds
        self._objects, self._values = objects, values

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            body = await read_body(receive, self._most, self._seconds)
            if body is not None:
                await check_structure(body, self._objects, self._values)
        except Refusal as refusal:
            return await error_response(scope["path"], refusal)(scope, receive, send)
        if body is not None:  # None: the client left
            await self._app(scope, _replayed(body, receive), send)


async def read_body(receive: Receive, most: int, seconds: float) -> bytes | None:
    """The whole body; None where the client leaves before. Raises ``Refusal`` where it is too large or too slow."""
    try:
        return await asyncio.wait_for(_read(receive, most), seconds)
    except asyncio.TimeoutError:
        raise Refusal(408, f"the body did not arrive within {seconds:g} seconds") from None


async def _read(receive: Receive, most: int) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise Refusal(413, f"the body has more than {most} bytes", code="request_too_large")
        if not message.get("more_body", False):
            return b"".join(parts)


async def check_structure(body: bytes, objects: int, values: int) -> None:
    """Raises ``Refusal`` (413) for a body of more than so many objects and arrays, or values behind commas."""
    if body.count(b"{") + body.count(b"[") <= objects and body.count(b",") <= values:
        return
    found = await asyncio.to_thread(_structure, body, objects, values)
    for got, most, what in zip(found, (objects, values), ("objects and arrays", "values")):
        if got > most:
            raise Refusal(413, f"the body has more than {most} {what}", code="request_too_large")


def _structure(body: bytes, objects: int, values: int) -> tuple[int, int]:
    """Objects and arrays, and values behind commas, no further than to one too many. A thread's: it takes a while."""
    opened = behind = strings = 0
    for found in _STRUCTURE.finditer(body):
        first = body[found.start()]
        opened += first in b"[{"
        behind += first == 44  # a comma
        strings += first == 34
        if opened > objects or behind > values:
            break
        if strings > 2 * (objects + values):  # keys and values: it is no JSON
            return opened, values + 1
    return opened, behind


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body once, then what comes after it: that the client leaves."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
