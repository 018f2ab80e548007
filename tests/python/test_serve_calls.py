"""Tools beside schemas, one call at most, and schemas of tools that cannot be compiled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

import kvtrie as kv
from kvtrie.serve.answer import Answer, Reading
from kvtrie.serve.grammar import _FORMATS, with_known_formats
from kvtrie.serve.journal import Journal
from kvtrie.serve.replays import Replays
from kvtrie.serve.tool_calls import syntax_of
from processes import PATIENCE
from serving import TINY, Served, served, tiny_model
from small_templates import WITH_TOOLS

QUESTION = [{"role": "user", "content": "How many?"}]
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


def parameters(name: str, **more: Any) -> Any:
    number = {"type": "integer", "minimum": 0, "maximum": 9}
    return {"type": "object", "properties": {name: number}, "required": [name], "additionalProperties": False, **more}


def tool(name: str, schema: Any) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [tool("count", parameters("cells")), tool("weigh", parameters("grams"))]
SIZE = {"type": "json_schema", "json_schema": {"name": "size", "schema": parameters("size")}}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(tiny_model(WITH_TOOLS), temperature=1.0, context=2048) as running:
        yield running


def asked(server: Served, path: str = CHAT, **fields: Any) -> httpx.Response:
    body = {"messages": QUESTION, "max_tokens": 800, "seed": 3, **fields}
    return httpx.post(server.url + path, json=body, timeout=PATIENCE)


def message(server: Served, **fields: Any) -> Any:
    response = asked(server, **fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]


@pytest.mark.parametrize(("choice", "names"), [
    ("required", {"count", "weigh"}),
    ({"type": "function", "function": {"name": "weigh"}}, {"weigh"}),
])  # fmt: skip
def test_a_required_call_comes_before_the_schema_of_the_answer(server: Served, choice: Any, names: set[str]) -> None:
    said = message(server, tools=TOOLS, tool_choice=choice, response_format=SIZE)
    assert {call["function"]["name"] for call in said["tool_calls"]} <= names


def test_an_answer_beside_tools_is_a_call_or_the_schemas_json(server: Served) -> None:
    tokenizer = server.engine.model.tokenizer
    for sign, is_call in (("<", False), ("{", True)):  # tokens that are all but forbidden
        beginning = [token for token in range(tokenizer.vocab_size) if tokenizer.decode([token])[:1] == sign]
        bias = dict.fromkeys(map(str, beginning), -100)
        for seed in range(3):
            said = message(server, tools=TOOLS, response_format=SIZE, seed=seed, logit_bias=bias)
            assert bool(said.get("tool_calls")) == is_call
            assert is_call or 0 <= json.loads(said["content"])["size"] <= 9


def test_at_most_one_call_where_one_is_required(server: Served) -> None:
    counts = [len(message(server, tools=TOOLS, tool_choice="required", seed=seed)["tool_calls"]) for seed in range(6)]
    assert max(counts) > 1
    for seed in range(6):
        alone = message(server, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed)
        assert len(alone["tool_calls"]) == 1
    tools = [{"name": "count", "input_schema": parameters("cells")}]
    for seed in range(6):
        choice = {"type": "any", "disable_parallel_tool_use": True}
        answer = asked(server, MESSAGES, tools=tools, tool_choice=choice, seed=seed).json()
        assert [block["type"] for block in answer["content"]] == ["tool_use"]


def test_a_tool_that_is_named_is_called_once(server: Served) -> None:
    """As OpenAI's APIs have it: one that is required may be called again, one that is named is not."""
    named = {"type": "function", "function": {"name": "weigh"}}
    items = [{"type": "function", **each["function"]} for each in TOOLS]
    for seed in range(6):
        assert len(message(server, tools=TOOLS, tool_choice=named, seed=seed)["tool_calls"]) == 1
        body = {"input": "How many?", "tools": items, "tool_choice": {"type": "function", "name": "weigh"}}
        answer = httpx.post(server.url + "/v1/responses", json=body, timeout=PATIENCE).json()
        assert [item["type"] for item in answer["output"]] == ["function_call"]


class _Scripted:
    """A request whose tokens are there already."""

    logprobs: tuple[Any, ...] = ()
    error = beginning = None
    finish_reason = None
    prompt_tokens, reused = 3, 0

    def __init__(self, tokens: list[int]) -> None:
        self._script, self.tokens, self.cancelled = tokens, list[int](), False

    def cancel(self) -> None:
        self.cancelled = True

    async def __aiter__(self) -> AsyncIterator[int]:
        for token in self._script:
            self.tokens.append(token)
            yield token
        self.finish_reason = "stop"


@pytest.mark.parametrize("most", [None, 1, 2])
def test_an_answer_ends_with_the_last_call_that_it_may_have(most: int | None) -> None:
    tokenizer, syntax = kv.models.load(TINY).tokenizer, syntax_of(WITH_TOOLS)
    assert syntax is not None
    call = '<tool_call>\n{"name": "count", "arguments": {"cells": 1}}\n</tool_call>'
    request: Any = _Scripted(tokenizer.encode(f"Well.\n{call}\n{call}\n{call}\nSo there are three."))
    reading = Reading(tokenizer, frozenset(), tools=syntax.reader(["count"]), most_calls=most)
    journal = Journal()
    answer = Answer(request, reading, journal.begin("chat", "default", request), journal, Replays())

    async def read() -> tuple[str, int]:
        text, calls = "", 0
        async for piece in answer:
            text, calls = text + piece.text, calls + len(piece.calls)
        return text, calls

    text, calls = asyncio.run(read())
    assert calls == (most or 3)
    assert text == ("Well." if most else "Well.\nSo there are three.")
    assert answer.finish_reason == "tool_calls"
    assert request.cancelled == (most is not None)


# ---- schemas ---------------------------------------------------------------------------------------------------------


def test_a_schema_that_cannot_be_compiled_is_named_with_its_tool(server: Served) -> None:
    wrong = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=.*a)b+$"}}, "required": ["a"]}
    response = asked(server, tools=[*TOOLS, tool("odd", wrong)], tool_choice="required")
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "tools.2.function.parameters")
    assert "'odd'" in error["message"] and "(?=.*a)" in error["message"]
    named = {"type": "function", "function": {"name": "odd"}}
    error = asked(server, tools=[*TOOLS, tool("odd", wrong)], tool_choice=named).json()["error"]
    assert error["param"] == "tools.2.function.parameters"
    tools = [{"name": "fine"}, {"name": "odd", "input_schema": wrong}]
    error = asked(server, MESSAGES, tools=tools, tool_choice={"type": "any"}).json()["error"]
    assert error["message"].startswith("[serve] tools.1.input_schema: ") and "'odd'" in error["message"]
    response = asked(server, tools=TOOLS, response_format={"type": "json_schema", "json_schema": {"schema": wrong}})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "response_format")


@pytest.mark.parametrize("depth", [100, 400, 900])
@pytest.mark.parametrize("fields", [{}, {"tool_choice": "required"}, {"response_format": SIZE}])
def test_a_schema_as_deep_as_json_may_be_is_no_failure_of_the_server(server: Served, depth: int, fields: Any) -> None:
    deep: Any = {}
    for _ in range(depth):
        deep = {"not": deep}
    response = asked(server, tools=[tool("odd", deep)], max_tokens=1, **fields)
    assert response.status_code in ((200, 400) if not fields else (400,)), response.text


def test_a_format_that_nobody_knows_holds_nothing_back(server: Served) -> None:
    schema = parameters("cells")
    schema["properties"]["when"] = {"type": "string", "format": "fiscal-quarter", "maxLength": 3}
    said = message(server, tools=[tool("count", schema)], tool_choice="required")
    assert {call["function"]["name"] for call in said["tool_calls"]} == {"count"}
    assert message(server, response_format={"type": "json_schema", "json_schema": {"schema": schema}})["content"]


def test_only_formats_of_texts_are_taken_out() -> None:
    schema = {
        "type": "object",
        "format": "odd",
        "properties": {
            "format": {"type": "string", "format": "date"},
            "b": {"anyOf": [{"format": "odd"}, {"type": "null"}]},
        },
        "enum": [{"format": "odd"}],
    }
    assert with_known_formats(schema) == {
        "type": "object",
        "properties": {"format": {"type": "string", "format": "date"}, "b": {"anyOf": [{}, {"type": "null"}]}},
        "enum": [{"format": "odd"}],
    }


@pytest.mark.parametrize("name", [*_FORMATS, "fiscal-quarter"])
def test_the_library_knows_the_formats_that_are_kept(name: str) -> None:
    from llguidance import LLMatcher

    said = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", "format": name}))
    failed, _ = LLMatcher.validate_grammar_with_warnings(said)
    assert failed == (name not in _FORMATS)
