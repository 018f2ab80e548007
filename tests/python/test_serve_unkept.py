"""What must not be kept (``cache_prompt: false``) is in no tier at any time: beside a disk that is written at once, a
store, and after a restart, in every API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

import kvtrie as kv
from object_table import Dict
from processes import PATIENCE, wait_for
from serving import TINY, Served, served

WORDS = " ".join(f"word{number}" for number in range(60))
QUESTION = [{"role": "user", "content": WORDS}]
BODIES: dict[str, Any] = {
    "/v1/completions": {"prompt": WORDS, "max_tokens": 8},
    "/v1/chat/completions": {"messages": QUESTION, "max_tokens": 8},
    "/v1/messages": {"messages": QUESTION, "max_tokens": 8},
}
OTHERS: dict[str, Any] = {
    "/v1/responses": {"input": QUESTION, "cache_prompt": False},
    "/api/chat": {"model": "m", "messages": QUESTION, "options": {"cache_prompt": False}},
    "/api/generate": {"model": "m", "prompt": WORDS, "cache_prompt": False},
}


class Places:
    """The tiers of one server after another. ``puts``: all keys that the store ever got."""

    def __init__(self, folder: Path, model: Any) -> None:
        self.folder, self._model = folder, model
        self.puts: list[str] = []
        self.store = Dict()
        put = self.store.put

        def noted(key: str, value: bytes) -> None:
            self.puts.append(key)
            put(key, value)

        self.store.put = noted  # type: ignore[method-assign]

    def cache(self) -> kv.PrefixCache:
        return kv.PrefixCache(
            self._model.caches(capacity=1024), fingerprint=self._model.fingerprint, host_bytes=1 << 26,
            disk=self.folder, disk_bytes=1 << 26, disk_after=1, store=self.store,
        )  # fmt: skip

    def files(self) -> list[str]:
        return [path.name for path in self.folder.iterdir() if path.suffix == ".kvtrie"]


@pytest.fixture(scope="module")
def model() -> Any:
    return kv.models.load(TINY)


@pytest.fixture
def places(tmp_path: Path, model: Any) -> Places:
    return Places(tmp_path / "disk", model)


def ask(server: Served, path: str, **fields: Any) -> httpx.Response:
    return httpx.post(server.url + path, json={**BODIES[path], **fields}, timeout=PATIENCE)


def settled(server: Served) -> None:
    wait_for(server.is_idle)
    wait_for(lambda: server.engine.cache.stats()["pending_writes"] == 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_it_is_nowhere(path: str, stream: bool, places: Places, model: Any) -> None:
    cache = places.cache()
    with served(model, cache=cache, temperature=0.0) as server:
        fields = {"n": 2} if path == "/v1/chat/completions" else {}
        assert ask(server, path, cache_prompt=False, stream=stream, **fields).status_code == 200
        settled(server)
        stats = cache.stats()
        assert (stats["tokens"], stats["host_bytes"], stats["disk"]["writes"]) == (0, 0, 0)
        assert cache.flush() and places.puts == [] and places.files() == []
        assert ask(server, path).status_code == 200  # the same is kept where it may be
        settled(server)
        assert cache.stats()["disk"]["writes"] > 0
        assert cache.flush()  # what is on its way to files and store is there then
        held, found = cache.stats()["tokens"], (places.files(), len(places.puts))
        assert ask(server, path, cache_prompt=False, stream=stream).status_code == 200
        settled(server)
        assert cache.stats()["tokens"] == held and (places.files(), len(places.puts)) == found
        assert cache.check() == []


@pytest.mark.parametrize("path", BODIES)
def test_it_is_not_there_after_a_restart(path: str, places: Places, model: Any) -> None:
    with served(model, cache=places.cache(), temperature=0.0) as server:
        assert ask(server, path, cache_prompt=False).status_code == 200
        settled(server)
    assert places.puts == [] and places.files() == []  # an orderly end writes all that is idle
    with served(model, cache=places.cache(), temperature=0.0) as server:
        usage = ask(server, path).json()["usage"]
        assert not usage.get("cache_read_input_tokens") and not usage.get("prompt_tokens_details", {}).get(
            "cached_tokens"
        )


def test_an_end_in_the_middle_leaves_nothing(places: Places, model: Any) -> None:
    cache = places.cache()
    with served(model, cache=cache, temperature=0.0) as server:
        body = {
            **BODIES["/v1/completions"],
            "max_tokens": 400,
            "ignore_eos": True,
            "stream": True,
            "cache_prompt": False,
        }
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=PATIENCE) as answer:
            lines = answer.iter_lines()
            assert json.loads(next(line for line in lines if line.startswith("data: "))[6:])["choices"]
            assert cache.flush()
        settled(server)
        assert cache.stats()["tokens"] == 0 and places.puts == [] and places.files() == []


@pytest.mark.parametrize("path", OTHERS)
def test_other_apis_refuse_it_by_its_name(path: str, places: Places, model: Any) -> None:
    with served(model, cache=places.cache()) as server:
        response = httpx.post(server.url + path, json=OTHERS[path], timeout=PATIENCE)
        assert response.status_code == 400 and "cache_prompt" in response.text
        assert server.engine.cache.stats()["tokens"] == 0
