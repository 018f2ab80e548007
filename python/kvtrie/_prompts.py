"""Prompts as token ids: texts, ids in any sequence, and chats in the tokens that a cache knows them by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Union

import numpy as np
import numpy.typing as npt

from ._arguments import beyond_memory, refusal
from ._core import PrefixCache, TokenTexts
from ._protocols import StepModel, chat_model, text_model
from .errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from .models.tokenizer import TextReading

__all__ = ["Prompt", "chat_prompt", "has_answers", "known_prompt", "position_limit_of", "token_ids", "vocab_size_of"]

Prompt = Union[str, Sequence[int], npt.NDArray[np.integer]]


def token_ids(model: StepModel, prompt: Prompt, where: str) -> npt.NDArray[np.int32]:
    """A text, or token ids in any sequence, as int32 [1 or more]; what they may be otherwise is the cache's to say."""
    if isinstance(prompt, str) and getattr(model, "tokenizer", None) is None:
        raise refusal(model, where, "model", "one with a tokenizer, or token ids in place of a text")
    try:
        ids = np.asarray(text_model(model).tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
    except MemoryError as error:
        raise beyond_memory(prompt, where, "prompt") from error
    except ValueError:  # rows of several lengths
        raise ArgumentTypeError(f"[{where}] prompt: got lists in a list, allowed a text or integers") from None
    if ids.ndim != 1 or ids.size == 0:
        raise ArgumentError(f"[{where}] prompt: got {ids.size} tokens of rank {ids.ndim}, allowed a list of 1 or more")
    if not np.issubdtype(ids.dtype, np.integer):
        raise ArgumentTypeError(f"[{where}] prompt: got {ids.dtype}, allowed a text or integers")
    outside = np.flatnonzero((ids < -(2**31)) | (ids >= 2**31))
    if outside.size:
        at = int(outside[0])
        raise ArgumentError(f"[{where}] prompt[{at}]: got {ids[at]}, allowed -2147483648 to 2147483647")
    return ids.astype(np.int32)


def vocab_size_of(model: StepModel) -> int | None:
    """None for a model of the caller's own that does not say."""
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    return None if size is None else int(size)


def position_limit_of(model: StepModel) -> int | None:
    """The first position that the model refuses; None: it has none, or does not say."""
    limit = getattr(getattr(model, "config", None), "position_limit", None)
    return limit() if callable(limit) else None


def has_answers(messages: Sequence[Mapping[str, object]]) -> bool:
    """Whether any is an answer, whose tokens a cache may know."""
    return any(message.get("role") == "assistant" for message in messages if isinstance(message, Mapping))


def known_prompt(
    cache: PrefixCache, tokens: Sequence[int], texts: TokenTexts | None, namespace: str
) -> npt.NDArray[np.int32]:
    """``tokens`` as int32; where ``texts`` says what tokens spell, in the tokens that the cache knows their text by."""
    prompt = np.asarray(tokens, np.int32)
    return prompt if texts is None or not len(prompt) else cache.match_text(prompt, texts, namespace)


def chat_prompt(
    model: StepModel,
    cache: PrefixCache,
    messages: Sequence[Mapping[str, object]],
    tools: Sequence[object] | None,
    template: Mapping[str, object] | None,
    namespace: str,
    special_tokens: TextReading,
) -> npt.NDArray[np.int32]:
    """The prompt of a chat, its answers in the tokens that the cache knows them by."""
    if not hasattr(model, "chat_tokens"):
        raise refusal(model, "chat", "model", "one of kv.models, or another one with chat_tokens and token_texts")
    chat = chat_model(model)
    if special_tokens == "letters":  # models of others need not know of it
        ids = chat.chat_tokens(messages, tools=tools, template=template)
    else:
        ids = chat.chat_tokens(messages, tools=tools, template=template, special_tokens=special_tokens)
    return known_prompt(cache, ids, chat.token_texts if has_answers(messages) else None, namespace)
