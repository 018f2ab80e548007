"""What a refusal says: the field as it was sent, the code for programs, and the words that clients look for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import kvtrie as kv
from kvtrie.serve import wrong_fields
from processes import PATIENCE
from serving import TINY, Served, served

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
QUESTION = [{"role": "user", "content": "a"}]
IMAGE = {"type": "image_url", "image_url": {"url": "u"}}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(kv.models.load(TINY), temperature=0.0, context=256) as running:
        yield running


def refused(server: Served, path: str, body: Any) -> Any:
    response = httpx.post(server.url + path, json=body, timeout=PATIENCE)
    assert response.status_code == 400, response.text
    return response.json()["error"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"stop": ["x", None]}, "stop.1"),
        (CHAT, {"stop": [f"s{number}" for number in range(17)]}, "stop"),
        (CHAT, {"stop": 7}, "stop"),
        (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content.0"),
        (CHAT, {"messages": [*QUESTION, {"role": "robot", "content": "a"}]}, "messages.1.role"),
        (CHAT, {"messages": [{"content": "a"}]}, "messages.0.role"),
        (
            CHAT,
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "messages.0.tool_calls.0.function.name",
        ),
        (CHAT, {"tool_choice": "any"}, "tool_choice"),
        (CHAT, {"tool_choice": "required"}, "tool_choice"),
        (CHAT, {"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
        (CHAT, {"tools": [{"type": "function"}]}, "tools.0.function"),
        (CHAT, {"response_format": {"type": "xml"}}, "response_format.type"),
        (CHAT, {"logit_bias": {"7": 1000}}, "logit_bias.7"),
        (CHAT, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        (TEXT, {"prompt": [1, "a"]}, "prompt.1"),
        (TEXT, {"prompt": [-1]}, "prompt.0"),
        (TEXT, {"prompt": [True]}, "prompt.0"),
        (TEXT, {"prompt": [[1, False]]}, "prompt.0.1"),
        (TEXT, {"prompt": [1 << 30]}, "prompt"),
        (TEXT, {"prompt": {}}, "prompt"),
        (TEXT, {}, "prompt"),
        ("/detokenize", {"tokens": [5, 10**9]}, "tokens.1"),
        ("/detokenize", {"tokens": [5, True]}, "tokens.1"),
    ],
)
def test_the_field_is_named_as_it_was_sent(server: Served, path: str, fields: Any, param: str) -> None:
    body = {"messages": QUESTION, **fields} if path == CHAT else fields
    error = refused(server, path, body)
    assert error["param"] == param, error
    assert param in error["message"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text: missing"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages.0.role: got 'robot', allowed"),
        ({"messages": [{"role": "user", "content": [{"no": "type"}]}]}, "messages.0.content.0.type: missing"),
        ({"tools": [{"type": "custom"}]}, "tools.0.name: missing"),
        ({"stop_sequences": ["a", 1]}, "stop_sequences.1: "),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice: "),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema: missing"),
    ],
)
def test_so_does_the_other_api_in_its_message(server: Served, fields: Any, named: str) -> None:
    error = refused(server, MESSAGES, {"messages": QUESTION, "max_tokens": 1, **fields})
    assert error["message"].startswith(named), error


def test_an_image_is_called_one(server: Served) -> None:
    error = refused(server, CHAT, {"messages": [*QUESTION, {"role": "user", "content": [IMAGE]}]})
    assert "'image_url'" in error["message"] and error["param"] == "messages.1.content.0"


@pytest.mark.parametrize("name", ["messages", "tokenize", "self", "add_generation_prompt", "tools", "special_tokens"])
@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/explain"])
def test_no_variable_of_a_template_takes_an_arguments_place(server: Served, path: str, name: str) -> None:
    error = refused(server, path, {"messages": QUESTION, "chat_template_kwargs": {name: False}})
    assert error["param"] == "chat_template_kwargs" and repr(name) in error["message"]


@pytest.mark.parametrize("sent", [None, "application/x-www-form-urlencoded", "text/plain"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/tokenize"])
def test_a_missing_content_type_is_told_which_to_send(server: Served, path: str, sent: str | None) -> None:
    headers = {} if sent is None else {"content-type": sent}
    content = json.dumps({"messages": QUESTION, "max_tokens": 1})
    response = httpx.post(server.url + path, content=content, headers=headers, timeout=PATIENCE)
    assert response.status_code == 415
    message = response.json()["error"]["message"]
    assert message.startswith(f"content-type: got {sent or 'none'}, allowed application/json")


def test_an_empty_prompt_has_a_code_of_its_own(server: Served) -> None:
    for prompt in ("", [], [[]], [""]):
        error = refused(server, TEXT, {"prompt": prompt})
        assert (error["code"], error["param"]) == ("empty_prompt", "prompt")


def test_a_prompt_that_is_too_long_says_so_in_the_words_of_both_apis(server: Served) -> None:
    long = [{"role": "user", "content": "word " * 2000}]
    for path, body in ((CHAT, {"messages": long}), (TEXT, {"prompt": [5] * 300}), (TEXT, {"prompt": "word " * 2000})):
        error = refused(server, path, body)
        assert error["code"] == wrong_fields.TOO_LONG_CODE == "context_length_exceeded"
        assert (
            wrong_fields.CONTEXT_LENGTH == "maximum context length" and wrong_fields.CONTEXT_LENGTH in error["message"]
        )
        assert error["param"] == ("messages" if path == CHAT else "prompt")
    error = refused(server, MESSAGES, {"messages": long, "max_tokens": 1})
    assert wrong_fields.TOO_LONG == "prompt is too long"
    assert re.search(rf"{wrong_fields.TOO_LONG}: \d+ tokens > 255 maximum", error["message"])


def test_words_of_the_client_decide_nothing(server: Served) -> None:
    """A refusal has its code from where it is made, not from what it says."""
    error = refused(server, CHAT, {"messages": QUESTION, "chat_template_kwargs": {"self": "prompt: got 9 tokens"}})
    assert error["code"] == "invalid_value"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/chat/completions", "/v1/chat/completions"),
        ("POST", "/v1/v1/chat/completions", "/v1/chat/completions"),
        ("POST", "/api/v1/chat/completions", "/v1/chat/completions"),
        ("POST", "/v1/v1/messages", "/v1/messages"),
        ("POST", "/messages", "/v1/messages"),
        ("GET", "/models", "/v1/models"),
        ("GET", "/v1/api/tags", "/api/tags"),
        ("POST", "/v1/nothing/of/the/kind", "those of /openapi.json"),
        ("GET", "/v1/chat/completions", "POST"),
    ],
)
def test_who_has_another_base_url_is_told_the_path(server: Served, method: str, path: str, allowed: str) -> None:
    response = httpx.request(method, server.url + path, timeout=PATIENCE)
    assert response.status_code == (405 if allowed == "POST" else 404)
    error = response.json()["error"]
    assert (error if isinstance(error, str) else error["message"]).endswith(f", allowed {allowed}")
