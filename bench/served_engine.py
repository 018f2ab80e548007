"""Our side of the day of chats over HTTP: ``python -m kvtrie serve``, asked for token ids as anybody would ask it.

    engine = Engine(file, tokens=16384, host_mib=512)    # starts the server; the file: a GGUF file
    answer = engine.complete(prompt, 32)                 # prompt: token ids; greedy, exactly 32 tokens
    engine.held_mib()                                    # by tier

Times are the client's, as in peers/llama_server.py: from sending the request to the event that has the first token, and
to the end of the stream. Each request has a connection of its own, as llama.cpp's server wants it. There is no disk
tier; whatever else the server leaves open is its default, such as its chunk of 128 rows and 64 recurrent states.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kvtrie as kv
import token_stream
from serve_process import Server

_HOST = "127.0.0.1"


class Engine:
    """One server process. ``tokens``: cells of its device pool; ``host_mib``: the host tier's limit."""

    def __init__(self, file: Path, *, tokens: int, host_mib: int) -> None:
        self._device_mib = _pool_mib(file, tokens)
        self._host_mib = 0.0
        options = ["--capacity", str(tokens), "--host-bytes", f"{host_mib}MiB", "--disk", "none"]
        self._server = Server(file, *options)
        self.process = self._server.process
        self._connection = http.client.HTTPConnection(_HOST, self._server.port, timeout=120)

    def complete(self, prompt: Sequence[int], count: int) -> dict[str, Any]:
        """``count`` greedy tokens after ``prompt``: ``first`` and ``total`` in seconds, ``reused``, ``tokens``."""
        request = {
            "prompt": list(map(int, prompt)),
            "max_tokens": count,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        start = time.perf_counter()
        stream = token_stream.read(self._send("POST", "/v1/completions", request), token_stream.of_choices, count)
        total = time.perf_counter() - start
        self._watch()
        reused = int(stream.last["usage"]["prompt_tokens_details"]["cached_tokens"])
        return {"first": stream.times[0] - start, "total": total, "reused": reused, "tokens": stream.tokens}

    def held_mib(self) -> dict[str, float]:
        """``device``: MiB of the pools; ``host``: the most that the host tier had behind any answer."""
        return {"device": self._device_mib, "host": self._host_mib}

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._server.close()

    def _watch(self) -> None:
        """What the host tier has now; the server says nothing of what it had before."""
        text = self._send("GET", "/metrics").read().decode()
        found = re.search(r"^kvtrie_cache_host_bytes (\S+)$", text, re.MULTILINE)
        if found is None:
            raise RuntimeError("[served_engine] /metrics: got no kvtrie_cache_host_bytes, allowed with one")
        self._host_mib = max(self._host_mib, float(found[1]) / 2**20)

    def _send(self, method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
        self._connection.close()
        content = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, content, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"[served_engine] {path}: got {response.status} {response.read()!r}, allowed 200")
        return response


def _pool_mib(file: Path, tokens: int) -> float:
    """What the server's caches take, from the same ones on the device that holds nothing."""
    caches = kv.models.load(file).caches(tokens, device="null", warm_up=False)
    return sum(cache.nbytes for cache in caches) / 2**20
