"""The base of what clients may send: a list is checked up to the first element that is wrong.

pydantic would note an error for each: a million wrong elements took it six seconds, and the event loop with it. Only
the first one is told to the client. Threads: any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pydantic

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
