"""Children of the tests: Python programs and C++ workers, and how long anybody is waited for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

import kvtrie as kv

ROOT = Path(__file__).resolve().parents[2]
DISK_WORKER = Path(os.environ.get("KVTRIE_DISK_WORKER", ROOT / "build/release/tests/cpp/disk_worker"))

# Seconds after which a child, a thread or a server is taken to hang. No test is about how fast anything is, so this is
# far beyond what the slowest machine needs while it is busy with something else.
PATIENCE = 600.0

# A proxy of whoever runs the tests has nothing to do with servers on this machine, which clients would ask it for.
for _name in ("http_proxy", "https_proxy", "all_proxy"):
    os.environ.pop(_name, None)
    os.environ.pop(_name.upper(), None)

PYTHON_PATH = [str(Path(kv.__file__).parents[1]), str(Path(__file__).parent)]  # the package, and the tests' own modules


def run_command(*command: Any, environment: Optional[Mapping[str, Optional[str]]] = None, **options: Any) -> Any:
    """A command to its end, a ``CompletedProcess`` with its output as text.

    ``environment`` comes on top of ours; None takes a variable away.
    """
    wanted = {**os.environ, "PYTHONPATH": os.pathsep.join(PYTHON_PATH), **(environment or {})}
    given = {name: value for name, value in wanted.items() if value is not None}
    options.setdefault("timeout", PATIENCE)
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, env=given, **options)


def run_python(*arguments: Any, before: Sequence[str] = (), **options: Any) -> Any:
    """``run_command`` with this interpreter: ``run_python("-c", program)``; ``before``: a command that starts it."""
    return run_command(*before, sys.executable, *arguments, **options)


@contextmanager
def started_python(
    *arguments: Any, before: Sequence[str] = (), environment: Optional[Mapping[str, str]] = None, **options: Any
) -> Iterator[Any]:
    """A ``Popen`` of this interpreter with pipes for text, killed at the end if it still runs. ``before``,
    ``environment``: as above."""
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(PYTHON_PATH), **(environment or {})}
    command = [*before, sys.executable, *map(str, arguments)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, env=given, **{**pipes, **options}) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(what: Callable[[], bool]) -> None:
    """Until that is so: for what says nothing when it happens, such as a file that comes."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)
