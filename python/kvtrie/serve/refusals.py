"""Requests that were refused, for the journal: in figures by their status, and on the live page with what was said.

A layer outside all others that can refuse. A request whose answers had begun is in the journal by how they ended, and
not here. Requests without a key are only counted: nobody without one is to push others' requests off the page.

Threads: the event loop's only.
"""

from __future__ import annotations

import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .journal import Journal, watched_answers
from .streams import CLOSED

_APIS = {"/v1/chat/completions": "chat", "/v1/completions": "completion", "/v1/messages": "messages"}
_WITHOUT_KEY = (401, 403)


class Refusals:
    """The layer. ``journal``: where they are noted."""

    def __init__(self, app: ASGIApp, *, journal: Journal) -> None:
        self._app, self._journal = app, journal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        api, status = _APIS.get(scope["path"], ""), 0
        with watched_answers() as answers:

            async def noting(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                elif status >= 400 and status != CLOSED and not answers:
                    shown = api if status not in _WITHOUT_KEY else ""
                    self._journal.refuse(status, shown, _words(message.get("body", b"")))
                    status = 0  # once
                await send(message)

            await self._app(scope, receive, noting)


def _words(body: bytes) -> str:
    """The message for the client."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""
