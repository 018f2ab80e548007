"""The chat as a program of its own whose answers never end by themselves: arguments are those of ``kvtrie chat``."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios

from kvtrie.cli import main
from kvtrie.models import Model


def take_terminal() -> None:
    """Standard input becomes this session's terminal: Ctrl-C there is a signal here, also for a child of a program that
    ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.getsid(0) == os.getpid() and sys.stdin.isatty():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


if __name__ == "__main__":
    take_terminal()
    Model.end_tokens = ()  # type: ignore[assignment,method-assign]
    sys.exit(main(["chat", *sys.argv[1:]]))
