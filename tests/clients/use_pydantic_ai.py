# /// script
# dependencies = ["pydantic-ai-slim[anthropic,openai]==2.68.0"]
# ///
"""pydantic-ai: an object as the result, which it asks for by a tool, over three APIs; and a stream."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import shared
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Wanted(BaseModel):
    """A book to look up."""

    title: str = Field(max_length=40)
    what: Literal["pages", "author"]


async def try_with(model: Any) -> None:
    settings: Any = {"temperature": 0, "max_tokens": 400, "parallel_tool_calls": False}
    agent = Agent(model, output_type=Wanted, model_settings=settings, retries=0)
    first = await agent.run(shared.QUESTION)
    assert isinstance(first.output, Wanted)
    again = await agent.run(shared.QUESTION)
    assert again.output == first.output
    assert again.usage.cache_read_tokens > 0
    plain = Agent(model, model_settings={"temperature": 0, "max_tokens": 40})
    whole = (await plain.run("What is a cache?")).output
    async with plain.run_stream("What is a cache?") as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    shared.require_same("".join(pieces), whole)
    long = await plain.run(shared.long_text(f"pydantic-ai {type(model).__name__}"))
    shared.require_long(long.usage.input_tokens)


async def main() -> None:
    client = AsyncOpenAI(base_url=shared.OPENAI, api_key=shared.KEY, timeout=shared.SECONDS, max_retries=0)
    claude = AsyncAnthropic(base_url=shared.URL, api_key=shared.KEY, timeout=shared.SECONDS, max_retries=0)
    await try_with(OpenAIChatModel(shared.MODEL, provider=OpenAIProvider(openai_client=client)))
    await try_with(OpenAIResponsesModel(shared.MODEL, provider=OpenAIProvider(openai_client=client)))
    await try_with(AnthropicModel(shared.MODEL, provider=AnthropicProvider(anthropic_client=claude)))


asyncio.run(main())
