"""Tools over HTTP: required, streamed, and found again as they were sampled, whatever a client makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import kvtrie as kv
from kvtrie.models.tokenizer import Tokenizer
from kvtrie.serve.replays import Replays, same_json
from processes import PATIENCE
from random_models import random_model
from serving import TINY, Served, served, tiny_model
from small_templates import WITH_TOOLS

PARAMETERS = {
    "type": "object",
    "properties": {"cells": {"type": "integer", "minimum": 0, "maximum": 999}, "shared": {"type": "boolean"}},
    "required": ["cells", "shared"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "measure", "description": "Measures.", "parameters": PARAMETERS}}]
# Tokens of eight calls, as many as the grammar allows: each has 91 characters at most, and a token has one or more. The
# other API has no seed, so that chance says how many there are.
LONGEST = 8 * 91
QUESTION: list[Any] = [{"role": "user", "content": "How many cells?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(tiny_model(WITH_TOOLS), temperature=1.0, context=2048) as running:
        yield running


def post(server: Served, path: str, body: Any) -> Any:
    response = httpx.post(server.url + path, json={"max_tokens": LONGEST, "seed": 3, **body}, timeout=PATIENCE)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_required_call_that_cannot_be_made(server: Served) -> None:
    """The error names the tool, and where it stands."""
    wrong = {"type": "object", "properties": {"a": {"type": "strin"}}, "required": ["a"]}
    tools = [{"type": "function", "function": {"name": "measure", "parameters": wrong}}]
    body = {"messages": QUESTION, "tools": tools, "tool_choice": "required", "max_tokens": 9}
    response = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=PATIENCE)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "tools.0.function.parameters"
    assert "'measure'" in error["message"] and "strin" in error["message"]


def test_a_required_call_is_found_again_as_it_was_sampled(server: Served) -> None:
    asked = {"messages": QUESTION, "tools": TOOLS, "tool_choice": "required"}
    answer = post(server, "/v1/chat/completions", asked)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    calls = choice["message"]["tool_calls"]
    assert {call["function"]["name"] for call in calls} == {"measure"}
    for call in calls:
        assert set(json.loads(call["function"]["arguments"])) == {"cells", "shared"}
        values = json.loads(call["function"]["arguments"])
        call["function"]["arguments"] = json.dumps(dict(reversed(values.items())), indent=1)  # as a client may have it
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "12"} for call in calls]
    again = post(server, "/v1/chat/completions", {**asked, "messages": [*QUESTION, choice["message"], *results]})
    known = answer["usage"]["total_tokens"] - 1  # the end token was chosen, never computed
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= known


def test_a_changed_call_is_what_the_client_says(server: Served) -> None:
    asked = {"messages": QUESTION, "tools": TOOLS, "tool_choice": "required"}
    message = post(server, "/v1/chat/completions", asked)["choices"][0]["message"]
    first = message["tool_calls"][0]
    first["function"]["arguments"] = '{"cells": 1000, "shared": false}'
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "12"} for call in message["tool_calls"]]
    told = post(server, "/explain", {"messages": [*QUESTION, message, *results], "tools": TOOLS})
    assert "1000" in told["instead"]


def test_calls_are_streamed_with_ids(server: Served) -> None:
    body = {"messages": QUESTION, "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "measure"}}}
    whole = post(server, "/v1/chat/completions", body)["choices"][0]["message"]["tool_calls"]
    calls: dict[int, Any] = {}
    with httpx.stream(
        "POST",
        server.url + "/v1/chat/completions",
        json={"max_tokens": LONGEST, "seed": 3, **body, "stream": True},
        timeout=PATIENCE,
    ) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for call in json.loads(line[6:])["choices"][0]["delta"].get("tool_calls", []):
                    calls[call["index"]] = call
    assert [call["function"] for call in calls.values()] == [call["function"] for call in whole]
    assert all(call["id"].startswith("call_") for call in calls.values())


def test_tools_of_the_other_api(server: Served) -> None:
    tools = [{"name": "measure", "description": "Measures.", "input_schema": PARAMETERS}]
    asked: dict[str, Any] = {"messages": QUESTION, "tools": tools, "tool_choice": {"type": "any"}}
    answer = post(server, "/v1/messages", asked)
    assert answer["stop_reason"] == "tool_use"
    uses = [block for block in answer["content"] if block["type"] == "tool_use"]
    assert uses
    results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "12"} for use in uses]
    messages = [*QUESTION, {"role": "assistant", "content": answer["content"]}, {"role": "user", "content": results}]
    again = post(server, "/v1/messages", {**asked, "messages": messages})
    usage = answer["usage"]
    known = sum(usage.values()) - 1
    assert again["usage"]["cache_read_input_tokens"] >= known


def test_tools_that_are_not_to_be_called(server: Served) -> None:
    body = {"messages": QUESTION, "tools": TOOLS, "tool_choice": "none", "max_tokens": 4}
    plain = post(server, "/v1/chat/completions", {"messages": QUESTION, "max_tokens": 4})
    assert post(server, "/v1/chat/completions", body)["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]


def test_replays_are_bounded_and_of_one_namespace() -> None:
    replays = Replays(most=3, most_characters=100)
    call = {"id": "call_0", "function": {"name": "f", "arguments": "{}"}}
    replays.keep("a", "text 0", {"call_0": ("f", "{}")})
    assert replays.find("a", [call]) == "text 0"
    assert replays.find("b", [call]) is None
    assert replays.find("a", [call, {**call, "id": "call_9"}]) is None
    for number in range(1, 4):
        replays.keep("a", f"text {number}", {f"call_{number}": ("f", "{}")})
    assert replays.find("a", [call]) is None
    replays.keep("a", "x" * 99, {"call_x": ("f", "{}")})
    assert replays.find("a", [{**call, "id": "call_3"}]) is None
    assert replays.find("a", [{**call, "id": "call_x"}]) == "x" * 99


@pytest.mark.parametrize(
    ("given", "arguments", "same"),
    [
        ('{"a":1,"b":2}', '{"b": 2, "a": 1}', True),
        ({"a": 1}, '{"a": 1}', True),
        ('{"a": 1}', '{"a": 2}', False),
        ("no json", "no json", True),
        (None, "{}", False),
        ("[" * 100_000, "{}", False),
    ],
)
def test_same_json(given: Any, arguments: str, same: bool) -> None:
    assert same_json(given, arguments) is same


# As reasoning models have it: what was thought in earlier turns is not in the next prompt.
THINKING = """
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.role == 'assistant' %}{{ message.content.split('</think>')[-1].lstrip('\n') }}
{%- else %}{{ message.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"""


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_stripped_reasoning_costs_no_more_than_the_answer(kind: str) -> None:
    """Recurrent layers resume at kept states only; one is kept in front of each answer."""
    own = kv.models.load(TINY).tokenizer
    model = random_model(kind, vocab_size=own.vocab_size, max_position_embeddings=2048)
    model.tokenizer = Tokenizer(own.raw, special=own.special, chat_template=THINKING)
    cache = kv.PrefixCache(model.caches(capacity=2048), host_bytes=0, checkpoint_every=1 << 20)
    messages = [{"role": "user", "content": "A question of some length, about pages and locks."}]
    with served(model, cache=cache) as server:
        for turn in range(4):
            before = len(own_tokens(model, messages))
            answer = post(server, "/v1/chat/completions", {"messages": messages, "max_tokens": 9, "ignore_eos": True})
            assert answer["usage"]["completion_tokens"] == 9
            messages += [
                {"role": "assistant", "content": "<think>\nsome thought\n</think>\nThis is the answer."},
                {"role": "user", "content": f"Turn {turn}."},
            ]
            why = post(server, "/explain", {"messages": messages})
            assert why["reusable"] >= before
            assert "some thought" not in why["instead"]


def own_tokens(model: Any, messages: Any) -> list[int]:
    """A conversation up to where its next answer begins."""
    tokens: list[int] = model.tokenizer.apply_chat_template(messages)
    return tokens
