"""The protocols of models in generation: any callable computes steps; the rest is asked for where it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Union, cast

import numpy as np
import numpy.typing as npt

from ._arguments import refusal
from ._core import PrefixCache, Step, Tensor, TokenTexts

if TYPE_CHECKING:
    from .models.tokenizer import TextReading

Logits = Union[Tensor, npt.NDArray[np.float32]]  # [rows, vocab]
StepModel = Callable[[Step], Logits]


class TextStream(Protocol):
    """Tokens to text that is made of whole characters."""

    def feed(self, token: int) -> str: ...

    def finish(self) -> str: ...


class TextTokenizer(Protocol):
    def encode(self, text: str, add_special_tokens: bool = ...) -> Sequence[int]: ...

    def special_id(self, text: str) -> int | None: ...

    def stream(self) -> TextStream: ...


class Ends(Protocol):
    @property
    def eos_token_ids(self) -> Iterable[int]: ...


class TextModel(Protocol):
    """A model that reads and writes text, and has a cache of its own: ``kv.models.Model``, or one like it."""

    def __call__(self, step: Step) -> Logits: ...

    @property
    def config(self) -> Ends: ...

    @property
    def end_tokens(self) -> Iterable[int]: ...

    @property
    def tokenizer(self) -> TextTokenizer: ...

    @property
    def prefix_cache(self) -> PrefixCache: ...


class ChatModel(TextModel, Protocol):
    """One that lays out chats, too."""

    @property
    def token_texts(self) -> TokenTexts | None: ...

    def chat_tokens(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[object] | None = ...,
        template: Mapping[str, object] | None = ...,
        special_tokens: TextReading = ...,
    ) -> Sequence[int]: ...


def text_model(model: StepModel) -> TextModel:
    """The model where text, its cache or its end tokens are asked for; one that lacks them raises AttributeError."""
    return cast(TextModel, model)


def chat_model(model: StepModel) -> ChatModel:
    """The same where a chat is laid out."""
    return cast(ChatModel, model)


def cache_of(model: StepModel, where: str) -> PrefixCache:
    """The model's own cache. ``ArgumentTypeError`` for a model that has none."""
    if not hasattr(model, "prefix_cache"):
        raise refusal(model, where, "model", "one with a prefix_cache of its own, or a cache beside it")
    return text_model(model).prefix_cache
