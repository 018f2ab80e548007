"""What the server makes of messages for templates that read them in one form only."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
import tokenizers
from tokenizers import models

import kvtrie as kv
from kvtrie.models.tokenizer import Tokenizer
from kvtrie.serve.clocks import Clocks
from kvtrie.serve.conversation_texts import ConversationTexts
from kvtrie.serve.openai_schema import ChatMessage
from kvtrie.serve.replays import Replays
from kvtrie.serve.volatile import VolatileLines
from processes import PATIENCE
from serving import Served, served, tiny_model
from small_templates import TEMPLATES, TOOL_USE
from template_conversations import call, parts

RAW = tokenizers.Tokenizer(models.BPE())
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
HELLO = {"role": "user", "content": "hi"}


def texts(template: str | Mapping[str, str]) -> ConversationTexts:
    tokenizer = Tokenizer(RAW, special={"bos_token": "<s>", "eos_token": "</s>"}, chat_template=template)
    return ConversationTexts(tokenizer, Replays(), VolatileLines(), Clocks())


def prompt(template: str | Mapping[str, str], *messages: Any, **more: Any) -> str:
    shown = [ChatMessage.model_validate(message).as_dict() for message in messages]
    return texts(template).of(shown, "default", **more)[0].text


@pytest.mark.parametrize(
    "content", ["Which city?", parts("Which city?"), [{"type": "input_text", "text": "Which city?"}]]
)
@pytest.mark.parametrize("name", ["plain", "parts only", "either"])
def test_content_reaches_every_template(name: str, content: Any) -> None:
    assert "Which city?" in prompt(TEMPLATES[name], {"role": "user", "content": content})


def test_volatile_lines_are_left_out_of_parts() -> None:
    system = {"role": "system", "content": parts("x-anthropic-billing-header: 1\nBe brief.")}
    assert prompt(TEMPLATES["either"], system, HELLO) == "<system>Be brief.</system>\n<user>hi</user>\n<|assistant|>"


def test_arguments_are_parsed_where_a_template_writes_them_itself() -> None:
    calling = {"role": "assistant", "content": None, "tool_calls": [call("f", '{"a":1}')]}
    result = {"role": "tool", "tool_call_id": "call00000", "content": "ok"}
    assert 'f\n```json\n{"a":1}\n```' in prompt(TEMPLATES["adds arguments"], HELLO, calling, result)
    assert "<a>1</a>" in prompt(TEMPLATES["goes through arguments"], HELLO, calling, result)
    assert 'f{"a": 1}' in prompt(TEMPLATES["either"], HELLO, calling, result)


def test_the_beginning_of_an_answer_may_have_parts() -> None:
    begun = {"role": "assistant", "content": parts("To ", "the")}
    assert prompt(TEMPLATES["plain"], HELLO, begun) == "<s><|user|>hi<|assistant|>To the"
    called = {"role": "assistant", "content": "I look.", "tool_calls": [call("f", "{}")]}
    assert "f{}" in prompt(TEMPLATES["either"], HELLO, called), "a call is no beginning of an answer"
    assert prompt(TEMPLATES["plain"], begun) == "<s><|assistant|>To the"


def test_tools_choose_the_template_for_tools(caplog: pytest.LogCaptureFixture) -> None:
    assert prompt(TOOL_USE, HELLO) == "<s><|user|>hi<|assistant|>"
    assert prompt(TOOL_USE, HELLO, tools=TOOLS) == "1 tools:user:hi"
    assert not caplog.records
    with pytest.raises(kv.errors.ArgumentError, match="allowed one by name: tool_use"):
        prompt({"tool_use": TOOL_USE["tool_use"]}, HELLO)


def test_what_a_template_takes_no_notice_of_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        prompt(TEMPLATES["no tools, no system"], {"role": "system", "content": "Be brief."}, HELLO)
    assert "'system'" in " ".join(record.message for record in caplog.records)
    with pytest.raises(kv.errors.ArgumentError, match="tools: got some, allowed none"):
        prompt(TEMPLATES["no tools, no system"], HELLO, tools=TOOLS)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(tiny_model(TEMPLATES["parts only"])) as running:
        yield running


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "tokenize", "self", "tools", "chat_template"])
def test_no_variable_takes_the_place_of_an_argument(server: Served, name: str) -> None:
    body = {"messages": [HELLO], "max_tokens": 1, "chat_template_kwargs": {name: False}}
    for path in ("/v1/chat/completions", "/explain"):
        answer = httpx.post(server.url + path, json=body, timeout=PATIENCE)
        assert answer.status_code == 400 and "chat_template_kwargs: got" in answer.json()["error"]["message"]


def test_a_question_is_in_the_prompt(server: Served) -> None:
    for content in ("Which city?", parts("Which city?")):
        body = {"messages": [{"role": "user", "content": content}]}
        tokens = httpx.post(f"{server.url}/tokenize", json=body, timeout=PATIENCE).json()["tokens"]
        said = httpx.post(f"{server.url}/detokenize", json={"tokens": tokens}, timeout=PATIENCE).json()["content"]
        assert "Which city?" in said
