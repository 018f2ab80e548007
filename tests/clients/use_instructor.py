# /// script
# dependencies = ["instructor==1.17.0"]
# ///
"""instructor: objects by a tool that is required (TOOLS), and by a schema (JSON_SCHEMA)."""

from __future__ import annotations

from typing import Literal

import instructor
import shared
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field


class Wanted(BaseModel):
    """A book to look up."""

    model_config = ConfigDict(extra="forbid")  # else a small model adds properties until it is cut off

    title: str = Field(max_length=40)
    what: Literal["pages", "author"]


plain = OpenAI(base_url=shared.OPENAI, api_key=shared.KEY, timeout=shared.SECONDS, max_retries=0)
messages = [{"role": "user", "content": shared.QUESTION}]
asked = {"model": shared.MODEL, "messages": messages, "max_tokens": 200, "temperature": 0, "max_retries": 0}
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(plain, mode=mode)
    made, answer = client.chat.completions.create_with_completion(**asked, response_model=Wanted)
    assert isinstance(made, Wanted)
    again, second = client.chat.completions.create_with_completion(**asked, response_model=Wanted)
    assert again.model_dump() == made.model_dump()
    assert second.usage.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens - 1
    parts = list(client.chat.completions.create_partial(**asked, response_model=Wanted))
    assert set(parts[-1].model_dump()) == {"title", "what"}  # its description is another one, and so may the call be
    long = {**asked, "messages": [{"role": "user", "content": shared.long_text(f"instructor {mode.value}")}]}
    shared.require_long(
        client.chat.completions.create_with_completion(**long, response_model=Wanted)[1].usage.prompt_tokens
    )
