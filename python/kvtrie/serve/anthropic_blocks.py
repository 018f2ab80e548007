"""The text that a text model reads of content blocks that are not its own: documents, results of searches, references
to tools.

Histories keep such blocks for good, so one that is refused ends a session. A block with a text, a title or a name is
said in these words; a block with none (pixels, sound, files that are elsewhere) is refused, by its kind and its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from .anthropic_schema import OtherBlock
from .failures import Refusal
from .json_values import JsonView

_UNREADABLE = ("image", "audio", "video")
_NAMES = ("title", "tool_name", "name", "url", "error_code")
_DEEPEST = 8  # blocks within blocks


def block_text(block: OtherBlock, where: str) -> str:
    """Its text; ``where``: its place in the request, for errors. Raises ``Refusal`` (400) where there is none."""
    text = "\n".join(_said({"type": block.type, **(block.model_extra or {})}, where, 0))
    if not text:
        raise _refused(block.type, where)
    return text


def _said(block: JsonView, where: str, depth: int) -> Iterator[str]:
    kind = str(block.get("type", ""))
    if kind in _UNREADABLE or depth > _DEEPEST:
        raise _refused(kind, where)
    yield from (str(block[name]) for name in _NAMES if isinstance(block.get(name), str) and block[name])
    for name in ("context", "text"):
        if isinstance(block.get(name), str):
            yield block[name]
    if block.get("input"):
        yield json.dumps(block["input"], ensure_ascii=False)
    yield from _of_source(block.get("source"), where, depth)
    yield from _within(block.get("content"), where, depth)
    for name in ("tool", "tools", "stdout", "stderr"):
        yield from _within(block.get(name), where, depth)


def _of_source(source: object, where: str, depth: int) -> Iterator[str]:
    """A document's: its text, its parts, or bytes that nobody reads here. A search result's is an address."""
    if isinstance(source, str):
        yield source
    if not isinstance(source, dict):
        return
    if source.get("type") == "text" and isinstance(source.get("data"), str):
        yield source["data"]
    elif source.get("type") == "content":
        yield from _within(source.get("content"), where, depth)
    else:
        raise _refused(f"a source of the type {str(source.get('type'))[:40]}", where)


def _within(content: object, where: str, depth: int) -> Iterator[str]:
    if isinstance(content, str) and content:
        yield content
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, dict):
            yield from _said(part, where, depth + 1)
        elif isinstance(part, str) and isinstance(content, list):
            yield part


def _refused(kind: str, where: str) -> Refusal:
    return Refusal(400, f"{where}: got {kind}, allowed what has text", code="unsupported_content", param=where)
