"""Typed look-ups in a parsed configuration, of which nothing is known yet."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from typing import cast

from ..errors import FormatError

Raw = Mapping[str, object]  # a parsed config.json or generation_config.json, of which nothing is known yet
_MOST_LAYERS = 10_000


def changed(raw: Raw, changes: Raw) -> Raw:
    """``raw`` with other values of some keys."""
    return cast(Raw, ChainMap(dict(changes), cast("MutableMapping[str, object]", raw)))


class Reader:
    """Typed look-ups whose errors name the file and the key.

    ``defaults``: by key, what holds where the file has none or null; a call's own default comes after it.
    """

    def __init__(self, raw: Raw, where: str, defaults: Mapping[str, object] = {}) -> None:
        self._raw = raw
        self._where = where
        self._defaults = defaults

    def null(self, key: str) -> bool:
        """Whether the file has the key and says null."""
        return key in self._raw and self._raw[key] is None

    def _get(self, key: str, default: object) -> object:
        value = self._raw.get(key)
        if value is None:
            value = self._defaults.get(key, default)
        if value is None:
            raise FormatError(f"[models.config] {self._where}: {key} is missing")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise FormatError(f"[models.config] {self._where}: {key}: got {value!r}, allowed an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise FormatError(f"[models.config] {self._where}: {key}: got {value!r}, allowed a number")
        try:
            return float(value)
        except OverflowError:
            raise FormatError(
                f"[models.config] {self._where}: {key}: got {value}, allowed a number of 64 bits"
            ) from None

    def within(self, key: str, least: int, most: int, default: int | None = None) -> int:
        value = self.integer(key, default)
        if not least <= value <= most:
            raise FormatError(f"[models.config] {self._where}: {key}: got {value}, allowed {least} to {most}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.number(key, default)
        if not 0 < value < math.inf:
            raise FormatError(f"[models.config] {self._where}: {key}: got {value}, allowed a positive finite number")
        return value

    def layers(self) -> int:
        return self.within("num_hidden_layers", 1, _MOST_LAYERS)

    def integers(self, key: str, least: int, most: int, why: str = "") -> tuple[int, ...] | None:
        """A list of integers from ``least`` to ``most``; None if the key is absent or null. ``why``: what most is."""
        value = self._raw.get(key)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(
            isinstance(item, int) and not isinstance(item, bool) and least <= item <= most for item in value
        ):
            raise FormatError(
                f"[models.config] {self._where}: {key}: got {value!r}, allowed integers from {least} to {most}"
                + (f" ({why})" if why else "")
            )
        return tuple(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise FormatError(f"[models.config] {self._where}: {key}: got {value!r}, allowed true or false")
        return value
