# /// script
# dependencies = ["outlines==1.3.3", "openai==3.57.0"]
# ///
"""outlines: objects by a schema, and a stream."""

from __future__ import annotations

from typing import Literal

import outlines
import shared
from openai import OpenAI
from pydantic import BaseModel, Field


class Wanted(BaseModel):
    """A book to look up."""

    title: str = Field(max_length=40)
    what: Literal["pages", "author"]


model = outlines.from_openai(
    OpenAI(base_url=shared.OPENAI, api_key=shared.KEY, timeout=shared.SECONDS, max_retries=0), shared.MODEL
)
made = model(shared.QUESTION, Wanted, max_tokens=200, temperature=0)
shared.require_call("look_up", made)
pieces = list(model.stream(shared.QUESTION, Wanted, max_tokens=200, temperature=0))
shared.require_same("".join(pieces), made)
whole = model("What is a cache?", max_tokens=40, temperature=0)
shared.require_same("".join(model.stream("What is a cache?", max_tokens=40, temperature=0)), whole)
shared.require_call("look_up", model(shared.long_text("outlines"), Wanted, max_tokens=200, temperature=0))
