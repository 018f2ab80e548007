"""Replicas from a command line or a file, as docs/scale.md has it: what Ray makes of options, and a whole run."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import kvtrie as kv
from processes import PATIENCE, started_python, wait_for
from ray_cluster import ENVIRONMENT
from redis_server import held_port

pytest.importorskip("ray")
from kvtrie.ray.scale import app

COMMAND = ("-c", "from ray.serve.scripts import cli; cli()")


def built(options: dict[str, Any]) -> Any:
    """As Ray builds it for `serve run kvtrie.scale:app NAME=VALUE ...` and for `args:` of a file."""
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as build

    return build(app, options)


def test_options_come_as_texts_from_a_command_line() -> None:
    assert built({"model": "tiny", "replicas": "2", "threads": "1", "store_deadline": "0.5"}) is not None
    with pytest.raises(kv.errors.ArgumentError, match="replcas"):
        built({"replcas": "2"})
    with pytest.raises(ValueError, match="replicas"):
        built({"replicas": "0"})


@pytest.fixture
def folder() -> Iterator[Path]:
    """Of a Ray of its own. Short: the paths of its sockets have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as path:
        yield Path(path)


def answer_of(url: str) -> Any:
    body = {"messages": [{"role": "user", "content": "What is a trie?"}], "max_tokens": 4, "temperature": 0}
    return httpx.post(url + "/v1/chat/completions", json=body, timeout=PATIENCE)


@pytest.mark.soak
def test_a_file_is_served_and_ctrl_c_ends_it(folder: Path) -> None:
    port, holder = held_port()
    file = folder / "config.yaml"  # JSON is YAML
    args = {"model": "tiny", "replicas": 2, "cpus": 0, "threads": 1, "context": 512, "disk": "none"}
    applications = [{"name": "chat", "import_path": "kvtrie.scale:app", "args": args}]
    file.write_text(json.dumps({"http_options": {"host": "127.0.0.1", "port": port}, "applications": applications}))
    environment = {**ENVIRONMENT, "RAY_TMPDIR": str(folder), "RAY_ADDRESS": "local"}
    with (
        holder,
        (folder / "said").open("w+") as said,
        started_python(*COMMAND, "run", file, environment=environment, stdout=said, stderr=said) as process,
    ):
        late = threading.Timer(PATIENCE, process.kill)
        late.start()
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(lambda: process.poll() is not None or is_there(url))
            assert process.poll() is None, (folder / "said").read_text()
            answer = answer_of(url)
            assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 4
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)
        finally:
            late.cancel()
    wait_for(lambda: not processes_of(folder))


def is_there(url: str) -> bool:
    try:
        return answer_of(url).status_code == 200
    except httpx.TransportError:
        return False


def processes_of(folder: Path) -> list[str]:
    """Command lines of the processes that name it."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended
        if str(folder) in text and each.parent.name != str(os.getpid()):
            found.append(text)
    return found
