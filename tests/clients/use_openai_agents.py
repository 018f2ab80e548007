# /// script
# dependencies = ["openai-agents==0.24.0"]
# ///
"""openai-agents: an agent that has to call its tool, by chat completions and by responses, which are its default."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import shared
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

called: list[dict[str, Any]] = []


@function_tool(description_override=shared.DESCRIPTION)
def look_up(title: str, what: Literal["pages", "author"]) -> str:
    called.append({"title": title, "what": what})
    return shared.RESULT


async def try_with(model: Any, kind: str) -> None:
    called.clear()
    settings = ModelSettings(temperature=0, max_tokens=200, tool_choice="required", parallel_tool_calls=False)
    agent = Agent("Librarian", instructions="You keep books.", model=model, tools=[look_up], model_settings=settings)
    done = await Runner.run(agent, shared.QUESTION)
    (given,) = called  # behind a call the choice is the model's again
    shared.require_call("look_up", given)
    first, second = done.context_wrapper.usage.request_usage_entries[:2]
    known = done.raw_responses[1].usage.input_tokens_details.cached_tokens
    assert known >= first.total_tokens - 1, (first, second, known)
    # By responses it takes an answer that its limit cut off for an error: a question with a short answer.
    plain = Agent("Plain", model=model, model_settings=ModelSettings(temperature=0, max_tokens=400))
    whole = await Runner.run(plain, "Say hello.")
    streamed = Runner.run_streamed(plain, "Say hello.")
    kinds = ("response.output_text.delta",)
    pieces = [
        event.data.delta async for event in streamed.stream_events()
        if event.type == "raw_response_event" and event.data.type in kinds
    ]  # fmt: skip
    shared.require_same("".join(pieces), whole.final_output)
    long = await Runner.run(plain, f"{shared.long_text(kind)} Say hello.")
    shared.require_long(long.context_wrapper.usage.input_tokens)


async def main() -> None:
    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=shared.OPENAI, api_key=shared.KEY, timeout=shared.SECONDS, max_retries=0) as client:
        await try_with(OpenAIChatCompletionsModel(shared.MODEL, client), "chat")
        await try_with(OpenAIResponsesModel(shared.MODEL, client), "responses")


asyncio.run(main())
