"""The routes of the OpenAI API: models, chats and plain texts, whole or as server-sent events.

``usage`` counts what was known of ``prompt_tokens`` in ``prompt_tokens_details.cached_tokens``, and how much of a
``prediction`` the answer has in ``completion_tokens_details``; ``timings`` are as in llama.cpp's server. ``n`` answers
are branches of one prompt, which is computed once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import datetime, timezone

from fastapi import APIRouter, Request
from starlette.responses import Response

from .._options import SamplingOptions
from ..sampling import TokenLogprob
from ..thinking.asked import thinking_of
from .answer import Answer, Piece
from .asked_for import LEAST_TOP_P, namespace_of, sampling, schema_of
from .echo import Echo, by_ids, echo_of
from .engine import AnswerOptions, Engine
from .failures import Refusal
from .json_values import JsonObject
from .logprobs import of_chat, of_text
from .openai_schema import ChatRequest, Choosing, CompletionRequest, NamedTool
from .prompts import Prompt
from .streams import COMMENT, Answering, event, events, kept_alive, merged, progress_of, until_gone
from .tenants import Tenants
from .wire import JsonResponse
from .wrong_fields import empty


def router(engine: Engine, tenants: Tenants) -> APIRouter:
    """Its routes."""
    routes = APIRouter()
    began = int(time.time())

    def card() -> JsonObject:
        """As both OpenAI's API and Anthropic's, whose path is the same, have it."""
        since = datetime.fromtimestamp(began, timezone.utc).isoformat().replace("+00:00", "Z")
        anthropic = {"type": "model", "display_name": engine.name, "created_at": since}
        return {"id": engine.name, "object": "model", "created": began, "owned_by": "kvtrie", **anthropic}

    @routes.get("/v1/models")
    async def models(request: Request) -> JsonObject:
        """The one model."""
        tenants.namespace(request)
        ends = {"first_id": engine.name, "last_id": engine.name, "has_more": False}
        return {"object": "list", "data": [card()], **ends}

    @routes.get("/v1/models/{name:path}")
    async def model(name: str, request: Request) -> JsonObject:
        """The same by its name."""
        tenants.namespace(request)
        if name != engine.name:
            raise Refusal(404, f"there is no model {name[:100]!r}", code="model_not_found", param="model")
        return card()

    @routes.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        """The answer to a conversation."""
        namespace = namespace_of(tenants.namespace(request), body.cache_salt, body.cache_prompt is False)
        body.require_known(engine.settings.ignored)
        engine.require_text("messages")
        return await until_gone(request, _chat(engine, body, namespace))

    @routes.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continues a text."""
        namespace = namespace_of(tenants.namespace(request), body.cache_salt, body.cache_prompt is False)
        body.require_known(engine.settings.ignored)
        return await until_gone(request, _completions(engine, body, namespace))

    return routes


# ---- what is asked for -----------------------------------------------------------------------------------------------


def sampling_of(body: Choosing, temperature: float, logprobs: int | None) -> SamplingOptions:
    """Parameters of the choice; what is not given is the API's default."""
    return sampling(
        temperature,
        body.temperature,
        body.seed,
        top_p=None if body.top_p is None else max(body.top_p, LEAST_TOP_P),
        typical_p=body.typical_p,
        top_k=None if body.top_k is None else max(0, body.top_k),
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=body.logit_bias,
        logprobs=logprobs,
    )


def _shown_tools(body: ChatRequest) -> list[JsonObject]:
    """Those in the prompt: all of them, also where one is asked for, so that prompts begin alike."""
    return [] if body.tool_choice == "none" else [tool.as_dict() for tool in body.tools or ()]


def _chat_options(engine: Engine, body: ChatRequest) -> AnswerOptions:
    tools = _shown_tools(body)
    named = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else None
    if named is not None:
        tools = [tool for tool in tools if tool["function"]["name"] == named]
        if not tools:
            raise Refusal(400, f"tool_choice: there is no tool {named[:100]!r}", param="tool_choice")
    must = named is not None or body.tool_choice == "required"
    if must and not tools:
        raise Refusal(400, "tool_choice: there are no tools", param="tool_choice")
    if body.top_logprobs and not body.logprobs:
        raise Refusal(400, "top_logprobs: got some without logprobs, allowed with logprobs: true", param="top_logprobs")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return dataclasses.replace(
        _options(engine, body, logprobs),
        max_tokens=body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens,
        tools=tuple(tools),
        tool_fields={each.function.name: f"tools.{at}.function.parameters" for at, each in enumerate(body.tools or ())},
        must_call=must,
        one_call=named is not None or body.parallel_tool_calls is False,
    )


def _options(engine: Engine, body: Choosing, logprobs: int | None) -> AnswerOptions:
    """The common part of chats and plain texts."""
    schema = schema_of(body)
    return AnswerOptions(
        body.max_tokens,
        body.stops,
        tuple(body.stop_token_ids or ()),
        sampling_of(body, engine.settings.temperature, logprobs),
        schema=schema.value,
        schema_field=schema.field,
        rule=schema.rule,
        ignore_eos=bool(body.ignore_eos),
        keeps_nothing=body.cache_prompt is False,
    )


def _count(engine: Engine, body: Choosing, prompts: int = 1) -> int:
    count = body.n or 1
    if count * prompts > engine.settings.max_choices:
        raise Refusal(400, f"n: got {count * prompts} answers, allowed {engine.settings.max_choices}", param="n")
    return count


# ---- chats -----------------------------------------------------------------------------------------------------------


async def _chat(engine: Engine, body: ChatRequest, namespace: str) -> Response:
    options, count = _chat_options(engine, body), _count(engine, body)
    messages, shown = [message.as_dict() for message in body.messages], _shown_tools(body)
    thinking = thinking_of(engine.model.tokenizer, body.thinking_asked, shown, body.chat_template_kwargs)
    options = dataclasses.replace(options, most_thoughts=thinking.most)
    prompt = await engine.chat(messages, namespace, shown, thinking.variables, special_tokens=body.special_tokens)
    if body.prediction is not None:
        options = dataclasses.replace(options, prediction=await engine.prediction(body.prediction.text))
    answers = await engine.answers("chat", [prompt], namespace, options, count)
    with Answering(answers):
        head = _head(engine, "chatcmpl-", "chat.completion.chunk" if body.stream else "chat.completion")
        if body.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            told = _chat_events(answers, head, usage)
            return events(kept_alive(told, _sign_of_life(answers, head, body)), answers)
        choices = await _all_of(answers, _chat_choice)
        return JsonResponse({**head, "choices": choices, "usage": usage_of(answers), "timings": timings_of(answers[0])})


async def _chat_choice(number: int, answer: Answer) -> JsonObject:
    text, reasoning, calls, logprobs = "", "", [], []
    async for piece in answer:
        text += piece.text
        reasoning += piece.reasoning
        calls += [_call(made, call.name, call.arguments) for made, call in piece.calls]
        logprobs += of_chat(answer.token_bytes, piece.logprobs, piece.first)
    message: JsonObject = {"role": "assistant", "content": text if text or not calls else None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    told = {"content": logprobs} if logprobs else None
    return {"index": number, "message": message, "logprobs": told, "finish_reason": answer.finish_reason}


async def _chat_events(answers: Sequence[Answer], head: JsonObject, usage: bool) -> AsyncGenerator[bytes, None]:
    def chunk(number: int, delta: JsonObject, finish: str | None = None, logprobs: object = None) -> bytes:
        choice = {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return event({**head, "choices": [choice], **({"usage": None} if usage else {})})

    for number in range(len(answers)):
        yield chunk(number, {"role": "assistant", "content": ""})
    told = [0] * len(answers)
    async for number, piece in merged(answers):
        if piece is None:
            yield chunk(number, {}, answers[number].finish_reason)
            continue
        logprobs = {"content": of_chat(answers[number].token_bytes, piece.logprobs, piece.first)}
        yield chunk(number, _delta(piece, told[number]), logprobs=logprobs if piece.logprobs else None)
        told[number] += len(piece.calls)
    if usage:
        yield event({**head, "choices": [], "usage": usage_of(answers), "timings": timings_of(answers[0])})
    yield b"data: [DONE]\n\n"


def _delta(piece: Piece, told: int) -> JsonObject:
    delta: JsonObject = {}
    if piece.reasoning:
        delta["reasoning_content"] = piece.reasoning
    if piece.text or not (piece.reasoning or piece.calls):
        delta["content"] = piece.text
    if piece.calls:
        delta["tool_calls"] = [
            {"index": told + at, **_call(made, call.name, call.arguments)}
            for at, (made, call) in enumerate(piece.calls)
        ]
    return delta


def _call(made: str, name: str, arguments: str) -> JsonObject:
    return {"id": made, "type": "function", "function": {"name": name, "arguments": arguments}}


# ---- plain texts -----------------------------------------------------------------------------------------------------


async def _completions(engine: Engine, body: CompletionRequest, namespace: str) -> Response:
    if body.told_of_prompt is not None:  # of its own tokens, not of those that another text has in the tree
        namespace = namespace_of(namespace, None, alone=True)
    prompts = await _prompts(engine, body, namespace)
    count = _count(engine, body, len(prompts))
    options = dataclasses.replace(
        _options(engine, body, body.logprobs),
        each_token=bool(body.return_token_ids),
        prompt_logprobs=body.told_of_prompt,
    )
    echoes = await _echoes(engine, body, prompts, count)
    answers = await engine.answers("completion", prompts, namespace, options, count)
    with Answering(answers):
        head = _head(engine, "cmpl-", "text_completion")
        if body.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            told = _text_events(answers, echoes, head, usage, options.each_token)
            return events(kept_alive(told, _sign_of_life(answers, head, body)), answers)
        choices = await _all_of(answers, lambda number, answer: _text_choice(number, answer, echoes[number]))
        for choice, answer in zip(choices, answers):
            if options.each_token:
                choice["token_ids"] = answer.tokens
            if body.prompt_logprobs is not None:
                told_of_prompt = answer.prompt_logprobs
                choice["prompt_logprobs"] = by_ids(engine.model.tokenizer, told_of_prompt, body.prompt_logprobs)
        return JsonResponse(
            {**head, "choices": choices, "usage": usage_of(answers, count), "timings": timings_of(answers[0])}
        )


async def _prompts(engine: Engine, body: CompletionRequest, namespace: str) -> list[Prompt]:
    given, reading = body.prompt, body.special_tokens
    if isinstance(given, str):
        return [await engine.text(given, namespace, reading)]
    if not given:
        raise empty()
    if isinstance(given[0], int):
        return [engine.tokens(given)]
    _count(engine, body, len(given))
    return [
        await engine.text(each, namespace, reading) if isinstance(each, str) else engine.tokens(each) for each in given
    ]


async def _echoes(engine: Engine, body: CompletionRequest, prompts: Sequence[Prompt], count: int) -> list[Echo | None]:
    """One for each answer; None: its prompt is not given back."""
    if body.stream and body.prompt_logprobs is not None:
        raise Refusal(400, "prompt_logprobs: got stream, too, allowed one of them", param="prompt_logprobs")
    if not body.echo:
        return [None] * (len(prompts) * count)
    tokenizer = engine.model.tokenizer
    made = [await asyncio.to_thread(echo_of, tokenizer, prompt, body.logprobs) for prompt in prompts]
    return [echo for echo in made for _ in range(count)]


def _text_logprobs(
    answer: Answer, echo: Echo | None, logprobs: Sequence[TokenLogprob], offsets: Sequence[int]
) -> JsonObject | None:
    """Of some tokens of an answer, and of the prompt in front of them where there is an ``echo``."""
    if echo is not None and echo.top is not None:
        return echo.logprobs(answer.prompt_logprobs, logprobs, offsets)
    return of_text(answer.token_bytes, logprobs, offsets) if logprobs else None


async def _text_choice(number: int, answer: Answer, echo: Echo | None) -> JsonObject:
    text, logprobs, offsets = "", [], []
    async for piece in answer:
        text += piece.text
        logprobs += piece.logprobs
        offsets += piece.offsets
    return {
        "index": number,
        "text": text if echo is None else echo.text + text,
        "logprobs": _text_logprobs(answer, echo, logprobs, offsets),
        "finish_reason": answer.finish_reason,
    }


async def _text_events(
    answers: Sequence[Answer], echoes: Sequence[Echo | None], head: JsonObject, usage: bool, ids: bool
) -> AsyncGenerator[bytes, None]:
    """A prompt that is given back comes with the first piece of its answer."""
    unsaid = dict(enumerate(echoes))
    async for number, piece in merged(answers):
        echo, found = unsaid.pop(number, None), piece or Piece()
        text, begins = found.text, 0
        if echo is not None:
            text = echo.text + text
        elif (said := echoes[number]) is not None:
            begins = len(said.text)
        told = _text_logprobs(answers[number], echo, found.logprobs, [begins + offset for offset in found.offsets])
        finish = answers[number].finish_reason if piece is None else None
        choice: JsonObject = {"index": number, "text": text, "logprobs": told, "finish_reason": finish}
        if ids:
            choice["token_ids"] = [] if piece is None else piece.tokens
        yield event({**head, "choices": [choice], **({"usage": None} if usage else {})})
    if usage:
        yield event({**head, "choices": [], "usage": usage_of(answers), "timings": timings_of(answers[0])})
    yield b"data: [DONE]\n\n"


# ---- both ------------------------------------------------------------------------------------------------------------


def _sign_of_life(answers: Sequence[Answer], head: JsonObject, body: Choosing) -> Callable[[], bytes]:
    """A comment, or how far the prompt is where that was asked for, as llama.cpp's server has it."""

    def sign() -> bytes:
        progress = progress_of(answers[0]) if body.return_progress else None
        return COMMENT if progress is None else event({**head, "choices": [], "prompt_progress": progress})

    return sign


def _head(engine: Engine, prefix: str, kind: str) -> JsonObject:
    return {
        "id": prefix + secrets.token_hex(12),
        "object": kind,
        "created": int(time.time()),
        "model": engine.name,
        "system_fingerprint": "kvtrie-" + engine.model.fingerprint[:12],
    }


async def _all_of(
    answers: Sequence[Answer], choice: Callable[[int, Answer], Awaitable[JsonObject]]
) -> list[JsonObject]:
    """All choices. REQUIRES: within ``Answering``, so that none goes on where one fails."""
    return list(await asyncio.gather(*(choice(number, answer) for number, answer in enumerate(answers))))


def usage_of(answers: Sequence[Answer], per_prompt: int | None = None) -> JsonObject:
    """Tokens; the prompt of several answers counts once, and so does what was known of it."""
    firsts = answers[:: per_prompt or len(answers)]
    prompt = sum(answer.prompt_tokens for answer in firsts)
    generated = sum(answer.generated for answer in answers)
    usage: JsonObject = {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(answer.reused for answer in firsts)},
    }
    predicted = [found for found in (answer.predicted for answer in answers) if found is not None]
    if predicted:
        accepted, rejected = (sum(counts) for counts in zip(*predicted))
        usage["completion_tokens_details"] = {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": rejected,
        }
    return usage


def timings_of(answer: Answer) -> JsonObject:
    """Of one answer, in milliseconds."""
    first, rest = answer.seconds
    proposed, accepted = answer.drafted
    drafted = {"draft_n": proposed, "draft_n_accepted": accepted} if proposed else {}
    return {
        "cache_n": answer.reused,
        "prompt_n": answer.prompt_tokens - answer.reused,
        "prompt_ms": round(first * 1e3, 3),
        "predicted_n": answer.generated,
        "predicted_ms": round(rest * 1e3, 3),
        **drafted,
    }
