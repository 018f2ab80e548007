"""Another Python, with the modules of this one: how helpers and probes of drivers are started."""

from __future__ import annotations

import json
import sys

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from MODULE import main; main()"


def possible() -> bool:
    """Whether this interpreter can be started again: not where it is embedded, or frozen into a program."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def command(module: str, *arguments: str) -> list[str]:
    """The command for ``main()`` of a module; its ``arguments`` are in ``sys.argv[2:]``. REQUIRES: ``possible()``."""
    return [sys.executable, "-I", "-c", _START.replace("MODULE", module), json.dumps(sys.path), *arguments]
