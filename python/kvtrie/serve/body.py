"""Bodies that arrive whole, in time and within a limit, before anything looks at them.

A layer around the application: whoever sends half a request, or one byte in a minute, holds a socket and no more.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .failures import Refusal, error_response


class WholeBodies:
    """``most``: bytes of a body. ``seconds``: from the request's head to the body's last byte."""

    def __init__(self, app: ASGIApp, *, most: int, seconds: float) -> None:
        self._app, self._most, self._seconds = app, most, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            body = await read_body(receive, self._most, self._seconds)
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
