"""Whether a driver survives our kernels: found out in a child process, before this one trusts it.

Concept. A driver may end the process over a kernel that it cannot translate. So before a device is opened for the first
time with a version of its driver, a child process opens it and runs the operations of a transformer block. It writes
down which kernel it tries (a journal). When the driver ends the child, that kernel is *unusable*: the next child leaves
it out, and so does every process from then on, which means its general form, or an error that names it. A driver that
ends the child outside of any kernel, or over and over, is refused by name.

The verdict is a file in the cache folder, for this driver version and this build of the library. What the child
compiled is cached too, so a first use waits for little but a second interpreter: 2 seconds instead of 1.5 with PoCL.

Ends. A child that was killed (by a user, a shutdown, for memory) says nothing of the driver, nor does one that takes
longer than ten minutes: there is no verdict then, and the device is opened. The child ends with this process' wait,
whatever ends that; Ctrl-C does not reach it.

KVTRIE_PROBE=0 in the environment: no child. There is none either without a cache folder, which would have to keep the
verdict, or where Python cannot be started again.

Threads: any; one child at a time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from . import _child, _kept
from ._locks import make_lock
from .errors import DeviceError

if TYPE_CHECKING:
    import subprocess

PATIENCE = 600.0  # seconds for one child
MOST = 16  # kernels that may be unusable
_NOT_THE_DRIVER = tuple(-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))

_lock = make_lock()


class About(NamedTuple):
    """The device that a verdict is about. ``place``: its index in ``kv.devices()``, which drivers change."""

    place: int
    platform: str
    name: str
    driver: str
    version: str


class Verdict(NamedTuple):
    """``unusable``: kernels as self-tests name them. ``refused``: why the driver is not used at all; "": it is."""

    unusable: tuple[str, ...] = ()
    refused: str = ""


def unusable_kernels(*about: Any) -> list[str]:
    """The kernels that this device's driver does not survive. Called by the C++ bindings before they open it.

    Raises DeviceError for a driver that is refused.
    """
    device = About(*about)
    file = kept_file("driver", *device[1:])
    if file is None or not _child.possible():
        return []
    with _lock:
        verdict = _read(file) or _probed(device, file)
    if verdict.refused:
        raise DeviceError(f"[Device] driver: got {device.driver} of {device.platform}, {verdict.refused}")
    return list(verdict.unusable)


def kept_file(kind: str, *about: Any) -> Optional[Path]:
    """Where a verdict is kept; None where there is no probing."""
    return None if os.environ.get("KVTRIE_PROBE") == "0" else _kept.kept_file(kind, *about)


def _read(file: Path) -> Optional[Verdict]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return Verdict(tuple(map(str, found["unusable"])), str(found["refused"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _probed(device: About, file: Path) -> Verdict:
    """The verdict of as many children as it takes; an empty one, not kept, where they say nothing of the driver."""
    verdict = _verdict(device)
    if verdict is None:
        return Verdict()
    _kept.keep(file, json.dumps(verdict._asdict()))
    return verdict


def _verdict(device: About) -> Optional[Verdict]:
    unusable: list[str] = []
    while True:
        try:
            end = run_child("kvtrie._probe_child", index=device.place, unusable=unusable)
        except OSError:  # no more processes, no room
            return None
        if end.unknown:
            return None
        if end.survived:
            return Verdict(tuple(unusable))
        if not end.kernel or end.kernel in unusable or len(unusable) == MOST:
            return Verdict((), f"which ends the process ({end.how}), allowed one that survives our kernels")
        unusable.append(end.kernel)
        logging.getLogger("kvtrie").warning(
            "[Device] kernel %s is not used on %s: the driver ends the process (%s)", end.kernel, device.name, end.how
        )


class End(NamedTuple):
    """How a child ended. ``kernel``: what it tried just then; "": none. ``how``: the status and the last words."""

    survived: bool
    unknown: bool
    kernel: str
    how: str


def run_child(module: str, environment: Optional[Mapping[str, str]] = None, **told: Any) -> End:
    """Runs ``main()`` of the module in a child, which finds what it is told as JSON in ``sys.argv[2]``; see ``trial``.

    ``environment`` comes on top of ours. Raises OSError where no child can be started.
    """
    import subprocess  # with tempfile as long as opening a device takes, and most processes find a verdict
    import tempfile

    with tempfile.TemporaryDirectory(prefix="kvtrie-") as folder:
        journal, words = Path(folder, "journal"), Path(folder, "words")
        command = _child.command(module, json.dumps({"journal": str(journal), **told}))
        with words.open("wb") as out:
            status = _wait(
                subprocess.Popen(
                    command,
                    env={**os.environ, **(environment or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )
        lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
        last = words.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        how = "; ".join([f"signal {-status}" if status < 0 else f"status {status}", *last])
        unknown = "started" not in lines or status in _NOT_THE_DRIVER
        return End("survived" in lines, unknown, _open_trial(lines), how)


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Its exit status; killed when it takes too long, or when this is interrupted."""
    from subprocess import TimeoutExpired

    try:
        return child.wait(PATIENCE)
    except TimeoutExpired:
        child.kill()
        return child.wait()
    except BaseException:
        child.kill()
        child.wait()
        raise


def _open_trial(lines: list[str]) -> str:
    """The kernel that was begun last and not ended: trials nest, and each of "+kernel" has its "-kernel"."""
    begun: list[str] = []
    for line in lines:
        if line.startswith("+"):
            begun.append(line[1:])
        elif line.startswith("-") and begun:
            begun.pop()
    return begun[-1] if begun else ""


@contextlib.contextmanager
def trial() -> Iterator[dict[str, Any]]:
    """In a child: what it is told, for what may end the process. The end of the block ends it as one that survived."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    told = json.loads(sys.argv[2])
    _write(told["journal"], "started")
    yield told
    _write(told["journal"], "survived")
    os._exit(0)  # what a driver does at its end is not asked


def _write(journal: str, line: str) -> None:
    with open(journal, "a", encoding="utf-8") as out:
        out.write(f"{line}\n")
