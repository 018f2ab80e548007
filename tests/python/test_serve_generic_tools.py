"""Tools for a model whose chat template knows none: described, required, read, shown again, and said to clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import kvtrie as kv
from kvtrie.models.tokenizer import Tokenizer
from kvtrie.serve.generic_tools import BEGINNING, needs_generic, with_tools
from kvtrie.serve.opening import ServeOptions, use_template
from processes import PATIENCE
from serving import TINY, Served, served, tiny_model
from small_templates import TEMPLATES, TOOL_USE, WITH_TOOLS

PARAMETERS = {
    "type": "object",
    "properties": {"cells": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["cells"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "measure", "description": "Measures.", "parameters": PARAMETERS}}]
QUESTION: list[Any] = [{"role": "user", "content": "How many cells?"}]


def tokenizer_with(template: Any) -> Tokenizer:
    own = kv.models.load_tokenizer(TINY)
    assert own is not None
    return Tokenizer(own.raw, special=own.special, chat_template=template)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(tiny_model(TEMPLATES["plain"]), temperature=1.0, context=2048) as running:
        yield running


def post(server: Served, path: str, body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=PATIENCE)


@pytest.mark.parametrize(
    ("template", "generic"),
    [
        (TEMPLATES["plain"], True),
        (TEMPLATES["alternating"], True),
        (TEMPLATES["no tools, no system"], True),
        (TEMPLATES["either"], False),  # it shows calls in a way of its own
        (TEMPLATES["tojson"], False),
        (WITH_TOOLS, False),
        (TOOL_USE, False),
        (None, False),
        ("{% if %}", False),
    ],
)
def test_which_templates_need_it(template: Any, generic: bool) -> None:
    assert needs_generic(tokenizer_with(template)) == generic


def test_what_the_template_is_given() -> None:
    function = {"name": "measure", "arguments": '{"cells":3}'}
    call = {"id": "1", "type": "function", "function": function}
    given: list[Any] = [
        *QUESTION,
        {"role": "assistant", "content": "Well.", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "1", "content": "12"},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "13"}]},
        {"role": "user", "content": "And now?"},
    ]
    shown, ends = with_tools(given, TOOLS)
    said = '<tool_call>\n{"name": "measure", "arguments": {"cells": 3}}\n</tool_call>'
    assert shown[0]["role"] == "system" and shown[0]["content"].startswith(BEGINNING)
    assert json.loads(shown[0]["content"].splitlines()[-1]) == TOOLS[0]
    assert shown[1:] == [
        QUESTION[0],
        {"role": "assistant", "content": f"Well.\n{said}\n{said}"},
        {"role": "user", "content": "<tool_response>\n12\n</tool_response>\n<tool_response>\n13\n</tool_response>"},
        {"role": "user", "content": "And now?"},
    ]
    assert ends == [2, 3, 4, 4, 5]
    system = {"role": "system", "content": "Be short."}
    shown, ends = with_tools([system, *QUESTION], TOOLS)
    assert shown[0]["content"].startswith(f"Be short.\n\n{BEGINNING}")
    assert ends == [1, 2]
    assert with_tools(given[:1], ()) == (given[:1], [1])  # nothing of it where there are no tools


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_required_call_and_its_result(server: Served, path: str) -> None:
    """Each API has its own form of both; the prompt of the second request goes on from all of the first."""
    if path == "/v1/chat/completions":
        asked: Any = {"messages": QUESTION, "tools": TOOLS, "tool_choice": "required", "max_tokens": 728, "seed": 1}
        answer = post(server, path, asked)
        message = answer.json()["choices"][0]["message"]
        calls = [(call["id"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]
        results = [{"role": "tool", "tool_call_id": made, "content": "12"} for made, _ in calls]
        again = post(server, path, {**asked, "messages": [*QUESTION, message, *results]}).json()
        known, total = again["usage"]["prompt_tokens_details"]["cached_tokens"], answer.json()["usage"]["total_tokens"]
    elif path == "/v1/messages":
        ours = [{"name": "measure", "input_schema": PARAMETERS}]
        asked = {"messages": QUESTION, "tools": ours, "tool_choice": {"type": "any"}, "max_tokens": 728}
        answer = post(server, path, asked)
        content = answer.json()["content"]
        calls = [(block["id"], block["input"]) for block in content]
        results = [{"type": "tool_result", "tool_use_id": made, "content": "12"} for made, _ in calls]
        turns = [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
        again = post(server, path, {**asked, "messages": [*QUESTION, *turns]}).json()
        usage = answer.json()["usage"]
        total = sum(usage[name] for name in usage if name.endswith("tokens"))
        known = again["usage"]["cache_read_input_tokens"]
    else:
        items = [{"type": "function", **TOOLS[0]["function"]}]  # type: ignore[dict-item]
        asked = {"input": QUESTION, "tools": items, "tool_choice": "required", "max_output_tokens": 728}
        answer = post(server, path, asked)
        calls = [(item["call_id"], json.loads(item["arguments"])) for item in answer.json()["output"]]
        results = [{"type": "function_call_output", "call_id": made, "output": "12"} for made, _ in calls]
        more = {"input": results, "previous_response_id": answer.json()["id"]}
        again = post(server, path, {**asked, **more}).json()
        known, total = (
            again["usage"]["input_tokens_details"]["cached_tokens"],
            answer.json()["usage"]["total_tokens"],
        )
    assert calls and all(set(arguments) == {"cells"} for _, arguments in calls)
    assert known >= total - 1
    assert answer.headers["x-kvtrie-tools"] == "system message"


def test_tools_are_in_the_prompt(server: Served) -> None:
    asked = {"messages": QUESTION, "max_tokens": 1}
    plain = post(server, "/v1/chat/completions", asked).json()["usage"]["prompt_tokens"]
    with_them = post(server, "/v1/chat/completions", {**asked, "tools": TOOLS}).json()["usage"]["prompt_tokens"]
    assert with_them > plain + 50
    none = post(server, "/v1/chat/completions", {**asked, "tools": TOOLS, "tool_choice": "none"}).json()
    assert none["usage"]["prompt_tokens"] == plain


def test_a_template_without_a_place_for_them_is_refused_by_name() -> None:
    with served(tiny_model(TEMPLATES["no tools, no system"])) as server:
        refused = post(server, "/v1/chat/completions", {"messages": QUESTION, "tools": TOOLS, "max_tokens": 1})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "tools"
        assert post(server, "/v1/chat/completions", {"messages": QUESTION, "max_tokens": 1}).status_code == 200


def test_a_template_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(WITH_TOOLS, encoding="utf-8")
    tokenizer = tokenizer_with(TEMPLATES["plain"])
    use_template(tokenizer, ServeOptions())
    assert tokenizer.chat_template == TEMPLATES["plain"]
    use_template(tokenizer, ServeOptions(chat_template=str(file)))
    assert tokenizer.chat_template == WITH_TOOLS
    for wrong, message in (("{% if %}", "template"), (None, "cannot be read")):
        if wrong is None:
            file.unlink()
        else:
            file.write_text(wrong, encoding="utf-8")
        with pytest.raises(kv.errors.ArgumentError, match=message):
            use_template(tokenizer, ServeOptions(chat_template=str(file)))
