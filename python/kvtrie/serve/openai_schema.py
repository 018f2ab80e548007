"""What clients of the OpenAI API may send. Fields that are not here are ignored.

Source: platform.openai.com/docs/api-reference/chat/create and completions/create; ``top_k``, ``min_p``,
``repetition_penalty``, ``ignore_eos``, ``return_token_ids`` and ``chat_template_kwargs`` as in vLLM. What stands in
messages, tools and texts and looks like special tokens is so with ``special_tokens`` "parse", and text with "letters".
"""

from __future__ import annotations

from typing import Annotated, Literal, Optional, Union

from pydantic import Field

from .json_values import JsonObject
from .wire import BaseModel

Text = Annotated[str, Field(max_length=64 << 20)]
StopText = Annotated[str, Field(min_length=1, max_length=1024)]
Token = Annotated[int, Field(ge=0, lt=1 << 31)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]


class TextPart(BaseModel):
    type: Literal["text", "input_text", "output_text"]
    text: Text


class FunctionCall(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: Text = "{}"


class CallPart(BaseModel):
    id: Annotated[str, Field(max_length=256)] = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Union[Text, list[TextPart], None] = None
    name: Optional[Annotated[str, Field(max_length=256)]] = None
    tool_calls: Optional[list[CallPart]] = None
    tool_call_id: Optional[Annotated[str, Field(max_length=256)]] = None
    reasoning_content: Optional[Text] = None

    def as_dict(self) -> JsonObject:
        """For a chat template: content as one text or in parts, as it came; nothing that is None but content."""
        content: object = self.content
        if isinstance(self.content, list):
            content = [{"type": "text", "text": part.text} for part in self.content]
        message: JsonObject = {"role": self.role, "content": content}
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        for name in ("name", "tool_call_id", "reasoning_content"):
            value = getattr(self, name)
            if value is not None:
                message[name] = value
        return message


class Function(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: Optional[Text] = None
    parameters: Optional[JsonObject] = None


class Tool(BaseModel):
    type: Literal["function"]
    function: Function

    def as_dict(self) -> JsonObject:
        """As templates have it."""
        return self.model_dump(exclude_none=True)


class NamedFunction(BaseModel):
    name: str


class NamedTool(BaseModel):
    type: Literal["function"]
    function: NamedFunction


class SchemaFormat(BaseModel):
    name: str = "answer"
    schema_: JsonObject = Field(alias="schema", default_factory=dict)


class ResponseFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: Optional[SchemaFormat] = None


class StreamOptions(BaseModel):
    include_usage: bool = False


class Choosing(BaseModel):
    """How tokens are chosen, in chats and plain texts alike."""

    model: Annotated[str, Field(max_length=1024)] = ""
    max_tokens: Optional[Annotated[int, Field(ge=1, lt=1 << 31)]] = None
    temperature: Optional[Annotated[float, Field(ge=0, le=2)]] = None
    top_p: Optional[Annotated[float, Field(gt=0, le=1)]] = None
    top_k: Optional[Annotated[int, Field(ge=-1, lt=1 << 31)]] = None
    min_p: Optional[Annotated[float, Field(ge=0, le=1)]] = None
    repetition_penalty: Optional[Annotated[float, Field(gt=0, le=100)]] = None
    presence_penalty: Optional[Annotated[float, Field(ge=-2, le=2)]] = None
    frequency_penalty: Optional[Annotated[float, Field(ge=-2, le=2)]] = None
    logit_bias: Optional[Annotated[dict[Token, Bias], Field(max_length=4096)]] = None
    seed: Optional[Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]] = None
    n: Optional[Annotated[int, Field(ge=1, le=128)]] = None
    stop: Union[StopText, Annotated[list[StopText], Field(max_length=16)], None] = None
    stream: Optional[bool] = None
    stream_options: Optional[StreamOptions] = None
    ignore_eos: Optional[bool] = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop texts."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


SpecialTokens = Literal["letters", "parse"]


class ChatRequest(Choosing):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Optional[Annotated[int, Field(ge=1, lt=1 << 31)]] = None
    logprobs: Optional[bool] = None
    top_logprobs: Optional[Annotated[int, Field(ge=0, le=20)]] = None
    tools: Optional[Annotated[list[Tool], Field(max_length=256)]] = None
    tool_choice: Union[Literal["none", "auto", "required"], NamedTool, None] = None
    response_format: Optional[ResponseFormat] = None
    chat_template_kwargs: Optional[JsonObject] = None
    special_tokens: SpecialTokens = "letters"


class CompletionRequest(Choosing):
    prompt: Union[Text, list[Text], list[Token], list[list[Token]]]
    logprobs: Optional[Annotated[int, Field(ge=0, le=20)]] = None
    return_token_ids: Optional[bool] = None
    special_tokens: SpecialTokens = "parse"
    echo: Optional[bool] = None
    suffix: Optional[str] = None


class TokenizeRequest(BaseModel):
    """As in llama.cpp (``content``, ``parse_special``) and vLLM (``prompt`` or ``messages``).

    ``special_tokens``: "letters" for messages, "parse" for a text, unless given.
    """

    content: Optional[Text] = None
    prompt: Optional[Text] = None
    messages: Optional[list[ChatMessage]] = None
    add_special: Optional[bool] = None
    add_special_tokens: Optional[bool] = None
    parse_special: Optional[bool] = None
    special_tokens: Optional[SpecialTokens] = None
    tools: Optional[Annotated[list[Tool], Field(max_length=256)]] = None
    chat_template_kwargs: Optional[JsonObject] = None

    @property
    def reading(self) -> Optional[SpecialTokens]:
        """By either name."""
        if self.parse_special is None:
            return self.special_tokens
        return "parse" if self.parse_special else "letters"


class DetokenizeRequest(BaseModel):
    tokens: list[Token]


class ExplainRequest(BaseModel):
    """One of them."""

    messages: Optional[Annotated[list[ChatMessage], Field(min_length=1)]] = None
    tools: Optional[list[Tool]] = None
    prompt: Union[Text, list[Token], None] = None
    chat_template_kwargs: Optional[JsonObject] = None
    special_tokens: Optional[SpecialTokens] = None
