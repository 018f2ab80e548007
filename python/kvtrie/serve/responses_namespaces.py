"""Functions within namespaces, as clients have those of an MCP server: one name for the model, two in items.

    a tool             {"type": "namespace", "name": "mcp__files", "tools": [{"type": "function", "name": "read", ...}]}
    the model sees     mcp__files__read; the first function of a namespace also has the namespace's description
    an item of a call  "namespace": "mcp__files", "name": "read"

Threads: all of it is read-only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import ValidationError

from .failures import Refusal
from .json_values import JsonObject
from .responses_schema import NamespaceTool


def shown_name(namespace: object, name: str) -> str:
    """The name of a function for the model; ``namespace``: none where it is no text."""
    return f"{namespace}__{name}" if isinstance(namespace, str) and namespace else name


def each_tool(tools: Sequence[JsonObject] | None) -> Iterator[tuple[str, JsonObject]]:
    """All tools with their places in the request, those of a namespace as the model sees them.

    Raises ``Refusal`` (400) for a namespace that is wrong. A fault in a tool is found by its reader.
    """
    for at, given in enumerate(tools or ()):
        place = f"tools[{at}]"
        if given.get("type") != "namespace":
            yield place, given
            continue
        namespace = _read(given, place)
        for number, tool in enumerate(namespace.tools):
            yield f"{place}.tools[{number}]", _shown(namespace, tool, number == 0)


def namespaces_of(tools: Sequence[JsonObject] | None) -> dict[str, tuple[str, str]]:
    """The namespace and the name there of each tool that is in one, by the name that the model sees."""
    found: dict[str, tuple[str, str]] = {}
    for given in tools or ():
        if given.get("type") == "namespace":
            for tool in given["tools"]:
                found[shown_name(given["name"], tool["name"])] = given["name"], tool["name"]
    return found


def _shown(namespace: NamespaceTool, tool: JsonObject, is_first: bool) -> JsonObject:
    name = tool.get("name")
    if not isinstance(name, str):
        return tool
    shown = {**tool, "name": shown_name(namespace.name, name)}
    if is_first and namespace.description:
        shown["description"] = "\n\n".join(filter(None, [namespace.description, tool.get("description")]))
    return shown


def _read(given: JsonObject, place: str) -> NamespaceTool:
    try:
        return NamespaceTool.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join([place, *map(str, first["loc"])])
        raise Refusal(400, f"{param}: {first['msg']}", code="invalid_value", param=param) from error
