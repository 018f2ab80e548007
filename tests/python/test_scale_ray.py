"""Several replicas on Ray Serve, over HTTP: right answers, whichever replica gives them, and however they end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from circles import SOAK
from processes import PATIENCE, wait_for
from ray_cluster import ray_cluster as ray_cluster
from redis_server import RedisServer
from scale_cluster import Scaled, scaled
from scale_requests import MODEL, ask, chat_of, events_of, expected, text_of, words

pytest.importorskip("ray")
from ray.serve._private.common import DeploymentHandleSource, DeploymentID

from kvtrie.ray.scale import ScaleOptions
from kvtrie.ray.scale.asgi_call import Call
from kvtrie.ray.scale.summaries import prompt_fingerprints


def options_of(**given: Any) -> Any:
    defaults = {"model": "tiny", "engine": "scale_engine:naming", "cpus": 0.1, "context": 8192, "seed": 1}
    return ScaleOptions(**{**defaults, **given})


@pytest.fixture(scope="module")
def two(ray_cluster: Any) -> Iterator[Scaled]:
    with scaled(ray_cluster, options_of(replicas=2, keys={"a": "A", "b": "B"})) as there:
        yield there


# ---- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.ci
def test_every_route_answers(two: Scaled) -> None:
    dice = random.Random(1)
    chat = chat_of(dice)
    get = two.client.get
    assert get("/health").json() == {"status": "ok"}
    assert get("/v1/models", headers={"x-api-key": "a"}).json()["data"][0]["id"] == "tiny"
    assert text_of(ask(two.client, chat, key="a")) == expected(chat, 8, "A")
    assert text_of(ask(two.client, chat, key="b")) == expected(chat, 8, "B")
    message = {"messages": chat, "max_tokens": 8, "temperature": 0}
    answer = two.client.post("/v1/messages", json=message, headers={"x-api-key": "a"}).json()
    assert answer["content"][0]["text"] == expected(chat, 8, "A")
    ids = MODEL.tokenizer.encode(words(dice, 80))
    answer = two.client.post(
        "/v1/completions", json={"prompt": ids, "max_tokens": 5, "temperature": 0}, headers={"x-api-key": "b"}
    ).json()
    assert answer["choices"][0]["text"] == MODEL.answer("B", ids, 5)
    answer = two.client.post("/tokenize", json={"content": "red blue"}, headers={"x-api-key": "b"}).json()
    assert answer["tokens"] == MODEL.tokenizer.encode("red blue", add_special_tokens=False)
    answer = two.client.post("/explain", json={"messages": chat}, headers={"x-api-key": "a"}).json()
    assert answer["matched"] > 64


@pytest.mark.ci
def test_streams_come_through(two: Scaled) -> None:
    chat = chat_of(random.Random(2))
    body = {
        "messages": chat,
        "max_tokens": 8,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with two.client.stream("POST", "/v1/chat/completions", json=body, headers={"x-api-key": "a"}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = list(events_of(answer.iter_lines()))
    assert events[-1] == "[DONE]"
    assert "".join(each["choices"][0]["delta"].get("content", "") for each in events[:-2]) == expected(chat, 8, "A")
    assert events[-2]["usage"]["completion_tokens"] == 8


@pytest.mark.ci
def test_errors_have_the_apis_form(two: Scaled) -> None:
    client = two.client
    assert ask(client, chat_of(random.Random(3)), key="c").json()["error"]["type"] == "authentication_error"
    assert ask(client, [], key="a").status_code == 400
    assert ask(client, chat_of(random.Random(3), 9000), key="a").json()["error"]["code"] == "context_length_exceeded"
    answer = client.post("/v1/messages", json={"messages": []}, headers={"x-api-key": "c"})
    assert (answer.status_code, answer.json()["type"]) == (401, "error")
    for path in ("/", "/metrics", "/events", "/flush", "/nowhere"):
        assert client.get(path, headers={"x-api-key": "a"}).json()["error"]["type"] == "not_found_error"
    too_large = b'{"messages": "' + b"x" * (17 << 20) + b'"}'
    answer = client.post("/v1/chat/completions", content=too_large, headers={"x-api-key": "a"})
    assert answer.status_code == 413


@pytest.mark.ci
def test_a_conversation_stays_where_it_is_known(two: Scaled) -> None:
    dice = random.Random(4)
    chats = [MODEL.tokenizer.encode(words(dice, 300)) for _ in range(6)]
    known = [0] * len(chats)
    new = computed = 0
    for _ in range(5):
        for number, chat in enumerate(chats):
            body = {"prompt": chat, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
            answer = two.client.post("/v1/completions", json=body, headers={"x-api-key": "a"}).json()
            assert answer["choices"][0]["text"] == MODEL.answer("A", chat, 8)
            new += len(chat) - known[number]
            computed += len(chat) - answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            chat += answer["choices"][0]["token_ids"]
            known[number] = len(chat)
            chat += MODEL.tokenizer.encode(words(dice, 20))
    print(f"computed {computed} of {new} new tokens")
    assert computed <= 1.1 * new


@pytest.mark.ci
def test_clients_at_once(two: Scaled) -> None:
    def client(seed: int) -> None:
        dice = random.Random(100 + seed)
        with httpx.Client(base_url=two.url, timeout=600) as own:
            for _ in range(6):
                key, chat = dice.choice("ab"), chat_of(dice, dice.randrange(5, 200))
                assert text_of(ask(own, chat, key=key)) == expected(chat, 8, key.upper())

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))


@pytest.mark.ci
def test_a_client_that_leaves(two: Scaled) -> None:
    chat = chat_of(random.Random(5))
    body = {"messages": chat, "max_tokens": 4000, "stream": True, "ignore_eos": True}
    with two.client.stream("POST", "/v1/chat/completions", json=body, headers={"x-api-key": "a"}) as answer:
        lines = answer.iter_lines()  # httpx closes the answer when this goes
        next(lines)
    wait_for(lambda: sum(each["requests"] for each in two.stats().values()) == 0)


# ---- replicas that go ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "api", [pytest.param("openai", marks=pytest.mark.ci), pytest.param("anthropic", marks=pytest.mark.soak)]
)
def test_a_stream_that_had_begun_ends_with_an_error(ray_cluster: Any, monkeypatch: Any, api: str) -> None:
    path = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}[api]
    with scaled(ray_cluster, options_of(replicas=1, threads=1, engine="scale_engine:slow")) as there:
        chat = chat_of(random.Random(6))
        body = {"messages": chat, "max_tokens": 8000, "stream": True, "ignore_eos": True}
        with there.client.stream("POST", path, json=body) as answer:
            lines = answer.iter_lines()
            seen = [next(lines) for _ in range(8)]
            there.kill(there.replicas()[0])
            seen += list(lines)
        *_, last = events_of(seen)
        assert last["error"]["type"] == "overloaded_error"
        assert ("event: error" in seen) == (api == "anthropic")
        assert text_of(ask(there.client, chat)) == expected(chat, 8)  # by the one that came in its place


@pytest.mark.ci
def test_whoever_is_killed_no_answer_is_wrong_or_lost(ray_cluster: Any) -> None:
    """Requests that had not begun to answer are asked again elsewhere; what is not streamed begins when it is whole."""
    ended = threading.Event()

    def client(seed: int) -> int:
        dice, count = random.Random(200 + seed), 0
        with httpx.Client(base_url=there.url, timeout=600) as own:
            while not ended.is_set():
                chat = chat_of(dice, dice.randrange(5, 200))
                assert text_of(ask(own, chat, 12)) == expected(chat, 12)
                count += 1
        return count

    with (
        scaled(ray_cluster, options_of(replicas=2, attempts=10)) as there,
        concurrent.futures.ThreadPoolExecutor(4) as pool,
    ):
        clients = [pool.submit(client, seed) for seed in range(4)]
        try:
            for _ in range(3 if SOAK else 1):
                first = there.replicas()[0]
                there.kill(first)
                wait_for(lambda gone=first: gone not in there.replicas())
                there.wait_for(2)
        finally:
            ended.set()
        assert min(each.result() for each in clients) > 0


@pytest.mark.soak
def test_a_new_replica_begins_with_what_the_store_has(ray_cluster: Any, server: RedisServer) -> None:
    dice = random.Random(7)
    chat = chat_of(dice, 1500)
    options = options_of(replicas=1, store=server.url(f"timeout={PATIENCE}"), store_deadline=PATIENCE)
    with scaled(ray_cluster, options) as there:
        first = ask(there.client, chat)
    with scaled(ray_cluster, options) as there:
        again = ask(there.client, chat)
    assert text_of(first) == text_of(again) == expected(chat, 8)
    assert first.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 1280  # all that was drained, but the tail


@pytest.mark.ci
def test_too_many(ray_cluster: Any) -> None:
    few = options_of(replicas=1, max_sessions=1, max_waiting=0, max_queued=1)
    with scaled(ray_cluster, few) as there:

        def ask_one(seed: int) -> int:
            with httpx.Client(base_url=there.url, timeout=600) as own:
                answer = ask(own, chat_of(random.Random(seed)), 600)
            assert answer.status_code == 200 or answer.json()["error"]["type"] == "rate_limit_error"
            assert answer.status_code == 200 or answer.headers["retry-after"]
            return int(answer.status_code)

        body = {"messages": chat_of(random.Random(8)), "max_tokens": 7000, "stream": True, "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            with there.client.stream("POST", "/v1/chat/completions", json=body) as answer:
                lines = answer.iter_lines()  # httpx closes the answer when this goes
                next(lines)
                asked = [pool.submit(ask_one, seed) for seed in range(8)]
                concurrent.futures.wait(asked, return_when=concurrent.futures.FIRST_COMPLETED)
            assert 429 in [each.result() for each in asked]
        wait_for(lambda: ask_one(9) == 200)  # once the server knows that the stream has gone


# ---- how many there are ----------------------------------------------------------------------------------------------


def test_how_many_replicas_the_work_asks_for() -> None:
    from kvtrie.ray.scale.autoscaling import ByWork

    def context(requests: float, *tokens: float) -> Any:
        waiting = {"waiting_tokens": dict(enumerate(tokens))}
        return SimpleNamespace(total_num_requests=requests, aggregated_metrics=waiting if tokens else None)

    policy = ByWork(target_requests=4, target_tokens=1000)
    assert policy(context(0)) == (0, {})
    assert policy(context(4, 10, 0))[0] == 1
    assert policy(context(9, 10, 0))[0] == 3
    assert policy(context(2, 2000, 1500))[0] == 4  # two requests, but much to compute


@pytest.mark.soak
def test_work_that_waits_brings_another_replica(ray_cluster: Any) -> None:
    growing = options_of(replicas=1, max_replicas=2, target_requests=2, max_sessions=1)
    with scaled(ray_cluster, growing) as there:
        ended = threading.Event()

        def client(seed: int) -> None:
            dice = random.Random(300 + seed)
            with httpx.Client(base_url=there.url, timeout=600) as own:
                while not ended.is_set():
                    chat = chat_of(dice)
                    assert text_of(ask(own, chat, 12)) == expected(chat, 12)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            clients = [pool.submit(client, seed) for seed in range(8)]
            try:
                there.wait_for(2)
            finally:
                ended.set()
            for each in clients:
                each.result()


# ---- routing ---------------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("routing", ["two_choices", "round_robin", "random", "ray_prefix", "ray"])
def test_other_ways_to_choose(ray_cluster: Any, routing: str) -> None:
    with scaled(ray_cluster, options_of(replicas=2, routing=routing)) as there:
        dice = random.Random(8)
        for _ in range(4):
            chat = chat_of(dice)
            assert text_of(ask(there.client, chat)) == expected(chat, 8)
        assert there.client.get("/v1/models").status_code == 200


class FakeReplica:
    """What a router sees of one, without a process behind it."""

    max_ongoing_requests, node_id, availability_zone = 100, "node", None
    multiplexed_model_ids: frozenset[str] = frozenset()

    def __init__(self, number: int, tokens: list[int]) -> None:
        from ray.serve.request_router import ReplicaID

        self.replica_id = ReplicaID(f"r{number}", DeploymentID("replica", "app"))
        self.tell(1, tokens)

    def tell(self, version: int, tokens: list[int]) -> None:
        known = np.array(prompt_fingerprints(tokens, "n")[-1:], "<u4").tobytes()
        self.routing_stats = {"version": version, "known": known, "waiting": 0, "requests": 0}

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return 0


@pytest.mark.ci
@pytest.mark.parametrize("count", [10, 100])
def test_what_a_router_makes_of_what_replicas_tell(ray_cluster: Any, count: int) -> None:
    from kvtrie.ray.scale.router import Router

    dice = random.Random(9)
    texts = [[dice.randrange(1000) for _ in range(640)] for _ in range(count)]

    def pending(tokens: list[int]) -> Any:
        call = Call("POST", "/", b"", (), b"", "", len(tokens), prompt_fingerprints(tokens, "n"))
        metadata = SimpleNamespace(internal_request_id="x")
        return SimpleNamespace(args=[call], routing_context=SimpleNamespace(should_backoff=False), metadata=metadata)

    async def choose() -> None:
        router = Router(
            DeploymentID("replica", "app"), DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True
        )
        router.initialize_state(seed=1)
        replicas = [FakeReplica(number, text) for number, text in enumerate(texts)]
        router.update_replicas(replicas)
        for number, text in enumerate(texts):
            ranks = await router.choose_replicas(replicas, pending(text))
            assert ranks[0] == [replicas[number]]
            assert len(ranks) == (count if count <= 32 else 16)
        replicas[3].tell(2, texts[4])  # the third has forgotten what it knew
        router.update_replicas(replicas)
        first = {(await router.choose_replicas(replicas, pending(texts[4])))[0][0] for _ in range(50)}
        assert first == {replicas[3], replicas[4]}
        router.on_replica_actor_died(replicas[4].replica_id)
        router.update_replicas(replicas[:4])
        assert (await router.choose_replicas(replicas[:4], pending(texts[4])))[0] == [replicas[3]]
        assert await router.choose_replicas([], pending(texts[4])) == []
        request = pending(texts[0])
        await router.choose_replicas(replicas[:4], request)
        assert request.routing_context.should_backoff  # else Ray asks on without a pause where none has room

    asyncio.run(choose())
