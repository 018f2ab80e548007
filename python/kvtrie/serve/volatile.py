"""Lines that change from request to request and stand before everything else, so that nothing behind them is found.

Taken out by themselves are only those that mean nothing to a model:

    x-anthropic-billing-header: ...    a client's first system line, another one in each request. Without it vllm-mlx
                                       went from 50 s to 3.65 s (github.com/waybarrios/vllm-mlx, issue 277)

Others, a date or a counter, may mean something; whoever knows that they do not names them (``--drop-lines``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import ArgumentError

KNOWN = (r"x-anthropic-billing-header:.*",)


class VolatileLines:
    """Takes out whole lines that match one of the patterns from their beginning to their end."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._patterns = []
        for pattern in (*KNOWN, *patterns):
            try:
                self._patterns.append(re.compile(pattern))
            except re.error as error:
                raise ArgumentError(f"[serve] --drop-lines: got {pattern!r}, allowed a pattern: {error}") from error

    def without(self, text: str) -> str:
        """``text`` without them."""
        lines = re.findall(r"[^\n]*\n|[^\n]+", text)  # splitlines() would also cut at U+2028, \x85 and \x0b
        kept = [line for line in lines if not any(each.fullmatch(line.rstrip("\r\n")) for each in self._patterns)]
        return text if len(kept) == len(lines) else "".join(kept)
