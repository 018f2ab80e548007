"""The server by its bare HTTP: answers, counts, refusals, and what happens when clients leave."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

import kvtrie as kv
from processes import PATIENCE, wait_for
from serving import TINY, Served, served

QUESTION = [{"role": "user", "content": "What is a cache?"}]


@pytest.fixture(scope="module")
def model() -> Any:
    return kv.models.load(TINY)


@pytest.fixture(scope="module")
def server(model: Any) -> Iterator[Served]:
    with served(model, temperature=0.0) as running:
        yield running


def post(server: Served, path: str, body: Any, **options: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=PATIENCE, **options)


def get(server: Served, path: str, **options: Any) -> httpx.Response:
    return httpx.get(server.url + path, timeout=PATIENCE, **options)


def chat(server: Served, messages: Any = QUESTION, **fields: Any) -> Any:
    response = post(server, "/v1/chat/completions", {"messages": messages, "max_tokens": 12, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def events_of(server: Served, path: str, body: Any) -> list[Any]:
    """The data of all events; "[DONE]" as it is."""
    found = []
    with httpx.stream("POST", server.url + path, json={**body, "stream": True}, timeout=PATIENCE) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("data: "):
                found.append(line[6:] if line == "data: [DONE]" else json.loads(line[6:]))
    return found


# --- answers ----------------------------------------------------------------------------------------------------------


def test_an_answer_is_the_one_of_the_library(server: Served, model: Any) -> None:
    reply = model.chat(QUESTION, max_tokens=12)
    answer = chat(server)
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": reply.text}
    assert choice["finish_reason"] == reply.finish_reason
    assert answer["object"] == "chat.completion"
    assert answer["usage"]["prompt_tokens"] == reply.prompt_tokens
    assert answer["usage"]["completion_tokens"] == len(reply.tokens)


def test_the_next_turn_computes_what_is_new(server: Served) -> None:
    first = chat(server, [{"role": "user", "content": "Tell me of two pages."}])
    said = first["choices"][0]["message"]
    conversation = [{"role": "user", "content": "Tell me of two pages."}, said, {"role": "user", "content": "And?"}]
    second = chat(server, conversation)
    known = first["usage"]["total_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= known - 1  # the last one was never computed
    assert second["timings"]["cache_n"] + second["timings"]["prompt_n"] == second["usage"]["prompt_tokens"]


def test_a_stream_says_the_same(server: Served) -> None:
    whole = chat(server)
    chunks = events_of(
        server,
        "/v1/chat/completions",
        {"messages": QUESTION, "max_tokens": 12, "stream_options": {"include_usage": True}},
    )
    assert chunks.pop() == "[DONE]"
    usage = chunks.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_several_answers_are_branches_of_one_prompt(server: Served) -> None:
    before = server.engine.batcher.stats()["submitted"]
    messages = [{"role": "user", "content": "Say something else each time, about locks and pages, please."}]
    answer = chat(server, messages, n=4, temperature=1.0, seed=5)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) > 1
    assert server.engine.batcher.stats()["submitted"] == before + 4
    assert chat(server, messages, n=4, temperature=1.0, seed=5)["choices"] == answer["choices"]
    chunks = events_of(
        server,
        "/v1/chat/completions",
        {"messages": messages, "max_tokens": 12, "n": 4, "temperature": 1.0, "seed": 5},
    )
    streamed = ["", "", "", ""]
    for chunk in chunks[:-1]:
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["delta"].get("content", "")
    assert streamed == texts


def test_a_stop_text_is_not_part_of_the_answer(server: Served) -> None:
    whole = chat(server)["choices"][0]["message"]["content"]
    stop = whole[5:8]
    answer = chat(server, stop=[stop])["choices"][0]
    assert answer["message"]["content"] == whole[: whole.index(stop)]
    assert answer["finish_reason"] == "stop"


def test_logprobs(server: Served) -> None:
    answer = chat(server, logprobs=True, top_logprobs=3)["choices"][0]
    content = answer["logprobs"]["content"]
    assert "".join(each["token"] for each in content).startswith(answer["message"]["content"])
    for each in content:
        assert len(each["top_logprobs"]) == 3
        assert each["logprob"] == each["top_logprobs"][0]["logprob"]  # the likeliest was taken
        assert each["bytes"] == list(each["token"].encode())


def test_plain_texts_and_token_ids(server: Served, model: Any) -> None:
    text = "A cache is"
    body = {"prompt": text, "max_tokens": 6}
    whole = post(server, "/v1/completions", body).json()
    assert whole["choices"][0]["text"] == model.complete(text, max_tokens=6).text
    ids = model.tokenizer.encode(text)
    by_ids = post(server, "/v1/completions", {**body, "prompt": ids}).json()
    assert by_ids["choices"] == whole["choices"]
    two = post(server, "/v1/completions", {**body, "prompt": [text, "The lock"], "n": 2}).json()
    assert [choice["index"] for choice in two["choices"]] == [0, 1, 2, 3]
    assert two["choices"][0]["text"] == whole["choices"][0]["text"]
    chunks = events_of(server, "/v1/completions", body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == whole["choices"][0]["text"]


def test_token_ids_of_an_answer_that_does_not_end(server: Served, model: Any) -> None:
    body = {"prompt": "A cache is", "max_tokens": 200, "ignore_eos": True, "return_token_ids": True}
    whole = post(server, "/v1/completions", body).json()["choices"][0]
    assert len(whole["token_ids"]) == 200
    chunks = events_of(server, "/v1/completions", body)
    assert [token for chunk in chunks[:-1] for token in chunk["choices"][0]["token_ids"]] == whole["token_ids"]
    session_tokens = list(kv.generate(model, "A cache is", 200, ignore_eos=True))
    assert whole["token_ids"] == session_tokens


def test_json_schema(server: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["size"],
        "additionalProperties": False,
    }
    fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "size", "schema": schema}}}
    answer = chat(server, **fields, max_tokens=60, temperature=1.0, seed=3)
    value = json.loads(answer["choices"][0]["message"]["content"])
    assert 0 <= value["size"] <= 99
    refused = post(
        server,
        "/v1/chat/completions",
        {"messages": QUESTION, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "no"}}}},
    )
    assert refused.status_code == 400, refused.text


# --- Anthropic's ------------------------------------------------------------------------------------------------------


def test_messages(server: Served) -> None:
    body = {"messages": QUESTION, "max_tokens": 12, "temperature": 0}
    whole = chat(server)["choices"][0]["message"]["content"]
    answer = post(server, "/v1/messages", body).json()
    assert answer["content"] == [{"type": "text", "text": whole}]
    assert answer["stop_reason"] == "max_tokens"
    usage = answer["usage"]
    counted = post(server, "/v1/messages/count_tokens", {"messages": QUESTION}).json()["input_tokens"]
    assert sum(usage[name] for name in usage if name != "output_tokens") == counted
    assert usage["cache_read_input_tokens"] > 0
    stream = events_of(server, "/v1/messages", body)
    assert [each["type"] for each in stream][:2] == ["message_start", "content_block_start"]
    assert [each["type"] for each in stream][-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(each["delta"]["text"] for each in stream if each["type"] == "content_block_delta")
    assert text == whole
    assert stream[-2]["delta"]["stop_reason"] == "max_tokens"


def test_a_beginning_of_the_answer_is_gone_on_with(server: Served, model: Any) -> None:
    reply = model.chat(QUESTION, max_tokens=12)
    assert reply.text
    begun = model.tokenizer.decode(reply.tokens[:4])
    conversation = [*QUESTION, {"role": "assistant", "content": begun}]
    answer = post(server, "/v1/messages", {"messages": conversation, "max_tokens": 8, "temperature": 0}).json()
    assert begun + answer["content"][0]["text"] == reply.text


def test_a_line_of_noise_is_taken_out(server: Served) -> None:
    def prompt(number: int) -> Any:
        system = f"x-anthropic-billing-header: cc_version={number}\nYou explain computers, at length and with care."
        return {"system": system, "messages": QUESTION, "max_tokens": 2}

    post(server, "/v1/messages", prompt(1))
    usage = post(server, "/v1/messages", prompt(2)).json()["usage"]
    assert usage["input_tokens"] == 1  # the last one is always computed


# --- around them ------------------------------------------------------------------------------------------------------


def test_tokens_texts_and_explanations(server: Served, model: Any) -> None:
    ids = post(server, "/tokenize", {"content": "A cache"}).json()
    assert ids["tokens"] == model.tokenizer.encode("A cache", add_special_tokens=False)
    assert post(server, "/detokenize", {"tokens": ids["tokens"]}).json()["content"] == "A cache"
    chat(server, [{"role": "user", "content": "A long enough question of 1 January"}])
    why = post(server, "/explain", {"messages": [{"role": "user", "content": "A long enough question of 2 January"}]})
    found = why.json()
    assert found["end"] == "differs"
    assert 0 < found["matched"] < found["prompt_tokens"]
    assert "it differs from" in found["text"]


def test_models_health_and_metrics(server: Served) -> None:
    told = get(server, "/tokenizer_info").json()
    assert (told["bos_token"], told["eos_token"]) == ("<|bos|>", "<|end|>")
    assert told["chat_template"] == server.engine.template
    listed = get(server, "/v1/models").json()
    assert [each["id"] for each in listed["data"]] == ["tiny"]
    assert get(server, "/v1/models/tiny").json()["object"] == "model"
    assert get(server, "/v1/models/gpt-9").status_code == 404
    assert get(server, "/health").json() == {"status": "ok"}
    chat(server)
    text = get(server, "/metrics").text
    assert "# TYPE kvtrie_reused_tokens_total counter" in text
    assert 'kvtrie_requests_total{outcome="length"}' in text
    assert "kvtrie_seconds_to_first_token_bucket" in text


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": QUESTION, "temperature": 3}, "temperature"),
        ({"messages": QUESTION, "temperature": "warm"}, "temperature"),
        ({"messages": QUESTION, "n": 1000}, "n"),
        ({"messages": QUESTION, "max_tokens": -2}, "max_tokens"),
        ({"messages": QUESTION, "stop": ["a", None]}, "stop.1"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
        ({"messages": QUESTION, "tool_choice": "required"}, "tool_choice"),
        ({"messages": QUESTION, "logit_bias": {"0": 1e9}}, "logit_bias"),
    ],
)
def test_wrong_fields_are_refused_by_name(server: Served, fields: Any, named: str) -> None:
    response = post(server, "/v1/chat/completions", fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert named in (error["param"] or "")


def test_garbage_is_refused(server: Served) -> None:
    headers = {"content-type": "application/json"}
    for body in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"{" * 5000, b'{"messages": "no"}'):
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/completions"):
            response = httpx.post(server.url + path, content=body, headers=headers, timeout=PATIENCE)
            assert response.status_code == 400, (path, body[:20], response.text)
            assert "message" in response.json()["error"]
    assert get(server, "/nothing/here").json()["error"]["type"] == "not_found_error"
    assert get(server, "/v1/messages").json()["type"] == "error"


def test_a_prompt_that_is_too_long(server: Served) -> None:
    for text in ("word " * 2000, "x" * (3 << 20)):
        response = post(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": text}]})
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded", response.text


def test_bodies_have_limits(model: Any) -> None:
    with served(model, max_body=10_000, body_seconds=PATIENCE) as server:
        response = post(server, "/v1/messages", {"text": "x" * 20_000})
        assert (response.status_code, response.json()["error"]["type"]) == (413, "request_too_large")
    with (
        served(model, body_seconds=0.5) as server,
        socket.create_connection(("127.0.0.1", server.port), PATIENCE) as half,
    ):
        half.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        half.settimeout(PATIENCE)
        assert b" 408 " in half.recv(100)


def test_only_json_from_known_hosts(server: Served) -> None:
    body = json.dumps({"messages": QUESTION, "max_tokens": 1})
    plain = httpx.post(
        server.url + "/v1/chat/completions", content=body, headers={"content-type": "text/plain"}, timeout=PATIENCE
    )
    assert plain.status_code >= 400  # what a page of a browser can send anywhere
    other = get(server, "/v1/models", headers={"host": "evil.example"})
    assert other.status_code == 400


def test_keys_are_namespaces(model: Any) -> None:
    keys = {"key-a": "a", "key-b": "b"}
    with served(model, keys=keys, admin_key="admin") as server:
        body = {"messages": QUESTION, "max_tokens": 2}

        def cached(key: str) -> int:
            response = post(server, "/v1/chat/completions", body, headers={"authorization": f"Bearer {key}"})
            count: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            return count

        assert cached("key-a") == 0
        assert cached("key-a") > 0
        assert cached("key-b") == 0
        for headers in ({}, {"authorization": "Bearer no"}, {"authorization": "Basic key-a"}, {"x-api-key": "key-"}):
            response = post(server, "/v1/chat/completions", body, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        assert post(server, "/v1/messages", body, headers={"x-api-key": "key-b"}).status_code == 200
        assert get(server, "/metrics").status_code == 401
        assert get(server, "/metrics?key=admin").status_code == 200
        why = post(server, "/explain", {"messages": QUESTION}, headers={"authorization": "Bearer key-b"}).json()
        assert why["end"] == "whole_known"


# --- endings ----------------------------------------------------------------------------------------------------------


@contextmanager
def held(server: Served, done: Callable[[], bool] = lambda: False) -> Iterator[threading.Event]:
    """Steps behind the first eight begin only once that is so, or the event is set, as it is at the end."""
    kind, over = server.engine.model.__class__, threading.Event()
    compute, steps = kind.__call__, itertools.count(1)

    def call(self: Any, step: Any, *rest: Any) -> Any:
        if next(steps) > 8:
            wait_for(lambda: over.is_set() or done())
        return compute(self, step, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "__call__", call)
        try:
            yield over
        finally:
            over.set()


def test_too_many_wait(model: Any) -> None:
    with served(model, max_sessions=1, max_waiting=0) as server, held(server) as over:
        body = {"messages": QUESTION, "max_tokens": 400, "ignore_eos": True}
        with httpx.stream(
            "POST", server.url + "/v1/chat/completions", json={**body, "stream": True}, timeout=PATIENCE
        ) as first:
            lines = first.iter_lines()  # kept: an iterator that ends closes the connection
            next(lines)
            response = post(server, "/v1/chat/completions", body)
            over.set()
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) > 0
            assert response.json()["error"]["type"] == "rate_limit_error"
        wait_for(server.is_idle)  # it is not active any more before its place is free
        assert post(server, "/v1/chat/completions", {**body, "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request(model: Any, stream: bool) -> None:
    with served(model, context=2048) as server:
        held = threading.Event()
        compute = server.engine.model.__class__.__call__

        def slow(self: Any, step: Any, *rest: Any) -> Any:
            held.wait(0.1)  # all of it would take minutes
            return compute(self, step, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server.engine.model.__class__, "__call__", slow)
            body = {"prompt": "A cache is", "max_tokens": 1500, "ignore_eos": True, "stream": stream}
            if stream:
                with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=PATIENCE) as response:
                    next(response.iter_lines())
            else:
                content = json.dumps(body).encode()
                head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as raw:
                    raw.sendall(head + b"content-length: %d\r\n\r\n" % len(content) + content)
                    wait_for(lambda: server.engine.batcher.stats()["active"] == 1)
            wait_for(lambda: server.engine.batcher.stats()["cancelled"] == 1)
        wait_for(lambda: server.engine.journal.entries[-1].outcome == "cancelled")
        assert server.engine.cache.stats()["tokens"] > 0  # what was computed stays
        assert server.engine.cache.check() == []


def test_a_server_that_closes_ends_its_requests(model: Any) -> None:
    with served(model) as server:
        done: list[Any] = []
        body = {"prompt": "A cache is", "max_tokens": 900, "temperature": 1, "stream": True}

        def read() -> None:
            try:
                with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=PATIENCE) as response:
                    done.append(list(response.iter_lines()))
            except httpx.HTTPError as error:
                done.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        wait_for(lambda: server.engine.batcher.stats()["submitted"] == 1)
    reader.join(PATIENCE)
    assert done
    assert server.engine.cache.closed
    assert server.engine.batcher.closed


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_that_closes_under_a_request(model: Any, stream: bool) -> None:
    """An error of the API's form: half an answer never looks like a whole one."""
    with served(model, context=2048) as server, held(server, lambda: server.engine.batcher.closed):
        body = {"prompt": "A cache is", "max_tokens": 2000, "ignore_eos": True, "stream": stream}
        closer = threading.Thread(
            target=lambda: (
                wait_for(lambda: server.engine.batcher.stats()["tokens"] > 5),
                server.engine.batcher.close(),
            )
        )
        closer.start()
        response = post(server, "/v1/completions", body)
        closer.join(PATIENCE)
        if stream:
            last = [line for line in response.text.splitlines() if line][-1]
            assert json.loads(last[6:])["error"]["type"] == "overloaded_error"
        else:
            assert response.status_code == 503
            assert response.json()["error"]["type"] == "overloaded_error"
        assert post(server, "/v1/completions", body).status_code == 503
        assert get(server, "/health").json() == {"status": "closing"}
