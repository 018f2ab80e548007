"""Requests at random are answered or refused, never failed; and whatever the tables call obeyed shows in an answer.

`KVTRIE_CIRCLE=soak ./dev run pytest -s tests/python/test_serve_fuzz.py` plays 100,000 requests; KVTRIE_SEED=N plays the
same ones again (request_fuzz.py).
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from circles import CIRCLE, SOAK
from kvtrie.serve.anthropic_schema import MessagesRequest
from kvtrie.serve.fields import HARMLESS, field_names
from kvtrie.serve.ollama_schema import ChatAsked
from kvtrie.serve.openai_schema import ChatRequest, CompletionRequest, ExplainRequest, TokenizeRequest
from kvtrie.serve.responses_schema import ResponseRequest
from processes import PATIENCE
from request_fuzz import TEMPLATE, fuzzed
from serving import Served, served, tiny_model

SEED = int(os.environ.get("KVTRIE_SEED", time.strftime("%Y%m%d") if SOAK else "1"))
COUNT = {"test": 100, "ci": 2_000, "soak": 100_000}[CIRCLE]


def test_requests_at_random_are_answered_or_refused() -> None:
    tally = fuzzed(SEED, COUNT)
    print(f"KVTRIE_SEED={SEED}\n{tally}")
    assert tally.wrong == [], f"seed {SEED}: {tally.wrong[0]}"
    assert sum(count for (_, status), count in tally.counts.items() if status == 200) > COUNT // 10
    if SOAK:  # seconds: only where nobody else wants the machine
        assert tally.silence[0] < 2, f"seed {SEED}: {tally.silence}"


# ---- fields that are obeyed ------------------------------------------------------------------------------------------

QUESTION = [{"role": "user", "content": "What is a cache?"}]
ASKED = [{"role": "user", "content": "What is a <|end|> lock?"}]
SCHEMA = {"enum": ["yes"]}
TOOL = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": TOOL}]
OWN_TOOLS = [{"name": "look", "input_schema": {"type": "object"}}]
CHAT, TEXT, MESSAGES, RESPONSES, OLLAMA = (
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/api/chat",
)  # fmt: skip
SCHEMAS: Mapping[str, type[BaseModel]] = {
    CHAT: ChatRequest,
    TEXT: CompletionRequest,
    MESSAGES: MessagesRequest,
    RESPONSES: ResponseRequest,
    OLLAMA: ChatAsked,
    "/tokenize": TokenizeRequest,
    "/explain": ExplainRequest,
}
_CHOOSING: dict[str, Any] = {"max_tokens": 24, "temperature": 1, "seed": 5, "ignore_eos": True}
BODIES: Mapping[str, Any] = {
    CHAT: {"messages": QUESTION, **_CHOOSING},
    TEXT: {"prompt": "A cache is", **_CHOOSING},
    MESSAGES: {"messages": QUESTION, "max_tokens": 24, "temperature": 1, "seed": 5},
    RESPONSES: {"input": QUESTION, "max_output_tokens": 12},
    OLLAMA: {"model": "m", "messages": QUESTION, "stream": False, "options": {"num_predict": 12}},
    "/tokenize": {"messages": QUESTION},
    "/explain": {"messages": QUESTION},
}
# By field: a value that has to show, and what else the request has, with and without it.
_CHANGES: Mapping[str, Any] = {
    "cache_salt": "salt",
    "max_tokens": 3,
    "temperature": 0,
    "top_p": 0.001,
    "typical_p": 0.001,
    "top_k": 1,
    "min_p": 1,
    "repetition_penalty": 50,
    "presence_penalty": (2, {"temperature": 0, "max_tokens": 60}),
    "frequency_penalty": (2, {"temperature": 0, "max_tokens": 60}),
    "logit_bias": {"5": 100},
    "seed": 6,
    "n": 2,
    "stop": [" ", "e", "a"],
    "stop_sequences": [" ", "e", "a"],
    "stop_token_ids": list(range(1024)),
    "stream": True,
    "stream_options": ({"include_usage": True}, {"stream": True}),
    "ignore_eos": (False, {"logit_bias": {"1": 100}}),  # its end token
    "cache_prompt": False,
    "guided_json": SCHEMA,
    "json_schema": SCHEMA,
    "structured_outputs": {"choice": ["yes"]},
    "guided_regex": "yes",
    "regex": "yes",
    "guided_choice": ["yes"],
    "guided_grammar": 'root ::= "yes"',
    "grammar": 'root ::= "yes"',
    "ebnf": 'root ::= "yes"',
    "messages": ASKED,
    "max_completion_tokens": 3,
    "logprobs": (2, {}),
    "top_logprobs": (2, {"logprobs": True}),
    "tools": TOOLS,
    "tool_choice": ("none", {"tools": TOOLS}),
    "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
    "reasoning_effort": "low",
    "chat_template_kwargs": {"enable_thinking": True},
    "prediction": {"type": "content", "content": "A cache is"},
    "special_tokens": ("parse", {"messages": ASKED}),
    "prompt": "A lock is",
    "echo": True,
    "prompt_logprobs": 1,
    "return_token_ids": True,
    "system": "Be short.",
    "thinking": {"type": "enabled"},
    "output_config": {"effort": "low"},
    "output_format": {"type": "json_schema", "schema": SCHEMA},
    "input": ASKED,
    "instructions": "Be short.",
    "previous_response_id": "resp_none",
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "truncation": "auto",
    "conversation": "conv",
    "background": True,
    "include": ["message.output_text.logprobs"],
    "max_output_tokens": 3,
    "metadata": {"a": "b"},
    "user": "me",
    "store": False,
    "options": {"num_predict": 3},
    "format": SCHEMA,
    "think": True,
    "content": ("A lock", {"messages": None}),
    "parse_special": (True, {"messages": ASKED}),
}
_OF_A_ROUTE: Mapping[tuple[str, str], Any] = {
    (CHAT, "logprobs"): True,
    (TEXT, "special_tokens"): ("letters", {"prompt": "A <|end|> cache"}),
    (MESSAGES, "cache_salt"): "another",
    (MESSAGES, "tools"): OWN_TOOLS,
    (MESSAGES, "tool_choice"): ({"type": "none"}, {"tools": OWN_TOOLS}),
    (RESPONSES, "temperature"): 2,
    (RESPONSES, "top_logprobs"): 2,
    (RESPONSES, "tools"): [{"type": "function", **TOOL}],
    (RESPONSES, "tool_choice"): ("none", {"tools": [{"type": "function", **TOOL}]}),
    (RESPONSES, "prompt"): {"id": "p"},
    (RESPONSES, "parallel_tool_calls"): False,
    ("/tokenize", "prompt"): ("A lock", {"messages": None, "content": None}),
    ("/explain", "prompt"): ("A lock", {"messages": None}),
}
# Whose effect is not in the answer to one request, and where it is shown.
ELSEWHERE: Mapping[str, str] = {
    "model": "there is one, by any name",
    "keep_alive": "it stays",
    "return_progress": "test_serve_silence: while a long prompt is computed",
    "parallel_tool_calls": "test_serve_calls: it ends with its first call",
    "cache_control": "test_serve_clients: where the next prompt goes on",
    "max_tool_calls": "of tools that a service runs",
    "prompt_cache_key": "as in fields.py",
    "prompt_cache_retention": "as in fields.py",
    "prompt_cache_options": "as in fields.py",
    "safety_identifier": "as in fields.py",
    "access_programs": "who asks: test_serve_responses",
    "client_metadata": "the same",
    "background_options": "of background, which is refused",
    "context_management": "the model sees all of the conversation: test_serve_responses",
    "service_tier": "as in fields.py",
    "stream_options of /v1/responses": "padding, of which there is none",
    "add_special": "test_serve: this tokenizer adds nothing",
    "add_special_tokens": "the same",
    "cache_salt of /tokenize": "tokens are the same in every namespace until an answer was sampled",
    "cache_salt of /explain": "test_serve_fields",
}  # fmt: skip
ALL = [
    (path, name)
    for path, schema in SCHEMAS.items()
    for name in field_names(schema)
    if (name not in ELSEWHERE or (path, name) in _OF_A_ROUTE) and f"{name} of {path}" not in ELSEWHERE
]
DRAWN = random.Random(SEED).sample(ALL, 12)
CASES = [
    pytest.param(path, name, id=f"{path} {name}", marks=() if (path, name) in DRAWN else (pytest.mark.ci,))
    for path, name in ALL
]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(tiny_model(TEMPLATE), temperature=0.0, context=512) as running:
        yield running


def told(server: Served, path: str, body: Any) -> tuple[int, str]:
    """All of an answer but names and times."""
    response = httpx.post(server.url + path, json=body, timeout=PATIENCE)
    text = re.sub(r'"(chatcmpl|cmpl|msg|resp|rs|fc|call|item)_?-?[0-9a-f]{16,}"', '"id"', response.text)
    if response.headers["content-type"].startswith("application/json"):
        said = json.loads(text)
        for name in ("created", "created_at", "completed_at", "timings", "compute_seconds", "load_seconds"):
            said.pop(name, None)
        if path == "/explain":
            said.pop("text", None)
        for name in [name for name in said if name.endswith("duration")]:
            said.pop(name)
        text = json.dumps(said, sort_keys=True)
    else:
        text = re.sub(r'"(created|created_at|completed_at)":\d+|"(prompt|predicted)_ms":[\d.]+', "", text)
    return response.status_code, text


@pytest.mark.parametrize(("path", "name"), CASES)
def test_a_field_that_is_obeyed_shows_in_the_answer_or_is_refused(server: Served, path: str, name: str) -> None:
    change = _OF_A_ROUTE.get((path, name), _CHANGES.get(name))
    assert change is not None, f"{name}: no value here that has to show"
    value, beside = change if isinstance(change, tuple) else (change, {})
    body = {key: each for key, each in {**BODIES[path], **beside}.items() if each is not None}
    told(server, path, body)  # so that all of it is known
    plain = told(server, path, body)
    assert told(server, path, body) == plain  # so that what differs is the field's
    changed = told(server, path, {**body, name: value})
    assert changed != plain, (body, name, value, plain)
    if changed[0] != 200:
        assert changed[0] in (400, 404) and name in changed[1], changed


@pytest.mark.parametrize("path", [CHAT, TEXT, MESSAGES])
def test_a_field_that_is_harmless_changes_nothing(server: Served, path: str) -> None:
    names = [name for row in HARMLESS for name in row.names.split()]
    told(server, path, BODIES[path])
    plain = told(server, path, BODIES[path])
    assert plain[0] == 200
    assert told(server, path, {**BODIES[path], **{name: {"any": ["value"]} for name in names}}) == plain


@pytest.mark.parametrize(("path", "name"), CASES)
def test_a_value_that_no_field_takes_is_refused_by_its_name(server: Served, path: str, name: str) -> None:
    status, text = told(server, path, {**BODIES[path], name: 1e300 if name in TAKE_OBJECTS else {"any": ["value"]}})
    assert status == 400 and name in text, (status, text)


TAKE_OBJECTS = {
    "guided_json", "json_schema", "chat_template_kwargs", "metadata", "options", "prompt", "format", "response_format",
    "structured_outputs", "output_config", "stream_options", "text", "reasoning", "conversation", "logit_bias",
}  # fmt: skip
