"""What clients of the Anthropic API may send. Fields that are not here are ignored.

Source: docs.claude.com/en/api/messages. Content that a text model cannot read (images, documents) is refused.
"""

from __future__ import annotations

from typing import Annotated, Literal, Optional, Union

from pydantic import Field

from .json_values import JsonObject
from .openai_schema import SpecialTokens, StopText, Text
from .wire import BaseModel

Name = Annotated[str, Field(min_length=1, max_length=256)]


class CacheControl(BaseModel):
    type: Literal["ephemeral"] = "ephemeral"


class Block(BaseModel):
    """``cache_control``: state is kept behind it, so that prompts which begin like this one go on from there."""

    cache_control: Optional[CacheControl] = None


class TextBlock(Block):
    type: Literal["text"]
    text: Text


class ThinkingBlock(Block):
    type: Literal["thinking", "redacted_thinking"]
    thinking: Text = ""


class ToolUseBlock(Block):
    type: Literal["tool_use"]
    id: Annotated[str, Field(max_length=256)]
    name: Name
    input: JsonObject = Field(default_factory=dict)


class ToolResultBlock(Block):
    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(max_length=256)]
    content: Union[Text, list[TextBlock], None] = None
    is_error: Optional[bool] = None


AnyBlock = Annotated[Union[TextBlock, ThinkingBlock, ToolUseBlock, ToolResultBlock], Field(discriminator="type")]


class Message(BaseModel):
    role: Literal["user", "assistant"]
    content: Union[Text, list[AnyBlock]]


class Tool(Block):
    name: Name
    description: Optional[Text] = None
    input_schema: JsonObject = Field(default_factory=dict)

    def as_dict(self) -> JsonObject:
        """As templates have it."""
        function = {"name": self.name, "description": self.description or "", "parameters": self.input_schema}
        return {"type": "function", "function": function}


class ToolChoice(BaseModel):
    type: Literal["auto", "any", "tool", "none"]
    name: Optional[Name] = None


class CountRequest(BaseModel):
    model: Annotated[str, Field(max_length=1024)] = ""
    messages: Annotated[list[Message], Field(min_length=1)]
    system: Union[Text, list[TextBlock], None] = None
    tools: Optional[Annotated[list[Tool], Field(max_length=256)]] = None
    tool_choice: Optional[ToolChoice] = None
    special_tokens: SpecialTokens = "letters"


class MessagesRequest(CountRequest):
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)]
    stop_sequences: Optional[Annotated[list[StopText], Field(max_length=16)]] = None
    temperature: Optional[Annotated[float, Field(ge=0, le=1)]] = None
    top_k: Optional[Annotated[int, Field(ge=0, lt=1 << 31)]] = None
    top_p: Optional[Annotated[float, Field(gt=0, le=1)]] = None
    stream: Optional[bool] = None
