"""uvicorn with limits for heads (heads.py), which ends what is under way when it ends, and keeps keys out of its log.

Ends: the live page's watchers first, which would be waited for, then all requests. Each stream says so in one more
event. Streams that a slow client does not read in time are cut.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Optional

import uvicorn
from fastapi import FastAPI

from .heads import MOST, protocol

_GRACE = 5  # seconds for clients to hear how their requests end


class Server(uvicorn.Server):
    """Serves one application until SIGINT or SIGTERM, or ``should_exit``."""

    def __init__(self, app: FastAPI, *, host: str = "127.0.0.1", port: int = 8080, log_level: str = "info") -> None:
        self._watch, self._engine = app.state.watch, app.state.engine
        limited = protocol(self._engine.settings.head_seconds)
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                log_level=log_level,
                http=limited,
                timeout_graceful_shutdown=_GRACE,
                h11_max_incomplete_event_size=MOST + 1,
            )
        )
        logging.getLogger("uvicorn.access").addFilter(_without_queries)

    async def shutdown(self, sockets: Optional[list[socket.socket]] = None) -> None:
        """Ends watchers and requests, so that all that is left is to tell their clients."""
        self._watch.close()
        await asyncio.to_thread(self._engine.batcher.close)
        await super().shutdown(sockets)


def _without_queries(record: logging.LogRecord) -> bool:
    """An address may have the admin key in its query."""
    if isinstance(record.args, tuple) and len(record.args) > 2 and isinstance(record.args[2], str):
        record.args = (*record.args[:2], record.args[2].partition("?")[0], *record.args[3:])
    return True
