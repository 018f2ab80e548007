"""A server that is killed comes back with what it said it had saved, and gives the answers it gave before."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import kvtrie as kv
from circles import SOAK
from disk_worker import names_in
from kvtrie.cli import main
from processes import PATIENCE, wait_for
from serving import TINY, Process, serve

ROUNDS = 50 if SOAK else 2


def question(number: int) -> dict[str, Any]:
    words = " ".join(f"word{number + at}" for at in range(30))
    return {"messages": [{"role": "user", "content": words}], "max_tokens": 6, "temperature": 0}


@pytest.mark.ci
def test_killed_again_and_again(tmp_path: Path) -> None:
    model = kv.models.load(TINY)
    said = ""
    for number in range(ROUNDS):
        server = Process("--disk", str(tmp_path / "state"), "--context", "1024")
        if number > 0:
            before = server.post("/v1/chat/completions", question(number - 1))
            usage = before["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
            assert before["choices"][0]["message"]["content"] == said
        answer = server.post("/v1/chat/completions", question(number))
        said = answer["choices"][0]["message"]["content"]
        with kv.PrefixCache(model.caches(capacity=512)) as fresh:  # as an uncached run has it
            assert model.chat(question(number)["messages"], max_tokens=6, cache=fresh).text == said
        assert server.post("/flush") == {"saved": True}
        server.post("/v1/chat/completions", question(1000 + number))  # what is being written when it is killed
        assert server.end(signal.SIGKILL) == -signal.SIGKILL


class Client(threading.Thread):
    """Asks one question after the other until the server is gone. ``answers``: by question; ``wrong``: other ends."""

    def __init__(self, server: Process, first: int) -> None:
        super().__init__()
        self._server, self._first = server, first
        self.answers: dict[int, str] = {}
        self.wrong: list[BaseException] = []

    def run(self) -> None:
        try:
            for number in range(self._first, self._first + 10_000):
                answer = self._server.post("/v1/chat/completions", question(number))
                self.answers[number] = answer["choices"][0]["message"]["content"]
        except httpx.TransportError:  # it was killed
            pass
        except BaseException as error:
            self.wrong.append(error)


def _kill_under_load(server: Process, first: int, dice: random.Random) -> dict[int, str]:
    """Answers that were there when the server was told to save."""
    clients = [Client(server, first + 10_000 * number) for number in range(4)]
    for client in clients:
        client.start()
    time.sleep(dice.uniform(0.3, 1.5))
    wait_for(lambda: any(client.answers or not client.is_alive() for client in clients))
    saved = {number: said for client in clients for number, said in dict(client.answers).items()}
    assert server.post("/flush") == {"saved": True}
    time.sleep(dice.uniform(0.0, 0.3))
    assert server.end(signal.SIGKILL) == -signal.SIGKILL
    for client in clients:
        client.join()
        assert client.wrong == []
    return saved


@pytest.mark.ci
def test_killed_under_load(tmp_path: Path) -> None:
    """What was there when it was told to save is found afterwards, and answered as an uncached run answers it."""
    seed = int(os.environ.get("KVTRIE_SEED", time.time_ns() % 10**6 if SOAK else 1))
    print(f"KVTRIE_SEED={seed}")
    dice, model = random.Random(seed), kv.models.load(TINY)
    saved: dict[int, str] = {}
    for round_number in range(ROUNDS):
        server = Process("--disk", str(tmp_path / "state"), "--context", "1024", "--disk-bytes", "1GiB")
        for number in dice.sample(sorted(saved), min(4, len(saved))):
            again = server.post("/v1/chat/completions", question(number))
            usage = again["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
            assert again["choices"][0]["message"]["content"] == saved[number]
            with kv.PrefixCache(model.caches(capacity=512)) as fresh:
                assert model.chat(question(number)["messages"], max_tokens=6, cache=fresh).text == saved[number]
        saved |= _kill_under_load(server, 10**6 * (round_number + 1), dice)
    assert saved


def known(server: Process, body: dict[str, Any]) -> int:
    cached = server.post("/v1/chat/completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert isinstance(cached, int)
    return cached


def files_in(folder: Path) -> int:
    """Complete ones."""
    return len([name for name in names_in(folder) if not name.startswith("tmp-")])


@pytest.mark.ci
def test_killed_it_knows_what_was_asked_for_twice(tmp_path: Path) -> None:
    """Nothing was flushed: a conversation is known up to its last turn but one, and what was asked for once is not."""
    folder = tmp_path / "state"
    server = Process("--disk", str(folder), "--context", "1024")
    once, first = question(1), question(100)
    server.post("/v1/chat/completions", once)
    answer = server.post("/v1/chat/completions", first)
    length = answer["usage"]["prompt_tokens"]
    assert files_in(folder) <= 1  # what both begin with
    said = answer["choices"][0]["message"]
    more = [*first["messages"], said, {"role": "user", "content": "And what else is there?"}]
    second = {**first, "messages": more}
    begun = known(server, second)
    assert begun >= length
    wait_for(lambda: files_in(folder) >= 2)
    server.end(signal.SIGKILL)
    again = Process("--disk", str(folder), "--context", "1024")
    assert known(again, second) == begun
    assert known(again, once) < length // 2
    again.end(signal.SIGTERM)


@pytest.mark.ci
def test_it_may_write_what_is_asked_for_once(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    server = Process("--disk", str(folder), "--context", "1024", "--disk-after", "1")
    server.post("/v1/chat/completions", question(1))
    wait_for(lambda: files_in(folder) >= 1)
    server.end(signal.SIGKILL)
    again = Process("--disk", str(folder), "--context", "1024")
    assert known(again, question(1)) > 20
    again.end(signal.SIGTERM)


def test_ended_as_it_should_be(tmp_path: Path) -> None:
    programs = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")  # what is compiled stays where it was
    kept = {
        "KVTRIE_CACHE_DIR": os.environ.get("KVTRIE_CACHE_DIR") or str(programs / "kvtrie"),
        "POCL_CACHE_DIR": os.environ.get("POCL_CACHE_DIR") or str(programs / "pocl"),
        "XDG_CACHE_HOME": str(tmp_path),
    }
    Path(kept["POCL_CACHE_DIR"]).mkdir(parents=True, exist_ok=True)
    server = Process("--context", "1024", **kept)
    server.post("/v1/chat/completions", question(1))
    assert server.end(signal.SIGINT) in (0, 130, -signal.SIGINT)
    again = Process("--context", "1024", **kept)
    folder = tmp_path / "kvtrie" / "serve"
    assert any(re.match(r"[1-9]\d* tokens are known from before", line) for line in again.said)
    assert any(str(folder) in line for line in again.said)
    assert all(path.stat().st_mode & 0o77 == 0 for path in folder.rglob("*"))
    usage = again.post("/v1/chat/completions", question(1))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
    second = serve("--context", "1024", **kept)
    assert second.returncode == 1
    assert "--disk none" in second.stderr
    again.end(signal.SIGTERM)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "allowed 127.0.0.1"),
        (["--context", "5"], "--context: got 5"),
        (["--keys", "/nothing/here"], "--keys: cannot be read"),
        (["--drop-lines", "("], "--drop-lines"),
        (["--disk-bytes", "much"], "disk_bytes"),
        (["--disk-after", "0"], "disk_after: got 0"),
        (["--store", "redis://127.0.0.1:1", "--store-deadline", "0"], "store_deadline: got 0"),
    ],
)
def test_wrong_arguments(arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "tiny", "--port", "0", "--disk", str(tmp_path / "d"), *arguments]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.ci
def test_keys_come_from_a_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"secret": "team"}))
    server = Process("--disk", "none", "--keys", str(keys))

    def status(path: str, **headers: str) -> int:
        return httpx.get(server.url + path, headers=headers, timeout=PATIENCE).status_code

    assert status("/v1/models") == 401
    assert status("/v1/models", authorization="Bearer secret") == 200
    assert status("/metrics") == 403
    assert "secret" not in "".join(server.said)
    server.end(signal.SIGTERM)
