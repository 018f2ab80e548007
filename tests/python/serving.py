"""A real server on a port of its own, in a thread of the test's process."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kvtrie as kv
from kvtrie.serve.app import create_app
from kvtrie.serve.server import Server
from kvtrie.serve.settings import Settings
from processes import PATIENCE

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny"


class Served:
    """``url``: without a slash at the end. ``engine``: what is behind the routes."""

    def __init__(self, app: Any) -> None:
        self.engine = app.state.engine
        self._server = Server(app, log_level="error")
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def served(model: Any, *, context: int = 1024, capacity: int = 4096, **options: Any) -> Iterator[Served]:
    """``options``: of ``Settings``, and ``cache``."""
    cache = options.pop("cache", None) or kv.PrefixCache(
        model.caches(capacity=capacity), fingerprint=model.fingerprint, host_bytes=1 << 26
    )
    server = Served(create_app(model, cache, "tiny", Settings(context, **options)))
    try:
        yield server
    finally:
        server.close()
