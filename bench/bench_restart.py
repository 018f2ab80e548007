"""How long does a prompt of 4,000 tokens wait for its first token after the server was restarted?

SmolLM2-135M-Instruct as its file has it, over HTTP, greedy. For each side and round, with another text:

    cold         nobody has seen the prompt
    known        asked again, by the same server
    restarted    asked again, by a new process. Ours was killed (SIGKILL) after ``/flush`` and finds its state itself;
                 llama.cpp's is told to save its slot to a file before, and to restore it behind the restart, as a
                 user's script does; what that takes is told apart

Seconds from sending the request to its first token. Starting a process and loading the model is not in them.
"""

from __future__ import annotations

import http.client
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import kvtrie as kv
import smollm2
from peers import llama_server
from report import Report, arguments
from serve_process import Server
from timing import human, summarise

TOKENS, PROMPT = 8192, 4000


def post(port: int, path: str, body: Any = None) -> tuple[float, Any]:
    """Seconds to the first token, or to the end of an answer that is no stream, and that answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    began = time.perf_counter()
    connection.request("POST", path, json.dumps(body or {}), {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"[bench_restart] {path}: got {response.status} {response.read()[:200]!r}, allowed 200")
    content = response.read()
    seconds = time.perf_counter() - began
    connection.close()
    return seconds, json.loads(content)


def ask(port: int, prompt: list[int]) -> float:
    """One token; that is the first."""
    return post(port, "/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0, "id_slot": 0})[0]


def ours(file: Path, prompt: list[int], folder: str) -> dict[str, float]:
    options = ("--disk", folder, "--capacity", str(TOKENS))
    server = Server(file, *options)
    cold, known = ask(server.port, prompt), ask(server.port, prompt)
    post(server.port, "/flush")
    server.kill()
    server = Server(file, *options)
    restarted = ask(server.port, prompt)
    server.close()
    return {"cold": cold, "known": known, "restarted": restarted}


def theirs(file: Path, prompt: list[int], folder: str) -> dict[str, float]:
    options = ["-np", "1", "--slot-save-path", folder]
    with llama_server.Server(file, options, tokens=TOKENS, host_mib=0) as server:
        cold, known = ask(server.port, prompt), ask(server.port, prompt)
        saving, _ = post(server.port, "/slots/0?action=save", {"filename": "slot.bin"})
    with llama_server.Server(file, options, tokens=TOKENS, host_mib=0) as server:
        restoring, _ = post(server.port, "/slots/0?action=restore", {"filename": "slot.bin"})
        restarted = ask(server.port, prompt)
    return {"cold": cold, "known": known, "restarted": restarted, "saving": saving, "restoring": restoring}


def main() -> None:
    """Print one row for each side, and how much of the cold prompt's time is left after a restart."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    report = Report("a prompt of 4,000 tokens after a restart: seconds to the first token", options.json)
    report.device(kv.Device())
    file = smollm2.path()
    text = [int(token) for token in kv.models.load(str(file)).tokenizer.encode(smollm2.text())]
    sides = {"kvtrie serve": ours, **({"llama.cpp": theirs} if llama_server.installed() else {})}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for at in range(options.rounds):
        prompt = text[700 * at : 700 * at + PROMPT]
        for name in list(sides)[:: 1 if at % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(sides[name](file, prompt, folder))
    for name, rounds in found.items():
        parts = {part: summarise([each[part] for each in rounds]) for part in rounds[0]}
        share = statistics.median(each["cold"] / (each["restarted"] + each.get("restoring", 0.0)) for each in rounds)
        text_of = ", ".join(f"{part} {human(spread.median)}" for part, spread in parts.items())
        report.row(f"{name:<13} {text_of}; {share:.1f} times as fast as cold", side=name, gain=share, **parts)
    report.close()


if __name__ == "__main__":
    main()
