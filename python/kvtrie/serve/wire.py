"""JSON in and out: the base of what clients may send, and the bytes of what they are told.

In: a list is checked up to the first element that is wrong. pydantic would note an error for each: a million wrong
elements took it six seconds, and the event loop with it. Only the first one is told to the client.

Out: answers and errors show again what was sent, in which there may be halves of characters and numbers that are none:
Python reads them from JSON, and nobody else does. They are told as "?" and null.

Threads: any.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pydantic
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema


def _fail_at_once(schema: object) -> None:
    """Of the lists anywhere in a schema."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for each in schema.values():
            _fail_at_once(each)
    elif isinstance(schema, (list, tuple)):
        for each in schema:
            _fail_at_once(each)


class BaseModel(pydantic.BaseModel):
    """pydantic's, with lists that fail at once."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[object], handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _fail_at_once(schema)
        return schema


def json_bytes(value: object) -> bytes:
    """JSON in UTF-8, whatever texts and numbers are in ``value``."""
    try:
        said = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:  # of numbers
        said = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"))
    return said.encode("utf-8", "replace")


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


class JsonResponse(JSONResponse):
    """A response of ``json_bytes``."""

    def render(self, content: object) -> bytes:
        """Its body."""
        return json_bytes(content)
