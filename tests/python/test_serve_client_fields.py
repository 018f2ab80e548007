"""Each field that the installed clients can send is obeyed, harmless or refused by its name; a new one is seen here."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from kvtrie.serve.anthropic_schema import CountRequest, MessagesRequest
from kvtrie.serve.fields import HARMLESS, REFUSED, field_names
from kvtrie.serve.openai_schema import ChatRequest, CompletionRequest
from kvtrie.serve.responses_schema import ResponseRequest

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

KNOWN = {name for each in (*HARMLESS, *REFUSED) for name in each.names.split()}
REFUSED_AS_UNKNOWN = {"image", "moderation"}  # of responses, whose schema has its fields alone


def sendable(kind: Any) -> set[str]:
    """Names of a client's parameters."""
    return {name for each in kind.__mro__ for name in getattr(each, "__annotations__", ())}


def unknown(kind: Any, schema: type[BaseModel]) -> set[str]:
    return sendable(kind) - {*field_names(schema)} - KNOWN


def test_openai() -> None:
    from openai.types import completion_create_params as text
    from openai.types.chat import completion_create_params as chat
    from openai.types.responses import response_create_params as responses

    assert unknown(chat.CompletionCreateParamsBase, ChatRequest) == set()
    assert unknown(text.CompletionCreateParamsBase, CompletionRequest) == set()
    assert sendable(responses.ResponseCreateParamsBase) - {*ResponseRequest.model_fields} == REFUSED_AS_UNKNOWN


def test_anthropic() -> None:
    from anthropic.types.beta import message_count_tokens_params as count
    from anthropic.types.beta import message_create_params as messages

    assert unknown(messages.MessageCreateParamsBase, MessagesRequest) == set()
    assert unknown(count.MessageCountTokensParams, CountRequest) == set()
