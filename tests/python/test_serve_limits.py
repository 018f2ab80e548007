"""What a client can make a server hold or do: heads, bodies and their parts, long texts, and the loop meanwhile."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pydantic
import pytest

import kvtrie as kv
from kvtrie.models import special_tokens
from kvtrie.serve import app as app_module
from kvtrie.serve import body, heads, openai_schema
from kvtrie.serve.anthropic_schema import MessagesRequest
from kvtrie.serve.failures import Refusal
from processes import PATIENCE
from serving import TINY, Served, served

HEAD = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n"


@pytest.fixture(scope="module")
def model() -> Any:
    return kv.models.load(TINY)


@pytest.fixture(scope="module", params=["httptools", "h11"])
def server(model: Any, request: Any) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "h11":
            patch.setattr(heads, "on_httptools", lambda: None)
        elif heads.on_httptools() is None:
            pytest.skip("needs httptools")
        with served(model, temperature=0.0) as running:
            yield running


# --- heads ------------------------------------------------------------------------------------------------------------


def said(connection: socket.socket) -> bytes:
    """All until the server ends it."""
    connection.settimeout(PATIENCE)
    parts = []
    while True:
        try:
            parts.append(connection.recv(1 << 16))
        except ConnectionResetError:
            break
        if not parts[-1]:
            break
    return b"".join(parts)


def connected(server: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)


def refused(answer: bytes, status: int) -> str:
    head, _, text = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:300]
    return str(json.loads(text)["error"]["message"])


@pytest.mark.parametrize("part", [b"x: " + b"a" * 1000, b"x: a\r\n", b"x"])
def test_a_head_without_end_is_refused_at_its_limit(server: Served, part: bytes) -> None:
    """Within one header, in many, and in a name."""
    with connected(server) as connection:
        connection.sendall(HEAD)
        sent = len(HEAD)
        while sent + len(part) < heads.MOST:
            connection.sendall(part)
            sent += len(part)
        connection.sendall(part[: heads.MOST - sent])
        assert str(heads.MOST) in refused(said(connection), 431)


def test_a_flood_is_cut_off(server: Served) -> None:
    with connected(server) as connection, pytest.raises((BrokenPipeError, ConnectionResetError)):
        connection.sendall(HEAD + (b"x: " + b"a" * (1 << 20) + b"\r\n") * 100)


def test_a_large_head_within_the_limit_is_read(server: Served) -> None:
    for _ in range(2):  # one connection: what the first had is not counted again
        with httpx.Client() as client:
            for _ in range(3):
                said = client.get(server.url + "/health", headers={"x": "a" * 40_000}, timeout=PATIENCE)
                assert said.status_code == 200


def test_bodies_and_pipelined_requests_are_no_heads(server: Served) -> None:
    with connected(server) as connection:
        text = json.dumps({"content": "a " * 100_000}).encode()
        post = b"POST /tokenize HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        post += b"content-length: %d\r\n\r\n" % len(text) + text
        connection.sendall(post * 2 + HEAD + b"connection: close\r\n\r\n")
        assert said(connection).count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize("sent", [b"", HEAD, pytest.param(HEAD + b"\r\n" + HEAD, marks=pytest.mark.ci)])
def test_a_head_that_does_not_end_in_time_is_refused(model: Any, sent: bytes) -> None:
    """The limit is far below the patience of the tests, so a server that waits for ever would be seen."""
    with served(model, head_seconds=0.5) as running, connected(running) as connection:
        connection.sendall(sent)
        answer = said(connection)
        if sent.count(b"GET") < 2:
            assert "0.5 seconds" in refused(answer, 408)
        else:
            assert answer.startswith(b"HTTP/1.1 200")


def test_what_is_no_http_is_refused_as_the_api_refuses(server: Served) -> None:
    with connected(server) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert "no request of HTTP/1.1" in refused(said(connection), 400)


# --- bodies -----------------------------------------------------------------------------------------------------------


def counted(text: bytes, objects: int, values: int) -> int | None:
    try:
        asyncio.run(body.check_structure(text, objects, values))
    except Refusal as refusal:
        return refusal.status
    return None


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (b"[" * 10, True),
        (b"[" * 11, False),
        (b'{"a":[{},{}]}', True),
        (b"[1" + b",1" * 20 + b"]", True),
        (b"[1" + b",1" * 21 + b"]", False),
        (b'["' + b'[{,\\"' * 1000 + b'"]', True),
        (b'["\\\\"' + b",[" * 11, False),
        (b'"' * 200 + b"[" * 11, False),
        (b'"[[[[[[[[[[[[', True),  # a string that does not end
        (b"", True),
    ],
)
def test_values_are_counted_outside_of_strings(text: bytes, fits: bool) -> None:
    assert counted(text, 10, 20) == (None if fits else 413)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}] * 100_000}),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}] * 100_000}),
        ("/v1/completions", {"prompt": [[]] * 40_000}),
        ("/detokenize", {"tokens": [1] * 1_000_000}),
        ("/tokenize", {"content": "x", "more": [0] * 1_000_000}),
    ],
)
def test_bodies_of_too_many_parts_are_refused(server: Served, path: str, fields: Any) -> None:
    answer = httpx.post(server.url + path, json=fields, timeout=PATIENCE)
    assert answer.status_code == 413, answer.text[:300]
    assert "the body has more than" in answer.json()["error"]["message"]


def test_every_list_that_clients_may_send_fails_at_its_first_wrong_element() -> None:
    """Else a million wrong elements would be a million errors, all made in the event loop."""
    modules = [module for name, module in sys.modules.items() if name.startswith("kvtrie.serve.")]
    kinds = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    models = [each for each in kinds if issubclass(each, pydantic.BaseModel)]
    assert len(models) >= 20
    for model in models:
        for each in _lists(model.__pydantic_core_schema__):
            if "JsonValue" in each["items_schema"].get("schema_ref", ""):
                continue  # none of its elements can be wrong
            assert each.get("fail_fast"), f"{model}: its base is not kvtrie.serve.wire's"


def _lists(schema: object) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            yield schema
        for each in schema.values():
            yield from _lists(each)
    elif isinstance(schema, (list, tuple)):
        for each in schema:
            yield from _lists(each)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (openai_schema.CompletionRequest, {"prompt": ["a", 5] * 500}),
        (openai_schema.ChatRequest, {"messages": [1] * 500}),
        (openai_schema.ChatRequest, {"messages": [{"role": "user", "content": [1] * 500}]}),
        (MessagesRequest, {"max_tokens": 1, "messages": [{"role": "user", "content": [1] * 500}]}),
    ],
)
def test_many_wrong_elements_are_few_errors(kind: Any, fields: Any) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        kind.model_validate(fields)
    assert len(caught.value.errors()) < 10


# --- the loop ---------------------------------------------------------------------------------------------------------


def test_a_long_text_is_read_without_the_gil() -> None:
    """Counted in turns of another thread: it gets none while the GIL is kept, but for the beginning and the end."""
    raw, text = kv.models.load_tokenizer(TINY).raw, "the quick brown fox " * 20_000
    assert special_tokens.ids_of(raw, text) == raw.encode(text, add_special_tokens=False).ids
    reader = threading.Thread(target=special_tokens.ids_of, args=(raw, text))
    turns = 0
    reader.start()
    while reader.is_alive():
        time.sleep(0)
        turns += 1
    assert turns > 100


LONG = "The quick brown fox jumps over the lazy dog. "


class Heartbeat:
    """The longest that the server's loop worked without a turn, in seconds of its own thread's processor time, which
    does not depend on what else the machine does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._last, self.longest, self._going = loop, 0.0, 0.0, True
        loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._last = time.thread_time()
        self._beat()

    def _beat(self) -> None:
        now = time.thread_time()
        self.longest, self._last = max(self.longest, now - self._last), now
        if self._going:
            self._loop.call_soon(self._beat)

    def end(self) -> float:
        self._going = False
        return self.longest


REQUESTS: list[tuple[str, Any]] = [
    ("/tokenize", {"content": LONG * 20_000}),
    ("/tokenize", {"messages": [{"role": "user", "content": "x " * 20}] * 8_000}),
    ("/detokenize", {"tokens": [5, 300] * 60_000}),
    ("/v1/completions", {"prompt": LONG * 20_000, "max_tokens": 1}),
    ("/v1/completions", {"prompt": [5] * 130_000, "max_tokens": 1}),
    ("/v1/completions", {"prompt": ["a", 5] * 60_000, "max_tokens": 1}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}] * 15_000, "max_tokens": 1}),
    ("/v1/chat/completions", {"messages": [0] * 100_000}),
    ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": LONG * 20_000}]}),
    ("/explain", {"prompt": LONG * 20_000}),
]


@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_no_request_holds_the_loop(server: Served, number: int) -> None:
    """/health is answered within 0.3 s of processor time; ten times that is allowed here."""
    path, fields = REQUESTS[number]
    loop = next(iter(server._server.servers)).get_loop()
    beat = Heartbeat(loop)
    answer = httpx.post(server.url + path, json=fields, timeout=PATIENCE)
    assert answer.status_code in (200, 400, 413, 422), answer.text[:300]
    assert httpx.get(server.url + "/health", timeout=PATIENCE).status_code == 200
    assert beat.end() < 3.0


def test_the_description_is_made_beside_the_loop(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a second and more, once."""
    made: list[int] = []
    describe = app_module.get_openapi

    def recorded(**given: Any) -> Any:
        made.append(threading.get_ident())
        return describe(**given)

    monkeypatch.setattr(app_module, "get_openapi", recorded)
    with served(model) as running:
        for _ in range(2):
            assert "/v1/messages" in httpx.get(running.url + "/openapi.json", timeout=PATIENCE).json()["paths"]
        assert len(made) == 1 and made[0] != running._thread.ident
