"""A real redis-server for one test, on loopback or on a host of network.py: a free port, its own folder, nothing on
disk, gone at the end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Optional

from processes import PATIENCE

BINARY = shutil.which("redis-server") or shutil.which("valkey-server")
SECRET = "s3cret-word"  # the password of the fixture's server


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def held_port(port: int = 0, address: str = "127.0.0.1") -> tuple[int, socket.socket]:
    """A port, by default a free one, that the system gives to nobody else while the socket is open, also when nobody
    listens on it. Servers can: they ask for SO_REUSEADDR as well. OSError where somebody has it."""
    with ExitStack() as unless_held:
        holder = unless_held.enter_context(socket.socket())
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((address, port))
        unless_held.pop_all()
    return int(holder.getsockname()[1]), holder


class PortTakenError(Exception):
    """Somebody else took the port between looking for a free one and listening on it."""


class RedisServer:
    """Started by ``start``, ended by ``kill``; the same port again after a restart, and nothing kept.

    ``address``: what it listens on; ``inside``: what goes in front of its command, for a host that has that address.
    """

    def __init__(
        self,
        folder: Path,
        password: Optional[str] = None,
        *settings: str,
        tls: bool = False,
        address: str = "127.0.0.1",
        inside: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.password = password
        self.settings = settings
        self.tls = tls
        self.address, self.inside = address, inside
        self.port = free_port()
        self.first: Optional[str] = None  # a file of settings
        self.says = "eady to accept connections"  # once it answers
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._held: Optional[int] = None  # the port that nobody else is given

    def url(self, options: str = "", password: Optional[str] = None) -> str:
        secret = self.password if password is None else password
        scheme = "rediss" if self.tls else "redis"
        place = f"{f':{secret}@' if secret else ''}{self.address}:{self.port}/0"
        return f"{scheme}://{place}{f'?{options}' if options else ''}"

    def start(self) -> None:
        assert BINARY is not None
        if not self.inside:
            self._hold_port()
        port = ["--port", "0", "--tls-port"] if self.tls else ["--port"]
        settings = ["--bind", self.address, *port, str(self.port), "--save", "", "--appendonly", "no"]
        settings += ["--dir", str(self.folder), "--requirepass", self.password or "", *self.settings]
        path = self.folder / "server.log"
        with path.open("wb") as log:
            command = [*self.inside, BINARY, *([self.first] if self.first else []), *settings]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            ended = self._process.poll() is not None
            said = path.read_text(encoding="utf-8", errors="replace")
            if self.says in said:  # a connection alone might be one to somebody else's server
                return
            if ended:
                self._process = None
                raise PortTakenError(said) if "Address already in use" in said else RuntimeError(said)
            time.sleep(0.01)
        self.kill()
        raise RuntimeError(path.read_text(encoding="utf-8", errors="replace"))

    def _hold_port(self) -> None:
        """Also while it is down. Where somebody has it already, the server will say so."""
        if self._held != self.port:
            with suppress(OSError):
                self._held, holder = held_port(self.port, self.address)
                weakref.finalize(self, holder.close)

    def freeze(self) -> None:
        """Keeps its connections and answers nothing, until ``thaw`` or ``kill``."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """As by ``kill -9``; nothing where it does not run."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(timeout=PATIENCE)
        self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()


def started(folder: Path, password: Optional[str] = None, *settings: str, **options: Any) -> RedisServer:
    """On a port that nobody else has; several tests may look for one at once."""
    while True:
        server = RedisServer(folder, password, *settings, **options)
        with suppress(PortTakenError):
            server.start()
            return server


@contextmanager
def running(folder: Path, password: Optional[str] = None, **options: Any) -> Iterator[RedisServer]:
    server = started(folder, password, **options)
    try:
        yield server
    finally:
        server.kill()
