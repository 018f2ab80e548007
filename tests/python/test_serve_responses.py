"""The Responses API: the same answers as chats give, as items; kept, gone on from, and refused by name."""

from __future__ import annotations

import json
import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import kvtrie as kv
from kvtrie.serve.answer import Piece
from kvtrie.serve.failures import Refusal
from kvtrie.serve.responses_items import items_of, messages_of
from kvtrie.serve.responses_output import Output
from kvtrie.serve.responses_schema import HARMLESS, ResponseRequest
from kvtrie.serve.responses_store import ResponseStore
from kvtrie.serve.tool_calls import ToolCall
from processes import PATIENCE
from serving import TINY, Process, Served, served, tiny_model
from small_templates import WITH_TOOLS

openai = pytest.importorskip("openai")

KEYS = {"key-a": "a", "key-b": "b"}
PARAMETERS = {
    "type": "object",
    "properties": {"cells": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["cells"],
    "additionalProperties": False,
}
MEASURE = {"type": "function", "name": "measure", "description": "Measures.", "parameters": PARAMETERS}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(tiny_model(WITH_TOOLS), keys=KEYS, temperature=0.0, context=2048) as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="key-a", timeout=PATIENCE, max_retries=0) as made:
        yield made


def post(server: Served, body: Any, path: str = "/v1/responses", key: str = "key-a") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(server.url + path, json=body, headers=headers, timeout=PATIENCE)


def said(server: Served, body: Any) -> Any:
    response = post(server, {"max_output_tokens": 10, **body})
    assert response.status_code == 200, response.text
    return response.json()


# ---- items -----------------------------------------------------------------------------------------------------------


def test_what_the_assistant_does_without_others_in_between_is_one_message() -> None:
    items = [
        *items_of([{"role": "user", "content": "a"}]),
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "think"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": 'x "y"'},
        {"type": "function_call_output", "call_id": "1", "output": "one"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "two"}]},
        {"type": "function_call", "call_id": "3", "name": "f", "arguments": "{}"},
        {"type": "message", "role": "assistant", "content": "done"},
        {"type": "message", "role": "assistant", "content": "more"},
        *items_of("b"),
    ]

    def call(number: str, name: str, arguments: str) -> Any:
        return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}

    assert messages_of(items) == [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "so",
            "reasoning_content": "think",
            "tool_calls": [call("1", "f", "{}"), call("2", "g", '{"input": "x \\"y\\""}')],
        },
        {"role": "tool", "tool_call_id": "1", "content": "one"},
        {"role": "tool", "tool_call_id": "2", "content": "two"},
        {"role": "assistant", "content": "", "tool_calls": [call("3", "f", "{}")]},
        {"role": "assistant", "content": "done"},
        {"role": "assistant", "content": "more"},
        {"role": "user", "content": "b"},
    ]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "message", "role": "user"}, "input[1].content"),
        ({"type": "message", "role": "robot", "content": ""}, "input[1].role"),
        ({"type": "message", "role": "user", "content": 3}, "input[1].content"),
        ({"type": "message", "role": "user", "content": [{"type": "input_image"}]}, "input[1].content[0].type"),
        ({"type": "message", "role": "user", "content": ["text"]}, "input[1].content[0].type"),
        ({"type": "message", "role": "user", "content": [{"type": "input_text"}]}, "input[1].content[0].text"),
        ({"type": "function_call", "call_id": "1", "name": "f"}, "input[1].arguments"),
        ({"type": "function_call_output", "output": "x"}, "input[1].call_id"),
        ({"type": "function_call_output", "call_id": "x"}, "input[1].output"),
        ({"type": "web_search_call"}, "input[1].type"),
        ({"type": ["message"]}, "input[1].type"),
        ({}, "input[1].type"),
    ],
)
def test_the_item_that_is_wrong_is_named(item: Any, param: str) -> None:
    with pytest.raises(Refusal) as refused:
        messages_of([*items_of("a"), item])
    assert (refused.value.status, refused.value.param) == (400, param)


class Generated:
    """What an answer has so far."""

    generated = 0
    token_bytes = None  # no logprobs are asked for


def test_an_answer_as_items() -> None:
    answer: Any = Generated()
    output = Output(answer, custom={"say"}, with_reasoning=True)
    changes = []
    pieces = [
        Piece(reasoning="hm"),
        Piece(reasoning="m\u00fc"),
        Piece(text="\n\n"),
        Piece(text="so"),
        Piece(text=" on", calls=[("1", ToolCall("f", '{"a": 1}')), ("2", ToolCall("say", '{"input": "x"}'))]),
        Piece(text="\n"),
    ]
    for number, piece in enumerate(pieces):
        answer.generated = number + 1
        changes += output.take(piece)
    changes += output.finish("completed")
    assert output.reasoning_tokens == 2
    assert [item["type"] for item in output.items] == ["reasoning", "message", "function_call", "custom_tool_call"]
    reasoning, message, call, custom = output.items
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hmm\u00fc"}]
    assert message["content"][0]["text"] == "\n\nso on"
    assert (call["arguments"], custom["input"]) == ('{"a": 1}', "x")
    assert {item["status"] for item in output.items} == {"completed"}
    for index, item in enumerate(output.items):  # begun without anything, then what comes, then as it is
        mine = [change for change in changes if change.index == index]
        assert [mine[0].kind, mine[-1].kind] == ["begun", "done"]
        assert mine[-1].item == item
        text = item.get("arguments") or item.get("input") or item["content"][0]["text"]
        assert "".join(change.text for change in mine) == text
    (again,) = messages_of(output.items)
    assert again["reasoning_content"] == "hmm\u00fc"
    stripped = {name: value for name, value in reasoning.items() if name != "content"}  # as clients send it back
    assert messages_of([stripped, message])[0]["reasoning_content"] == "hmm\u00fc"


def test_an_answer_that_says_nothing_is_an_empty_message() -> None:
    answer: Any = Generated()
    output = Output(answer)
    assert [change.kind for change in output.finish("incomplete")] == ["begun", "more", "done"]
    assert [(item["type"], item["status"]) for item in output.items] == [("message", "incomplete")]


# ---- what is kept ----------------------------------------------------------------------------------------------------


def response(made: str, text: str = "yes") -> dict[str, Any]:
    return {"id": made, "output": [{"type": "message", "role": "assistant", "content": text}]}


def test_responses_are_branches_and_come_back(tmp_path: Path) -> None:
    file = tmp_path / "responses.sqlite"
    store = ResponseStore(file)
    assert store.find("n", "a") is None and not store.remove("n", "a") and not file.exists()
    assert store.keep("n", response("a"), items_of("1"), None)
    assert store.keep("n", response("b", "\u00fc\u2028"), items_of("2"), "a")
    assert store.keep("n", response("c"), items_of("3"), "a")
    store.close()
    assert file.stat().st_mode & 0o077 == 0
    store = ResponseStore(file)
    texts = [message["content"] for message in messages_of(store.conversation("n", "b"))]
    assert texts == ["1", "yes", "2", "\u00fc\u2028"]
    assert [message["content"] for message in messages_of(store.conversation("n", "c"))] == ["1", "yes", "3", "yes"]
    assert store.find("m", "a") is None
    assert not store.remove("m", "a") and store.remove("n", "a") and not store.remove("n", "a")
    with pytest.raises(Refusal, match="'a', which 'b' goes on from") as refused:
        store.conversation("n", "b")
    assert refused.value.status == 404
    store.close()
    store.close()
    assert not store.keep("n", response("d"), [], None)
    assert store.find("n", "c") is None


def test_the_oldest_responses_go_first() -> None:
    few = ResponseStore(None, most=2)
    for made in "abc":
        assert few.keep("n", response(made), [], None)
    assert [few.find("n", made) is not None for made in "abc"] == [False, True, True]
    small = ResponseStore(None, most_bytes=1000)
    for made in "abc":
        assert small.keep("n", response(made, "x" * 300), [], None)
    assert [small.find("n", made) is not None for made in "abc"] == [False, True, True]
    assert not small.keep("n", response("d", "x" * 1000), [], None)
    assert not ResponseStore(None, most=0).keeps


def damaged(file: Path) -> None:
    file.write_bytes(b"no database " * 1000)


def newer(file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA user_version = 7")


def foreign(file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE responses (other TEXT)")


@pytest.mark.parametrize("spoil", [damaged, newer, foreign])
def test_a_file_that_cannot_be_read_is_moved_aside(tmp_path: Path, spoil: Any, caplog: Any) -> None:
    file = tmp_path / "responses.sqlite"
    spoil(file)
    before = file.read_bytes()
    store = ResponseStore(file)
    assert store.keep("n", response("a"), [], None)
    store.close()
    assert file.with_name("responses.sqlite.damaged").read_bytes() == before
    assert "cannot be read" in caplog.text


def test_what_cannot_be_written_is_said(tmp_path: Path, caplog: Any) -> None:
    file = tmp_path / "responses.sqlite"
    store = ResponseStore(file)
    assert store.keep("n", response("before"), [], None)
    other = sqlite3.connect(file)
    other.execute("DROP TABLE responses")
    other.commit()
    assert not store.keep("n", response("a"), [], None)
    assert "was not kept" in caplog.text
    other.close()
    store.close()


# ---- over HTTP -------------------------------------------------------------------------------------------------------


def test_the_answer_is_that_of_a_chat(server: Served, client: Any) -> None:
    made = client.responses.create(
        model="tiny", input="What is a lock?", instructions="Be short.", max_output_tokens=10
    )
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is a lock?"}]
    chat = client.chat.completions.create(model="tiny", messages=messages, max_tokens=10)
    assert made.output_text == chat.choices[0].message.content
    assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert made.usage.input_tokens == chat.usage.prompt_tokens
    assert chat.usage.prompt_tokens_details.cached_tokens == made.usage.input_tokens - 1
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens
    counted = post(server, {"input": "What is a lock?", "instructions": "Be short."}, "/v1/responses/input_tokens")
    assert counted.json()["input_tokens"] == made.usage.input_tokens


def test_events_add_up_to_the_response(client: Any) -> None:
    asked = {"model": "tiny", "input": "What is a lock?", "max_output_tokens": 10}
    whole = client.responses.create(**asked)
    texts, kinds = "", []
    for number, event in enumerate(client.responses.create(**asked, stream=True)):
        assert event.sequence_number == number
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            texts += event.delta
        if event.type == "response.output_item.done":
            assert event.item.content[0].text == texts
    assert texts == whole.output_text == event.response.output_text
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete",
    ]  # fmt: skip


def test_a_response_goes_on_from_another_as_a_branch(client: Any) -> None:
    def create(**more: Any) -> Any:
        return client.responses.create(model="tiny", max_output_tokens=8, **more)

    first = create(input="What is a lock?", instructions="Be short.")
    for question in ("And a key?", "And a door?"):  # two branches
        more = create(input=question, previous_response_id=first.id)
        messages = [
            {"role": "user", "content": "What is a lock?"},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": question},
        ]  # instructions are of one request
        chat = client.chat.completions.create(model="tiny", messages=messages, max_tokens=8)
        assert more.output_text == chat.choices[0].message.content
        assert more.previous_response_id == first.id
    third = create(input="Go on.", previous_response_id=more.id)
    assert third.usage.input_tokens_details.cached_tokens >= more.usage.total_tokens - 1
    assert client.responses.retrieve(first.id).output_text == first.output_text
    items = client.responses.input_items.list(third.id).data
    assert [item.content[0].text for item in items] == ["Go on."]
    client.responses.delete(more.id)
    for gone in (more.id, third.id):
        with pytest.raises(openai.NotFoundError) as refused:
            create(input="x", previous_response_id=gone)
        assert refused.value.code == "previous_response_not_found"


def test_what_is_not_stored_is_not_known_and_nobody_elses_is(server: Served) -> None:
    mine = said(server, {"input": "a", "store": False})
    assert mine["store"] is False
    assert post(server, {"input": "b", "previous_response_id": mine["id"]}).status_code == 404
    mine = said(server, {"input": "a"})
    assert mine["store"] is True
    assert post(server, {"input": "b", "previous_response_id": mine["id"]}, key="key-b").status_code == 404
    path = f"{server.url}/v1/responses/{mine['id']}"
    for key, status in (("key-b", 404), ("key-a", 200)):
        assert httpx.get(path, headers={"authorization": f"Bearer {key}"}).status_code == status


def test_tools_are_called_and_their_calls_found_again(client: Any) -> None:
    asked: Any = {"model": "tiny", "tools": [MEASURE], "tool_choice": "required", "max_output_tokens": 728}
    made = client.responses.create(input="How many cells?", **asked)
    calls = [item for item in made.output if item.type == "function_call"]
    assert calls
    for call in calls:
        assert call.name == "measure" and set(json.loads(call.arguments)) == {"cells"}
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "12"} for call in calls]
    known = made.usage.total_tokens - 1
    kept = client.responses.create(input=results, previous_response_id=made.id, **asked)
    assert kept.usage.input_tokens_details.cached_tokens >= known
    items = [{"role": "user", "content": "How many cells?"}, *made.model_dump()["output"], *results]
    sent = client.responses.create(input=items, store=False, **asked)  # the client keeps the conversation
    assert sent.usage.input_tokens == kept.usage.input_tokens
    assert sent.usage.input_tokens_details.cached_tokens == sent.usage.input_tokens - 1
    assert [item.arguments for item in sent.output] == [item.arguments for item in kept.output]


def test_calls_as_events(client: Any) -> None:
    asked: Any = {"model": "tiny", "tools": [MEASURE], "max_output_tokens": 728}
    choice = {"type": "function", "name": "measure"}
    arguments: dict[str, str] = {}
    for event in client.responses.create(input="How many?", stream=True, tool_choice=choice, **asked):
        if event.type == "response.function_call_arguments.delta":
            arguments[event.item_id] = arguments.get(event.item_id, "") + event.delta
    made = event.response
    assert event.type == "response.completed"
    assert arguments == {item.id: item.arguments for item in made.output}
    assert all(json.loads(each).keys() == {"cells"} for each in arguments.values())


def test_a_tool_that_takes_a_text(client: Any) -> None:
    tool = {"type": "custom", "name": "say", "description": "Says it."}
    choice = {"type": "custom", "name": "say"}
    made = client.responses.create(
        model="tiny", input="Say it.", tools=[tool], tool_choice=choice, max_output_tokens=300, temperature=1.0
    )
    for item in made.output:
        assert item.type in ("custom_tool_call", "message")  # a text has no end that the grammar could force


def test_logprobs_where_they_are_asked_for(client: Any) -> None:
    made = client.responses.create(
        model="tiny", input="a", max_output_tokens=3, top_logprobs=2, include=["message.output_text.logprobs"]
    )
    logprobs = made.output[0].content[0].logprobs
    assert len(logprobs) == 3
    assert all(len(each.top_logprobs) == 2 and each.logprob <= 0 for each in logprobs)


def test_a_schema_is_followed(client: Any) -> None:
    form = {"type": "json_schema", "name": "cells", "schema": PARAMETERS, "strict": True}
    asked: Any = {"model": "tiny", "input": "How many?", "text": {"format": form}, "max_output_tokens": 60}
    made = client.responses.create(**asked)
    assert set(json.loads(made.output_text)) == {"cells"}
    with client.responses.stream(**asked) as stream:  # the client's own reader of events
        assert stream.get_final_response().output_text == made.output_text


# Beside those that the tests above ask for.
ASKED = {
    "background": True,
    "conversation": "conv_1",
    "include": ["file_search_call.results"],
    "input": [{"type": "item_reference", "id": "msg_1"}],
    "instructions": 3,
    "max_output_tokens": 0,
    "model": 3,
    "parallel_tool_calls": 3,
    "previous_response_id": "resp_none",
    "prompt": {"id": "pmpt_1"},
    "reasoning": {"effort": "high"},
    "store": "perhaps",
    "stream": "perhaps",
    "stream_options": {"include_usage": True},
    "temperature": 3,
    "text": {"verbosity": "low"},
    "tool_choice": {"type": "web_search_preview"},
    "tools": [{"type": "web_search"}],
    "top_logprobs": 21,
    "top_p": 0,
    "truncation": "auto",
    "unknown": 1,
}


@pytest.mark.parametrize("name", ASKED)
def test_what_cannot_be_had_is_refused_by_its_name(server: Served, name: str) -> None:
    refused = post(server, {"input": "a", name: ASKED[name]})
    assert refused.status_code in (400, 404)
    error = refused.json()["error"]
    assert (error["param"] or "").split("[")[0].split(".")[0] == name
    assert name in error["message"] or name == "previous_response_id"


def test_each_field_is_obeyed_refused_or_harmless(server: Served) -> None:
    assert {*ASKED, *HARMLESS} - {"unknown"} == set(ResponseRequest.model_fields)
    values: Any = {"max_tool_calls": 3, "metadata": {"a": "b"}, "context_management": [{"type": "compaction"}]}
    objects = ("access_programs", "background_options", "client_metadata", "prompt_cache_options")
    values.update({name: {"a": "b"} for name in objects})
    harmless = {name: values.get(name, "x") for name in HARMLESS}
    made = said(server, {"input": "a", **harmless})
    assert made["output"][0]["content"] == said(server, {"input": "a"})["output"][0]["content"]
    assert made["metadata"] == {"a": "b"}


def test_how_a_stream_fails() -> None:
    """The response says so, whole."""
    with served(kv.models.load(TINY), temperature=0.0, context=4096, capacity=8192) as server:
        asked = {"input": "a", "stream": True, "max_output_tokens": 4000}
        with httpx.stream("POST", server.url + "/v1/responses", json=asked, timeout=PATIENCE) as stream:
            lines = stream.iter_lines()
            assert any(line == "event: response.output_text.delta" for line in lines)
            closing = threading.Thread(target=server.engine.batcher.close)
            closing.start()
            last = [json.loads(line[6:]) for line in lines if line.startswith("data: ")][-1]
            closing.join()
    assert last["type"] == "response.failed"
    assert (last["response"]["status"], last["response"]["store"]) == ("failed", False)
    assert last["response"]["error"] == {"code": "server_error", "message": "the server is closing"}


@pytest.mark.ci
def test_responses_come_back_after_a_restart(tmp_path: Path) -> None:
    arguments = ("--disk", str(tmp_path / "state"), "--context", "1024", "--temperature", "0")
    asked = {"input": " ".join(f"word{at}" for at in range(60)), "max_output_tokens": 6}
    first = Process(*arguments)
    made = first.post("/v1/responses", asked)
    assert first.post("/flush") == {"saved": True}
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    second = Process(*arguments)
    more = second.post("/v1/responses", {**asked, "input": "b", "previous_response_id": made["id"]})
    assert more["usage"]["input_tokens_details"]["cached_tokens"] >= made["usage"]["total_tokens"] - 1
    second.end(signal.SIGTERM)


def test_a_replica_keeps_none_and_says_why() -> None:
    with served(tiny_model(WITH_TOOLS), temperature=0.0, kept_responses=0) as replica:

        def asked(how: str, path: str, body: Any = None) -> Any:
            response = httpx.request(how, replica.url + path, json=body, timeout=PATIENCE)
            return response.status_code, response.json()

        status, made = asked("POST", "/v1/responses", {"input": "a", "store": True, "max_output_tokens": 2})
        assert (status, made["store"]) == (200, False)
        more = {"input": "b", "previous_response_id": made["id"]}
        refused = [
            (400, "previous_response_id", *asked("POST", "/v1/responses", more)),
            (400, "previous_response_id", *asked("POST", "/v1/responses/input_tokens", more)),
            (404, "response_id", *asked("GET", f"/v1/responses/{made['id']}")),
            (404, "response_id", *asked("GET", f"/v1/responses/{made['id']}/input_items")),
            (404, "response_id", *asked("DELETE", f"/v1/responses/{made['id']}")),
        ]
        for wanted, param, status, told in refused:
            error = told["error"]
            assert (status, error["param"], error["code"]) == (wanted, param, "unsupported_parameter")
            assert "replicas" in error["message"] and "send the whole conversation as input" in error["message"]
