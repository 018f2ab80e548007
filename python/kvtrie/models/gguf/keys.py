"""Typed look-ups in a GGUF file's values, whose errors name the file, the key and what is allowed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...errors import FormatError
from .reader import GgufFile, shown

_MOST = 2**31 - 1


class Keys:
    """The values of ``file``. Keys that begin with a dot are those of the architecture: ".block_count"."""

    def __init__(self, file: GgufFile) -> None:
        self.path = file.path
        self._values = file.values
        self.architecture = self.text("general.architecture")

    def has(self, key: str) -> bool:
        return self._full(key) in self._values

    def beginning(self, prefix: str) -> list[str]:
        """The keys that begin so, in the file's order."""
        return [key for key in self._values if key.startswith(prefix)]

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.error(key, value, "a string")
        return value

    def integer(self, key: str, least: int = 1, most: int = _MOST, default: int | None = None) -> int:
        return self._checked(key, self._get(key, default), least, most)

    def per_block(self, key: str, blocks: int, least: int = 1, most: int = _MOST, default: int | None = None) -> int:
        """The same, of which a file may have a list with one for each block, if all are equal."""
        value = self._get(key, default)
        if isinstance(value, np.ndarray) and value.size == blocks and value.dtype.kind in "iu":
            if (value != value[0]).any():
                raise self.error(key, sorted(set(value.tolist())), "the same number for all layers")
            value = int(value[0])
        return self._checked(key, value, least, most)

    def _checked(self, key: str, value: object, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(key, value, f"an integer from {least} to {most}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise self.error(key, value, "a positive finite number")
        return float(value)

    def positive_of(self, key: str, other: str, default: float) -> float:
        """The same of a key that is also written under another name. Both may be there if they agree."""
        found = self.positive(key if self.has(key) else other, default)
        if self.has(other) and self.positive(other) != found:
            raise self.error(other, self.positive(other), f"{found}, as {self._full(key)} says")
        return found

    def number(self, key: str, default: float) -> float:
        """A finite number of any sign."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.error(key, value, "a finite number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, value, "a boolean")
        return value

    def is_list(self, key: str) -> bool:
        return isinstance(self._values.get(self._full(key)), (list, np.ndarray))

    def texts(self, key: str) -> list[str]:
        value = self._get(key, None)
        if not isinstance(value, list):
            raise self.error(key, value, "a list of strings")
        return value

    def numbers(self, key: str, count: int, what: str = "", *, finite: bool = True) -> Any:
        """A list of ``count`` numbers or booleans, as a numpy array; ``what`` they are one for each of. ``finite``:
        allowed are only finite ones."""
        value = self._get(key, None)
        if not isinstance(value, np.ndarray) or value.size != count:
            raise self.error(key, value, f"a list of {count} numbers{what and f', one for each {what}'}")
        if finite and not np.isfinite(value).all():
            raise self.error(key, "a number that is not finite", "finite numbers")
        return value

    def flags(self, key: str, count: int, what: str) -> list[bool]:
        """A list of ``count`` booleans or integers, one for each ``what``: whether they are not 0."""
        value = self.numbers(key, count, what)
        if value.dtype.kind not in "biu":
            raise self.error(key, value, "a list of booleans or integers")
        return [bool(each) for each in value]

    def error(self, key: str, got: Any, allowed: str) -> FormatError:
        return FormatError(f"[models.load] {self.path}: {self._full(key)}: got {shown(got)}, allowed {allowed}")

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(self._full(key), default)
        if value is None:
            raise FormatError(f"[models.load] {self.path}: key {self._full(key)!r} is missing")
        return value

    def _full(self, key: str) -> str:
        return f"{self.architecture}{key}" if key.startswith(".") else key
