"""uvicorn, which lets go of the live page's watchers first when it ends, and keeps keys out of its log."""

from __future__ import annotations

import logging
import socket
from typing import Optional

import uvicorn
from fastapi import FastAPI

_GRACE = 5  # seconds for requests that are under way


class Server(uvicorn.Server):
    """Serves one application until SIGINT or SIGTERM, or ``should_exit``."""

    def __init__(self, app: FastAPI, *, host: str = "127.0.0.1", port: int = 8080, log_level: str = "info") -> None:
        super().__init__(
            uvicorn.Config(app, host=host, port=port, log_level=log_level, timeout_graceful_shutdown=_GRACE)
        )
        self._watch = app.state.watch
        logging.getLogger("uvicorn.access").addFilter(_without_queries)

    async def shutdown(self, sockets: Optional[list[socket.socket]] = None) -> None:
        """An open page would be waited for."""
        self._watch.close()
        await super().shutdown(sockets)


def _without_queries(record: logging.LogRecord) -> bool:
    """An address may have the admin key in its query."""
    if isinstance(record.args, tuple) and len(record.args) > 2 and isinstance(record.args[2], str):
        record.args = (*record.args[:2], record.args[2].partition("?")[0], *record.args[3:])
    return True
