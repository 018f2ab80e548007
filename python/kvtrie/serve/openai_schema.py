"""Bodies that clients of the OpenAI API may send. Fields of a request that are not here: fields.py.

Source: platform.openai.com/docs/api-reference/chat/create and completions/create; ``top_k``, ``min_p``,
``repetition_penalty``, ``ignore_eos``, ``stop_token_ids``, ``cache_salt``, ``return_token_ids``, ``prompt_logprobs``,
``guided_json`` and its like, ``structured_outputs`` and ``chat_template_kwargs`` as in vLLM, ``cache_prompt``,
``return_progress``, ``json_schema``, ``grammar`` and ``typical_p`` as in llama.cpp, ``regex`` and ``ebnf`` as in
SGLang. Letters in messages, tools and texts that look like special tokens are special tokens with ``special_tokens``
"parse", and text with "letters".
"""

from __future__ import annotations

from typing import Annotated, Literal, Optional, Union

from pydantic import Field, JsonValue

from ..thinking.asked import ThinkingAsked
from .fields import Fields, PromptFields, field_names
from .json_values import JsonObject
from .wire import BaseModel

Text = Annotated[str, Field(max_length=64 << 20)]
StopText = Annotated[str, Field(max_length=1024)]
Token = Annotated[int, Field(ge=0, lt=1 << 31, strict=True)]
TokenKey = Annotated[int, Field(ge=0, lt=1 << 31)]  # JSON's keys are texts
Length = Annotated[int, Field(ge=-1, lt=1 << 31)]  # tokens of an answer; -1: as many as there is room for
Choice = Annotated[list[Annotated[str, Field(min_length=1, max_length=4096)]], Field(min_length=1, max_length=4096)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]


class TextPart(BaseModel):
    type: Literal["text", "input_text", "output_text"]
    text: Text


class RefusalPart(BaseModel):
    """The assistant's words in place of an answer."""

    type: Literal["refusal"]
    refusal: Text

    @property
    def text(self) -> str:
        """It."""
        return self.refusal


class FunctionCall(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: Text = "{}"


class CallPart(BaseModel):
    id: Annotated[str, Field(max_length=256)] = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class ReasoningDetail(BaseModel):
    """Of OpenRouter: ``text`` or ``summary``, by its type; what is encrypted has neither."""

    type: Annotated[str, Field(max_length=64)]
    text: Optional[Text] = None
    summary: Optional[Text] = None


Part = Annotated[Union[TextPart, RefusalPart], Field(discriminator="type")]


class ChatMessage(BaseModel):
    """``reasoning``, ``reasoning_details``: other names of ``reasoning_content``; ``function_call``: one call."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Union[Text, list[Part], None] = None
    name: Optional[Annotated[str, Field(max_length=256)]] = None
    tool_calls: Optional[list[CallPart]] = None
    function_call: Optional[FunctionCall] = None
    tool_call_id: Optional[Annotated[str, Field(max_length=256)]] = None
    refusal: Optional[Text] = None
    reasoning_content: Optional[Text] = None
    reasoning: Optional[Text] = None
    reasoning_details: Optional[list[ReasoningDetail]] = None

    def as_dict(self) -> JsonObject:
        """For a chat template: content as one text or in parts, as it came; nothing that is None but content."""
        content: object = self.refusal if self.content is None else self.content
        if isinstance(self.content, list):
            content = [{"type": "text", "text": part.text} for part in self.content]
        message: JsonObject = {"role": self.role, "content": content}
        calls = [call.model_dump() for call in self.tool_calls or ()]
        if self.function_call is not None and not calls:
            calls = [CallPart(function=self.function_call).model_dump()]
        if calls:
            message["tool_calls"] = calls
        said = {"name": self.name, "tool_call_id": self.tool_call_id, "reasoning_content": self._reasoning}
        return {**message, **{name: value for name, value in said.items() if value is not None}}

    @property
    def _reasoning(self) -> str | None:
        """By the first of its names that is there."""
        if self.reasoning_content is not None or self.reasoning is not None:
            return self.reasoning if self.reasoning_content is None else self.reasoning_content
        details = [each.text or each.summary or "" for each in self.reasoning_details or ()]
        return "".join(details) or None


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


class Prediction(BaseModel):
    """What most of the answer is expected to be."""

    type: Literal["content"]
    content: Union[Text, list[TextPart]]

    @property
    def text(self) -> str:
        """In one."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class StreamOptions(BaseModel):
    include_usage: bool = False


class StructuredOutputs(BaseModel):
    """Of vLLM. Fields that are not obeyed are here so that they can be refused by name."""

    json_: Annotated[Union[JsonObject, Text, None], Field(alias="json")] = None
    json_object: Optional[bool] = None
    regex: Optional[Text] = None
    choice: Optional[Choice] = None
    grammar: Optional[Text] = None
    structural_tag: Optional[JsonValue] = None


class Sharing(Fields):
    """Whose state a prompt may reuse. ``cache_salt``: that of requests with the same one; ``cache_prompt`` false: none,
    and none of it is kept."""

    cache_salt: Optional[Annotated[str, Field(max_length=1024)]] = None


class Choosing(Sharing):
    """How tokens are chosen, in chats and plain texts alike."""

    model: Annotated[str, Field(max_length=1024)] = ""
    max_tokens: Optional[Length] = None
    temperature: Optional[Annotated[float, Field(ge=0, le=2)]] = None
    top_p: Optional[Annotated[float, Field(ge=0, le=1)]] = None
    typical_p: Optional[Annotated[float, Field(gt=0, le=1)]] = None
    top_k: Optional[Annotated[int, Field(ge=-1, lt=1 << 31)]] = None
    min_p: Optional[Annotated[float, Field(ge=0, le=1)]] = None
    repetition_penalty: Optional[Annotated[float, Field(gt=0, le=100)]] = None
    presence_penalty: Optional[Annotated[float, Field(ge=-2, le=2)]] = None
    frequency_penalty: Optional[Annotated[float, Field(ge=-2, le=2)]] = None
    logit_bias: Optional[Annotated[dict[TokenKey, Bias], Field(max_length=4096)]] = None
    seed: Optional[Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]] = None
    n: Optional[Annotated[int, Field(ge=1, le=128)]] = None
    stop: Union[StopText, Annotated[list[StopText], Field(max_length=16)], None] = None
    stop_token_ids: Optional[Annotated[list[Token], Field(max_length=1024)]] = None
    stream: Optional[bool] = None
    stream_options: Optional[StreamOptions] = None
    ignore_eos: Optional[bool] = None
    cache_prompt: Optional[bool] = None
    return_progress: Optional[bool] = None
    guided_json: Union[JsonObject, Text, None] = None
    json_schema: Optional[JsonObject] = None
    structured_outputs: Optional[StructuredOutputs] = None
    guided_regex: Optional[Text] = None
    regex: Optional[Text] = None
    guided_choice: Optional[Choice] = None
    guided_grammar: Optional[Text] = None
    grammar: Optional[Text] = None
    ebnf: Optional[Text] = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop texts; empty ones stop nothing."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(filter(None, given))


SpecialTokens = Literal["letters", "parse"]


class ChatRequest(Choosing):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Optional[Length] = None
    logprobs: Optional[bool] = None
    top_logprobs: Optional[Annotated[int, Field(ge=0, le=20)]] = None
    tools: Optional[Annotated[list[Tool], Field(max_length=256)]] = None
    tool_choice: Union[Literal["none", "auto", "required"], NamedTool, None] = None
    response_format: Optional[ResponseFormat] = None
    parallel_tool_calls: Optional[bool] = None
    reasoning_effort: Optional[Annotated[str, Field(max_length=64)]] = None
    chat_template_kwargs: Optional[JsonObject] = None
    prediction: Optional[Prediction] = None
    special_tokens: SpecialTokens = "letters"

    @property
    def thinking_asked(self) -> ThinkingAsked:
        """How it is to think."""
        return ThinkingAsked(effort=self.reasoning_effort)


class CompletionRequest(Choosing):
    prompt: Union[Text, list[Text], list[Token], list[list[Token]]]
    logprobs: Optional[Annotated[int, Field(ge=0, le=20)]] = None
    echo: Optional[bool] = None
    prompt_logprobs: Optional[Annotated[int, Field(ge=0, le=20)]] = None
    return_token_ids: Optional[bool] = None

    @property
    def told_of_prompt(self) -> Optional[int]:
        """How many of the likeliest tokens those of the prompt come with, by whatever asks for them; None: nothing
        does."""
        asked = (self.logprobs if self.echo else None, self.prompt_logprobs)
        return max((count for count in asked if count is not None), default=None)

    special_tokens: SpecialTokens = "parse"


class TokenizeRequest(Sharing, PromptFields):
    """As in llama.cpp (``content``, ``parse_special``) and vLLM (``prompt`` or ``messages``).

    ``special_tokens``: "letters" for messages, "parse" for a text, unless given.
    """

    model: Annotated[str, Field(max_length=1024)] = ""
    content: Optional[Text] = None
    prompt: Optional[Text] = None
    messages: Optional[list[ChatMessage]] = None
    add_special: Optional[bool] = None
    add_special_tokens: Optional[bool] = None
    parse_special: Optional[bool] = None
    special_tokens: Optional[SpecialTokens] = None
    tools: Optional[Annotated[list[Tool], Field(max_length=256)]] = None
    reasoning_effort: Optional[Annotated[str, Field(max_length=64)]] = None
    chat_template_kwargs: Optional[JsonObject] = None

    @property
    def thinking_asked(self) -> ThinkingAsked:
        """How the answer is to think, which the prompt says."""
        return ThinkingAsked(effort=self.reasoning_effort)

    @property
    def reading(self) -> Optional[SpecialTokens]:
        """By either name."""
        if self.parse_special is None:
            return self.special_tokens
        return "parse" if self.parse_special else "letters"

    @classmethod
    def about_answers(cls) -> frozenset[str]:
        """Fields of chats and plain texts."""
        return _ABOUT_ANSWERS


class DetokenizeRequest(Fields):
    model: Annotated[str, Field(max_length=1024)] = ""
    tokens: list[Token]


class ExplainRequest(Sharing, PromptFields):
    """One of them."""

    model: Annotated[str, Field(max_length=1024)] = ""
    messages: Optional[Annotated[list[ChatMessage], Field(min_length=1)]] = None
    tools: Optional[list[Tool]] = None
    prompt: Union[Text, list[Token], None] = None
    reasoning_effort: Optional[Annotated[str, Field(max_length=64)]] = None
    chat_template_kwargs: Optional[JsonObject] = None
    special_tokens: Optional[SpecialTokens] = None

    @property
    def thinking_asked(self) -> ThinkingAsked:
        """How the answer is to think, which the prompt says."""
        return ThinkingAsked(effort=self.reasoning_effort)

    @classmethod
    def about_answers(cls) -> frozenset[str]:
        """Fields of chats and plain texts."""
        return _ABOUT_ANSWERS


_ABOUT_ANSWERS = frozenset((*field_names(ChatRequest), *field_names(CompletionRequest)))
