"""Heads of requests that arrive within a limit and in time; what is no HTTP is refused as the APIs refuse.

Nobody needs a key to send a head, so without limits memory and sockets were anybody's: uvicorn's protocol on httptools
holds whatever comes, and both wait for ever. Bytes are handed on in pieces, so that no more than ``MOST`` of a head are
held, or twice that where it began in the piece that another request ended in.

A refused client may still be writing. Its bytes are dropped for ``_LINGER`` seconds, ``_MOST_DROPPED`` at most, or the
system would reset the connection and take the answer with it.

Threads: the event loop's only. Units: bytes, seconds.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Optional

from uvicorn.protocols.http.h11_impl import H11Protocol

from .failures import Refusal, error_object

MOST = 64 << 10
SECONDS = 10.0

_LINGER = 1.0
_MOST_DROPPED = 1 << 20
_PHRASES = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}

if TYPE_CHECKING:
    _Base = H11Protocol
else:
    _Base = object


class _Limited(_Base):
    """On top of one of uvicorn's protocols. ``seconds``: from a head's first byte, or the connection, to its last."""

    seconds = SECONDS
    _seen = 0  # bytes of the head
    _refused = False
    _dropped = 0  # bytes since then
    _timer: Optional[asyncio.TimerHandle] = None

    def _awaits_head(self) -> bool:
        raise NotImplementedError

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        at = 0
        if self._refused:
            self._drop(len(data))
        while at < len(data) and not self._refused and not self.transport.is_closing():
            piece, before = data[at : at + MOST - self._seen], self.cycle
            at += len(piece)
            super().data_received(piece)
            if self.cycle is not before or not self._awaits_head():
                self._seen = 0
                self._stop_waiting()
            else:
                self._count(len(piece))

    def _drop(self, received: int) -> None:
        """The bytes that come after a refusal."""
        self._dropped += received
        if self._dropped > _MOST_DROPPED:
            self.transport.abort()

    def _count(self, received: int) -> None:
        """Bytes of a head that has not ended."""
        self._seen += received
        if self._seen >= MOST:
            return self._refuse(431, f"the head has {MOST} bytes or more, allowed fewer")
        if self._at_rest():
            self._wait()

    def _at_rest(self) -> bool:
        """Whether no answer is under way."""
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        if self._timer is None and not self._refused:
            self._timer = self.loop.call_later(self.seconds, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._refuse(408, f"the head did not arrive within {self.seconds:g} seconds")

    def send_400_response(self, msg: str) -> None:
        """uvicorn's answer where it finds no HTTP."""
        self._refuse(400, f"this is no request of HTTP/1.1: {msg}")

    def _refuse(self, status: int, message: str) -> None:
        """Unless an answer is under way, which another answer would end up in."""
        self._stop_waiting()
        self._refused = True
        if self.transport.is_closing():
            return
        if self._at_rest():
            self.transport.write(_answer(status, message))
            if self.transport.can_write_eof():
                self.transport.write_eof()
        self.loop.call_later(_LINGER, self.transport.abort)


def _answer(status: int, message: str) -> bytes:
    body = json.dumps(error_object("/", Refusal(status, message))).encode()
    head = (
        f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


class OnH11(_Limited, H11Protocol):
    """Without httptools."""

    def _awaits_head(self) -> bool:
        import h11

        return self.conn.their_state is h11.IDLE


def on_httptools() -> Optional[type[asyncio.Protocol]]:
    """The same with httptools; None where that is not installed."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return None

    class OnHttpTools(_Limited, HttpToolsProtocol):  # type: ignore[misc]
        _awaits = True

        def _awaits_head(self) -> bool:
            return self._awaits

        def on_headers_complete(self) -> None:
            self._awaits = False
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._awaits = True
            super().on_message_complete()

    return OnHttpTools


def protocol(seconds: float = SECONDS) -> type[asyncio.Protocol]:
    """For uvicorn's ``http``: the quicker one of those that are there."""
    return type("Limited", (on_httptools() or OnH11,), {"seconds": seconds})
