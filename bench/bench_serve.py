"""How long do 1, 4 and 8 clients wait for tokens over HTTP, beside llama.cpp's server?

SmolLM2-135M-Instruct as its file has it, float16 K/V for 16,384 tokens, as many threads as cores, on both sides. Each
client holds a conversation: 600 tokens that all have in common, then turns of 40 new tokens, each answered greedily
with 32, which are a part of the next prompt. Clients are threads of this process; each sends token ids and reads the
stream of token ids: of ``/v1/completions`` from ours, of ``/completion`` from llama.cpp's, whose other route has none.
Sides are asked in turns, round by round, with other texts in each round; a server that is not asked idles.

    first token   seconds from sending a request to its first token; medians over all requests of a number of clients
    per token     seconds between tokens of one client, after the first
    tokens/s      of all clients together, from the first request to the last token
"""

from __future__ import annotations

import http.client
import json
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import kvtrie as kv
import smollm2
import token_stream
from peers import llama_server
from report import Report, arguments
from serve_process import Server
from timing import human, summarise

TOKENS, COMMON, TURN, ANSWER, TURNS = 16384, 600, 40, 32, 4
CLIENTS = (1, 4, 8)
SETTINGS = {
    "llama.cpp as shipped": [],
    "llama.cpp 8 slots": ["-np", "8", "-kvu", "--no-cache-idle-slots"],
}
OURS = "kvtrie serve"
ROUTES = {"/v1/completions": token_stream.of_choices, "/completion": token_stream.of_llama}


@dataclass
class Client(threading.Thread):
    """One conversation. Seconds, one entry for each request; ``reused``: tokens of all prompts that were known."""

    port: int
    path: str
    prompt: list[int]
    turns: list[list[int]]
    first: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        try:
            for turn in self.turns:
                self.prompt += turn
                self.prompt += self._ask()
        except BaseException as error:
            self.error = error

    def _ask(self) -> list[int]:
        body = {
            "prompt": self.prompt, "max_tokens": ANSWER, "n_predict": ANSWER, "temperature": 0, "stream": True,
            "ignore_eos": True, "return_token_ids": True, "return_tokens": True,
        }  # fmt: skip
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)  # llama.cpp's closes it each time
        connection.request("POST", self.path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"[bench_serve] got {response.status}: {response.read()[:200]!r}")
        stream = token_stream.read(response, ROUTES[self.path], ANSWER)
        connection.close()
        self.first.append(stream.times[0] - began)
        self.per_token.append((stream.times[-1] - stream.times[0]) / (ANSWER - 1))
        return stream.tokens


@dataclass
class Side:
    """A server, and what was measured of it for each number of clients."""

    port: int
    path: str
    close: Callable[[], None]
    first: dict[int, list[float]] = field(default_factory=dict)
    per_token: dict[int, list[float]] = field(default_factory=dict)
    speed: dict[int, list[float]] = field(default_factory=dict)

    def play(self, count: int, text: list[int], seed: int) -> None:
        """One round of so many clients."""
        turns = [_turns(text, seed * 100 + each) for each in range(count)]
        clients = [Client(self.port, self.path, text[:COMMON], own) for own in turns]
        began = time.perf_counter()
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        seconds = time.perf_counter() - began
        for client in clients:
            if client.error is not None:
                raise client.error
            self.first.setdefault(count, []).extend(client.first)
            self.per_token.setdefault(count, []).extend(client.per_token)
        self.speed.setdefault(count, []).append(count * TURNS * ANSWER / seconds)


def _turns(text: list[int], seed: int) -> list[list[int]]:
    """Pieces of the text, others for each seed."""
    span = len(text) - COMMON - TURN
    starts = [COMMON + (7919 * seed + 613 * turn) % span for turn in range(TURNS)]
    return [text[at : at + TURN] for at in starts]


def sides(file: Path) -> dict[str, Side]:
    """Every server, started."""
    ours = Server(file, "--disk", "none", "--capacity", str(TOKENS), "--max-sessions", str(max(CLIENTS)))
    found = {OURS: Side(ours.port, "/v1/completions", ours.close)}
    if llama_server.installed():
        for name, options in SETTINGS.items():
            server = llama_server.Server(file, options, tokens=TOKENS, host_mib=512)
            found[name] = Side(server.port, "/completion", server.close)
    return found


def main() -> None:
    """Print one row for each side and number of clients, then the ratios."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    report = Report("clients over HTTP: first token, time per token, tokens per second", options.json)
    report.device(kv.Device())
    file = smollm2.path()
    text = [int(token) for token in kv.models.load(str(file)).tokenizer.encode(smollm2.text())]
    served = sides(file)
    try:
        for name in served:
            served[name].play(max(CLIENTS), text, 999)  # what any first request pays once
            served[name].first, served[name].per_token, served[name].speed = {}, {}, {}
        for seed in range(options.rounds):
            for count in CLIENTS:
                for name in list(served)[seed % len(served) :] + list(served)[: seed % len(served)]:
                    served[name].play(count, text, seed * 10 + count)
        _write(report, served)
    finally:
        for side in served.values():
            side.close()
    report.close()


def _write(report: Report, served: dict[str, Side]) -> None:
    for count in CLIENTS:
        for name, side in served.items():
            first, token = summarise(side.first[count]), summarise(side.per_token[count])
            speed = statistics.median(side.speed[count])
            report.row(
                f"{count} clients  {name:<22} first token {first}, per token {human(token.median)}, "
                f"{speed:.0f} tokens/s (rounds {min(side.speed[count]):.0f} .. {max(side.speed[count]):.0f})",
                clients=count, side=name, first=first, per_token=token, tokens_per_second=speed,
            )  # fmt: skip
        rivals = [name for name in served if name != OURS]
        if rivals:
            _ratios(report, served, count, rivals)


def _ratios(report: Report, served: dict[str, Side], count: int, rivals: list[str]) -> None:
    """To the best of the others in each figure."""
    ours = served[OURS]
    first = min(statistics.median(served[name].first[count]) for name in rivals)
    token = min(statistics.median(served[name].per_token[count]) for name in rivals)
    speed = max(statistics.median(served[name].speed[count]) for name in rivals)
    values = {
        "first_ratio": first / statistics.median(ours.first[count]),
        "per_token_ratio": token / statistics.median(ours.per_token[count]),
        "speed_ratio": statistics.median(ours.speed[count]) / speed,
    }
    report.row(
        f"{count} clients  kvtrie, to the best: first token {values['first_ratio']:.2f} times as fast, per token "
        f"{values['per_token_ratio']:.2f}, tokens/s {values['speed_ratio']:.2f}",
        clients=count,
        **values,
    )


if __name__ == "__main__":
    main()
