"""How a server that is told to end tells its clients."""

from __future__ import annotations

import json
import signal
import threading
from typing import Any

import httpx
import pytest

from processes import PATIENCE
from serving import Process

LONG = {"max_tokens": 3900, "stream": True, "temperature": 0, "ignore_eos": True}
PROMPTS = {
    "/v1/completions": {"prompt": "a", **LONG},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], **LONG},
}


class Reader(threading.Thread):
    """Reads a stream to its end. ``begun``: once it has three events."""

    def __init__(self, url: str, path: str) -> None:
        super().__init__()
        self._url, self._path = url, path
        self.lines: list[str] = []
        self.begun = threading.Event()
        self.wrong: list[BaseException] = []

    def run(self) -> None:
        try:
            with httpx.stream("POST", self._url + self._path, json=PROMPTS[self._path], timeout=PATIENCE) as response:
                for line in response.iter_lines():
                    self.lines += [line] if line.startswith("data: ") else []
                    if len(self.lines) == 3:
                        self.begun.set()
        except BaseException as error:
            self.wrong.append(error)
        finally:
            self.begun.set()


@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.ci)])
def test_streams_hear_that_the_server_ends(how: int) -> None:
    """Their last event is an error, the response is whole, and no traceback is logged."""
    server = Process("--disk", "none", "--context", "4096")
    readers = [Reader(server.url, path) for path in PROMPTS]
    for reader in readers:
        reader.start()
    for reader in readers:
        assert reader.begun.wait(PATIENCE)
    code = server.end(how)
    assert code in (0, 130, -how)
    for reader in readers:
        reader.join(PATIENCE)
        assert not reader.is_alive() and reader.wrong == []
        last: Any = json.loads(reader.lines[-1][6:])
        assert "closing" in last["error"]["message"] and last["error"]["type"] == "overloaded_error"
        assert len(reader.lines) < 3900
    assert not [line for line in server.rest if "Traceback" in line or "Cancel" in line]
