"""Traces in files of either format: Mooncake's (traces.py) and our own (token_trace.py)."""

from __future__ import annotations

from .._arguments import flag
from ..errors import FormatError
from .lines import PathLike, lines_of
from .token_trace import read_tokens
from .traces import Trace, read_mooncake


def read(path: PathLike, block: int = 512, expand: bool = False) -> Trace:
    """The trace in a file of either format; the first line tells which."""
    flag(expand, "read", "expand")
    for line in lines_of(path):
        if "hash_ids" in line.fields:
            return read_mooncake(path, block, expand)
        if "ops" in line.fields:
            return read_tokens(path)
        raise FormatError(
            f"[trace] {line.path} line {line.number}: got neither hash_ids (Mooncake) nor ops (token-level), "
            f"allowed one of them"
        )
    raise FormatError(f"[trace] {path}: got no line, allowed at least 1")
