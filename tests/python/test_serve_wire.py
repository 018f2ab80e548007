"""What a client sent and is told again is JSON in UTF-8, also where it was neither."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kvtrie.serve.wire import json_bytes
from processes import PATIENCE
from serving import Served, served, tiny_model
from small_templates import WITH_TOOLS

QUESTION: list[Any] = [{"role": "user", "content": "a"}]
HALF = "\ud800"  # of a pair; JSON can spell it, UTF-8 cannot
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "least": float("nan"), HALF: float("inf")}}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(tiny_model(WITH_TOOLS), temperature=0.0, max_tokens=2) as running:
        yield running


def strictly(said: bytes) -> Any:
    """Raises for what Python's JSON has beside everybody else's."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(said.decode("utf-8"), parse_constant=refuse)


def asked(server: Served, path: str, body: Any) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return httpx.post(server.url + path, content=json.dumps(body), headers=headers, timeout=PATIENCE)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fields",
    [{"user": HALF}, {"metadata": {"a": HALF}}, {"instructions": f"Be {HALF}."}, {"tools": [TOOL]}],
    ids=["user", "metadata", "instructions", "tools"],
)
def test_what_a_response_shows_again(server: Served, fields: Any, stream: bool) -> None:
    response = asked(server, "/v1/responses", {"input": QUESTION, "stream": stream, "max_output_tokens": 2, **fields})
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        return
    if stream:
        lines = [line for line in response.content.split(b"\n") if line.startswith(b"data: {")]
        told = strictly(lines[-1][len("data: ") :])["response"]
    else:
        told = strictly(response.content)
    kept = httpx.get(f"{server.url}/v1/responses/{told['id']}", timeout=PATIENCE)
    assert kept.status_code == 200 and strictly(kept.content)["id"] == told["id"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": QUESTION, HALF: 1}),
        ("/v1/completions", {"prompt": "a", "max_tokens": HALF}),
        ("/v1/messages", {"messages": [{"role": HALF, "content": "a"}], "max_tokens": 2}),
        ("/v1/responses", {"input": [{"type": HALF}]}),
        ("/api/chat", {"model": "m", "messages": QUESTION, "options": {HALF: 1}}),
        ("/v1/chat/completions", {"messages": QUESTION, "temperature": float("nan")}),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"1": float("nan")}}),
    ],
)
def test_what_an_error_shows_again(server: Served, path: str, body: Any) -> None:
    response = asked(server, path, body)
    assert response.status_code == 400
    assert strictly(response.content)["error"]


def test_json_that_everybody_reads() -> None:
    value = {"a": [float("nan"), 1.5, {HALF: float("-inf")}], "b": "é☃"}
    assert json_bytes(value).decode() == '{"a":[null,1.5,{"?":null}],"b":"é☃"}'
