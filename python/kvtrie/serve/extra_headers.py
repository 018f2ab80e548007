"""Headers that every answer of a server has: what a client cannot see in the answer itself.

    x-kvtrie-tools: system message      tools are described there, as the chat template knows none (generic_tools.py)

Threads: the event loop's only.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

DESCRIBED = {"x-kvtrie-tools": "system message"}


class ExtraHeaders:
    """A layer around the application."""

    def __init__(self, app: ASGIApp, *, headers: Mapping[str, str]) -> None:
        self._app, self._headers = app, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        await self._app(scope, receive, sent if scope["type"] == "http" else send)
