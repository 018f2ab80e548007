# /// script
# dependencies = ["smolagents[openai]==1.26.0"]
# ///
"""smolagents: an agent whose every step has to be a tool call, and a stream of its model's."""

from __future__ import annotations

from typing import Any, ClassVar

import shared
from smolagents import ChatMessage, OpenAIModel, Tool, ToolCallingAgent

model = OpenAIModel(
    shared.MODEL,
    api_base=shared.OPENAI,
    api_key=shared.KEY,
    client_kwargs={"timeout": shared.SECONDS, "max_retries": 0},
    temperature=0,
    max_tokens=400,
)
called: list[Any] = []


class LookUp(Tool):  # type: ignore[misc]
    name = "look_up"
    description = shared.DESCRIPTION
    inputs: ClassVar = {
        "title": {"type": "string", "description": "its title"},
        "what": {"type": "string", "enum": ["pages", "author"], "description": "what is asked about it"},
    }
    output_type = "string"

    def forward(self, title: str, what: str) -> str:
        called.append({"title": title, "what": what})
        return shared.RESULT


agent = ToolCallingAgent(tools=[LookUp()], model=model, max_steps=2, verbosity_level=0)
said = agent.run(shared.QUESTION, return_full_result=True)
steps = [step for step in said.steps if step.get("tool_calls")]
assert steps, "no step had a call"
for given in called:
    shared.require_call("look_up", given)
shared.require_long(said.token_usage.input_tokens)  # its system prompt is as long as that, over both steps

question = [ChatMessage("user", [{"type": "text", "text": "What is a cache?"}])]
whole = model.generate(question)
pieces = [delta.content or "" for delta in model.generate_stream(question)]
shared.require_same("".join(pieces), whole.content)
assert whole.raw.usage.prompt_tokens_details is not None
again = model.generate(question)
assert again.raw.usage.prompt_tokens_details.cached_tokens == again.token_usage.input_tokens - 1
long = [ChatMessage("user", [{"type": "text", "text": shared.long_text("smolagents")}])]
shared.require_long(model.generate(long).token_usage.input_tokens)
