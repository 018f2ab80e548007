"""What stands in front of replicas, without Ray: prompts' keys, requests as values, options."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from kvtrie.ray.scale.asgi_call import Call, Head, answered
from kvtrie.ray.scale.options import ScaleOptions
from kvtrie.ray.scale.prompt_keys import PromptKey, PromptKeys
from kvtrie.ray.scale.summaries import Summaries, known_of, prompt_fingerprints
from kvtrie.serve.app import create_app
from kvtrie.serve.settings import Settings
from processes import wait_for
from scale_engine import plain_model

SYSTEM = "You answer in verse. " * 30
CHAT = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "What is a trie? " * 20}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def model() -> Any:
    return plain_model()


@pytest.fixture
def app(model: Any) -> Any:
    cache = kv.PrefixCache(model.caches(1 << 14), fingerprint=model.fingerprint, host_bytes=1 << 24)
    app = create_app(model, cache, "tiny", Settings(4096, keys={"k": "tenant"}, admin_key="a"))
    yield app
    app.state.engine.close()


def call_of(path: str, body: Any, method: str = "POST", **headers: str) -> Call:
    given = {"content-type": "application/json", "authorization": "Bearer k", **headers}
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Call(method, path, b"", tuple((n.encode(), v.encode()) for n, v in given.items()), raw)


def whole(app: Any, call: Call) -> tuple[Head, bytes]:
    async def read() -> tuple[Head, bytes]:
        parts = [part async for part in answered(app, call)]
        assert isinstance(parts[0], Head)
        return parts[0], b"".join(parts[1:])

    return asyncio.run(read())


WITHOUT_PROMPTS = {
    "/tokenize", "/detokenize", "/flush", "/v1/responses/{made}/cancel", "/v1/embeddings",
    "/api/show", "/api/embed", "/api/embeddings",
}  # fmt: skip


def test_each_route_with_a_prompt_has_keys(app: Any) -> None:
    """A prompt that is not known as one would come to any replica."""
    posted = {path for path, methods in app.openapi()["paths"].items() if "post" in methods}
    assert {path for path in posted if not PromptKeys.knows(path)} == WITHOUT_PROMPTS


# ---- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": CHAT, "tools": [TOOL]}),
        ("/v1/chat/completions", {"messages": [*CHAT, {"role": "assistant", "content": "A tree"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 500}]}]}),
        ("/v1/completions", {"prompt": "Once upon a time " * 30}),
        ("/v1/completions", {"prompt": ["Once upon a time " * 30]}),
        ("/v1/completions", {"prompt": list(range(5, 300))}),
        ("/v1/completions", {"prompt": [list(range(5, 300))]}),
        ("/v1/messages", {"system": SYSTEM, "messages": CHAT[1:], "max_tokens": 4}),
        ("/v1/responses", {"instructions": SYSTEM, "input": CHAT[1:], "tools": [{"type": "function", "name": "look"}]}),
        ("/api/chat", {"model": "tiny", "messages": CHAT, "tools": [TOOL], "stream": False}),
        ("/api/generate", {"model": "tiny", "prompt": "Once upon a time " * 30, "stream": False}),
        ("/api/generate", {"model": "tiny", "prompt": "Once upon a time " * 30, "raw": True, "stream": False}),
        ("/v1/responses", {"input": "Once upon a time " * 30, "reasoning": {"effort": "none"}}),
    ],
)
def test_a_key_is_of_the_prompt_that_the_replica_computes(model: Any, app: Any, path: str, body: Any) -> None:
    key = PromptKeys(model.tokenizer).of(path, json.dumps(body).encode(), "tenant")
    most = {"/v1/": {"max_tokens": 1}, "/api/": {"options": {"num_predict": 1}}}[path[: path.index("/", 1) + 1]]
    most = {"max_output_tokens": 1} if path == "/v1/responses" else most
    head, answer = whole(app, call_of(path, {**body, **most}))
    assert head.status == 200, answer
    told = json.loads(answer)
    counts = {**told, **told.get("usage", {})}
    count = next(counts[name] for name in ("prompt_tokens", "input_tokens", "prompt_eval_count") if name in counts)
    assert key.tokens == count > 64
    assert len(key.fingerprints) == count // 64
    known = app.state.engine.cache.summary().astype(np.uint32).tolist()
    assert key.fingerprints[-1] in known
    assert key.fingerprints != PromptKeys(model.tokenizer).of(path, json.dumps(body).encode(), "other").fingerprints


def test_lines_that_are_dropped_are_in_no_key(model: Any) -> None:
    keys = PromptKeys(model.tokenizer, ["Time: .*"])
    texts = []
    for clock in ("10:00", "10:01"):
        chat = [{"role": "system", "content": f"Time: {clock}\n{SYSTEM}"}, CHAT[1]]
        texts.append(keys.of("/v1/chat/completions", json.dumps({"messages": chat}).encode(), "n").text)
    assert texts[0] == texts[1]
    assert SYSTEM.strip() in texts[0]


@pytest.mark.parametrize(
    "body",
    [b"", b"no JSON", b"[]", b"{}", b'{"messages": []}', b'{"messages": 5}', b'{"prompt": {}}', b'{"prompt": []}',
     b"[" * 100_000, b'{"messages": [{"role": "user", "content": "\\ud800"}]}', b'{"prompt": [[]]}', b"\xff\xfe"],
)  # fmt: skip
def test_what_is_wrong_has_no_key(model: Any, body: bytes) -> None:
    keys = PromptKeys(model.tokenizer)
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/explain", "/tokenize", "/v1/models"):
        key = keys.of(path, body, "n")
        assert key.fingerprints == ()


def test_a_path_without_a_prompt_has_no_key(model: Any) -> None:
    assert PromptKeys(model.tokenizer).of("/tokenize", b'{"content": "text"}', "n") == PromptKey()


# ---- requests as values ----------------------------------------------------------------------------------------------


def test_an_answer_is_the_servers_own(app: Any) -> None:
    short = {"messages": CHAT, "max_tokens": 4, "temperature": 0}  # else it may say its end before
    head, body = whole(app, call_of("/v1/chat/completions", short))
    assert (head.status, json.loads(body)["usage"]["completion_tokens"]) == (200, 4)
    head, body = whole(app, call_of("/v1/chat/completions", {"messages": CHAT}, authorization="Bearer other"))
    assert head.status == 401
    head, body = whole(app, call_of("/v1/chat/completions", b"{"))
    assert (head.status, json.loads(body)["error"]["code"]) == (400, "invalid_json")
    stream = {"messages": CHAT, "max_tokens": 4, "stream": True}
    head, body = whole(app, call_of("/v1/chat/completions", stream))
    assert dict(head.headers)[b"content-type"].startswith(b"text/event-stream")
    assert body.endswith(b"data: [DONE]\n\n")


def test_who_leaves_is_a_client_that_left(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = app.state.engine
    compute = type(engine.model).__call__
    monkeypatch.setattr(type(engine.model), "__call__", lambda self, step: time.sleep(0.05) or compute(self, step))

    endless = {"messages": CHAT, "max_tokens": 2000, "ignore_eos": True, "stream": True}

    async def leave(after: int) -> None:
        parts = answered(app, call_of("/v1/chat/completions", endless))
        for _ in range(after):
            await parts.__anext__()
        await parts.aclose()

    async def cancelled() -> None:
        task = asyncio.create_task(leave(10_000))
        while engine.batcher.stats()["submitted"] < 3:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave(1))
    asyncio.run(leave(5))
    asyncio.run(cancelled())
    wait_for(lambda: engine.batcher.stats()["cancelled"] == 3)


def test_what_an_application_raises_comes_out() -> None:
    async def before(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("before")

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(100):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        raise ValueError("behind")

    for app in (before, behind):
        with pytest.raises(ValueError, match=r"before|behind"):
            whole(app, call_of("/", b""))


def test_an_application_is_not_far_in_front_of_its_reader() -> None:
    sent = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            sent += 1

    async def read() -> None:
        parts = answered(app, call_of("/", b""))
        for _ in range(10):
            await parts.__anext__()
            await asyncio.sleep(0)
        assert sent < 50
        await parts.aclose()

    asyncio.run(read())


# ---- options ---------------------------------------------------------------------------------------------------------


def test_options_are_those_of_a_server_too() -> None:
    options = ScaleOptions.model_validate({"replicas": "2", "model": "tiny", "max_sessions": "4", "store": "redis://h"})
    server = options.server()
    assert (options.replicas, server.model, server.max_sessions, server.store) == (2, "tiny", 4, "redis://h")
    assert server.own_folder


@pytest.mark.parametrize(
    ("given", "said"),
    [({"replica": 2}, r"\[scale\] replica: got an option that there is not, allowed .*replicas.*store"),
     ({"max_sessions": "many"}, r"\[scale\] max_sessions: got 'many', allowed")],
)  # fmt: skip
def test_what_is_no_option(given: dict[str, Any], said: str) -> None:
    with pytest.raises(kv.errors.ArgumentError, match=said):
        ScaleOptions.model_validate(given).server()


def test_fingerprints_travel_as_their_lower_half() -> None:
    tokens = np.arange(640, dtype=np.int32)
    assert prompt_fingerprints(tokens, "n") == tuple(
        int(each) & 0xFFFFFFFF for each in kv.trie.fingerprints(tokens, "n")
    )


def test_a_summary_has_the_prompts_that_were_answered_last(model: Any) -> None:
    cache = kv.PrefixCache(model.caches(1 << 12), fingerprint="f", host_bytes=1 << 20)
    summaries = Summaries(cache, size=64)
    assert known_of(summaries.stats(0, 0)) == frozenset()
    prompts = [prompt_fingerprints(np.arange(n, n + 6400, dtype=np.int32), "n") for n in range(20)]
    for prompt in prompts:
        summaries.answered(prompt)
    summaries.answered(())
    stats = summaries.stats(7, 3)
    known = known_of(stats)
    assert (stats["waiting"], stats["requests"], stats["version"]) == (7, 3, 2)
    assert len(known) == 32  # half of it, and nothing is in the tree
    backwards = [0, 1, 2, 4, 8, 16, 32, 64]
    assert {prompts[-1][-1 - back] for back in backwards} <= known
    assert not {prompts[0][-1 - back] for back in backwards} & known
    cache.close()
    assert known_of(summaries.stats(0, 0)) == known
