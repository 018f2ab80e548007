"""Every field of every route is obeyed, harmless or refused by its name, and docs/serve.md says which.

`python tests/python/test_serve_fields.py --write` writes the page's tables anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

import kvtrie as kv
from kvtrie.serve.anthropic_schema import CountRequest, MessagesRequest
from kvtrie.serve.failures import Refusal
from kvtrie.serve.fields import HARMLESS, REFUSED, PromptFields, Refused, field_names, tables
from kvtrie.serve.openai_schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    ExplainRequest,
    TokenizeRequest,
)
from processes import PATIENCE, wait_for
from serving import TINY, Served, served

PAGE = Path(__file__).resolve().parents[2] / "docs" / "serve.md"
BEGIN, END = "<!-- fields: begin -->\n", "<!-- fields: end -->\n"
QUESTION = [{"role": "user", "content": "What is a cache?"}]
CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
SCHEMAS: Mapping[str, type[BaseModel]] = {
    CHAT: ChatRequest,
    TEXT: CompletionRequest,
    MESSAGES: MessagesRequest,
    "/v1/messages/count_tokens": CountRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/explain": ExplainRequest,
}
BODIES: Mapping[str, Any] = {
    CHAT: {"messages": QUESTION, "max_tokens": 2},
    TEXT: {"prompt": "A cache", "max_tokens": 2},
    MESSAGES: {"messages": QUESTION, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": QUESTION},
    "/tokenize": {"content": "A cache"},
    "/detokenize": {"tokens": [5]},
    "/explain": {"messages": QUESTION},
}
VALUE = {"any": ["value"]}  # no field has it as a value that asks for nothing


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(kv.models.load(TINY), temperature=0.0, ignored=("of_my_client",)) as running:
        yield running


def page() -> tuple[str, str, str]:
    """What is in front of the tables, they, and what is behind."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    shown, _, behind = rest.partition(END)
    return before + BEGIN, shown, END + behind


def test_the_page_has_the_tables_of_the_code() -> None:
    assert page()[1] == tables(SCHEMAS)


# These know their fields alone; test_serve_responses and test_serve_ollama try each of them.
STRICT = ["/v1/responses", "/v1/responses/input_tokens", "/api/chat", "/api/generate", "/api/show"]


def test_every_route_with_a_body_is_in_them(server: Served) -> None:
    described = httpx.get(server.url + "/openapi.json", timeout=PATIENCE).json()["paths"]
    posted = {path for path, each in described.items() if "requestBody" in each.get("post", {})}
    assert posted == {*SCHEMAS, *STRICT}


def test_no_name_is_of_two_kinds() -> None:
    kinds = [*(each.names for each in HARMLESS), *(each.names for each in REFUSED)]
    names = [name for each in kinds for name in each.split()]
    assert len(names) == len(set(names))
    harmless = {name for each in HARMLESS for name in each.names.split()}
    for schema in SCHEMAS.values():
        assert not harmless & {*field_names(schema)}


def asked(server: Served, path: str, **fields: Any) -> httpx.Response:
    return httpx.post(server.url + path, json={**BODIES[path], **fields}, timeout=PATIENCE)


def refused(response: httpx.Response, name: str) -> None:
    assert response.status_code == 400, (name, response.text)
    error = response.json()["error"]
    assert error["message"].startswith(f"{name}: "), error
    assert error.get("param", name) == name  # Anthropic's form has none


@pytest.mark.parametrize("path", SCHEMAS)
def test_each_name_of_the_tables_is_what_they_say(server: Served, path: str) -> None:
    """Each by the schema alone, and the last one of some rows over HTTP."""
    harmless = [name for each in HARMLESS for name in each.names.split()]
    assert asked(server, path, **dict.fromkeys(harmless, VALUE)).status_code == 200
    for each in REFUSED:
        for name in unless_obeyed(path, each):
            with pytest.raises(Refusal, match=f"^{name}: ") as told:
                judged(path, {name: VALUE})
            assert (told.value.status, told.value.param, told.value.code) == (400, name, "unsupported_parameter")
    for each in REFUSED[::8]:
        for name in unless_obeyed(path, each)[-1:]:
            refused(asked(server, path, **{name: VALUE}), name)


def unless_obeyed(path: str, row: Refused) -> list[str]:
    """Of the names of a row, those that this route refuses: it neither obeys them nor leaves them to answers."""
    schema: Any = SCHEMAS[path]
    about = schema.about_answers() if issubclass(schema, PromptFields) else ()
    return [name for name in row.names.split() if name not in {*field_names(schema), *about}]


def judged(path: str, fields: Any) -> None:
    """What becomes of more fields; raises for those that are refused."""
    body: Any = SCHEMAS[path].model_validate({**BODIES[path], **fields})
    body.require_known()


@pytest.mark.parametrize("path", SCHEMAS)
def test_what_asks_for_nothing_is_not_refused(path: str) -> None:
    for each in REFUSED:
        for name in unless_obeyed(path, each):
            for value in (None, *each.but):
                judged(path, {name: value})
    judged(path, {"never_heard_of": None, "best_of": 1.0})  # as some clients spell whole numbers
    with pytest.raises(Refusal):
        judged(path, {"best_of": True})  # which is equal to 1


@pytest.mark.parametrize("path", SCHEMAS)
def test_names_that_stand_nowhere_are_refused_unless_the_server_is_told(server: Served, path: str) -> None:
    refused(asked(server, path, never_heard_of=0), "never_heard_of")
    assert asked(server, path, of_my_client=VALUE).status_code == 200


@pytest.mark.parametrize(
    ("path", "other"), [("/explain", CHAT), ("/explain", TEXT), ("/v1/messages/count_tokens", MESSAGES)]
)
def test_routes_without_an_answer_take_the_bodies_of_those_with_one(server: Served, path: str, other: str) -> None:
    response = httpx.post(server.url + path, json={**BODIES[other], "stream": True, "temperature": 1}, timeout=PATIENCE)
    assert response.status_code == 200, response.text


# ---- fields that are obeyed ------------------------------------------------------------------------------------------


def known(server: Served, path: str, **fields: Any) -> int:
    """Tokens of the prompt that were reused."""
    usage = asked(server, path, **fields).json()["usage"]
    return int(usage.get("cache_read_input_tokens", usage.get("prompt_tokens_details", {}).get("cached_tokens")))


@pytest.mark.parametrize("path", [CHAT, TEXT, MESSAGES])
def test_a_salt_is_part_of_the_namespace(server: Served, path: str) -> None:
    body: Any = {"prompt": f"A text of {path} " * 5} if path == TEXT else {"system": "Of salts.", "messages": QUESTION}
    if path == CHAT:
        body = {"messages": [{"role": "user", "content": "A question about salts, long enough"}]}
    for salt in ("a", "b", "", None):
        assert known(server, path, **body, cache_salt=salt) < 4, salt  # the first ones, of other tests
        assert known(server, path, **body, cache_salt=salt) > 8, salt


@pytest.mark.parametrize("path", [CHAT, TEXT, MESSAGES])
@pytest.mark.parametrize("stream", [False, True])
def test_without_a_cache_nothing_is_reused_and_nothing_is_kept(server: Served, path: str, stream: bool) -> None:
    assert asked(server, path).status_code == 200
    wait_for(server.is_idle)
    before = server.engine.cache.stats()["tokens"]
    response = asked(server, path, cache_prompt=False, stream=stream)
    assert response.status_code == 200
    if not stream:
        usage = response.json()["usage"]
        assert not usage.get("cache_read_input_tokens") and not usage.get("prompt_tokens_details", {}).get(
            "cached_tokens"
        )
    wait_for(lambda: server.engine.cache.stats()["tokens"] == before)
    assert server.engine.cache.check() == []
    assert known(server, path) > 0  # that of others is still there


SIZE = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["size"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"guided_json": SIZE}),
        (CHAT, {"guided_json": json.dumps(SIZE)}),
        (CHAT, {"json_schema": SIZE}),
        (CHAT, {"structured_outputs": {"json": SIZE}}),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": SIZE}}}),
        (TEXT, {"guided_json": SIZE}),
        (TEXT, {"structured_outputs": {"json": SIZE}}),
        (MESSAGES, {"output_format": {"type": "json_schema", "schema": SIZE}}),
        (MESSAGES, {"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SIZE}}}),
    ],
)
def test_a_schema_is_obeyed_by_each_of_its_names(server: Served, path: str, fields: Any) -> None:
    answer = asked(server, path, **fields, max_tokens=40).json()
    said = answer["content"][0] if path == MESSAGES else answer["choices"][0]
    text = said["text"] if "text" in said else said["message"]["content"]
    assert json.loads(text)["size"] in range(10)


def test_two_schemas_or_a_wrong_one_are_refused_by_name(server: Served) -> None:
    wrong = {"type": "strin"}
    for fields, name in (
        ({"guided_json": SIZE, "json_schema": SIZE}, "json_schema"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": wrong}, "guided_json"),
        ({"json_schema": wrong}, "json_schema"),
        ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ):
        response = asked(server, CHAT, **fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == name


def test_a_stop_token_ends_the_answer(server: Served) -> None:
    body = {"prompt": "A cache is", "max_tokens": 12, "return_token_ids": True, "ignore_eos": True}
    whole = asked(server, TEXT, **body).json()["choices"][0]
    last = whole["token_ids"][4]
    at = whole["token_ids"].index(last)
    ended = asked(server, TEXT, **body, stop_token_ids=[last]).json()["choices"][0]
    assert ended["token_ids"] == whole["token_ids"][: at + 1]
    assert ended["finish_reason"] == "stop"
    assert whole["text"].startswith(ended["text"]) and ended["text"] != whole["text"]


def test_numbers_at_the_edge_of_what_they_may_be(server: Served) -> None:
    plain = asked(server, CHAT).json()["choices"]
    assert asked(server, CHAT, temperature=2, top_p=0, stop="").json()["choices"] == plain
    assert asked(server, CHAT, stop=["", ""], top_k=-1).json()["choices"] == plain
    longest = asked(server, TEXT, max_tokens=-1, ignore_eos=True).json()["usage"]
    assert longest["total_tokens"] == 1024  # the whole context
    refused(asked(server, CHAT, top_logprobs=2), "top_logprobs")


@pytest.mark.parametrize("path", [CHAT, TEXT, MESSAGES])
@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_of_an_answer_warm_the_cache(server: Served, path: str, stream: bool) -> None:
    words = f"{path[4:8]} {stream} " + " ".join(f"word{number}" for number in range(40))
    body = {"prompt": words} if path == TEXT else {"messages": [{"role": "user", "content": words}]}
    response = asked(server, path, **body, max_tokens=0, stream=stream)
    assert response.status_code == 200
    if not stream:
        answer = response.json()
        usage = answer["usage"]
        assert usage.get("completion_tokens", usage.get("output_tokens")) == 0
        assert answer.get("stop_reason") == "max_tokens" or answer["choices"][0]["finish_reason"] == "length"
    assert known(server, path, **body) > 40


if __name__ == "__main__":
    assert sys.argv[1:] == ["--write"], "allowed: --write"
    before, _, behind = page()
    PAGE.write_text(before + tables(SCHEMAS) + behind, encoding="utf-8")
