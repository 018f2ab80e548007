"""What clients of Ollama ask, and get: the same answers as over the other APIs, as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import kvtrie as kv
from kvtrie.serve.ollama_schema import HARMLESS, NEUTRAL, ChatAsked, GenerateAsked, Options
from processes import PATIENCE
from serving import Served, served, tiny_model
from small_templates import WITH_TOOLS

QUESTION: list[Any] = [{"role": "user", "content": "What is a lock?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"cells": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["cells"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(tiny_model(WITH_TOOLS), temperature=0.0, context=2048) as running:
        yield running


def post(server: Served, path: str, body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json={"model": "tiny", **body}, timeout=PATIENCE)


def told(server: Served, path: str, body: Any) -> Any:
    response = post(server, path, {"stream": False, **body})
    assert response.status_code == 200, response.text
    return response.json()


def test_the_answer_is_that_of_the_other_apis(server: Served) -> None:
    chat = post(server, "/v1/chat/completions", {"messages": QUESTION, "max_tokens": 10}).json()
    text = chat["choices"][0]["message"]["content"]
    asked = {"messages": QUESTION, "options": {"num_predict": 10}}
    made = told(server, "/api/chat", asked)
    assert made["message"] == {"role": "assistant", "content": text}
    assert (made["done"], made["done_reason"], made["eval_count"]) == (True, "length", 10)
    assert made["prompt_eval_count"] == chat["usage"]["prompt_tokens"] == made["prompt_eval_cached"] + 1
    response = post(server, "/api/chat", asked)
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == text
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["eval_count"] == 10
    generated = told(server, "/api/generate", {"prompt": QUESTION[0]["content"], "options": {"num_predict": 10}})
    assert generated["response"] == text


def test_texts_that_are_continued_as_they_are(server: Served) -> None:
    completed = post(server, "/v1/completions", {"prompt": "The cache", "max_tokens": 8}).json()
    made = told(server, "/api/generate", {"prompt": "The cache", "raw": True, "options": {"num_predict": 8}})
    assert made["response"] == completed["choices"][0]["text"]


def test_a_schema_and_any_json(server: Served) -> None:
    made = told(server, "/api/chat", {"messages": QUESTION, "format": PARAMETERS, "options": {"num_predict": 60}})
    assert set(json.loads(made["message"]["content"])) == {"cells"}
    assert made["done_reason"] == "stop"


def test_calls_come_with_values_and_are_found_again(server: Served) -> None:
    """Answers as a model gives them that calls: what it says is fixed by the prompt's last words."""
    call = {"id": "call_1", "function": {"name": "measure", "arguments": {"cells": 3}}}
    messages = [*QUESTION, {"role": "assistant", "content": "", "tool_calls": [call]}]
    messages.append({"role": "tool", "content": "12", "tool_name": "measure", "tool_call_id": "call_1"})
    tools = [{"type": "function", "function": {"name": "measure", "parameters": PARAMETERS}}]
    made = told(server, "/api/chat", {"messages": messages, "tools": tools, "options": {"num_predict": 4}})
    function = {"name": "measure", "arguments": '{"cells": 3}'}
    openai: list[Any] = [*QUESTION, {"role": "assistant", "content": ""}, {"role": "tool", "content": "12"}]
    openai[1]["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
    openai[2]["tool_call_id"] = "call_1"
    chat = post(server, "/v1/chat/completions", {"messages": openai, "tools": tools, "max_tokens": 4}).json()
    assert made["message"]["content"] == chat["choices"][0]["message"]["content"]
    assert chat["usage"]["prompt_tokens_details"]["cached_tokens"] == made["prompt_eval_count"] - 1


def test_what_clients_look_at_before(server: Served) -> None:
    names = [each["name"] for each in httpx.get(server.url + "/api/tags").json()["models"]]
    assert names == ["tiny"]
    assert httpx.get(server.url + "/api/ps").json()["models"][0]["context_length"] == 2048
    assert httpx.get(server.url + "/api/version").json() == {"version": kv.__version__}
    for name in ("tiny", "tiny:latest"):
        shown = post(server, "/api/show", {"model": name}).json()
        assert shown["capabilities"] == ["completion", "tools"]
        assert shown["template"] == WITH_TOOLS
    missing = post(server, "/api/show", {"model": "other"})
    assert (missing.status_code, missing.json()) == (404, {"error": "there is no model 'other'"})
    for path in ("/api/embed", "/api/embeddings", "/v1/embeddings"):
        assert "gives no embeddings" in post(server, path, {"input": "a"}).text


def test_a_request_for_nothing_loads_the_model(server: Served) -> None:
    """As clients send it before the first question; whoever asks for more than that is told what is missing."""
    chat = told(server, "/api/chat", {"messages": [], "keep_alive": "5m"})
    assert (chat["message"], chat["done"], chat["done_reason"]) == ({"role": "assistant", "content": ""}, True, "load")
    text = told(server, "/api/generate", {"prompt": "", "options": {"num_ctx": 4096}})
    assert (text["response"], text["done"], text["done_reason"]) == ("", True, "load")
    assert post(server, "/api/generate", {"model": "tiny", "raw": True}).json()["error"].startswith("prompt: missing")
    assert post(server, "/api/chat", {"model": "tiny", "format": "json"}).json() == {"error": "messages: missing"}


REFUSED_CHAT = {
    "format": 3,
    "images": ["x"],
    "keep_alive": [],
    "messages": [{"role": "user", "content": "", "images": ["x"]}],
    "model": 3,
    "options": {"mirostat": 1},
    "stream": "perhaps",
    "think": True,
    "tools": [{"type": "web_search"}],
    "unknown": 1,
}
REFUSED_TEXT = {
    "context": [1],
    "images": ["x"],
    "prompt": 3,
    "raw": "perhaps",
    "suffix": "x",
    "system": 3,
    "template": "x",
}


@pytest.mark.parametrize("name", REFUSED_CHAT)
def test_what_cannot_be_had_in_a_chat_is_refused_by_name(server: Served, name: str) -> None:
    response = post(server, "/api/chat", {"messages": QUESTION, name: REFUSED_CHAT[name]})
    assert response.status_code == 400
    assert name in response.json()["error"]


@pytest.mark.parametrize("name", REFUSED_TEXT)
def test_what_cannot_be_had_for_a_text_is_refused_by_name(server: Served, name: str) -> None:
    response = post(server, "/api/generate", {"prompt": "x", name: REFUSED_TEXT[name]})
    assert response.status_code == 400
    assert name in response.json()["error"]


def test_each_field_is_tried() -> None:
    assert set(ChatAsked.model_fields) == {*REFUSED_CHAT} - {"images", "unknown"}
    assert set(GenerateAsked.model_fields) - set(ChatAsked.model_fields) == {*REFUSED_TEXT}


def test_each_option_is_obeyed_refused_or_harmless(server: Served) -> None:
    plain = told(server, "/api/chat", {"messages": QUESTION, "options": {"num_predict": 6}})["message"]
    harmless = {**dict.fromkeys(HARMLESS, 1), **NEUTRAL, "mirostat_tau": 5.0, "mirostat_eta": 0.1}
    made = told(server, "/api/chat", {"messages": QUESTION, "options": {"num_predict": 6, **harmless}})
    assert made["message"] == plain
    wrong = {**dict.fromkeys(Options.model_fields, -100), "stop": 3, "seed": "x", **dict.fromkeys(NEUTRAL, 7)}
    for name, value in {**wrong, "unknown": 1}.items():
        response = post(server, "/api/chat", {"messages": QUESTION, "options": {name: value}})
        assert response.status_code == 400, name
        assert f"options.{name}" in response.json()["error"]
    stopped = told(
        server, "/api/chat", {"messages": QUESTION, "options": {"num_predict": 6, "stop": plain["content"][:3]}}
    )
    assert (stopped["message"]["content"], stopped["done_reason"]) == ("", "stop")
