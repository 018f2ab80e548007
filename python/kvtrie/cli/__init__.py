"""The command line, ``python -m kvtrie COMMAND``; ``COMMANDS`` below lists them.

Exit codes: 0 all well, 1 something failed or is missing, 2 wrong arguments, 130 Ctrl-C. A command is a module beside
this one with ``add_arguments(parser)`` and ``run(arguments, out) -> int``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

import kvtrie as kv

from . import bench, chat, check, devices, doctor, download, inspect, quality, serve, simulate

INTERRUPTED = 130
COMMANDS = {
    "devices": devices,
    "doctor": doctor,
    "download": download,
    "check": check,
    "chat": chat,
    "serve": serve,
    "bench": bench,
    "quality": quality,
    "simulate": simulate,
    "inspect": inspect,
}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kvtrie", description="A KV-cache engine over OpenCL.")
    parser.add_argument("--version", action="version", version=f"kvtrie {kv.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        summary = (module.__doc__ or "").splitlines()[0]
        module.add_arguments(commands.add_parser(name, help=summary, description=summary))
    return parser


def main(argv: Sequence[str] | None = None, out: TextIO | None = None) -> int:
    """Runs one command; ``argv`` without the program's name, text to ``out`` (standard output by default)."""
    arguments = build_parser().parse_args(argv)
    run: Callable[[argparse.Namespace, TextIO], int] = COMMANDS[arguments.command].run
    try:
        return run(arguments, out or sys.stdout)
    except (kv.Error, ValueError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 0
    except OSError as error:  # a folder or a file that is not to be had
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
