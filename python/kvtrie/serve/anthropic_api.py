"""The routes of the Anthropic API: messages, whole or as server-sent events, and their tokens counted.

``usage``: ``cache_read_input_tokens`` were known, ``input_tokens`` were computed; ``cache_creation_input_tokens`` are
those of the latter that were computed up to the last ``cache_control``.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request
from starlette.responses import Response

from .._options import SamplingOptions
from ..errors import ArgumentError
from ..thinking.asked import Thinking, thinking_of
from .answer import Answer
from .anthropic_blocks import block_text
from .anthropic_schema import (
    ConversationRequest,
    CountRequest,
    Message,
    MessagesRequest,
    OtherBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from .asked_for import LEAST_TOP_P, Schema, namespace_of, sampling
from .engine import AnswerOptions, Engine
from .failures import Refusal
from .json_values import JsonObject
from .prompts import Prompt
from .streams import Answering, event, events, kept_alive, progress_of, until_gone
from .tenants import Tenants
from .wire import JsonResponse
from .wrong_fields import ROLE_NOT_SUPPORTED, FieldError

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def router(engine: Engine, tenants: Tenants) -> APIRouter:
    """Its routes."""
    routes = APIRouter()

    @routes.post("/v1/messages")
    async def messages(body: MessagesRequest, request: Request) -> Response:
        """The answer to a conversation."""
        namespace = namespace_of(tenants.namespace(request), body.cache_salt, body.cache_prompt is False)
        body.require_known(engine.settings.ignored)
        engine.require_text("messages")
        return await until_gone(request, _messages(engine, body, namespace))

    @routes.post("/v1/messages/count_tokens")
    async def count_tokens(body: CountRequest, request: Request) -> dict[str, int]:
        """How many tokens its prompt would have."""
        namespace = namespace_of(tenants.namespace(request), body.cache_salt)
        body.require_known(engine.settings.ignored)
        engine.require_text("messages")
        prompt, _ = await _prompt(engine, body, namespace)
        return {"input_tokens": len(prompt.tokens)}

    return routes


# ---- a conversation as the templates have it -------------------------------------------------------------------------


async def _prompt(engine: Engine, body: ConversationRequest, namespace: str) -> tuple[Prompt, Thinking]:
    _require_own_tools(body)
    converted, marks = conversation_of(body)
    shown = _shown_tools(body)
    thinking = thinking_of(engine.model.tokenizer, body.thinking_asked, shown)
    try:
        reading = body.special_tokens
        return await engine.chat(converted, namespace, shown, thinking.variables, marks, reading), thinking
    except FieldError:
        raise
    except ArgumentError as error:  # the template's own words
        where = next((at for at, each in enumerate(body.messages) if each.role == "system"), None)
        if where is None:
            raise
        param = f"messages.{where}.role"
        raise FieldError(
            f"[serve] {param}: {ROLE_NOT_SUPPORTED} by this model's template: {error}", param=param
        ) from error


def _shown_tools(body: ConversationRequest) -> list[JsonObject]:
    """Those in the prompt: all of them, also where one is asked for, so that prompts begin alike."""
    none = body.tool_choice is not None and body.tool_choice.type == "none"
    return [] if none else [tool.as_dict() for tool in body.tools or ()]


def _callable_tools(body: ConversationRequest) -> list[JsonObject]:
    tools, choice = _shown_tools(body), body.tool_choice
    if choice is not None and choice.type == "tool":
        tools = [tool for tool in tools if tool["function"]["name"] == choice.name]
    if choice is not None and choice.type in ("any", "tool") and not tools:
        raise Refusal(400, "tool_choice: there is no such tool", param="tool_choice")
    return tools


def conversation_of(body: ConversationRequest) -> tuple[list[JsonObject], list[int]]:
    """Messages of the OpenAI API, and how many of them are in front of each ``cache_control``."""
    converted: list[JsonObject] = []
    marks: list[int] = []
    if body.system:
        blocks = [TextBlock(type="text", text=body.system)] if isinstance(body.system, str) else body.system
        converted.append({"role": "system", "content": "\n".join(block.text for block in blocks)})
        if any(block.cache_control for block in blocks) or any(tool.cache_control for tool in body.tools or ()):
            marks.append(1)
    for at, message in enumerate(body.messages):
        converted += _converted(message, f"messages.{at}")
        if not isinstance(message.content, str) and any(block.cache_control for block in message.content):
            marks.append(len(converted))
    if body.cache_control is not None:
        marks.append(len(converted))
    return converted, marks


def _converted(message: Message, where: str) -> list[JsonObject]:
    """Results of tools are messages of their own, in front of what else the user says. ``where``: for errors."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results, texts, calls, thoughts = [], [], [], []
    for at, block in enumerate(message.content):
        place = f"{where}.content.{at}"
        if isinstance(block, ToolResultBlock):
            results.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block, place)})
        elif isinstance(block, ToolUseBlock):
            arguments = json.dumps(block.input, ensure_ascii=False)
            function = {"name": block.name, "arguments": arguments}
            calls.append({"id": block.id, "type": "function", "function": function})
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        else:
            texts.append(_text(block, place))
    if not texts and not calls and results:
        return results
    whole: JsonObject = {"role": message.role, "content": "".join(texts)}
    if calls:
        whole["tool_calls"] = calls
    if any(thoughts):
        whole["reasoning_content"] = "".join(thoughts)
    return [*results, whole]


def _text(block: TextBlock | OtherBlock, where: str) -> str:
    """Blocks of other kinds stand in paragraphs of their own."""
    return block.text if isinstance(block, TextBlock) else f"{block_text(block, where)}\n\n"


def _result(block: ToolResultBlock, where: str) -> str:
    if isinstance(block.content, list):
        return "".join(_text(part, f"{where}.content.{at}") for at, part in enumerate(block.content))
    return block.content or ""


def _require_own_tools(body: ConversationRequest) -> None:
    """Raises for a tool that only Anthropic's servers can run."""
    for at, tool in enumerate(body.tools or ()):
        if tool.type not in (None, "custom") and not tool.input_schema:
            said = f"tools.{at}.type: got {tool.type[:100]!r}, which runs on another server, allowed 'custom'"
            raise Refusal(400, said, code="unsupported_tool", param=f"tools.{at}.type")


# ---- answers ---------------------------------------------------------------------------------------------------------


async def _messages(engine: Engine, body: MessagesRequest, namespace: str) -> Response:
    tools = _callable_tools(body)
    prompt, thinking = await _prompt(engine, body, namespace)
    must = body.tool_choice is not None and body.tool_choice.type in ("any", "tool")
    schema = _schema(body)
    options = AnswerOptions(
        body.max_tokens,
        tuple(filter(None, body.stop_sequences or ())),
        sampling=_sampling(engine, body),
        tools=tuple(tools),
        tool_fields={each.name: f"tools.{at}.input_schema" for at, each in enumerate(body.tools or ())},
        must_call=must,
        one_call=body.tool_choice is not None and bool(body.tool_choice.disable_parallel_tool_use),
        schema=schema.value,
        schema_field=schema.field,
        most_thoughts=thinking.most,
        keeps_nothing=body.cache_prompt is False,
    )
    known = (await engine.plan(prompt, namespace)) if body.stream else 0
    (answer,) = await engine.answers("messages", [prompt], namespace, options)
    with Answering([answer]):
        head: JsonObject = {
            "id": "msg_" + secrets.token_hex(12),
            "type": "message",
            "role": "assistant",
            "model": engine.name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }
        if body.stream:
            told = _events(answer, prompt, head, known)
            response: Response = events(kept_alive(told, lambda: _ping(answer, body)), [answer], "/v1/messages")
        else:
            content = await _content(answer)
            response = JsonResponse({**head, "content": content, **_ending(answer), "usage": _usage(answer, prompt)})
        if thinking.never:
            response.headers["x-kvtrie-thinking"] = "never"
        return response


def _schema(body: MessagesRequest) -> Schema:
    within = None if body.output_config is None else body.output_config.format
    if body.output_format is not None and within is not None:
        raise Refusal(400, "output_format: got output_config.format, too, allowed one of them", param="output_format")
    if body.output_format is not None:
        return Schema(body.output_format.schema_, "output_format")
    return Schema() if within is None else Schema(within.schema_, "output_config.format")


def _ping(answer: Answer, body: MessagesRequest) -> bytes:
    progress = progress_of(answer) if body.return_progress else None
    return event({"type": "ping", **({} if progress is None else {"prompt_progress": progress})}, "ping")


def _sampling(engine: Engine, body: MessagesRequest) -> SamplingOptions:
    top_p = None if body.top_p is None else max(body.top_p, LEAST_TOP_P)
    return sampling(engine.settings.temperature, body.temperature, body.seed, top_k=body.top_k, top_p=top_p)


def _ending(answer: Answer) -> JsonObject:
    if answer.stopped_by is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": answer.stopped_by}
    return {"stop_reason": _REASONS.get(answer.finish_reason or "", "end_turn"), "stop_sequence": None}


def _usage(answer: Answer, prompt: Prompt, reused: int | None = None) -> dict[str, int]:
    """``reused``: as far as is known before the first token is there."""
    reused = answer.reused if reused is None else reused
    kept = max((length for length in prompt.checkpoints if length > reused), default=reused)
    return {
        "input_tokens": answer.prompt_tokens - kept,
        "cache_read_input_tokens": reused,
        "cache_creation_input_tokens": kept - reused,
        "output_tokens": answer.generated,
    }


async def _content(answer: Answer) -> list[JsonObject]:
    text, thoughts, calls = "", "", []
    async for piece in answer:
        text += piece.text
        thoughts += piece.reasoning
        calls += [_tool_use(made, call.name, json.loads(call.arguments)) for made, call in piece.calls]
    content: list[JsonObject] = []
    if thoughts:
        content.append({"type": "thinking", "thinking": thoughts, "signature": ""})
    if text.strip() or not (calls or thoughts):
        content.append({"type": "text", "text": text})
    return content + calls


def _tool_use(made: str, name: str, value: object) -> JsonObject:
    return {"type": "tool_use", "id": made, "name": name, "input": value}


class _Blocks:
    """The events of content blocks, one after the other."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None

    def add(self, kind: str, block: JsonObject, delta: JsonObject) -> bytes:
        """More of a block of that kind; "tool_use": always a new one."""
        out = b""
        if kind != self._open or kind == "tool_use":
            out = self.close()
            self._index += 1
            self._open = kind
            start = {"type": "content_block_start", "index": self._index, "content_block": block}
            out += event(start, "content_block_start")
        more = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return out + event(more, "content_block_delta")

    def close(self) -> bytes:
        """The end of what is open."""
        if self._open is None:
            return b""
        self._open = None
        return event({"type": "content_block_stop", "index": self._index}, "content_block_stop")


async def _events(answer: Answer, prompt: Prompt, head: JsonObject, known: int) -> AsyncGenerator[bytes, None]:
    """``known``: tokens of the prompt that the cache had before it began; the last event has those that were reused."""
    blocks = _Blocks()
    usage = _usage(answer, prompt, known)
    yield event({"type": "message_start", "message": {**head, "usage": usage}}, "message_start")
    async for piece in answer:
        if piece.reasoning:
            delta = {"type": "thinking_delta", "thinking": piece.reasoning}
            yield blocks.add("thinking", {"type": "thinking", "thinking": "", "signature": ""}, delta)
        if piece.text:
            yield blocks.add("text", {"type": "text", "text": ""}, {"type": "text_delta", "text": piece.text})
        for made, call in piece.calls:
            delta = {"type": "input_json_delta", "partial_json": call.arguments}
            yield blocks.add("tool_use", _tool_use(made, call.name, {}), delta)
    yield blocks.close()
    usage = _usage(answer, prompt)
    yield event({"type": "message_delta", "delta": _ending(answer), "usage": usage}, "message_delta")
    yield event({"type": "message_stop"}, "message_stop")
