"""A response as server-sent events: what happens to it and to its items, numbered.

    response.created, response.in_progress
    output_item.added   content_part.added   *.delta ...   *.done   content_part.done   output_item.done     each item
    response.completed | response.incomplete | response.failed

Source: platform.openai.com/docs/api-reference/responses-streaming. An error after the beginning is ``response.failed``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol

from .answer import Answer
from .failures import refusal_of
from .json_values import JsonObject
from .responses_output import Change, Output
from .streams import event

_TEXTS = {
    "message": ("response.output_text", "text"),
    "reasoning": ("response.reasoning_text", "text"),
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}


class Ending(Protocol):
    """The response as it stands: while it goes on, or with the status that it ended with."""

    def __call__(self, status: str, error: JsonObject | None = None) -> JsonObject: ...


class _Numbered:
    """Events of one response."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self, kind: str, fields: JsonObject) -> bytes:
        made = event({"type": kind, **fields, "sequence_number": self._number}, kind)
        self._number += 1
        return made


async def response_events(
    answer: Answer, output: Output, whole: Ending, ended: Callable[[], Awaitable[JsonObject]]
) -> AsyncGenerator[bytes, None]:
    """All of them. ``ended``: the response at its end, once it is kept where it is to be."""
    numbered = _Numbered()
    yield numbered("response.created", {"response": whole("in_progress")})
    yield numbered("response.in_progress", {"response": whole("in_progress")})
    try:
        async for piece in answer:
            for change in output.take(piece):
                yield _told(numbered, change)
        for change in output.finish("incomplete" if answer.finish_reason == "length" else "completed"):
            yield _told(numbered, change)
        response = await ended()
    except Exception as error:
        refusal = refusal_of(error)
        code = refusal.code or ("server_error" if refusal.status >= 500 else "invalid_prompt")
        failed = whole("failed", {"code": code, "message": refusal.message})
        yield numbered("response.failed", {"response": failed})
        return
    yield numbered(f"response.{response['status']}", {"response": response})


def _told(numbered: _Numbered, change: Change) -> bytes:
    """The events of one change."""
    item = change.item
    place = {"item_id": item["id"], "output_index": change.index}
    has_parts = item["type"] in ("message", "reasoning")
    part = {**place, "content_index": 0} if has_parts else place
    name, field = _TEXTS[item["type"]]
    if change.kind == "begun":
        begun = {**item, "content": []} if has_parts else item
        told = numbered("response.output_item.added", {"output_index": change.index, "item": begun})
        if has_parts:
            told += numbered("response.content_part.added", {**part, "part": item["content"][0]})
        return told
    if change.kind == "more":
        logprobs = {"logprobs": list(change.logprobs)} if item["type"] == "message" else {}
        return numbered(f"{name}.delta", {**part, "delta": change.text, **logprobs})
    text = item["content"][0]["text"] if has_parts else item[field]
    logprobs = {"logprobs": item["content"][0]["logprobs"]} if item["type"] == "message" else {}
    told = numbered(f"{name}.done", {**part, field: text, **logprobs})
    if has_parts:
        told += numbered("response.content_part.done", {**part, "part": item["content"][0]})
    return told + numbered("response.output_item.done", {"output_index": change.index, "item": item})
