"""A real server on a port of its own: in a thread of the test's process, or as a person starts it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

import kvtrie as kv
from kvtrie.models.tokenizer import Tokenizer
from kvtrie.serve.app import create_app
from kvtrie.serve.server import Server
from kvtrie.serve.settings import Settings
from processes import PATIENCE

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny"


def tiny_model(chat_template: str) -> Any:
    """The small model with another chat template."""
    model = kv.models.load(TINY)
    own = model.tokenizer
    model.tokenizer = Tokenizer(own.raw, special=own.special, chat_template=chat_template)
    return model


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

    def is_idle(self) -> bool:
        """Whether nobody is connected, and nothing that was asked for is under way."""
        state = self._server.server_state
        if state.connections or state.tasks:
            return False
        counts = self.engine.batcher.stats()  # after those who might ask for more
        return counts["active"] + counts["waiting"] == 0

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


class Process:
    """`python -m kvtrie serve` as a person starts it. ``said``: its first lines; ``rest``: those behind them."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "kvtrie", "serve", "tiny", "--port", "0", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment},
        )  # fmt: skip
        self.said: list[str] = []
        self.rest: list[str] = []
        self.url = ""
        self._running = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)  # all of it: the server never waits
        self._reader.start()
        assert self._running.wait(PATIENCE) and self.url, "".join(self.said)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            (self.rest if self.url else self.said).append(line)
            if not self.url:
                found = re.search(r"running on (http://[\w.:]+)", line)
                self.url = found[1] if found else ""
            if self.url:
                self._running.set()
        self._running.set()

    def post(self, path: str, body: Any = None) -> Any:
        response = httpx.post(self.url + path, json=body, timeout=PATIENCE)
        assert response.status_code == 200, response.text
        return response.json()

    def end(self, how: int) -> int:
        self._process.send_signal(how)
        code = self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


def serve(*arguments: str, **environment: str) -> Any:
    """One that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "kvtrie", "serve", "tiny", "--port", "0", *arguments],
        capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, **environment},
    )  # fmt: skip
