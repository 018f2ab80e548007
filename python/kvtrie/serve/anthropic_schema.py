"""Bodies that clients of the Anthropic API may send. Fields of a request that are not here: fields.py.

Source: docs.claude.com/en/api/messages; ``seed``, ``cache_salt``, ``cache_prompt`` and ``return_progress`` as in the
OpenAI schema. Blocks of kinds that have no class here are read by anthropic_blocks.py, so that a history with a newer
kind can still be gone on with.
"""

from __future__ import annotations

from typing import Annotated, Literal, Optional, Union

from pydantic import ConfigDict, Discriminator, Field, Tag

from ..thinking.asked import ThinkingAsked
from .fields import PromptFields, field_names
from .json_values import JsonObject
from .openai_schema import Sharing, SpecialTokens, StopText, Text
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


class OtherBlock(Block):
    """Of a kind that has no class here; all of its fields are kept."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, Field(min_length=1, max_length=64)]


def _kind_within(*known: str) -> Discriminator:
    def kind(block: object) -> str:
        found = block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
        return found if isinstance(found, str) and found in known else "other"

    return Discriminator(kind)


ResultPart = Annotated[
    Union[Annotated[TextBlock, Tag("text")], Annotated[OtherBlock, Tag("other")]], _kind_within("text")
]


class ToolResultBlock(Block):
    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(max_length=256)]
    content: Union[Text, list[ResultPart], None] = None
    is_error: Optional[bool] = None


AnyBlock = Annotated[
    Union[
        Annotated[TextBlock, Tag("text")],
        Annotated[ThinkingBlock, Tag("thinking")],
        Annotated[ThinkingBlock, Tag("redacted_thinking")],
        Annotated[ToolUseBlock, Tag("tool_use")],
        Annotated[ToolResultBlock, Tag("tool_result")],
        Annotated[OtherBlock, Tag("other")],
    ],
    _kind_within("text", "thinking", "redacted_thinking", "tool_use", "tool_result"),
]


class Message(BaseModel):
    role: Literal["user", "assistant", "system"]
    content: Union[Text, list[AnyBlock]]


class Tool(Block):
    """``type``: other than "custom", one that Anthropic's servers run."""

    type: Optional[str] = None
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
    disable_parallel_tool_use: Optional[bool] = None


class Thinking(BaseModel):
    """``budget_tokens``: the most that it may think, which Anthropic's servers want from 1,024 on."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Optional[Annotated[int, Field(ge=0, lt=1 << 31)]] = None


class OutputFormat(BaseModel):
    type: Literal["json_schema"]
    schema_: Annotated[JsonObject, Field(alias="schema")]


class OutputConfig(BaseModel):
    """``effort``: how hard it is to think, at most; "high" stands for no effort at all."""

    effort: Optional[Annotated[str, Field(max_length=64)]] = None
    format: Optional[OutputFormat] = None


class ConversationRequest(Sharing):
    model: Annotated[str, Field(max_length=1024)] = ""
    messages: Annotated[list[Message], Field(min_length=1)]
    system: Union[Text, list[TextBlock], None] = None
    tools: Optional[Annotated[list[Tool], Field(max_length=256)]] = None
    tool_choice: Optional[ToolChoice] = None
    thinking: Optional[Thinking] = None
    output_config: Optional[OutputConfig] = None
    cache_control: Optional[CacheControl] = None
    special_tokens: SpecialTokens = "letters"

    @property
    def thinking_asked(self) -> ThinkingAsked:
        """How it is to think. All of it is about how much at most."""
        given, config = self.thinking, self.output_config
        return ThinkingAsked(
            None if given is None else given.type != "disabled",
            None if config is None else config.effort,
            None if given is None else given.budget_tokens,
            limits=True,
            effort_field="output_config.effort",
        )


class MessagesRequest(ConversationRequest):
    max_tokens: Annotated[int, Field(ge=0, lt=1 << 31)]
    stop_sequences: Optional[Annotated[list[StopText], Field(max_length=16)]] = None
    temperature: Optional[Annotated[float, Field(ge=0, le=1)]] = None
    top_k: Optional[Annotated[int, Field(ge=0, lt=1 << 31)]] = None
    top_p: Optional[Annotated[float, Field(ge=0, le=1)]] = None
    seed: Optional[Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]] = None
    output_format: Optional[OutputFormat] = None
    cache_prompt: Optional[bool] = None
    return_progress: Optional[bool] = None
    stream: Optional[bool] = None


class CountRequest(ConversationRequest, PromptFields):
    @classmethod
    def about_answers(cls) -> frozenset[str]:
        """Fields of messages."""
        return _ABOUT_ANSWERS


_ABOUT_ANSWERS = frozenset(field_names(MessagesRequest))
