"""API keys, and the namespace that each stands for: whoever has one finds nothing of the others.

Keys come as ``Authorization: Bearer KEY`` (OpenAI) or ``x-api-key: KEY`` (Anthropic). They are compared by their
digests, so how long that takes says nothing about them.
"""

from __future__ import annotations

import hashlib
import hmac

from fastapi import Request

from .failures import Refusal
from .settings import Settings

ALL = "default"  # the namespace of everybody, where there are no keys


class Tenants:
    """The keys: who may ask, for what."""

    def __init__(self, settings: Settings) -> None:
        self._spaces = {_digest(key): space for key, space in settings.keys.items()}
        self._admin = None if settings.admin_key is None else _digest(settings.admin_key)

    def namespace(self, request: Request) -> str:
        """Of the request's key. Raises ``Refusal`` (401) without a known one."""
        if not self._spaces:
            return ALL
        given = _digest(_key_of(request))
        for known, space in self._spaces.items():
            if hmac.compare_digest(known, given):
                return space
        raise Refusal(401, "no such API key", code="invalid_api_key")

    def require_admin(self, request: Request) -> None:
        """For what shows the requests of all. Raises ``Refusal`` (401, 403)."""
        if not self._spaces:
            return
        if self._admin is None:
            raise Refusal(403, "closed: the server was started without an admin key")
        given = _key_of(request) or request.query_params.get("key", "")
        if not hmac.compare_digest(self._admin, _digest(given)):
            raise Refusal(401, "no such admin key", code="invalid_api_key")


def _key_of(request: Request) -> str:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
