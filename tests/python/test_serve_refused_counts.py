"""Requests that are refused: counted by status, and shown to whoever looks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import kvtrie as kv
from processes import PATIENCE
from serving import TINY, Served, served


@pytest.fixture(scope="module")
def model() -> Any:
    return kv.models.load(TINY)


@pytest.fixture
def server(model: Any) -> Iterator[Served]:
    with served(model, temperature=0.0, keys={"k": "team"}, admin_key="a") as running:
        yield running


def asked(server: Served, path: str, body: Any, key: str = "k") -> int:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(server.url + path, json=body, headers=headers, timeout=PATIENCE).status_code


def figures(server: Served, name: str) -> dict[str, float]:
    text = httpx.get(server.url + "/metrics", params={"key": "a"}, timeout=PATIENCE).text
    return {label: float(value) for label, value in re.findall(rf'^{name}{{\w+="(\w+)"}} (\S+)$', text, re.M)}


CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}


def test_refusals_are_counted_by_status(server: Served) -> None:
    assert asked(server, "/v1/chat/completions", CHAT) == 200
    assert asked(server, "/v1/chat/completions", {**CHAT, "temperature": 9}) == 400
    assert asked(server, "/v1/messages", {}) == 400
    assert asked(server, "/v1/completions", {"prompt": [[]] * 40_000}) == 413
    assert asked(server, "/v1/chat/completions", CHAT, "no such key") == 401
    assert asked(server, "/nothing", {}) == 404
    assert figures(server, "kvtrie_refused_requests_total") == {"400": 2, "401": 1, "404": 1, "413": 1}
    outcomes = figures(server, "kvtrie_requests_total")
    assert outcomes.pop("refused") == 3 and sum(outcomes.values()) == 1


def test_refusals_are_in_the_journal_with_what_was_said(server: Served) -> None:
    assert asked(server, "/v1/completions", {"prompt": "a", "temperature": 9}) == 400
    assert asked(server, "/v1/completions", {"prompt": "a" * 100_000}) == 400
    assert asked(server, "/v1/completions", {"prompt": "a"}, "no such key") == 401  # counted, and not shown
    first, second = server.engine.journal.entries
    assert (first.outcome, first.api, first.number) == ("refused", "completion", 1)
    assert "temperature" in first.why and "tokens" in second.why
    assert asked(server, "/v1/chat/completions", CHAT) == 200
    assert [entry.number for entry in server.engine.journal.entries] == [1, 2, 3]


def test_an_answer_that_fails_is_counted_once(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise kv.errors.CacheFullError("[test] no room")

    monkeypatch.setattr("kvtrie.serve.answer.Answer._piece", fails)
    assert asked(server, "/v1/chat/completions", CHAT) == 503
    assert figures(server, "kvtrie_refused_requests_total") == {}
    assert figures(server, "kvtrie_requests_total") == {"failed": 1}
