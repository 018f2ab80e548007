# /// script
# dependencies = ["openai==3.57.0"]
# ///
"""openai's `responses`: a conversation that the server keeps, and one that the client keeps."""

from __future__ import annotations

import shared
from openai import OpenAI

client = OpenAI(base_url=shared.OPENAI, api_key=shared.KEY, timeout=shared.SECONDS, max_retries=0)
tool = {
    "type": "function",
    "name": "look_up",
    "description": shared.DESCRIPTION,
    "parameters": shared.PARAMETERS,
    "strict": True,
}
asked = {"model": shared.MODEL, "temperature": 0, "tools": [tool]}

first = client.responses.create(
    **asked, input=shared.QUESTION, tool_choice="required", parallel_tool_calls=False, max_output_tokens=200
)
(call,) = [item for item in first.output if item.type == "function_call"]
shared.require_call(call.name, call.arguments)
result = {"type": "function_call_output", "call_id": call.call_id, "output": shared.RESULT}
kept = client.responses.create(**asked, input=[result], previous_response_id=first.id, max_output_tokens=40)
assert kept.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1, kept.usage
sent = [{"role": "user", "content": shared.QUESTION}, *(item.model_dump() for item in first.output), result]
own = client.responses.create(**asked, input=sent, store=False, max_output_tokens=40)
assert own.output_text == kept.output_text

with client.responses.stream(**asked, input="What is a cache?", tool_choice="none", max_output_tokens=40) as stream:
    texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
whole = client.responses.create(**asked, input="What is a cache?", tool_choice="none", max_output_tokens=40)
shared.require_same("".join(texts), whole.output_text)
assert whole.usage.input_tokens_details.cached_tokens == whole.usage.input_tokens - 1

shared.require_long(
    client.responses.create(
        model=shared.MODEL, input=shared.long_text("openai"), max_output_tokens=8
    ).usage.input_tokens
)
