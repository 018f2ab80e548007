"""llama.cpp's server as a peer: started on a free port of this machine and kept alive.

    with Server(gguf, ["--swa-full"], tokens=16384) as server:
        answer = server.complete(prompt, 32)        # prompt: token ids; greedy, exactly 32 tokens
        answer.first, answer.total                  # seconds from sending to the first and to the last token, by us
        answer.reused, answer.tokens

The first token is taken from the stream, so its time holds what a client waits for: sending and parsing the prompt,
HTTP, choosing a slot, saving and loading states, prefill, sampling. :meth:`Server.overhead` measures what of that any
request pays that computes nothing.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import token_stream
from peers.llama import LIBRARY

PROGRAM = LIBRARY / "llama-server"
_HOST = "127.0.0.1"
_START = 60.0  # seconds until a server must answer


def installed() -> bool:
    """Whether ``./dev peers`` has built the server."""
    return PROGRAM.exists()


@dataclass(frozen=True)
class Answer:
    """Seconds since the request was sent; ``reused``: prompt tokens that were not computed."""

    first: float
    total: float
    reused: int
    tokens: list[int]


class Server:
    """One server process. ``tokens``: cells of its K/V cache over all slots; ``host_mib``: its prompt cache's limit.

    As many threads as the machine has cores, float16 K/V, flash attention where llama.cpp chooses it: its defaults.
    ``cache=False``: each request tells it to use nothing of what it holds.
    """

    def __init__(
        self, gguf: Path, options: Sequence[str] = (), *, tokens: int, host_mib: int, cache: bool = True
    ) -> None:
        self.cache = cache
        port = _free_port()
        fixed = {"-m": gguf, "--host": _HOST, "--port": port, "-c": tokens, "-t": os.cpu_count(), "-cram": host_mib}
        words = [str(word) for pair in fixed.items() for word in pair]
        self._log = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115 (closed with the server)
        self.process = subprocess.Popen(
            [str(PROGRAM), *words, "-lv", "4", "--offline", "--no-webui", *options],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        self.port = port
        self._connection = http.client.HTTPConnection(_HOST, port, timeout=120)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def complete(self, prompt: Sequence[int], count: int) -> Answer:
        """``count`` greedy tokens after ``prompt``; no token ends the answer early."""
        request = {
            "prompt": list(map(int, prompt)),
            "n_predict": count,
            "cache_prompt": self.cache,
            "stream": True,
            "return_tokens": True,
            "ignore_eos": True,
            "samplers": ["top_k"],
            "top_k": 1,
        }
        start = time.perf_counter()
        stream = token_stream.read(self._send("/completion", request), token_stream.of_llama, count)
        total = time.perf_counter() - start
        return Answer(stream.times[0] - start, total, int(stream.last["timings"]["cache_n"]), stream.tokens)

    def overhead(self, prompt: Sequence[int], repeats: int = 20) -> list[float]:
        """Seconds of requests that carry ``prompt`` and compute nothing: ids to text."""
        samples = []
        for _ in range(repeats):
            start = time.perf_counter()
            self._send("/detokenize", {"tokens": list(map(int, prompt))}).read()
            samples.append(time.perf_counter() - start)
        return samples

    def held_mib(self) -> dict[str, float]:
        """What its log says it holds: ``device``: K/V and states of all slots; ``host``: the prompt cache's most."""
        text = self.log()
        device = sum(float(size) for size in re.findall(r"(?:KV|RS) buffer size =\s*([\d.]+) MiB", text))
        host = [float(size) for size in re.findall(r"cache state: \d+ prompts, ([\d.]+) MiB", text)]
        return {"device": device, "host": max(host, default=0.0)}

    def log(self) -> str:
        """Everything it has printed."""
        self._log.seek(0)
        return self._log.read()

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
        """The server closes a connection behind each answer, so each request opens one."""
        self._connection.close()
        self._connection.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"[llama_server] {path}: got {response.status} {response.read()!r}, allowed 200")
        return response

    def _wait(self) -> None:
        """Until the model is loaded."""
        end = time.monotonic() + _START
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._connection.request("GET", "/health")
                response = self._connection.getresponse()
                response.read()
                if response.status == 200:
                    return
            self._connection.close()
            time.sleep(0.05)
        raise RuntimeError(f"[llama_server] does not answer; its log ends: {self.log()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
