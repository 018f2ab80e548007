# /// script
# dependencies = ["haystack-ai==3.4.1"]
# ///
"""haystack-ai: a tool that is required and its result, by chats and by responses; a stream."""

from __future__ import annotations

from typing import Any

import shared
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret


def look_up(title: str, what: str) -> str:
    return shared.RESULT


tool = Tool(name="look_up", description=shared.DESCRIPTION, parameters=shared.PARAMETERS, function=look_up)


def try_with(kind: Any, most: str) -> None:
    given: Any = {
        "model": shared.MODEL,
        "api_base_url": shared.OPENAI,
        "api_key": Secret.from_token(shared.KEY),
        "timeout": shared.SECONDS,
    }
    made = kind(**given, max_retries=0, generation_kwargs={"temperature": 0, most: 40})
    asked = [ChatMessage.from_user(shared.QUESTION)]
    required = {"tool_choice": "required", "parallel_tool_calls": False, most: 200}
    (said,) = made.run(asked, tools=[tool], generation_kwargs=required)["replies"]
    (call,) = said.tool_calls
    shared.require_call(call.tool_name, call.arguments)
    result = ChatMessage.from_tool(shared.RESULT, origin=call)
    (more,) = made.run([*asked, said, result], tools=[tool])["replies"]
    assert more.text or more.tool_calls
    used = more.meta["usage"]
    details = used.get("prompt_tokens_details") or used.get("input_tokens_details")
    assert details["cached_tokens"] >= said.meta["usage"]["total_tokens"] - 1, (said.meta["usage"], used)

    question = [ChatMessage.from_user("What is a cache?")]
    (whole,) = made.run(question)["replies"]
    pieces: list[str] = []
    made.run(question, streaming_callback=lambda chunk: pieces.append(chunk.content))
    shared.require_same("".join(pieces), whole.text)
    (long,) = made.run([ChatMessage.from_user(shared.long_text(f"haystack {most}"))])["replies"]
    shared.require_long(long.meta["usage"].get("prompt_tokens") or long.meta["usage"].get("input_tokens"))


try_with(OpenAIChatGenerator, "max_completion_tokens")
try_with(OpenAIResponsesChatGenerator, "max_output_tokens")
