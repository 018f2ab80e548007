"""The routes that clients of Ollama ask: chats and texts as lines of JSON, and what they look at before.

Durations are in nanoseconds; ``prompt_eval_count`` counts the whole prompt, as there, and ``prompt_eval_cached`` what
of it was known. Models are not fetched, changed or removed here.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from .._core import __version__
from .._options import SamplingOptions
from ..thinking.asked import Thinking, thinking_of
from .answer import Answer, Piece
from .asked_for import sampling
from .engine import AnswerOptions, Engine
from .failures import Refusal
from .json_values import JsonObject
from .ollama_schema import Call, ChatAsked, GenerateAsked, OllamaMessage, Options, ShowAsked
from .prompts import Prompt
from .streams import Answering, lines, until_gone
from .tenants import Tenants
from .wire import JsonResponse


def router(engine: Engine, tenants: Tenants) -> APIRouter:
    """Its routes."""
    routes = APIRouter()
    began = _now()

    @routes.post("/api/chat")
    async def chat(body: ChatAsked, request: Request) -> Response:
        """The answer to a conversation."""
        namespace = tenants.namespace(request)
        engine.require_text("messages")
        if not body.messages and body.only_loads:
            return _loaded(engine, _chat_fields)
        return await until_gone(request, _chat(engine, body, namespace))

    @routes.post("/api/generate")
    async def generate(body: GenerateAsked, request: Request) -> Response:
        """Continues a text, or answers it."""
        namespace = tenants.namespace(request)
        if not body.prompt and body.only_loads:
            return _loaded(engine, _text_fields)
        return await until_gone(request, _generate(engine, body, namespace))

    def card() -> JsonObject:
        details = {"format": "kvtrie", "family": engine.model.family, "families": [engine.model.family]}
        same = {"name": engine.name, "model": engine.name, "size": engine.model.nbytes}
        return {**same, "digest": engine.model.fingerprint, "details": details}

    @routes.get("/api/tags")
    async def tags(request: Request) -> JsonObject:
        """The one model."""
        tenants.namespace(request)
        return {"models": [{**card(), "modified_at": began}]}

    @routes.get("/api/ps")
    async def running(request: Request) -> JsonObject:
        """The same: it is always there."""
        tenants.namespace(request)
        return {"models": [{**card(), "expires_at": None, "context_length": engine.settings.context}]}

    @routes.post("/api/show")
    async def show(body: ShowAsked, request: Request) -> JsonObject:
        """The model's capabilities."""
        tenants.namespace(request)
        if (body.model or body.name).removesuffix(":latest") != engine.name.removesuffix(":latest"):
            raise Refusal(404, f"there is no model {(body.model or body.name)[:100]!r}", param="model")
        family = engine.model.family
        info = {"general.architecture": family, f"{family}.context_length": engine.settings.context}
        told = {"details": card()["details"], "model_info": info, "capabilities": engine.capabilities}
        return {"parameters": "", "template": engine.template or "", **told}

    @routes.get("/api/version")
    async def version() -> dict[str, str]:
        """Of kvtrie."""
        return {"version": __version__}

    return routes


def _now() -> str:
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


# ---- what is asked for -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    prompt: Prompt
    stream: bool


def messages_of(given: list[OllamaMessage]) -> list[JsonObject]:
    """As the OpenAI API has them. Raises ``Refusal`` for a picture."""
    return [_message(message, f"messages[{at}]") for at, message in enumerate(given)]


def _message(given: OllamaMessage, place: str) -> JsonObject:
    if given.images:
        raise Refusal(400, f"{place}.images: this model reads no images", param=f"{place}.images")
    message: JsonObject = {"role": given.role, "content": given.content}
    if given.thinking:
        message["reasoning_content"] = given.thinking
    if given.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": _json(call)}}
            for call in given.tool_calls
        ]
    if given.tool_name:
        message["name"] = given.tool_name
    if given.tool_call_id:
        message["tool_call_id"] = given.tool_call_id
    return message


def _json(call: Call) -> str:
    return json.dumps(call.function.arguments, ensure_ascii=False)


def _options(
    engine: Engine, body: ChatAsked | GenerateAsked, thinking: Thinking, tools: tuple[JsonObject, ...] = ()
) -> AnswerOptions:
    try:
        chosen = body.chosen()
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join(["options", *map(str, first["loc"])])
        raise Refusal(400, f"{param}: {first['msg']}", code="invalid_value", param=param) from error
    most = chosen.num_predict
    schema = {} if body.format == "json" else body.format or None
    assert not isinstance(schema, str)
    return AnswerOptions(
        -1 if most is not None and most < 0 else most,
        chosen.stops,
        sampling=_sampling(engine, chosen),
        tools=tools,
        schema=schema,
        schema_field="format",
        most_thoughts=thinking.most,
    )


def _sampling(engine: Engine, chosen: Options) -> SamplingOptions:
    return sampling(
        engine.settings.temperature,
        chosen.temperature,
        chosen.seed,
        top_k=None if chosen.top_k is None else max(0, chosen.top_k),
        top_p=chosen.top_p,
        min_p=chosen.min_p,
        repetition_penalty=chosen.repeat_penalty,
        presence_penalty=chosen.presence_penalty,
        frequency_penalty=chosen.frequency_penalty,
    )


async def _chat(engine: Engine, body: ChatAsked, namespace: str) -> Response:
    tools = [tool.as_dict() for tool in body.tools or ()]
    if not body.messages:
        raise Refusal(400, "messages: missing", param="messages")
    thinking = thinking_of(engine.model.tokenizer, body.thinking_asked, tools)
    options = _options(engine, body, thinking, tuple(tools))
    prompt = await engine.chat(messages_of(body.messages), namespace, tools, thinking.variables)
    return await _answered(engine, _Asked(prompt, body.stream), namespace, options, _chat_fields)


async def _generate(engine: Engine, body: GenerateAsked, namespace: str) -> Response:
    for name in ("suffix", "template", "context", "images"):
        if getattr(body, name):
            raise Refusal(400, f"{name}: is not supported", code="unsupported_parameter", param=name)
    if not body.prompt:
        raise Refusal(400, "prompt: missing; the one model is always there", param="prompt")
    thinking = Thinking({}) if body.raw else _thinking(engine, body)
    options = _options(engine, body, thinking)
    prompt = await generate_prompt(engine, body, namespace)
    return await _answered(engine, _Asked(prompt, body.stream), namespace, options, _text_fields)


async def generate_prompt(engine: Engine, body: GenerateAsked, namespace: str) -> Prompt:
    """The text as it is (``raw``), or as a user's message."""
    if body.raw:
        return await engine.text(body.prompt, namespace)
    return await engine.chat(asked_messages(body), namespace, (), _thinking(engine, body).variables)


def _thinking(engine: Engine, body: GenerateAsked) -> Thinking:
    engine.require_text("prompt")
    return thinking_of(engine.model.tokenizer, body.thinking_asked, None)


def asked_messages(body: GenerateAsked) -> list[JsonObject]:
    """A text as a conversation."""
    system = [{"role": "system", "content": body.system}] if body.system else []
    return [*system, {"role": "user", "content": body.prompt}]


# ---- answers ---------------------------------------------------------------------------------------------------------


def _chat_fields(piece: Piece) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": piece.text}
    if piece.reasoning:
        message["thinking"] = piece.reasoning
    if piece.calls:
        message["tool_calls"] = [
            {"id": made, "function": {"name": call.name, "arguments": json.loads(call.arguments)}}
            for made, call in piece.calls
        ]
    return {"message": message}


def _text_fields(piece: Piece) -> JsonObject:
    return {"response": piece.text, **({"thinking": piece.reasoning} if piece.reasoning else {})}


def _loaded(engine: Engine, fields: Callable[[Piece], JsonObject]) -> Response:
    """To who asks for nothing, so that the model is there for the first question."""
    return JsonResponse({**_head(engine), **fields(Piece()), "done": True, "done_reason": "load"})


async def _answered(
    engine: Engine, asked: _Asked, namespace: str, options: AnswerOptions, fields: Callable[[Piece], JsonObject]
) -> Response:
    (answer,) = await engine.answers("ollama", [asked.prompt], namespace, options)
    with Answering([answer]):
        if asked.stream:
            return lines(_parts(engine, answer, fields), [answer])
        whole = Piece()
        async for piece in answer:
            whole.text += piece.text
            whole.reasoning += piece.reasoning
            whole.calls += piece.calls
        return JsonResponse({**_head(engine), **fields(whole), **_ending(answer)})


async def _parts(engine: Engine, answer: Answer, fields: Callable[[Piece], JsonObject]) -> AsyncIterator[JsonObject]:
    async for piece in answer:
        yield {**_head(engine), **fields(piece), "done": False}
    yield {**_head(engine), **fields(Piece()), **_ending(answer)}


def _head(engine: Engine) -> JsonObject:
    return {"model": engine.name, "created_at": _now()}


def _ending(answer: Answer) -> JsonObject:
    first, rest = (round(seconds * 1e9) for seconds in answer.seconds)
    return {
        "done": True,
        "done_reason": "length" if answer.finish_reason == "length" else "stop",
        "total_duration": first + rest,
        "load_duration": 0,
        "prompt_eval_count": answer.prompt_tokens,
        "prompt_eval_cached": answer.reused,
        "prompt_eval_duration": first,
        "eval_count": answer.generated,
        "eval_duration": rest,
    }
