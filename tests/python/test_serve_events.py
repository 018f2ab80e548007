"""The events that the live page lives on: what is sent, what is skipped, who may watch, and how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import kvtrie as kv
from kvtrie.serve import live
from kvtrie.serve.journal import Entry, Journal
from kvtrie.serve.labels import Turn
from processes import PATIENCE, wait_for
from serving import TINY, Served, served

BEGINNING = "You answer questions about databases, in one short sentence, and you never make anything up."


@pytest.fixture(scope="module")
def model() -> Any:
    return kv.models.load(TINY)


@pytest.fixture
def server(model: Any) -> Iterator[Served]:
    with served(model, temperature=0.0) as running:
        yield running


def chat(server: Served, question: str, **fields: Any) -> Any:
    messages = [{"role": "system", "content": BEGINNING}, {"role": "user", "content": question}]
    body = {"messages": messages, "max_tokens": 8, **fields}
    response = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=PATIENCE)
    assert response.status_code == 200, response.text
    return response.json()


# ---- over HTTP -------------------------------------------------------------------------------------------------------


def events_of(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Names and data, as they come."""
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


def test_the_page_brings_nothing_from_elsewhere(server: Served) -> None:
    response = httpx.get(server.url + "/", timeout=PATIENCE)
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "://" not in response.text
    assert " on" + "click" not in response.text
    for name in ("live.css", "live.js", "tree.js", "requests.js", "scale.js", "words.js", "icon.svg"):
        assert httpx.get(f"{server.url}/page/{name}", timeout=PATIENCE).status_code == 200
    for name in ("index.html", "..%2Flive.py", "nothing"):
        assert httpx.get(f"{server.url}/page/{name}", timeout=PATIENCE).status_code == 404


def test_only_the_admin_key_opens_it(model: Any) -> None:
    with served(model, keys={"alice": "a"}, admin_key="x y&z") as server:
        for path in ("/", "/events"):
            for query in ({}, {"key": "alice"}, {"key": "x y"}):
                assert httpx.get(server.url + path, params=query, timeout=PATIENCE).status_code == 401
        assert httpx.get(server.url + "/", params={"key": "x y&z"}, timeout=PATIENCE).status_code == 200
        with httpx.stream("GET", server.url + "/events", params={"key": "x y&z"}, timeout=PATIENCE) as response:
            assert next(events_of(response))[0] == "hello"


def test_the_tree_is_explained_only_while_somebody_watches(server: Served) -> None:
    chat(server, "What is an index?")
    with httpx.stream("GET", server.url + "/events", timeout=PATIENCE) as response:
        events = events_of(response)
        assert next(events) == (
            "hello",
            {"name": "tiny", "context": 1024, "device": server.engine.model.device.name, "chat": True, "keys": False},
        )
        first = next(data["why"] for name, data in events if name == "request")  # a state may come first
        assert first.startswith("0 of ") and "prompt tokens were known, 0 were reused\nnobody was watching" in first
        chat(server, "What is a cursor?")
        ended: Any = None
        state: Any = None
        while ended is None or state is None:  # either may come first
            name, data = next(events)
            if name == "request" and data["outcome"] != "running":
                ended = data
            elif name == "state" and data["totals"]["reused_tokens"] > 0:
                state = data
        assert "prompt tokens are known" in ended["why"]
        assert len(state["nodes"]) >= 3
        assert state["hidden_nodes"] == 0
        assert {tier["name"] for tier in state["tiers"]} == {"device", "host"}
    for _ in range(2):  # the connection's end is noticed between requests
        chat(server, "What is a table?")
    wait_for(lambda: not server.engine.journal.listeners)
    chat(server, "What is a row?")
    last = server.engine.journal.entries[-1]
    assert f"prompt tokens were known, {last.reused} were reused from the device\n" in last.why


def test_a_closed_cache_ends_the_stream(server: Served) -> None:
    with httpx.stream("GET", server.url + "/events", timeout=PATIENCE) as response:
        events = events_of(response)
        assert next(events)[0] == "hello"
        server.engine.close()
        assert [name for name, _ in events if name not in ("state", "beat")] == []
    wait_for(lambda: not server.engine.journal.listeners)


def test_only_so_many_may_watch(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "WATCHERS", 1)
    with httpx.stream("GET", server.url + "/events", timeout=PATIENCE) as response:
        events = events_of(response)
        assert next(events)[0] == "hello"
        assert httpx.get(server.url + "/events", timeout=PATIENCE).status_code == 429


# ---- what is sent ----------------------------------------------------------------------------------------------------


def test_a_slow_page_skips_what_is_old() -> None:
    async def read() -> bytes:
        box = live.Mailbox()
        for number in range(1000):
            box.put(state=b"state %d;" % number, entry=Entry(number, "chat", "default", 5))
        box.put(entry=Entry(999, "chat", "default", 5, outcome="stop"))
        parts = box.parts()
        first = await parts.__anext__()
        box.close()
        assert [part async for part in parts] == []
        return first

    sent = asyncio.run(read())
    assert sent.count(b"state ") == 1
    assert sent.startswith(b"state 999;")
    assert sent.count(b"event: request") == 100
    assert sent.count(b'"number":999,') == 1
    assert b'"outcome":"stop"' in sent


def test_a_large_tree_is_sent_in_part(model: Any) -> None:
    cache = kv.PrefixCache(model.caches(capacity=4096), fingerprint=model.fingerprint, host_bytes=0)
    for first in range(40):
        with cache.begin([7, 7, 7, 100 + first, *range(10)]) as session:
            for step in session.prefill():
                model(step)
    nodes = cache.nodes()
    assert len(nodes) > 40
    shown = live.chosen(nodes, 10)
    assert len(shown) == 10
    assert all(node.parent is None or node.parent in shown for node in shown)
    assert min(node.age for node in nodes) == min(node.age for node in shown)
    sent = live.tree_of(cache, _as_numbers, 10)
    assert sent["hidden_nodes"] == len(nodes) - 10
    known = [each["id"] for each in sent["nodes"]]
    assert len(set(known)) == 10
    assert all(each["parent"] in (None, *known) for each in sent["nodes"])
    assert sent["hidden_tokens"] + sum(each["length"] for each in sent["nodes"]) == cache.stats()["tokens"]
    cache.close()


def test_a_node_keeps_its_name_when_it_is_cut(model: Any) -> None:
    cache = kv.PrefixCache(model.caches(capacity=1024), fingerprint=model.fingerprint, host_bytes=0)

    def names() -> dict[str, int]:
        return {each["id"]: each["length"] for each in live.tree_of(cache, _as_numbers)["nodes"]}

    for tokens in ([5, 6, 7, 8, 9], [5, 6, 7, 20, 21]):
        before = names()
        with cache.begin(tokens) as session:
            for step in session.prefill():
                model(step)
    after = names()
    assert len(before) == 1 and len(after) == 3
    assert after[next(iter(before))] == 3
    cache.close()


def test_a_watch_that_is_closed_ends_its_pages() -> None:
    async def watch() -> None:
        watch = live.Watch(_NoEngine())  # type: ignore[arg-type]
        watch.close()
        box = live.Mailbox()
        watch.join(box)
        assert [part async for part in box.parts()] == []
        watch.leave(box)
        assert watch.count == 0

    asyncio.run(watch())


def _as_numbers(_: int, head: tuple[int, ...]) -> tuple[Turn, ...]:
    return (Turn("", " ".join(map(str, head))),)


class _NoEngine:
    """As much as a watch asks for that nobody may join."""

    journal = Journal()

    class model:  # noqa: N801
        class tokenizer:  # noqa: N801
            decode = str

            class special_tokens:  # noqa: N801
                texts: dict[int, str] = {}  # noqa: RUF012
