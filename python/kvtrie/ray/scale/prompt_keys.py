"""The beginning of a request's prompt, for choosing a replica: its text, and fingerprints of its tokens.

The text is the one that the replica will come to, by the same template, but for answers with tool calls, which only the
replica has as they were sampled. Tokens are those of the tokenizer: where an answer was sampled in others, fingerprints
end to agree there, and the prompt is known up to that answer. A request that has no prompt, or a wrong one, has no key:
any replica can refuse it.

Threads: any; a template and a tokenizer take their time, so not the event loop's. Units: tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from ...errors import Error
from ...models.tokenizer import TextReading, Tokenizer
from ...serve.anthropic_api import conversation_of
from ...serve.anthropic_schema import ConversationRequest, CountRequest, MessagesRequest
from ...serve.asked_for import namespace_of
from ...serve.clocks import Clocks
from ...serve.conversation_texts import ConversationTexts
from ...serve.failures import Refusal
from ...serve.json_values import JsonObject, JsonView
from ...serve.ollama_api import asked_messages, messages_of
from ...serve.ollama_schema import ChatAsked, GenerateAsked
from ...serve.openai_schema import ChatRequest, CompletionRequest, ExplainRequest
from ...serve.replays import Replays
from ...serve.responses_api import tools_of, with_instructions
from ...serve.responses_items import items_of
from ...serve.responses_schema import PromptRequest, ResponseRequest
from ...serve.volatile import VolatileLines
from ...thinking.asked import thinking_of
from .summaries import prompt_fingerprints


@dataclass(frozen=True)
class PromptKey:
    """``text``: as it was rendered, or the token ids that were given, as text. ``tokens``: how many there are."""

    text: str = ""
    tokens: int = 0
    fingerprints: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Conversation:
    messages: Sequence[JsonView]
    tools: Sequence[JsonView]
    variables: Optional[JsonView] = None
    special_tokens: TextReading = "letters"


@dataclass(frozen=True)
class _Text:
    text: str
    special_tokens: TextReading


_Prompt = Optional["_Text | Sequence[int] | _Conversation"]


class PromptKeys:
    """Of one model's requests. ``drop_lines``, ``freeze_clock``: as in ``ServeOptions``."""

    def __init__(self, tokenizer: Tokenizer, drop_lines: Sequence[str] = (), freeze_clock: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._texts = None
        if tokenizer.chat_templates:
            volatile = VolatileLines(tuple(drop_lines))
            self._texts = ConversationTexts(tokenizer, Replays(), volatile, Clocks(freeze_clock))

    @staticmethod
    def knows(path: str) -> bool:
        """Whether requests to it have prompts."""
        return path in _READERS

    def of(self, path: str, body: bytes, namespace: str) -> PromptKey:
        """The key of a request to ``path``."""
        read = _READERS.get(path)
        if read is None:
            return PromptKey()
        try:
            raw = json.loads(body)
            if raw.get("cache_prompt") is False:
                return PromptKey()
            return self._key(read(raw, self._tokenizer), namespace_of(namespace, raw.get("cache_salt")))
        except (ValidationError, ValueError, RecursionError, AttributeError, Error, Refusal):  # the replica says what
            return PromptKey()

    def _key(self, prompt: _Prompt, namespace: str) -> PromptKey:
        if prompt is None:
            return PromptKey()
        if isinstance(prompt, _Text):
            tokens = self._tokenizer.encode(prompt.text, special_tokens=prompt.special_tokens)
            return _of_tokens(prompt.text, np.asarray(tokens, np.int32), namespace)
        if isinstance(prompt, _Conversation):
            if self._texts is None:
                return PromptKey()
            found = self._texts.of(
                prompt.messages, namespace, prompt.tools, prompt.variables, special_tokens=prompt.special_tokens
            ).text
            return _of_tokens(found.text, np.asarray(self._tokenizer.ids_of(found), np.int32), namespace)
        return _of_tokens(" ".join(map(str, prompt)), np.asarray(prompt, np.int32), namespace)


def _of_tokens(text: str, tokens: npt.NDArray[np.int32], namespace: str) -> PromptKey:
    return PromptKey(text, int(tokens.size), prompt_fingerprints(tokens, namespace))


# ---- what each route calls its prompt --------------------------------------------------------------------------------


def _tools(body: ChatRequest | ConversationRequest | ExplainRequest) -> list[JsonObject]:
    return [tool.as_dict() for tool in body.tools or ()]


def _chat(raw: object, tokenizer: Tokenizer) -> _Prompt:
    body = ChatRequest.model_validate(raw)
    tools = [] if body.tool_choice == "none" else _tools(body)
    messages = [message.as_dict() for message in body.messages]
    variables = thinking_of(tokenizer, body.thinking_asked, tools, body.chat_template_kwargs).variables
    return _Conversation(messages, tools, variables, body.special_tokens)


def _messages(raw: object, tokenizer: Tokenizer, kind: type[ConversationRequest]) -> _Prompt:
    body = kind.model_validate(raw)
    none = body.tool_choice is not None and body.tool_choice.type == "none"
    tools = [] if none else _tools(body)
    variables = thinking_of(tokenizer, body.thinking_asked, tools).variables
    return _Conversation(conversation_of(body)[0], tools, variables, body.special_tokens)


def _response(raw: object, tokenizer: Tokenizer, kind: type[PromptRequest]) -> _Prompt:
    """Replicas keep no responses, and refuse what goes on from one."""
    body = kind.model_validate(raw)
    tools = [] if body.tool_choice == "none" else list(tools_of(body)[0].values())
    variables = thinking_of(tokenizer, body.thinking_asked, tools).variables
    return _Conversation(with_instructions(body, items_of(body.input)), tools, variables)


def _ollama_chat(raw: object, tokenizer: Tokenizer) -> _Prompt:
    body = ChatAsked.model_validate(raw)
    tools = [tool.as_dict() for tool in body.tools or ()]
    variables = thinking_of(tokenizer, body.thinking_asked, tools).variables
    return _Conversation(messages_of(body.messages), tools, variables)


def _ollama_text(raw: object, tokenizer: Tokenizer) -> _Prompt:
    body = GenerateAsked.model_validate(raw)
    if body.raw:
        return _Text(body.prompt, "parse")
    variables = thinking_of(tokenizer, body.thinking_asked, None).variables
    return _Conversation(asked_messages(body), [], variables)


def _completion(raw: object, _: Tokenizer) -> _Prompt:
    body = CompletionRequest.model_validate(raw)
    first = body.prompt if isinstance(body.prompt, str) else body.prompt[0] if body.prompt else None
    if isinstance(first, str):
        return _Text(first, body.special_tokens)
    if first is None or isinstance(first, list):
        return first
    return [token for token in body.prompt if isinstance(token, int)]


def _explain(raw: object, tokenizer: Tokenizer) -> _Prompt:
    body = ExplainRequest.model_validate(raw)
    if body.messages is None:
        return _Text(body.prompt, body.special_tokens or "parse") if isinstance(body.prompt, str) else body.prompt
    messages, tools = [message.as_dict() for message in body.messages], _tools(body)
    variables = thinking_of(tokenizer, body.thinking_asked, tools, body.chat_template_kwargs).variables
    return _Conversation(messages, tools, variables, body.special_tokens or "letters")


# Requests of other routes have no prompt.
_READERS: Mapping[str, Callable[[object, Tokenizer], _Prompt]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completion,
    "/v1/messages": lambda raw, tokenizer: _messages(raw, tokenizer, MessagesRequest),
    "/v1/messages/count_tokens": lambda raw, tokenizer: _messages(raw, tokenizer, CountRequest),
    "/v1/responses": lambda raw, tokenizer: _response(raw, tokenizer, ResponseRequest),
    "/v1/responses/input_tokens": lambda raw, tokenizer: _response(raw, tokenizer, PromptRequest),
    "/api/chat": _ollama_chat,
    "/api/generate": _ollama_text,
    "/explain": _explain,
}
