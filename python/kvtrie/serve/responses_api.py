"""The routes of the Responses API: answers as items, whole or as events, that later requests may go on from.

``previous_response_id`` goes on from a response that was kept (responses_store.py), as a branch of its conversation;
with ``store: false`` none is. ``instructions`` are of one request alone. ``usage`` counts what was known of
``input_tokens`` in ``input_tokens_details.cached_tokens``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from .._options import SamplingOptions
from ..thinking.asked import Thinking, thinking_of
from .answer import Answer
from .asked_for import sampling
from .engine import AnswerOptions, Engine
from .failures import Refusal
from .json_values import JsonObject
from .prompts import Prompt
from .responses_events import response_events
from .responses_items import items_of, messages_of
from .responses_namespaces import each_tool, namespaces_of
from .responses_output import Output, new_id
from .responses_schema import (
    CustomTool,
    FunctionTool,
    NamedChoice,
    PromptRequest,
    ResponseRequest,
    SchemaFormat,
)
from .responses_store import Kept, ResponseStore
from .streams import COMMENT, Answering, events, kept_alive, until_gone
from .tenants import Tenants
from .wire import JsonResponse

PATH = "/v1/responses"
_KINDS: dict[str, type[FunctionTool] | type[CustomTool]] = {"function": FunctionTool, "custom": CustomTool}


def router(engine: Engine, tenants: Tenants, store: ResponseStore) -> APIRouter:
    """Its routes."""
    routes = APIRouter()

    @routes.post(PATH)
    async def respond(body: ResponseRequest, request: Request) -> Response:
        """The answer to a conversation."""
        namespace = tenants.namespace(request)
        engine.require_text("input")
        return await until_gone(request, _respond(engine, store, body, namespace))

    @routes.post(PATH + "/input_tokens")
    async def input_tokens(body: PromptRequest, request: Request) -> JsonObject:
        """How many tokens its prompt would have."""
        namespace = tenants.namespace(request)
        engine.require_text("input")
        asked = await _asked(engine, store, body, namespace)
        return {"object": "response.input_tokens", "input_tokens": len(asked.prompt.tokens)}

    @routes.get(PATH + "/{made}")
    async def kept(made: str, request: Request) -> JsonObject:
        """A response that was kept."""
        return (await _found(store, tenants.namespace(request), made)).response

    @routes.get(PATH + "/{made}/input_items")
    async def kept_items(made: str, request: Request, order: str = "desc", limit: int = 20) -> JsonObject:
        """The items that came with its request, the latest first."""
        found = (await _found(store, tenants.namespace(request), made)).items
        if order not in ("asc", "desc") or not 1 <= limit <= 100:
            raise Refusal(400, "order, limit: allowed asc or desc, 1 to 100", param="order")
        items = [{**item, "id": item.get("id") or f"item_{at}"} for at, item in enumerate(found)]
        shown = (items if order == "asc" else items[::-1])[:limit]
        ends = {"first_id": shown[0]["id"] if shown else None, "last_id": shown[-1]["id"] if shown else None}
        return {"object": "list", "data": shown, **ends, "has_more": len(shown) < len(items)}

    @routes.delete(PATH + "/{made}")
    async def forget(made: str, request: Request) -> JsonObject:
        """It is gone, and with it what goes on from it."""
        namespace = tenants.namespace(request)
        store.require_kept("response_id", 404)
        if not await asyncio.to_thread(store.remove, namespace, made):
            raise _unknown(made)
        return {"id": made, "object": "response.deleted", "deleted": True}

    @routes.post(PATH + "/{made}/cancel")
    async def cancel(made: str, request: Request) -> JsonObject:
        """Only of responses in the background, which there are none of."""
        tenants.namespace(request)
        raise Refusal(400, f"response {made[:100]!r} is not in the background: hang up to cancel it")

    return routes


async def _found(store: ResponseStore, namespace: str, made: str) -> Kept:
    store.require_kept("response_id", 404)
    found = await asyncio.to_thread(store.find, namespace, made)
    if found is None:
        raise _unknown(made)
    return found


def _unknown(made: str) -> Refusal:
    return Refusal(404, f"there is no response {made[:100]!r}", code="not_found", param="response_id")


# ---- what is asked for -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """``items``: those that came with the request. ``tools``: as templates have them, by the name of each."""

    items: list[JsonObject]
    prompt: Prompt
    thinking: Thinking
    tools: dict[str, JsonObject]
    custom: frozenset[str]


async def _asked(engine: Engine, store: ResponseStore, body: PromptRequest, namespace: str) -> _Asked:
    body.refused()
    items = items_of(body.input)
    before: list[JsonObject] = []
    if body.previous_response_id is not None:
        before = await asyncio.to_thread(store.conversation, namespace, body.previous_response_id)
    messages = with_instructions(body, items, before)
    if not messages:
        raise Refusal(400, "input: missing", code="missing_required_parameter", param="input")
    tools, custom = tools_of(body)
    shown = [] if body.tool_choice == "none" else list(tools.values())
    thinking = thinking_of(engine.model.tokenizer, body.thinking_asked, shown)
    prompt = await engine.chat(messages, namespace, shown, thinking.variables)
    return _Asked(items, prompt, thinking, tools, custom)


def with_instructions(
    body: PromptRequest, items: Sequence[JsonObject], before: Sequence[JsonObject] = ()
) -> list[JsonObject]:
    """The messages of a prompt; ``before``: items of the response that it goes on from."""
    messages = messages_of(before, "previous_response_id") + messages_of(items)
    return [{"role": "system", "content": body.instructions}, *messages] if body.instructions else messages


def tools_of(body: PromptRequest) -> tuple[dict[str, JsonObject], frozenset[str]]:
    """As templates have them, by their names, and the names of those that take a text."""
    tools: dict[str, JsonObject] = {}
    custom: set[str] = set()
    for place, given in each_tool(body.tools):
        kind = given.get("type")
        if not isinstance(kind, str) or kind not in _KINDS:
            what = "this server runs no tools itself: leave it out" if isinstance(kind, str) else "missing"
            param = f"{place}.type"
            raise Refusal(400, f"{param}: got {str(kind)[:100]!r}; {what}", code="unsupported_parameter", param=param)
        try:
            tool = _KINDS[kind].model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            param = ".".join([place, *map(str, first["loc"])])
            raise Refusal(400, f"{param}: {first['msg']}", code="invalid_value", param=param) from error
        if tool.name in tools:
            param = f"{place}.name"
            raise Refusal(400, f"{param}: got {tool.name!r} twice", code="invalid_value", param=param)
        if isinstance(tool, CustomTool):
            custom.add(tool.name)
        tools[tool.name] = tool.as_dict()
    return tools, frozenset(custom)


def _options(engine: Engine, body: ResponseRequest, asked: _Asked) -> AnswerOptions:
    tools, choice = list(asked.tools.values()), body.tool_choice
    if choice == "none":
        tools = []
    elif isinstance(choice, NamedChoice):
        tools = [asked.tools[choice.name]] if choice.name in asked.tools else []
    must = choice == "required" or isinstance(choice, NamedChoice)
    if must and not tools:
        raise Refusal(400, "tool_choice: there is no such tool", code="invalid_value", param="tool_choice")
    return AnswerOptions(
        body.max_output_tokens,
        sampling=_sampling(engine, body),
        tools=tuple(tools),
        must_call=must,
        one_call=isinstance(choice, NamedChoice) or body.parallel_tool_calls is False,
        schema=_schema(body),
        schema_field="text.format.schema",
        most_thoughts=asked.thinking.most,
    )


def _schema(body: ResponseRequest) -> JsonObject | None:
    given = None if body.text is None else body.text.format
    if isinstance(given, SchemaFormat):
        return given.schema_
    return {} if given is not None and given.type == "json_object" else None


def _sampling(engine: Engine, body: ResponseRequest) -> SamplingOptions:
    asked = body.top_logprobs is not None or "message.output_text.logprobs" in (body.include or ())
    logprobs = (body.top_logprobs or 0) if asked else None
    return sampling(engine.settings.temperature, body.temperature, None, top_p=body.top_p, logprobs=logprobs)


# ---- answers ---------------------------------------------------------------------------------------------------------


class _Made:
    """One response while it is made, and how it is kept."""

    def __init__(
        self, body: ResponseRequest, asked: _Asked, answer: Answer, output: Output, engine: Engine, stored: bool
    ) -> None:
        self._body, self._asked, self._answer, self._output = body, asked, answer, output
        self._stored = stored
        self._id, self._created, self._engine = new_id("resp"), int(time.time()), engine

    def whole(self, status: str, error: JsonObject | None = None) -> JsonObject:
        """As it stands; what failed is not kept."""
        body = self._body
        over = status in ("completed", "incomplete")
        reasoning = body.reasoning
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if over else None,
            "status": status,
            "background": False,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._engine.name,
            "output": list(self._output.items) if over else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": None},
            "store": self._stored and error is None,
            "temperature": self._engine.settings.temperature if body.temperature is None else body.temperature,
            "text": {"format": _format(body)},
            "tool_choice": _choice(body),
            "tools": body.tools or [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": self._usage() if over else None,
            "user": body.user,
        }

    def _usage(self) -> JsonObject:
        answer = self._answer
        return {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": answer.reused},
            "output_tokens": answer.generated,
            "output_tokens_details": {"reasoning_tokens": self._output.reasoning_tokens},
            "total_tokens": answer.prompt_tokens + answer.generated,
        }

    async def ended(self, store: ResponseStore, namespace: str) -> JsonObject:
        """At its end; ``store`` in it says whether it is kept."""
        status = "incomplete" if self._answer.finish_reason == "length" else "completed"
        response = self.whole(status)
        if self._stored:
            before = self._body.previous_response_id
            response["store"] = await asyncio.to_thread(store.keep, namespace, response, self._asked.items, before)
        return response


def _format(body: ResponseRequest) -> JsonObject:
    given = None if body.text is None else body.text.format
    return {"type": "text"} if given is None else given.model_dump(by_alias=True, exclude_none=True)


def _choice(body: ResponseRequest) -> object:
    return body.tool_choice.model_dump() if isinstance(body.tool_choice, NamedChoice) else body.tool_choice or "auto"


async def _respond(engine: Engine, store: ResponseStore, body: ResponseRequest, namespace: str) -> Response:
    asked = await _asked(engine, store, body, namespace)
    (answer,) = await engine.answers("responses", [asked.prompt], namespace, _options(engine, body, asked))
    with Answering([answer]):
        with_reasoning = "reasoning.encrypted_content" in (body.include or ())
        output = Output(answer, asked.custom, with_reasoning, namespaces_of(body.tools))
        made = _Made(body, asked, answer, output, engine, body.store is not False and store.keeps)
        if body.stream:
            parts = response_events(answer, output, made.whole, lambda: made.ended(store, namespace))
            return events(kept_alive(parts, lambda: COMMENT), [answer], PATH)
        async for piece in answer:
            output.take(piece)
        output.finish("incomplete" if answer.finish_reason == "length" else "completed")
        return JsonResponse(await made.ended(store, namespace))
