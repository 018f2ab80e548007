"""Functions within namespaces, and what else Codex sends with each request to /v1/responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kvtrie.serve.responses_items import messages_of
from kvtrie.serve.responses_namespaces import each_tool, namespaces_of
from processes import PATIENCE
from serving import Served, served, tiny_model
from small_templates import WITH_TOOLS

PARAMETERS = {
    "type": "object",
    "properties": {"cells": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["cells"],
    "additionalProperties": False,
}
COUNT = {"type": "function", "name": "count", "description": "Counts.", "strict": False, "parameters": PARAMETERS}
LIBRARY = {"type": "namespace", "name": "mcp__library", "description": "Books.", "tools": [COUNT]}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(tiny_model(WITH_TOOLS), temperature=0.0, context=2048) as running:
        yield running


def post(server: Served, body: Any) -> httpx.Response:
    given = {"input": "How many?", "max_output_tokens": 400, **body}
    return httpx.post(server.url + "/v1/responses", json=given, timeout=PATIENCE)


def test_how_they_are_shown() -> None:
    tools = [COUNT, {**LIBRARY, "tools": [COUNT, {**COUNT, "name": "list"}]}]
    shown = list(each_tool(tools))
    assert [(place, tool["name"]) for place, tool in shown] == [
        ("tools[0]", "count"),
        ("tools[1].tools[0]", "mcp__library__count"),
        ("tools[1].tools[1]", "mcp__library__list"),
    ]
    assert [tool["description"] for _, tool in shown] == ["Counts.", "Books.\n\nCounts.", "Counts."]
    assert namespaces_of(tools) == {
        "mcp__library__count": ("mcp__library", "count"),
        "mcp__library__list": ("mcp__library", "list"),
    }


def test_a_call_is_answered_under_both_names_and_found_again(server: Served) -> None:
    """Where a plain function has the same name, too."""
    asked = {"tools": [LIBRARY], "tool_choice": "required", "parallel_tool_calls": False}
    made = post(server, asked).json()
    (call,) = made["output"]
    assert (call["namespace"], call["name"], set(json.loads(call["arguments"]))) == ("mcp__library", "count", {"cells"})
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "12"}
    kept = post(server, {"tools": [LIBRARY], "input": [result], "previous_response_id": made["id"]}).json()
    sent = [{"role": "user", "content": "How many?"}, call, result]
    again = post(server, {"tools": [LIBRARY], "input": sent}).json()
    assert kept["usage"]["input_tokens"] == again["usage"]["input_tokens"]
    assert kept["usage"]["input_tokens_details"]["cached_tokens"] >= made["usage"]["total_tokens"] - 1
    named = [{**LIBRARY, "tools": [{**COUNT, "name": "list"}]}, COUNT]
    choice = {"type": "function", "name": "count"}
    (plain,) = post(server, {"tools": named, "tool_choice": choice}).json()["output"]
    assert (plain["name"], "namespace" in plain) == ("count", False)


def test_calls_in_a_stream_have_it_from_their_beginning(server: Served) -> None:
    body = {"input": "How many?", "tools": [LIBRARY], "tool_choice": "required", "parallel_tool_calls": False}
    with httpx.stream("POST", server.url + "/v1/responses", json={**body, "stream": True}, timeout=PATIENCE) as lines:
        events = [json.loads(line[6:]) for line in lines.iter_lines() if line.startswith("data: ")]
    items = [event["item"] for event in events if event["type"].startswith("response.output_item.")]
    assert [(item["namespace"], item["name"]) for item in items] == [("mcp__library", "count")] * 2


def test_calls_of_a_history() -> None:
    call = {"type": "function_call", "call_id": "1", "name": "count", "arguments": "{}", "namespace": "mcp__library"}
    (message,) = messages_of([call])
    assert message["tool_calls"][0]["function"]["name"] == "mcp__library__count"


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "namespace", "tools": [COUNT]}, "tools[0].name"),
        ({"type": "namespace", "name": "a"}, "tools[0].tools"),
        ({"type": "namespace", "name": "a", "tools": "b"}, "tools[0].tools"),
        ({**LIBRARY, "other": 1}, "tools[0].other"),
        ({**LIBRARY, "tools": [{"type": "web_search"}]}, "tools[0].tools[0].type"),
        ({**LIBRARY, "tools": [{"type": "function"}]}, "tools[0].tools[0].name"),
        ({**LIBRARY, "tools": [{"type": "function", "name": 3}]}, "tools[0].tools[0].name"),
        ({**LIBRARY, "tools": [LIBRARY]}, "tools[0].tools[0].type"),
    ],
)
def test_what_is_wrong_in_one_is_named(server: Served, tool: Any, param: str) -> None:
    refused = post(server, {"tools": [tool]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_the_same_name_twice_is_refused(server: Served) -> None:
    twice = post(server, {"tools": [LIBRARY, {**COUNT, "name": "mcp__library__count"}]})
    assert (twice.status_code, twice.json()["error"]["param"]) == (400, "tools[1].name")


def test_what_a_client_says_about_itself_changes_nothing(server: Served) -> None:
    plain = post(server, {"max_output_tokens": 6}).json()
    told = post(server, {"max_output_tokens": 6, "client_metadata": {"session_id": "one", "turn_id": "2"}}).json()
    assert told["output"][0]["content"] == plain["output"][0]["content"]
