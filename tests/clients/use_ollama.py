# /// script
# dependencies = ["ollama==0.6.3"]
# ///
"""ollama, the client: chats, tools, formats and what it looks at before."""

from __future__ import annotations

import json

import shared
from ollama import Client

client = Client(host=shared.URL, timeout=shared.SECONDS)
(listed,) = client.list().models
assert listed.model == shared.MODEL
assert "tools" in client.show(shared.MODEL).capabilities

options = {"temperature": 0, "num_predict": 40}
question = [{"role": "user", "content": "What is a cache?"}]
whole = client.chat(shared.MODEL, question, options=options)
pieces = [part.message.content or "" for part in client.chat(shared.MODEL, question, options=options, stream=True)]
shared.require_same("".join(pieces), whole.message.content or "")

system = {"role": "system", "content": f"{shared.DESCRIPTION} Always call look_up."}
told = client.chat(
    shared.MODEL, [system, {"role": "user", "content": shared.QUESTION}], tools=[shared.TOOL], options=options
)
for call in told.message.tool_calls or []:  # Ollama has no way to require one
    shared.require_call(call.function.name, dict(call.function.arguments))
formed = client.chat(shared.MODEL, question, format=shared.PARAMETERS, options={**options, "num_predict": 100})
shared.require_call("look_up", json.loads(formed.message.content or ""))

history = [*question, whole.message, {"role": "user", "content": "And a lock?"}]
more = client.chat(shared.MODEL, history, options=options)
known = (whole.prompt_eval_count or 0) + (whole.eval_count or 0)
assert (more.prompt_eval_count or 0) > known
assert client.generate(shared.MODEL, "A page is", options=options).response

shared.require_long(
    client.generate(shared.MODEL, shared.long_text("ollama"), options={"num_predict": 8}).prompt_eval_count or 0
)
