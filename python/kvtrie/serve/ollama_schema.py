"""Bodies that clients of Ollama may send to ``/api/chat`` and ``/api/generate``.

Source: the documentation of the API at github.com/ollama/ollama. A field or an option that is not here is refused by
its name. Options in ``HARMLESS`` say how a machine computes, not what; ``num_ctx`` is among them, as the server's
context holds for all. ``keep_alive`` is taken: the one model stays.
"""

from __future__ import annotations

from typing import Annotated, Literal, Optional, Union

from pydantic import ConfigDict, Field

from ..thinking.asked import ThinkingAsked
from .failures import Refusal
from .json_values import JsonObject
from .openai_schema import StopText, Text, Tool
from .wire import BaseModel

HARMLESS = frozenset({
    "f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch", "num_ctx", "num_gpu", "num_gqa", "num_keep",
    "num_thread", "numa", "use_mlock", "use_mmap", "vocab_only",
})  # fmt: skip
NEUTRAL = {  # with this value an option changes nothing
    "mirostat": 0,
    "repeat_last_n": -1,  # of all tokens
    "tfs_z": 1.0,
    "typical_p": 1.0,
}
Think = Union[bool, Literal["low", "medium", "high"], None]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CalledFunction(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: JsonObject = Field(default_factory=dict)


class Call(BaseModel):
    id: Annotated[str, Field(max_length=256)] = ""
    function: CalledFunction


class OllamaMessage(BaseModel):
    role: Literal["system", "user", "assistant", "tool"]
    content: Text = ""
    thinking: Optional[Text] = None
    images: Optional[list[str]] = None
    tool_calls: Optional[list[Call]] = None
    tool_name: Optional[Annotated[str, Field(max_length=256)]] = None
    tool_call_id: Optional[Annotated[str, Field(max_length=256)]] = None


class Options(_Strict):
    temperature: Optional[Annotated[float, Field(ge=0, le=2)]] = None
    top_k: Optional[Annotated[int, Field(ge=-1, lt=1 << 31)]] = None
    top_p: Optional[Annotated[float, Field(gt=0, le=1)]] = None
    min_p: Optional[Annotated[float, Field(ge=0, le=1)]] = None
    seed: Optional[Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]] = None
    num_predict: Optional[Annotated[int, Field(ge=-2, lt=1 << 31)]] = None  # below 0: as far as there is room
    stop: Union[StopText, Annotated[list[StopText], Field(max_length=16)], None] = None
    repeat_penalty: Optional[Annotated[float, Field(gt=0, le=100)]] = None
    presence_penalty: Optional[Annotated[float, Field(ge=-2, le=2)]] = None
    frequency_penalty: Optional[Annotated[float, Field(ge=-2, le=2)]] = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop texts."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


_OF_LOADING = frozenset({"model", "options", "stream", "keep_alive", "messages", "prompt"})


class _Asked(_Strict):
    model: Annotated[str, Field(max_length=1024)]
    options: Optional[JsonObject] = None
    format: Union[Literal["", "json"], JsonObject, None] = None
    stream: bool = True
    think: Think = None
    keep_alive: Union[str, float, None] = None

    @property
    def only_loads(self) -> bool:
        """Whether nothing is asked for but that the model is there, where there is no prompt."""
        return self.model_fields_set <= _OF_LOADING

    def chosen(self) -> Options:
        """The options that change an answer. Raises ``Refusal`` for one that cannot be had."""
        given = {name: value for name, value in (self.options or {}).items() if name not in HARMLESS}
        for name, value in NEUTRAL.items():
            if given.pop(name, value) != value:
                raise Refusal(400, f"options.{name}: is not supported, allowed {value}", param=f"options.{name}")
        for name in ("mirostat_eta", "mirostat_tau"):  # of what is off
            given.pop(name, None)
        return Options.model_validate(given)

    @property
    def thinking_asked(self) -> ThinkingAsked:
        """How it is to think."""
        think = self.think
        if isinstance(think, bool):
            return ThinkingAsked(on=think, on_field="think")
        return ThinkingAsked(effort=think, effort_field="think")


class ChatAsked(_Asked):
    messages: list[OllamaMessage] = Field(default_factory=list)
    tools: Optional[Annotated[list[Tool], Field(max_length=256)]] = None


class GenerateAsked(_Asked):
    prompt: Text = ""
    system: Optional[Text] = None
    raw: bool = False
    suffix: Optional[str] = None
    template: Optional[str] = None
    context: Optional[list[int]] = None
    images: Optional[list[str]] = None


class ShowAsked(BaseModel):
    model: str = ""
    name: str = ""
    verbose: Optional[bool] = None
