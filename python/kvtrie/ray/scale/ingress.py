"""The HTTP front of the replicas: reads a request whole, has a replica answer it, and passes that on.

    read (serve/body.py) --> whose (serve/tenants.py) --> its key (prompt_keys.py) --> a replica (router.py) --> client

Which failures come to what:

    the replica goes before it began to answer     another one is asked, ``attempts`` times in all; then 503
    the stream has begun                            it ends with an error in the API's form (serve/failures.py)
    no replica has room, and too many wait          429, retry-after
    the client leaves                               the replica's request is cancelled at its next step

Nothing is answered twice: an answer is passed on from one replica only, once its first bytes are there.
Threads: one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Union

from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ...serve.body import read_body
from ...serve.failures import Refusal, error_object, error_response, is_anthropic, refusal_of
from ...serve.opening import ServeOptions
from ...serve.settings import Settings
from ...serve.streams import CLOSED, event
from ...serve.tenants import Tenants
from .asgi_call import Call, Head
from .prompt_keys import PromptKeys

_log = logging.getLogger("kvtrie.ray.scale")
_LOCAL = ("/", "/events", "/metrics", "/flush")  # of one server: which one would it be?
_HOP = (b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"proxy-connection")
_Parts = AsyncGenerator[Union[Head, bytes], None]


class Gone(Exception):
    """The replica that answered is there no more."""


class Ingress:
    """``replicas``: a Ray handle of them; ``keys``: of the model that they serve."""

    def __init__(self, replicas: DeploymentHandle, options: ServeOptions, keys: PromptKeys, attempts: int) -> None:
        self._answer = replicas.options(method_name="answer", stream=True)
        self._keys, self._attempts = keys, attempts
        self._settings = Settings(1, keys=options.keys, admin_key=options.admin_key, hosts=options.hosts)
        self._tenants = Tenants(self._settings)

    async def __call__(self, request: Request) -> Response:
        """One request."""
        path = request.url.path
        try:
            if path == "/health":
                return JSONResponse({"status": "ok"})
            return await self._answered(await self._call(request, path))
        except Exception as error:
            return error_response(path, _refusal(error))

    async def _call(self, request: Request, path: str) -> Call:
        if path in _LOCAL:
            raise Refusal(404, f"{path} is a server's own: there are several here, whose figures Ray has")
        namespace = self._tenants.namespace(request)
        settings = self._settings
        body = await read_body(request.receive, settings.max_body, settings.body_seconds)
        if body is None:
            raise Refusal(CLOSED, "the client left before its request was there")
        key = await asyncio.to_thread(self._keys.of, path, body, namespace)
        headers = tuple((name, value) for name, value in request.headers.raw if name not in _HOP)
        query = request.url.query.encode()
        text = key.text or f"{request.method} {path}"  # Ray's prefix router gets no further with an empty one
        return Call(request.method, path, query, headers, body, text, key.tokens, key.fingerprints)

    async def _answered(self, call: Call) -> Response:
        for attempt in range(self._attempts):
            parts = self._parts(call)
            try:
                head, first = await _beginning(parts)
            except Gone:
                _log.warning("a replica went before it answered, attempt %d of %d", attempt + 1, self._attempts)
                continue
            return _Passed(head, first, parts, call.path)
        raise Refusal(503, "the replicas that were asked ended before they answered: try again")

    async def _parts(self, call: Call) -> _Parts:
        """The answer of one replica. However it is left, the replica hears of it."""
        stream = None
        try:
            stream = self._answer.remote(call)
            async for part in stream:
                yield part
        except RayActorError as error:
            raise Gone from error
        finally:
            if stream is not None:
                stream.cancel()


async def _beginning(parts: _Parts) -> tuple[Head, bytes]:
    """The head, and the first bytes: with them the answer has begun. Where that fails, nobody reads on."""
    try:
        head = await anext_or(parts, b"")
        if not isinstance(head, Head):
            raise Refusal(500, "the replica answered without a status")
        first = await anext_or(parts, b"")
        return head, first if isinstance(first, bytes) else b""
    except BaseException:
        await parts.aclose()
        raise


async def anext_or(parts: _Parts, default: bytes) -> Head | bytes:
    """The next one; ``default`` at the end."""
    try:
        return await parts.__anext__()
    except StopAsyncIteration:
        return default


class _Passed(StreamingResponse):
    """A replica's answer, as it comes."""

    def __init__(self, head: Head, first: bytes, parts: _Parts, path: str) -> None:
        self.status_code = head.status
        self.background = None
        self.raw_headers = [(name, value) for name, value in head.headers if name not in _HOP]
        is_stream = any(
            name == b"content-type" and value.startswith(b"text/event-stream") for name, value in head.headers
        )
        promised = next((int(value) for name, value in head.headers if name == b"content-length"), None)
        self.body_iterator = _rest(first, parts, path, is_stream, promised)


async def _rest(
    first: bytes, parts: _Parts, path: str, is_stream: bool, promised: int | None = None
) -> AsyncIterator[bytes]:
    """The body. ``promised``: its length, where the head has it."""
    came = len(first)
    try:
        yield first
        async for part in parts:
            if isinstance(part, bytes):
                came += len(part)
                yield part
    except (Gone, RayError) as error:
        if came == promised:
            return  # all of it is here, only its end was not said
        _log.warning("a replica went in the middle of an answer: %s", error)
        if not is_stream:
            raise  # the length that was promised does not come: the client sees that it is not whole
        refusal = Refusal(503, "the replica ended in the middle of this answer: try again")
        yield event(error_object(path, refusal), "error" if is_anthropic(path) else None)
    finally:
        await parts.aclose()


def _refusal(error: Exception) -> Refusal:
    if isinstance(error, BackPressureError):
        return Refusal(429, "too many requests wait already: try again", code="rate_limit_exceeded")
    if isinstance(error, DeploymentUnavailableError):
        return Refusal(503, "the replicas could not be started")
    return refusal_of(error)
