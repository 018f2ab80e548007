"""``python -m kvtrie serve`` in a process of its own, asked over HTTP as anybody would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import kvtrie as kv


class Server:
    """One server process of a model's file; ``port``: where it listens. ``options``: more of its command line."""

    def __init__(self, model: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "kvtrie", "serve", str(model), "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(kv.__file__).parents[1])},
        )
        said = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said.append(line)
            found = re.search(r"running on http://[\w.]+:(\d+)", line)
            if found:
                self.port = int(found[1])
                break
        else:
            raise RuntimeError(f"[bench] kvtrie serve ended: {''.join(said)}")
        self._reader = subprocess.Popen(["cat"], stdin=self.process.stdout, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        """As by ``kill -9``."""
        self.process.kill()
        self.process.wait()
        self._reader.wait()

    def close(self) -> None:
        """As by Ctrl-C."""
        self.process.terminate()
        self.process.wait()
        self._reader.wait()
