"""Many clients of two tenants that behave as badly as they can.

Each right request gets its right answer, each wrong one an error of the API's form, and nothing is left over.

The model names its prefix in every token and every row (naming_model.py). The seed is printed; KVTRIE_SEED=N plays one
again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import threading
import time
from typing import Any

import httpx
import pytest

import kvtrie as kv
from circles import SOAK
from kvtrie._drafting import Costs
from naming_model import NamingModel
from processes import PATIENCE, wait_for
from serving import TINY, Served, served

SEED = int(os.environ.get("KVTRIE_SEED", time.strftime("%Y%m%d") if SOAK else "1"))
CLIENTS = 16
REQUESTS = 125 if SOAK else 8  # of each
KEYS = {"key-a": "a", "key-b": "b"}


class Client(threading.Thread):
    """`wrong`: what was not as it has to be."""

    def __init__(self, number: int, server: Served, model: NamingModel) -> None:
        super().__init__()
        self._random = random.Random(SEED * 1000 + number)
        self._server, self._model = server, model
        self._key = ("key-a", "key-b")[number % 2]
        self.wrong: list[str] = []
        self.counts: dict[str, int] = {}

    def run(self) -> None:
        with httpx.Client(base_url=self._server.url, timeout=PATIENCE, headers=self._headers) as self._http:
            for _ in range(REQUESTS):
                act = self._random.choice(
                    [self.complete] * 6
                    + [self.chat] * 2
                    + [self.leave, self.hang_up, self.send_garbage, self.send_half, self.send_slowly, self.send_much]
                    + [self.send_wrong_key]
                )
                try:
                    act()
                except Exception as error:
                    self.wrong.append(f"{act.__name__}: {type(error).__name__}: {error}")
                self.counts[act.__name__] = self.counts.get(act.__name__, 0) + 1

    @property
    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._key}"}

    def _prompt(self) -> list[int]:
        """Most begin like others do, of both tenants."""
        trunk = random.Random(self._random.randrange(4))
        words = self._model.words
        shared = [trunk.choice(words) for _ in range(self._random.choice([0, 20, 60]))]
        return shared + [self._random.choice(words) for _ in range(self._random.randrange(1, 20))]

    def _expect(self, said: str, prompt: list[int], count: int) -> None:
        right = self._model.answer(KEYS[self._key], prompt, count)
        if said != right:
            self.wrong.append(f"got {said!r}, right is {right!r}")

    def _is_error(self, response: httpx.Response, *statuses: int) -> None:
        if response.status_code not in statuses or "message" not in response.json()["error"]:
            self.wrong.append(f"got {response.status_code} {response.text[:200]}, allowed {statuses}")

    # --- right ones -------------------------------------------------------------------------------------------------

    def complete(self) -> None:
        prompt, count = self._prompt(), self._random.randrange(1, 12)
        many = self._random.choice([1, 1, 1, 3])
        body = {"prompt": prompt, "max_tokens": count, "temperature": 0, "n": many}
        if self._random.random() < 0.5:
            response = self._http.post("/v1/completions", json=body)
            if response.status_code == 429:
                return self._is_error(response, 429)
            for choice in response.json()["choices"]:
                self._expect(choice["text"], prompt, count)
            return None
        texts = [""] * many
        with self._http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
            if response.status_code == 429:
                return None
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    choice = json.loads(line[6:])["choices"][0]
                    texts[choice["index"]] += choice["text"]
        for text in texts:
            self._expect(text, prompt, count)

    def chat(self) -> None:
        """Two turns; the second one knows the first."""
        messages: list[Any] = [{"role": "user", "content": f"question {self._random.randrange(30)}"}]
        known = 0
        for _ in range(2):
            body = {"messages": messages, "max_tokens": 5, "temperature": 0}
            response = self._http.post("/v1/chat/completions", json=body)
            if response.status_code == 429:
                return
            answer = response.json()
            if answer["usage"]["prompt_tokens_details"]["cached_tokens"] < known:
                self.wrong.append(f"knew {known}, said {answer['usage']}")
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "go on"}]
            known = 0  # others may need the room

    # --- those who leave --------------------------------------------------------------------------------------------

    def leave(self) -> None:
        body = {"prompt": self._prompt(), "max_tokens": 300, "temperature": 0, "stream": True}
        with self._http.stream("POST", "/v1/completions", json=body) as response:
            for _, _ in zip(range(self._random.randrange(4)), response.iter_lines()):
                pass

    def hang_up(self) -> None:
        body = {"prompt": self._prompt(), "max_tokens": 300, "temperature": 0}
        with contextlib.suppress(httpx.ReadTimeout):
            self._http.post("/v1/completions", json=body, timeout=httpx.Timeout(PATIENCE, read=0.02))

    # --- wrong ones -------------------------------------------------------------------------------------------------

    def send_garbage(self) -> None:
        path = self._random.choice(["/v1/completions", "/v1/chat/completions", "/v1/messages", "/tokenize", "/explain"])
        body = self._random.choice(
            [b"", b"{", b"[1]", b'{"prompt": {}}', b"\x00\xff", b'{"messages": [{}]}', b"[" * 9999]
        )
        response = self._http.post(path, content=body, headers={"content-type": "application/json"})
        self._is_error(response, 400)

    def _raw(self, parts: list[bytes], pause: float) -> None:
        with socket.create_connection(("127.0.0.1", self._server.port), PATIENCE) as raw:
            for part in parts:
                raw.sendall(part)
                time.sleep(pause)

    def send_half(self) -> None:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4000\r\n"
        self._raw([head[: self._random.randrange(1, len(head))]], 0)
        self._raw([head + b"content-type: application/json\r\n\r\n" + b'{"prompt": "half'], 0)

    def send_slowly(self) -> None:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4000\r\n\r\n"
        self._raw([head, *[b" "] * 5], 0.02)

    def send_much(self) -> None:
        body = {"prompt": "word " * (1 << 21), "max_tokens": 1}
        self._is_error(self._http.post("/v1/completions", json=body), 400, 413)

    def send_wrong_key(self) -> None:
        response = self._http.post("/v1/completions", json={"prompt": "x"}, headers={"authorization": "Bearer key-c"})
        self._is_error(response, 401)


def test_clients_that_behave_badly(monkeypatch: pytest.MonkeyPatch) -> None:
    """With drafts, as many as there may be."""
    monkeypatch.setattr(Costs, "shares", lambda _self, _chances, limits, *_: list(limits))
    print(f"KVTRIE_SEED={SEED}")
    model = NamingModel(kv.models.load(TINY))
    cache = kv.PrefixCache(model.caches(capacity=3000), fingerprint="naming", host_bytes=1 << 18)
    options: dict[str, Any] = {"keys": KEYS, "max_sessions": 6, "max_waiting": 24, "draft": ("tree", "prompt")}
    with served(model, context=512, cache=cache, **options) as server:
        clients = [Client(number, server, model) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join(PATIENCE * 4)
        assert [wrong for client in clients for wrong in client.wrong] == []
        # What those who left had sent is read before this, so that no request of theirs begins later.
        assert httpx.get(server.url + "/health", timeout=PATIENCE).status_code == 200
        wait_for(server.is_idle)
        stats = cache.stats()
        assert stats["sessions"] == 0
        assert 0 < stats["accepted_tokens"] <= stats["proposed_tokens"]
        assert stats["host_peak_bytes"] <= 1 << 18
        assert cache.check() == []
        totals = server.engine.batcher.stats()
        assert totals["failed"] == 0
        assert totals["cancelled"] > 0
        assert all(entry.outcome != "running" for entry in server.engine.journal.entries)
    assert cache.closed
    done: dict[str, int] = {}
    for client in clients:
        for name, count in client.counts.items():
            done[name] = done.get(name, 0) + count
    print(done, totals)
