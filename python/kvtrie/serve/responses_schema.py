"""Bodies that clients of OpenAI's Responses API may send to ``/v1/responses``.

Source: platform.openai.com/docs/api-reference/responses/create. A field that is not here is refused by its name. Those
in ``HARMLESS`` are taken and change nothing: they say who asks, or how a service bills, caches or pads. A request that
this server cannot fulfil is refused where it is asked for (``refused``): tools that it would run itself (hosted tools,
in the background), things that it has not (conversations, stored prompts, files, pictures), the length of an answer in
words.

Items of ``input`` are looked at one by one (responses_items.py), so that a refusal names the one that is wrong.
"""

from __future__ import annotations

from typing import Annotated, Literal, Optional, Union

from pydantic import ConfigDict, Field

from ..thinking.asked import ThinkingAsked
from .failures import Refusal
from .json_values import JsonObject
from .openai_schema import Text
from .wire import BaseModel

HARMLESS = (
    "access_programs",  # who asks
    "background_options",  # of background, which is refused
    "client_metadata",
    "context_management",  # the model sees all of the conversation, and no item of a compaction is reported
    "max_tool_calls",  # of tools that the service runs
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "user",
)
INCLUDABLE = ("reasoning.encrypted_content", "message.output_text.logprobs")
Name = Annotated[str, Field(min_length=1, max_length=256)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FunctionTool(_Strict):
    type: Literal["function"]
    name: Name
    description: Optional[Text] = None
    parameters: Optional[JsonObject] = None
    strict: Optional[bool] = None  # where a call is required its arguments follow the schema either way

    def as_dict(self) -> JsonObject:
        """As templates have it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


class CustomFormat(_Strict):
    type: Literal["text"]


class CustomTool(_Strict):
    """A tool that takes a text: the model sees a function with one argument, ``input``."""

    type: Literal["custom"]
    name: Name
    description: Optional[Text] = None
    format: Optional[CustomFormat] = None

    def as_dict(self) -> JsonObject:
        """As templates have it."""
        text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
        function = {"name": self.name, "parameters": text}
        return {"type": "function", "function": {**function, "description": self.description or ""}}


class NamespaceTool(_Strict):
    """Functions under a common name (responses_namespaces.py)."""

    type: Literal["namespace"]
    name: Name
    description: Optional[Text] = None
    tools: Annotated[list[JsonObject], Field(max_length=256)]


class NamedChoice(_Strict):
    type: Literal["function", "custom"]
    name: Name


class PlainFormat(_Strict):
    type: Literal["text", "json_object"]


class SchemaFormat(_Strict):
    type: Literal["json_schema"]
    name: str = "answer"
    description: Optional[str] = None
    schema_: Annotated[JsonObject, Field(alias="schema")]
    strict: Optional[bool] = None


class TextSettings(_Strict):
    format: Union[PlainFormat, SchemaFormat, None] = None
    verbosity: Optional[Literal["low", "medium", "high"]] = None


class ReasoningSettings(_Strict):
    effort: Optional[Literal["none", "minimal", "low", "medium", "high", "xhigh"]] = None
    summary: Optional[Literal["auto", "concise", "detailed"]] = None
    generate_summary: Optional[Literal["auto", "concise", "detailed"]] = None


class StreamSettings(_Strict):
    include_obfuscation: Optional[bool] = None


class PromptRequest(_Strict):
    """The parts of the prompt."""

    model: Annotated[str, Field(max_length=1024)] = ""
    input: Union[Text, list[JsonObject], None] = None
    instructions: Optional[Text] = None
    previous_response_id: Optional[Name] = None
    tools: Optional[Annotated[list[JsonObject], Field(max_length=256)]] = None
    tool_choice: Union[Literal["none", "auto", "required"], NamedChoice, None] = None
    parallel_tool_calls: Optional[bool] = None
    reasoning: Optional[ReasoningSettings] = None
    text: Optional[TextSettings] = None
    truncation: Optional[Literal["auto", "disabled"]] = None
    conversation: Union[str, JsonObject, None] = None
    prompt: Optional[JsonObject] = None

    @property
    def thinking_asked(self) -> ThinkingAsked:
        """How it is to think."""
        return ThinkingAsked(
            effort=None if self.reasoning is None else self.reasoning.effort, effort_field="reasoning.effort"
        )

    def refused(self) -> None:
        """Raises ``Refusal`` for what is asked for and cannot be had."""
        asked = {
            "conversation": self.conversation is not None,
            "prompt": self.prompt is not None,
            "truncation": self.truncation == "auto",
            "text.verbosity": self.text is not None and self.text.verbosity not in (None, "medium"),
        }
        for param, is_asked in asked.items():
            if is_asked:
                raise Refusal(400, f"{param}: is not supported", code="unsupported_parameter", param=param)


class ResponseRequest(PromptRequest):
    access_programs: Optional[JsonObject] = None
    background: Optional[bool] = None
    background_options: Optional[JsonObject] = None
    client_metadata: Optional[JsonObject] = None
    context_management: Optional[list[JsonObject]] = None
    include: Optional[list[str]] = None
    max_output_tokens: Optional[Annotated[int, Field(ge=1, lt=1 << 31)]] = None
    max_tool_calls: Optional[int] = None
    metadata: Optional[dict[str, str]] = None
    prompt_cache_key: Optional[str] = None
    prompt_cache_options: Optional[JsonObject] = None
    prompt_cache_retention: Optional[str] = None
    safety_identifier: Optional[str] = None
    service_tier: Optional[str] = None
    store: Optional[bool] = None
    stream: Optional[bool] = None
    stream_options: Optional[StreamSettings] = None
    temperature: Optional[Annotated[float, Field(ge=0, le=2)]] = None
    top_logprobs: Optional[Annotated[int, Field(ge=0, le=20)]] = None
    top_p: Optional[Annotated[float, Field(gt=0, le=1)]] = None
    user: Optional[str] = None

    def refused(self) -> None:
        super().refused()
        if self.background:
            raise Refusal(400, "background: is not supported", code="unsupported_parameter", param="background")
        for at, name in enumerate(self.include or ()):
            if name not in INCLUDABLE:
                allowed = " or ".join(INCLUDABLE)
                raise Refusal(400, f"include: got {name[:100]!r}, allowed {allowed}", param=f"include[{at}]")
