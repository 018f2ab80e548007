"""An engine in a process of its own, asked by lines of JSON: what keeps the sides of a bench out of each other's way.

class Engine(Piped): ...                 # the process, seen from the bench: it begins with a line that says it is ready
answer_all(lambda question: {...})       # in that process, until its input ends
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Piped:
    """The process. ``start``: what it said when it was ready."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._name = command[1]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.start = self._receive()

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self._receive()

    def close(self) -> None:
        """End the process."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(30)

    def _receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"[bench] {self._name} ended with code {self.process.wait()}")
        return dict(json.loads(line))


def answer_all(answer: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Each line of the input by a line of the output."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
