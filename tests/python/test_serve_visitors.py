"""Under which names a server answers, and to pages of which origins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import kvtrie as kv
from kvtrie.cli import build_parser
from kvtrie.cli.serve import _options
from kvtrie.serve.visitors import name_of
from processes import PATIENCE
from serving import TINY, Served, served

PAGE = "http://localhost:3000"
ASKING = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, content-type"}


@pytest.fixture(scope="module")
def model() -> Any:
    return kv.models.load(TINY)


@pytest.fixture(scope="module")
def server(model: Any) -> Iterator[Served]:
    hosts = ("localhost", "127.0.0.1", "[::1]", "host.docker.internal", "*.lan")
    with served(model, hosts=hosts, origins=(PAGE,)) as running:
        yield running


@pytest.fixture(scope="module")
def closed(model: Any) -> Iterator[Served]:
    with served(model) as running:
        yield running


def asked(server: Served, method: str, path: str, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.request(method, server.url + path, headers=named, timeout=PATIENCE)


@pytest.mark.parametrize(
    ("host", "name"),
    [("a:80", "a"), ("A.B", "a.b"), ("[::1]:8080", "[::1]"), ("[::1]", "[::1]"), ("a.", "a"), ("", ""), ("[x", "")],
)
def test_names_are_read_without_ports(host: str, name: str) -> None:
    assert name_of(host) == name


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:80", "[::1]:9", "host.docker.internal:8080", "nas.lan"])
def test_known_names_are_answered(server: Served, host: str) -> None:
    assert asked(server, "GET", "/v1/models", host=host).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/v1/messages", "/health", "/"])
@pytest.mark.parametrize("host", ["evil.example", "lan", "xlan", "localhost.evil.example", "[::2]:80"])
def test_other_names_are_refused_as_the_api_refuses(server: Served, path: str, host: str) -> None:
    said = asked(server, "GET", path, host=host)
    assert said.status_code == 400 and said.headers["content-type"].startswith("application/json")
    body = said.json()
    assert (body.get("type") == "error") == (path == "/v1/messages")
    assert name_of(host) in body["error"]["message"] and "--allow-host" in body["error"]["message"]


def test_keys_take_the_place_of_names(model: Any) -> None:
    with served(model, keys={"k": "team"}) as running:
        said = asked(running, "GET", "/v1/models", host="anything.example", authorization="Bearer k")
        assert said.status_code == 200
        said = asked(running, "OPTIONS", "/v1/models", origin=PAGE, **ASKING)
        assert said.status_code == 403


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/tokenize", "/nothing"])
def test_a_preflight_of_a_known_origin_is_granted(server: Served, path: str) -> None:
    said = asked(server, "OPTIONS", path, origin=PAGE, access_control_request_private_network="true", **ASKING)
    assert said.status_code == 204 and said.content == b""
    assert said.headers["access-control-allow-origin"] == PAGE and said.headers["vary"] == "origin"
    assert "POST" in said.headers["access-control-allow-methods"]
    assert said.headers["access-control-allow-headers"] == "authorization, content-type"
    assert said.headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:3001", "https://localhost:3000"])
def test_a_preflight_of_another_origin_is_refused_by_name(server: Served, closed: Served, origin: str) -> None:
    for each in (server, closed):
        said = asked(each, "OPTIONS", "/v1/chat/completions", origin=origin, **ASKING)
        assert said.status_code == 403 and "access-control-allow-origin" not in said.headers
        error = said.json()["error"]
        assert error["code"] == "unknown_origin" and origin in error["message"] and "--allow-origin" in error["message"]


def test_answers_and_refusals_name_a_known_origin_only(server: Served) -> None:
    for path, status in (("/v1/models", 200), ("/nothing", 404)):
        said = asked(server, "GET", path, origin=PAGE)
        assert said.status_code == status and said.headers["access-control-allow-origin"] == PAGE
        assert "origin" in said.headers["vary"].lower()
        for other in ("http://evil.example", ""):
            said = asked(server, "GET", path, **({"origin": other} if other else {}))
            assert said.status_code == status and "access-control-allow-origin" not in said.headers
    large = httpx.post(server.url + "/tokenize", content=b"x" * (17 << 20), headers={"origin": PAGE}, timeout=PATIENCE)
    assert large.status_code == 413 and large.headers["access-control-allow-origin"] == PAGE
    streamed = httpx.post(
        server.url + "/v1/completions",
        json={"prompt": "a", "max_tokens": 2, "stream": True},
        headers={"origin": PAGE},
        timeout=PATIENCE,
    )
    assert streamed.headers["access-control-allow-origin"] == PAGE


def test_a_star_stands_for_all(model: Any) -> None:
    with served(model, hosts=("*",), origins=("*",)) as running:
        said = asked(running, "GET", "/health", host="any.example", origin="http://other.example")
        assert said.status_code == 200 and said.headers["access-control-allow-origin"] == "http://other.example"


def test_options_of_the_command_line_come_on_top() -> None:
    line = ["serve", "tiny", "--allow-host", "a", "--allow-host", "*.b", "--allow-origin", "http://c"]
    options = _options(build_parser().parse_args(line), {})
    assert options.hosts == ("localhost", "127.0.0.1", "[::1]", "a", "*.b") and options.origins == ("http://c",)
    assert _options(build_parser().parse_args(["serve"]), {}).origins == ()
