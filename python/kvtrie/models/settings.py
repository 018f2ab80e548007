"""The treatment of every key of a model's configuration: it is read, does not matter, or is refused by name.

Each family has such a list for its ``config.json`` (``Model.settings``) and for its GGUF files (``GgufForm.settings``).
:func:`settle` holds a file against it before anything is computed, so no setting that changes an answer passes unseen;
what no list names is told once, by name. The tables in docs/settings.md and docs/gguf.md are made of the same lists.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from ..errors import IgnoredWarning, NotSupportedError

_MOST_NAMES = 20  # in one message
Fate = Literal["read", "neutral", "refused"]


class Setting(NamedTuple):
    """The treatment of one key. ``why``: what is done with it, why it does not matter, or what is not computed.

    ``values``: of a neutral key, those that do not matter, None for all; any other is refused.
    """

    fate: Fate
    why: str
    values: tuple[object, ...] | None = None

    def takes(self, value: object) -> bool:
        """Whether a file may say ``value``. None says nothing, as in a configuration of Hugging Face."""
        if value is None or self.fate == "read":
            return True
        if self.fate == "refused":
            return False
        return self.values is None or any(type(value) is type(each) and value == each for each in self.values)


def read(why: str) -> Setting:
    return Setting("read", why)


def neutral(why: str, *values: object) -> Setting:
    """Without ``values`` the key never matters; with them, only they do not."""
    return Setting("neutral", why, values or None)


def refused(why: str) -> Setting:
    """Any value but null."""
    return Setting("refused", why)


Settings = Mapping[str, Setting]  # by key, or by a pattern of keys: "vision_*"


class Settled(NamedTuple):
    """A file's keys by what became of them."""

    read: dict[str, object]
    neutral: dict[str, object]
    unknown: dict[str, object]


Account = dict[str, Settled]  # by file, and by object in it: "config.json", "config.json: rope_parameters"


def setting_of(key: str, settings: Settings) -> Setting | None:
    """The setting of the key itself, else the first of a pattern that it matches."""
    if key in settings:
        return settings[key]
    return next((each for pattern, each in settings.items() if "*" in pattern and fnmatchcase(key, pattern)), None)


def settle(values: Mapping[str, object], settings: Settings, where: str) -> Settled:
    """Raises ``kv.errors.NotSupportedError`` naming the first key whose value is refused; warns once of all that no
    list names.

    ``where`` (a file name, and what the keys stand under) starts the messages.
    """
    found = Settled({}, {}, {})
    for key, value in values.items():
        setting = setting_of(key, settings)
        if setting is None:
            found.unknown[key] = value
        elif not setting.takes(value):
            allowed = "nothing" if not setting.values else ", ".join(map(repr, setting.values))
            raise NotSupportedError(
                f"[models.load] {where}: {key}: got {_shown(value)}, allowed {allowed}: {setting.why}"
            )
        else:
            (found.read if setting.fate == "read" else found.neutral)[key] = value
    if found.unknown:
        names = _names(sorted(found.unknown))
        warnings.warn(f"[models.load] {where}: nothing here knows of {names}", IgnoredWarning, stacklevel=2)
    return found


def _names(keys: list[str]) -> str:
    """For a message: a damaged file may have any number of keys, of any length."""
    shown = ", ".join(key if key.isprintable() and len(key) <= 80 else _shown(key) for key in keys[:_MOST_NAMES])
    return shown if len(keys) <= _MOST_NAMES else f"{shown} and {len(keys) - _MOST_NAMES} more"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
