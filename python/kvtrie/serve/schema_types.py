"""The type that a JSON schema names for a value that was written without quotes.

Threads: all of it is read-only.
"""

from __future__ import annotations

from collections.abc import Mapping

from .tool_cursor import No, quoted, valid

_SPOKEN = {"True": "true", "False": "false", "None": "null"}


def types_of(schema: object, root: object, depth: int = 8) -> set[str]:
    """The JSON types that a schema allows; none: it does not say. References are looked up in ``root``."""
    schema = pointed_to(schema, root)
    if not isinstance(schema, Mapping) or depth == 0:
        return set()
    kind = schema.get("type")
    if kind is not None:
        return {each for each in (kind if isinstance(kind, list) else [kind]) if isinstance(each, str)}
    if isinstance(schema.get("enum"), list) and all(isinstance(each, str) for each in schema["enum"]):
        return {"string"}
    options = schema.get("anyOf", schema.get("oneOf"))
    each_of = [types_of(each, root, depth - 1) for each in options] if isinstance(options, list) else []
    return set().union(*each_of) if all(each_of) else set()


def types_of_parameter(parameters: Mapping[str, object] | None, name: str) -> set[str]:
    """Those of one parameter of a tool with such ``parameters``, a schema."""
    properties = (parameters or {}).get("properties")
    return types_of(properties.get(name) if isinstance(properties, Mapping) else None, parameters)


def pointed_to(schema: object, root: object) -> object:
    """The schema that ``$ref`` names, such as "#/$defs/place"; the schema itself where it has none."""
    for _ in range(8):
        place = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(place, str) or not place.startswith("#/"):
            return schema
        schema = root
        for key in place[2:].split("/"):
            schema = schema.get(key) if isinstance(schema, Mapping) else None
    return None


def typed(value: str, types: set[str]) -> str:
    """JSON text of a value that was written without quotes. Where a string is allowed, only null is no string."""
    written = _SPOKEN.get(value.strip(), value.strip())
    if "string" in types and not (written == "null" and "null" in types):
        return quoted(value)
    try:
        return valid(written, (dict, list, int, float, type(None)))
    except No:
        return quoted(value)
