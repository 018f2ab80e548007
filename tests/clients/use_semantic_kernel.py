# /// script
# dependencies = ["semantic-kernel==1.45.0"]
# ///
"""semantic-kernel: a function that is required, and a stream."""

from __future__ import annotations

import asyncio
from typing import Annotated

import shared
from openai import AsyncOpenAI
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory, FunctionCallContent
from semantic_kernel.functions import kernel_function


class Library:
    def __init__(self) -> None:
        self.called = 0

    @kernel_function(name="look_up", description=shared.DESCRIPTION)
    def look_up(
        self,
        title: Annotated[str, "its title"],
        what: Annotated[str, "what is asked about it: pages or author"],  # of a Literal it makes any object
    ) -> str:
        self.called += 1
        return shared.RESULT


def history_of(text: str) -> ChatHistory:
    history = ChatHistory()
    history.add_user_message(text)
    return history


async def main() -> None:
    client = AsyncOpenAI(base_url=shared.OPENAI, api_key=shared.KEY, timeout=shared.SECONDS, max_retries=0)
    service = OpenAIChatCompletion(ai_model_id=shared.MODEL, async_client=client)
    kernel, library = Kernel(), Library()
    kernel.add_plugin(library, "library")
    required = FunctionChoiceBehavior.Required(auto_invoke=False)
    asked = {"temperature": 0, "max_tokens": 400}
    settings = OpenAIChatPromptExecutionSettings(**asked, function_choice_behavior=required, parallel_tool_calls=False)
    (said,) = await service.get_chat_message_contents(history_of(shared.QUESTION), settings, kernel=kernel)
    (call,) = [item for item in said.items if isinstance(item, FunctionCallContent)]
    shared.require_call(str(call.function_name), call.arguments, any_what=True)
    invoking = OpenAIChatPromptExecutionSettings(**asked, function_choice_behavior=FunctionChoiceBehavior.Auto())
    history = history_of(f"{shared.QUESTION} Call library-look_up.")
    (told,) = await service.get_chat_message_contents(history, invoking, kernel=kernel)
    assert str(told) or library.called

    plain = OpenAIChatPromptExecutionSettings(temperature=0, max_tokens=40)
    (whole,) = await service.get_chat_message_contents(history_of("What is a cache?"), plain)
    stream = service.get_streaming_chat_message_contents(history_of("What is a cache?"), plain)
    shared.require_same("".join([str(part[0]) async for part in stream]), str(whole))
    (long,) = await service.get_chat_message_contents(history_of(shared.long_text("semantic-kernel")), plain)
    shared.require_long(long.metadata["usage"].prompt_tokens)


asyncio.run(main())
