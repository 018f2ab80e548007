"""Trace files as lines: read one by one, limited in size, every fault named by file, line and field.

A field is checked by ``whole``, ``number`` or ``text``; each raises ``FormatError`` with
``[trace] FILE line N, FIELD: got V, allowed A``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, NoReturn, Union

from .._paths import path_text
from ..errors import ArgumentError, FormatError

PathLike = Union[str, "os.PathLike[str]"]

MOST_BYTES = 64 << 20  # in one line
LARGEST = (1 << 31) - 1  # symbol, and count of them
MOST_TOKENS = 1 << 24  # in one prompt of a trace whose symbols are tokens


@contextmanager
def opened(path: PathLike, mode: Literal["rb", "wb"], where: str) -> Iterator[BinaryIO]:
    """The file, open; ``ArgumentError`` where the system says no."""
    name = path_text(path, where, "trace")
    try:
        file = open(name, mode)  # noqa: SIM115  (closed below)
    except OSError as error:
        raise ArgumentError(f"[{where}] trace: got {name!r}, allowed a file that opens: {error.strerror}") from error
    with file:
        yield file


class Line:
    """One line of a trace as a JSON object, which knows where it came from."""

    __slots__ = ("fields", "number", "path")

    def __init__(self, path: str, number: int, fields: dict[str, Any]) -> None:
        self.path = path
        self.number = number
        self.fields = fields

    def fail(self, field: str, got: Any, allowed: str) -> NoReturn:
        raise FormatError(f"[trace] {self.path} line {self.number}, {field}: got {shorten(got)}, allowed {allowed}")

    def value(self, field: str) -> Any:
        if field not in self.fields:
            raise FormatError(f"[trace] {self.path} line {self.number}, {field}: missing")
        return self.fields[field]

    def whole(self, field: str, value: Any, least: int = 0, most: int = LARGEST) -> int:
        """``value`` as an int in ``least`` .. ``most``."""
        if type(value) is not int or not least <= value <= most:
            self.fail(field, value, f"a whole number, {least} to {most}")
        return value

    def number_at_least(self, field: str, value: Any, least: float) -> float:
        """``value`` as a finite float, not below ``least``."""
        ok = type(value) in (int, float) and abs(value) < 1e15 and math.isfinite(value)
        if not ok or value < least:
            self.fail(field, value, f"a number, {least:g} or more, in the order of the lines")
        return float(value)

    def text(self, field: str, value: Any) -> str:
        """``value`` as a str of 1 to 256 characters."""
        if not isinstance(value, str) or not 1 <= len(value) <= 256:
            self.fail(field, value, "a text of 1 to 256 characters")
        return value

    def known(self, allowed: Mapping[str, Any] | set[str]) -> None:
        """Refuses fields that mean nothing: a misspelt one would be passed over in silence."""
        for field in self.fields:
            if field not in allowed:
                where = f"{self.path} line {self.number}, {shorten(field)}"
                raise FormatError(f"[trace] {where}: unknown, allowed {', '.join(sorted(allowed))}")


def shorten(value: Any) -> str:
    """The value's repr, cut to what fits a message."""
    kept = value[:200] if isinstance(value, (str, list)) else value
    try:
        found = repr(kept)
    except (ValueError, RecursionError):  # an int of too many digits; lists in lists in lists
        return type(value).__name__
    return found if len(found) <= 60 else found[:57] + "..."


def lines_of(path: PathLike) -> Iterator[Line]:
    """Every line that is not blank; one at a time, so that a trace need not fit into memory."""
    name = Path(path_text(path, "trace", "trace")).name
    with opened(path, "rb", "trace") as file:
        number = 0
        while True:
            number += 1
            raw = file.readline(MOST_BYTES + 1)
            if not raw:
                return
            if len(raw) > MOST_BYTES:
                raise FormatError(f"[trace] {name} line {number}: got more than {MOST_BYTES} bytes in one line")
            if raw.strip():
                yield Line(name, number, _object(raw, name, number))


def count_lines(path: PathLike) -> int:
    """Lines that are not blank."""
    with opened(path, "rb", "trace") as file:
        return sum(1 for line in iter(lambda: file.readline(MOST_BYTES + 1), b"") if line.strip())


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _object(raw: bytes, name: str, number: int) -> dict[str, Any]:
    try:
        found = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"[trace] {name} line {number}: no JSON: {error}") from error
    if not isinstance(found, dict):
        raise FormatError(f"[trace] {name} line {number}: got {shorten(found)}, allowed an object {{...}}")
    return found
