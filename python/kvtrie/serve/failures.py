"""Errors in the form of the API that was asked, whatever raised them.

    OpenAI       {"error": {"message", "type", "param", "code"}}
    Anthropic    {"type": "error", "error": {"type", "message"}}     under /v1/messages
    Ollama       {"error": message}                                  under /api

Sources: platform.openai.com/docs/guides/error-codes, docs.claude.com/en/api/errors, Ollama's docs/api.md.
"""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from .. import errors as kv
from .json_values import JsonObject

RETRY_AFTER = 1  # seconds

_log = logging.getLogger("kvtrie.serve")
_OPENAI = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_ANTHROPIC = {**_OPENAI, 503: "overloaded_error"}


class Refusal(Exception):
    """What a client is told. ``code``: for programs; ``param``: the field that is meant."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param


def is_anthropic(path: str) -> bool:
    """Whose errors a path has."""
    return path.startswith("/v1/messages")


def error_object(path: str, refusal: Refusal) -> JsonObject:
    """The JSON of an error."""
    if path.startswith("/api/"):
        return {"error": refusal.message}
    if is_anthropic(path):
        kind = _ANTHROPIC.get(refusal.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": refusal.message}}
    kind = _OPENAI.get(refusal.status, "server_error" if refusal.status >= 500 else "invalid_request_error")
    return {"error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}}


def error_response(path: str, refusal: Refusal) -> JSONResponse:
    """Its response, with the headers that its status asks for."""
    headers = {}
    if refusal.status in (429, 503):
        headers["retry-after"] = str(RETRY_AFTER)
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error_object(path, refusal), refusal.status, headers)


def refusal_of(error: BaseException) -> Refusal:
    """What a client is told of an error of the library; what is nobody's fault outside is logged, not told."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, kv.BusyError):
        return Refusal(429, "too many requests wait already: try again", code="rate_limit_exceeded")
    if isinstance(error, kv.CacheFull):
        return Refusal(503, "there is no room for this conversation beside those that are live: try again")
    if isinstance(error, kv.ClosedError):
        return Refusal(503, "the server is closing")
    if isinstance(error, (kv.ArgumentError, kv.ArgumentTypeError, kv.NotSupported)):
        code = "context_length_exceeded" if "prompt: got" in str(error) and "tokens" in str(error) else None
        return Refusal(400, str(error), code=code)
    _log.error("a request failed", exc_info=error)
    return Refusal(500, "the server failed to answer this request")


def _validation(error: RequestValidationError) -> Refusal:
    """The first field that is wrong."""
    first = error.errors()[0]
    where = [str(part) for part in first.get("loc", ()) if part not in ("body", "query", "path")]
    if first.get("type") == "json_invalid":
        return Refusal(400, "the body is not JSON", code="invalid_json")
    param = ".".join(where) or None
    return Refusal(400, f"{param or 'body'}: {first.get('msg', 'not allowed')}", code="invalid_value", param=param)


def install(app: FastAPI) -> None:
    """Every error of every route."""

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return error_response(request.url.path, _validation(error))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        response = error_response(request.url.path, Refusal(error.status_code, str(error.detail)))
        response.headers.update(error.headers or {})
        return response

    async def other(request: Request, error: Exception) -> JSONResponse:
        return error_response(request.url.path, refusal_of(error))

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    for kind in (Refusal, kv.Error, Exception):
        app.add_exception_handler(kind, other)
