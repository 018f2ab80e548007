"""Programs of the tests that run in a terminal, driven by pexpect."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from typing import Any

from processes import PATIENCE, PYTHON_PATH


class Log:
    """All that was written."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


class TerminalProgram:
    """A command with a terminal of its own. ``child`` is what pexpect reads and writes, ``log`` what was read.

    ``pexpect.spawn`` runs Python between fork and exec, which may wait for ever in a process that has threads, as this
    one has them from its devices. ``subprocess`` does not.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], columns: int = 80) -> None:
        from pexpect.fdpexpect import fdspawn

        here, there = pty.openpty()
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        self.process = subprocess.Popen(
            command, stdin=there, stdout=there, stderr=there, start_new_session=True, env={
                **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")},
                "PYTHONPATH": os.pathsep.join(PYTHON_PATH),
                "PYTHONIOENCODING": "utf-8",
                **environment,
            },
        )  # fmt: skip
        os.close(there)
        self.log = Log()
        self.child: Any = fdspawn(here, timeout=PATIENCE, encoding="utf-8")
        self.child.logfile_read = self.log

    def end(self) -> int:
        """Its exit status, once it has closed the terminal."""
        import pexpect

        self.child.expect(pexpect.EOF)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """Whatever it does now."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)
        self.child.close()
