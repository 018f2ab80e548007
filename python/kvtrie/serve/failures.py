"""Errors in the form of the API that was asked, whatever raised them.

    OpenAI       {"error": {"message", "type", "param", "code"}}
    Anthropic    {"type": "error", "error": {"type", "message"}}     under /v1/messages
    Ollama       {"error": message}                                  under /api

Sources: platform.openai.com/docs/guides/error-codes, docs.claude.com/en/api/errors, the documentation of Ollama's API.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from .. import errors
from ..thinking.asked import NoSuchThinking
from .json_values import JsonObject
from .wire import JsonResponse
from .wrong_fields import FieldError

RETRY_AFTER = 1  # seconds
_ALIKE = 0.7  # of two paths, as difflib has it: what both share of all their letters

_log = logging.getLogger("kvtrie.serve")
_OPENAI = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_ANTHROPIC = {**_OPENAI, 503: "overloaded_error"}


class Refusal(Exception):
    """The message for a client. ``code``: for programs; ``param``: the field that is meant."""

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


def error_response(path: str, refusal: Refusal) -> JsonResponse:
    """Its response, with the headers that its status asks for."""
    headers = {}
    if refusal.status in (429, 503):
        headers["retry-after"] = str(RETRY_AFTER)
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JsonResponse(error_object(path, refusal), refusal.status, headers)


def refusal_of(error: BaseException) -> Refusal:
    """The message for a client about an error of the library; an error that is nobody's fault outside is logged, not
    told."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, errors.BusyError):
        return Refusal(429, "too many requests wait already: try again", code="rate_limit_exceeded")
    if isinstance(error, errors.CacheFullError):
        return Refusal(503, "there is no room for this conversation beside those that are live: try again")
    if isinstance(error, errors.ClosedError):
        return Refusal(503, "the server is closing")
    if isinstance(error, FieldError):
        return Refusal(400, str(error), code=error.code, param=error.param)
    if isinstance(error, NoSuchThinking):
        return Refusal(400, str(error), code="unsupported_parameter", param=error.param)
    if isinstance(error, (errors.ArgumentError, errors.ArgumentTypeError, errors.NotSupportedError)):
        return Refusal(400, str(error))
    _log.error("a request failed", exc_info=error)
    return Refusal(500, "the server failed to answer this request")


def _validation(request: Request, error: RequestValidationError) -> Refusal:
    """The first field that is wrong."""
    found = error.errors()
    if found[0].get("type") == "json_invalid":
        return Refusal(400, "the body is not JSON", code="invalid_json")
    sent = request.headers.get("content-type", "")
    if not isinstance(error.body, (dict, list)) and not _is_json(sent):
        header = "curl: -H 'content-type: application/json'"
        said = f"content-type: got {sent[:100] or 'none'}, allowed application/json ({header})"
        return Refusal(415, said, code="unsupported_media_type", param="content-type")
    param, first = _most_telling(found, error.body)
    return Refusal(400, f"{param or 'body'}: {_told(first)}", code="invalid_value", param=param)


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _most_telling(found: Sequence[JsonObject], body: object) -> tuple[str | None, JsonObject]:
    """Where a field may be of several types, there are errors for each: of the first field that is wrong, those of the
    type that fits the furthest, and of these the first."""
    firsts: dict[tuple[str, ...], tuple[list[str], JsonObject]] = {}
    for error in found:
        path, kinds = _path(error, body)
        firsts.setdefault((*path[:1], *kinds), (path, error))
    field = _path(found[0], body)[0][:1]
    path, error = max((each for each in firsts.values() if each[0][:1] == field), key=lambda each: _furthest(each[0]))
    return ".".join(path) or None, error


def _furthest(path: list[str]) -> tuple[int, list[int]]:
    return len(path), [int(part) for part in path if part.isdigit()]


def _path(error: JsonObject, body: object) -> tuple[list[str], list[str]]:
    """The value that the client sent, and the names that types have in a schema."""
    path: list[str] = []
    kinds: list[str] = []
    parts = [part for at, part in enumerate(error["loc"]) if at or part not in ("body", "query", "path")]
    for at, part in enumerate(parts):
        there = _has(body, part)
        if there:
            body = body[part]  # type: ignore[index]
        missing = error["type"] == "missing" and at == len(parts) - 1
        (path if there or missing else kinds).append(str(part))
    return path, kinds


def _has(value: object, part: object) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value


def _told(error: JsonObject) -> str:
    given, expected = error.get("input"), error.get("ctx", {}).get("expected")
    if error.get("type") == "missing":
        return "missing"
    if error.get("type") == "union_tag_invalid":
        given, expected = error["ctx"]["tag"], error["ctx"]["expected_tags"]
    if expected is not None:
        return f"got {str(given)[:100]!r}, allowed {expected}"
    return str(error.get("msg", "not allowed"))


def _not_routed(known: Sequence[str], request: Request, error: HTTPException) -> str:
    """The message where no route answers: most who ask so have another base URL in mind."""
    path = request.url.path[:100]
    if error.status_code == 405:
        return f"[serve] {path}: got {request.method}, allowed {(error.headers or {}).get('Allow', 'another method')}"
    alike = difflib.get_close_matches(path, known, n=1, cutoff=_ALIKE)
    return f"[serve] path: got {path}, allowed {alike[0] if alike else 'those of /openapi.json'}"


def install(app: FastAPI, paths: Sequence[str]) -> None:
    """Every error of every route; ``paths``: those that are answered."""
    known = [path for path in paths if "{" not in path]

    async def invalid(request: Request, error: Exception) -> JsonResponse:
        assert isinstance(error, RequestValidationError)
        return error_response(request.url.path, _validation(request, error))

    async def http(request: Request, error: Exception) -> JsonResponse:
        assert isinstance(error, HTTPException)
        routed = error.status_code not in (404, 405)
        said = str(error.detail) if routed else _not_routed(known, request, error)
        response = error_response(request.url.path, Refusal(error.status_code, said))
        response.headers.update(error.headers or {})
        return response

    async def other(request: Request, error: Exception) -> JsonResponse:
        return error_response(request.url.path, refusal_of(error))

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    for kind in (Refusal, errors.Error, Exception):
        app.add_exception_handler(kind, other)
