"""What the library logs, for children of tests that say so."""

from __future__ import annotations

import logging


class Collected(logging.Handler):
    """Keeps the texts of messages."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def collect(level: int) -> list[str]:
    """The texts of what is logged from now on, at ``level`` and above."""
    logger, collected = logging.getLogger("kvtrie"), Collected(level)
    logger.setLevel(level)
    logger.addHandler(collected)
    return collected.texts
