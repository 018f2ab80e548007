"""Load on several replicas while one after the other is killed, and the store that they share goes and comes.

Every answer is the right one or an error of the API's form, and none is missing: 20 minutes with a kill every 30
seconds and two restarts of Redis, and a look at what memory does. In `--ci` test_scale_ray.py kills a replica.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from processes import PATIENCE, wait_for
from ray_cluster import ray_cluster as ray_cluster
from redis_server import RedisServer
from scale_cluster import Scaled, scaled
from scale_engine import plain_model
from scale_requests import events_of

pytest.importorskip("ray")
from kvtrie.ray.scale import ScaleOptions

pytestmark = pytest.mark.timeout(3600)

SECONDS, BETWEEN = 1200.0, 30.0
REPLICAS, CLIENTS, ANSWER = 3, 6, 12
MODEL = plain_model(check=False)
GROWTH = 64 << 20  # bytes that the router may grow by, four errors of the slope off


class Client:
    """Goes on with conversations of token ids, half of its answers as streams."""

    def __init__(self, url: str, seed: int, ended: threading.Event) -> None:
        self._dice = random.Random(seed)
        self._http = httpx.Client(base_url=url, timeout=PATIENCE)
        self._ended = ended
        self._system = [self._dice.choice(MODEL.words) for _ in range(400)]
        self.outcomes: Counter[str] = Counter()

    def run(self) -> Counter[str]:
        with self._http:
            while not self._ended.is_set():
                chat = [*self._system, *self._words(40)]
                for _ in range(self._dice.randrange(1, 6)):
                    answer = self._ask(chat)
                    if answer is None or self._ended.is_set():
                        break
                    chat += [*answer, *self._words(20)]
        return self.outcomes

    def _words(self, count: int) -> list[int]:
        return [self._dice.choice(MODEL.words) for _ in range(count)]

    def _ask(self, chat: list[int]) -> list[int] | None:
        """The tokens of the answer; None for an error."""
        body = {"prompt": chat, "max_tokens": ANSWER, "temperature": 0, "return_token_ids": True}
        outcome, tokens = self._streamed(body) if self._dice.random() < 0.5 else self._whole(body)
        self.outcomes[outcome] += 1
        if tokens is None:
            return None
        expected = list(chat)
        for _ in range(ANSWER):
            expected.append(MODEL.next_token("default", expected))
        assert tokens == expected[len(chat) :], (outcome, tokens)
        return tokens

    def _whole(self, body: dict[str, Any]) -> tuple[str, list[int] | None]:
        answer = self._http.post("/v1/completions", json=body)
        if answer.status_code != 200:
            return error_of(answer.status_code, answer.json()), None
        return "whole", answer.json()["choices"][0]["token_ids"]

    def _streamed(self, body: dict[str, Any]) -> tuple[str, list[int] | None]:
        tokens: list[int] = []
        with self._http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            if answer.status_code != 200:
                return error_of(answer.status_code, json.loads(answer.read())), None
            for event in events_of(answer.iter_lines()):
                if event == "[DONE]":
                    return "streamed", tokens
                if "error" in event:
                    return error_of(200, event), None
                tokens += event["choices"][0].get("token_ids") or []
        raise AssertionError("a stream ended without its end")


def asked_both_ways(people: list[Client]) -> bool:
    """Whether there was an answer of each kind: on a busy machine that may take longer than all the rest."""
    return all(any(each.outcomes[kind] for each in people) for kind in ("whole", "streamed"))


def error_of(status: int, body: Any) -> str:
    """Which error it is; it has to be one of the API's form."""
    kind = body["error"]["type"]
    assert kind in ("overloaded_error", "rate_limit_error"), body
    return f"{status} {kind}"


def bytes_of(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def disturb(there: Scaled, store: RedisServer, dice: random.Random) -> tuple[int, list[tuple[float, int]]]:
    """Kills replicas and restarts the store until the time is over: how often, and what the router's memory was."""
    router = there.pid(there.routers()[0])
    began, kills, restarts, memory = time.monotonic(), 0, 0, []
    while (passed := time.monotonic() - began) < SECONDS:
        time.sleep(min(BETWEEN, SECONDS - passed))
        memory.append((time.monotonic() - began, bytes_of(router)))
        present = there.replicas()
        if present:
            there.kill(dice.choice(present))
            kills += 1
        if passed > (restarts + 1) * SECONDS / 3:
            store.kill()
            store.start()
            restarts += 1
    return kills, memory


@pytest.mark.soak
def test_whatever_goes(ray_cluster: Any, server: RedisServer) -> None:
    ended = threading.Event()
    options = ScaleOptions(
        model="tiny", engine="scale_engine:naming", replicas=REPLICAS, cpus=0.1, context=8192, attempts=20, seed=1,
        store=server.url("timeout=1&retries=0"),
    )  # fmt: skip
    with scaled(ray_cluster, options) as there, ThreadPoolExecutor(CLIENTS) as pool:
        there.wait_for(REPLICAS)
        people = [Client(there.url, seed, ended) for seed in range(CLIENTS)]
        clients = [pool.submit(each.run) for each in people]
        try:
            kills, memory = disturb(there, server, random.Random(1))
            wait_for(lambda: asked_both_ways(people) or any(each.done() for each in clients))
        finally:
            ended.set()
        outcomes: Counter[str] = sum((each.result() for each in clients), Counter())
        there.wait_for(REPLICAS)
        wait_for(lambda: sum(each["requests"] for each in there.stats().values()) == 0)
    print(f"{kills} kills, outcomes {dict(outcomes)}")
    assert outcomes["whole"] > 0
    assert outcomes["streamed"] > 0
    grown, error = growth_of(memory)
    print(f"the router's memory: {grown / 2**20:+.1f} MiB over the time, error {error / 2**20:.1f} MiB")
    assert grown - 4 * error < GROWTH


def growth_of(memory: list[tuple[float, int]]) -> tuple[float, float]:
    """What a line through the samples behind the first quarter grows by over the time, and its error."""
    times, sizes = np.array(memory[len(memory) // 4 :], float).T
    line, covariance = np.polyfit(times, sizes, 1, cov=True)
    length = times[-1] - times[0]
    return float(line[0] * length), float(np.sqrt(covariance[0, 0]) * length)
