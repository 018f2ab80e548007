# /// script
# dependencies = ["llama-index-llms-openai-like==0.8.1"]
# ///
"""llama-index, by its OpenAILike: a tool that is required, an object, and a stream."""

import asyncio
from typing import Any, Literal

import shared
from llama_index.core import PromptTemplate
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field


class Wanted(BaseModel):
    """A book to look up."""

    title: str = Field(max_length=40)
    what: Literal["pages", "author"]


def look_up(title: str, what: Literal["pages", "author"]) -> str:
    return shared.RESULT


asked: Any = {
    "model": shared.MODEL,
    "api_base": shared.OPENAI,
    "api_key": shared.KEY,
    "timeout": shared.SECONDS,
    "max_retries": 0,
}
model = OpenAILike(
    **asked, is_chat_model=True, is_function_calling_model=True, context_window=8192, temperature=0, max_tokens=200
)
tool = FunctionTool.from_defaults(look_up, description=shared.DESCRIPTION)
answer = model.chat_with_tools([tool], user_msg=shared.QUESTION, tool_required=True, allow_parallel_tool_calls=False)
(call,) = model.get_tool_calls_from_response(answer)
shared.require_call(call.tool_name, call.tool_kwargs)
made = model.structured_predict(Wanted, PromptTemplate(shared.QUESTION))
assert isinstance(made, Wanted)

question = [ChatMessage(role="user", content="What is a cache?")]
whole = model.chat(question, max_tokens=40)
shared.require_same(
    "".join(part.delta or "" for part in model.stream_chat(question, max_tokens=40)), str(whole.message.content)
)
again = model.chat(question, max_tokens=40).raw
assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1
long = model.chat([ChatMessage(role="user", content=shared.long_text("llama-index"))], max_tokens=8)
shared.require_long(long.raw.usage.prompt_tokens)


async def run_agent() -> str:
    agent = FunctionAgent(tools=[tool], llm=model, streaming=True)
    return str(await agent.run(shared.QUESTION, max_iterations=3))


assert asyncio.run(run_agent()).strip()
