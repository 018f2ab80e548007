"""Routes for people and programs that look closer: tokens of a text, texts of tokens, and why a prompt missed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..explain import Explanation
from ..thinking.asked import thinking_of
from .asked_for import namespace_of
from .engine import Engine
from .failures import Refusal
from .json_values import JsonObject
from .openai_schema import DetokenizeRequest, ExplainRequest, SpecialTokens, TokenizeRequest
from .prompts import Prompt
from .tenants import Tenants

_SHOWN = 64  # tokens on either side of a difference
_PIECE = 1 << 14  # token ids


def router(engine: Engine, tenants: Tenants) -> APIRouter:
    """Its routes."""
    routes = APIRouter()
    tokenizer = engine.model.tokenizer

    @routes.post("/tokenize")
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        """Token ids of a text (``content`` or ``prompt``), or of a conversation."""
        namespace = namespace_of(tenants.namespace(request), body.cache_salt)
        body.require_known(engine.settings.ignored)
        if body.messages:
            prompt = await _conversation(engine, body, namespace, body.reading)
            tokens = prompt.tokens.tolist()
        else:
            text = body.content if body.content is not None else body.prompt
            if text is None:
                raise Refusal(400, "content: missing", param="content")
            special = body.add_special if body.add_special is not None else bool(body.add_special_tokens)
            tokens = await asyncio.to_thread(tokenizer.encode, text, special, body.reading or "parse")
        said = await asyncio.to_thread(_tokens_as_json, tokens, engine.settings.context)
        return Response(said, media_type="application/json")

    @routes.post("/detokenize")
    async def detokenize(body: DetokenizeRequest, request: Request) -> dict[str, str]:
        """The text of token ids."""
        tenants.namespace(request)
        body.require_known(engine.settings.ignored)
        most = engine.model.config.vocab_size
        wrong = next((at for at, token in enumerate(body.tokens) if token >= most), None)
        if wrong is not None:
            said = f"tokens.{wrong}: got {body.tokens[wrong]}, allowed 0 to {most - 1}"
            raise Refusal(400, said, code="invalid_value", param=f"tokens.{wrong}")
        text = await asyncio.to_thread(tokenizer.decode, body.tokens)
        return {"content": text, "prompt": text}

    @routes.get("/tokenizer_info")
    async def tokenizer_info(request: Request) -> JsonObject:
        """As vLLM has it: who scores texts asks for it before it tokenizes here."""
        tenants.namespace(request)
        template = {} if engine.template is None else {"chat_template": engine.template}
        return {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.special, **template}

    @routes.post("/api/embed")
    @routes.post("/api/embeddings")
    @routes.post("/v1/embeddings")
    async def embeddings(request: Request) -> JsonObject:
        """There are none."""
        tenants.namespace(request)
        raise Refusal(400, "this server gives no embeddings: it has a model that answers", code="unsupported")

    @routes.post("/explain")
    async def explain(body: ExplainRequest, request: Request) -> JsonObject:
        """Why no more of a prompt would be reused; only the key's own namespace is looked at."""
        namespace = namespace_of(tenants.namespace(request), body.cache_salt)
        body.require_known(engine.settings.ignored)
        prompt = await _prompt(engine, body, namespace)
        found = await engine.explain(prompt, namespace)
        return explanation_fields(found, engine, await engine.advice(found, prompt))

    return routes


def _tokens_as_json(tokens: list[int], context: int) -> bytes:
    """In pieces: there may be millions, and encoding JSON holds up all other threads."""
    pieces = (",".join(map(str, tokens[at : at + _PIECE])) for at in range(0, len(tokens), _PIECE))
    return f'{{"tokens":[{",".join(pieces)}],"count":{len(tokens)},"max_model_len":{context}}}'.encode()


async def _prompt(engine: Engine, body: ExplainRequest, namespace: str) -> Prompt:
    if body.messages is not None:
        return await _conversation(engine, body, namespace, body.special_tokens)
    if body.prompt is None:
        raise Refusal(400, "messages: missing", param="messages")
    if isinstance(body.prompt, str):
        return await engine.text(body.prompt, namespace, body.special_tokens or "parse")
    return engine.tokens(body.prompt)


async def _conversation(
    engine: Engine, body: ExplainRequest | TokenizeRequest, namespace: str, reading: SpecialTokens | None
) -> Prompt:
    engine.require_text("messages")
    messages = [message.as_dict() for message in body.messages or ()]
    tools = [tool.as_dict() for tool in body.tools or ()]
    variables = thinking_of(engine.model.tokenizer, body.thinking_asked, tools, body.chat_template_kwargs).variables
    return await engine.chat(messages, namespace, tools, variables, special_tokens=reading or "letters")


def explanation_fields(found: Explanation, engine: Engine, advice: Sequence[str] = ()) -> JsonObject:
    """An explanation as JSON; ``text`` is for people. ``advice``: what it does not know itself."""
    decode = engine.model.tokenizer.decode
    return {
        "prompt_tokens": len(found.tokens),
        "matched": found.matched,
        "reusable": found.reusable,
        "computed": found.computed,
        "tier": found.tier,
        "bytes_moved": found.bytes_moved,
        "reason": found.reason or None,
        "end": found.end,
        "branches": found.branches,
        "before": decode([int(token) for token in found.before]),
        "instead": decode([int(token) for token in found.instead[:_SHOWN]]),
        "known": decode([int(token) for token in found.known[:_SHOWN]]),
        "rejoin": found.rejoin._asdict(),
        "caches": [each._asdict() for each in found.caches],
        "compute_seconds": found.compute_seconds,
        "load_seconds": found.load_seconds,
        "advice": [*found.advice(), *advice],
        "text": "\n".join([str(found), *(f"to reuse more: {each}" for each in advice)]),
    }
