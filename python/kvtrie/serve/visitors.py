"""The names under which the server may be reached at all, and the origins of pages that may reach it.

A browser sends the name that it reached a server by as ``Host``. A page of another site can make its own name mean this
machine, and would then be taken for a page of the server; so without keys only known names are answered. A script of
another origin may read nothing unless the answer names that origin; before anything but the simplest request the
browser asks with ``OPTIONS`` (a preflight), without any key. Refusals are JSON and name the option that would allow it.

Source: the CORS protocol, fetch.spec.whatwg.org/#http-cors-protocol. Threads: the event loop's only.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .failures import Refusal, error_response

_SHOWN = 100  # characters of what a client sends
_METHODS = "GET, POST, DELETE, OPTIONS"
_DAY = "86400"  # seconds for which a browser need not ask again


class Visitors:
    """A layer around the application. ``hosts``: names that are answered, ``*.NAME`` for all below one, ``*`` for any;
    None: no name is looked at. ``origins``: as browsers write them (``http://localhost:3000``), ``*`` for any."""

    def __init__(self, app: ASGIApp, *, hosts: Sequence[str] | None, origins: Sequence[str]) -> None:
        self._app = app
        self._hosts = None if hosts is None else [each.lower() for each in hosts]
        self._origins = [each.lower().rstrip("/") for each in origins]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin", "")
        asks = scope["method"] == "OPTIONS" and bool(origin) and "access-control-request-method" in headers
        if not self._knows(host):
            refusal = Refusal(400, _unknown_host(host), code="unknown_host")
            return await error_response(scope["path"], refusal)(scope, receive, send)
        if not origin or not self._admits(origin):
            if not asks:
                return await self._app(scope, receive, send)
            refusal = Refusal(403, _unknown_origin(origin), code="unknown_origin")
            return await error_response(scope["path"], refusal)(scope, receive, send)
        if asks:
            return await _allowed(origin, headers)(scope, receive, send)
        await self._app(scope, receive, _naming(origin, send))

    def _knows(self, host: str) -> bool:
        if self._hosts is None:
            return True
        name = name_of(host)
        return any(_matches(name, pattern) for pattern in self._hosts)

    def _admits(self, origin: str) -> bool:
        return "*" in self._origins or origin.lower() in self._origins


def name_of(host: str) -> str:
    """The name in a ``Host``, without its port; an address of IPv6 with its brackets."""
    name = host.strip().lower()
    return name[: name.find("]") + 1] if name.startswith("[") else name.partition(":")[0].rstrip(".")


def _matches(name: str, pattern: str) -> bool:
    return pattern in ("*", name) or (pattern.startswith("*.") and name.endswith(pattern[1:]))


def _unknown_host(host: str) -> str:
    got = f"the name {name_of(host)[:_SHOWN]!r}" if host else "no name"
    return f"Host: got {got}, allowed those that the server was told: --allow-host NAME adds one"


def _unknown_origin(origin: str) -> str:
    return f"Origin: got {origin[:_SHOWN]!r}, allowed those that the server was told: --allow-origin ORIGIN adds one"


def _allowed(origin: str, headers: Headers) -> Response:
    """The answer to a preflight."""
    said = {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": _METHODS,
        "access-control-allow-headers": headers.get("access-control-request-headers", "*"),
        "access-control-max-age": _DAY,
        "vary": "origin",
    }
    if headers.get("access-control-request-private-network") == "true":
        said["access-control-allow-private-network"] = "true"
    return Response(status_code=204, headers=said)


def _naming(origin: str, send: Send) -> Send:
    """Sends answers that this origin's scripts may read."""

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["access-control-allow-origin"] = origin
            headers["access-control-expose-headers"] = "*"
            headers.add_vary_header("origin")
        await send(message)

    return named
