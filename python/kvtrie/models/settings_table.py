"""Lists of settings as one Markdown table: a row for all keys that have the same fate in the same lists."""

from __future__ import annotations

from collections.abc import Mapping

from .settings import Fate, Setting, Settings

_ORDER: tuple[Fate, ...] = ("read", "neutral", "refused")


def markdown(lists: Mapping[str, Settings], where: str = "where") -> str:
    """A table of ``lists``, by what each is called; ``where`` heads their column, which one list alone has not.

    Read keys come first, then those that do not matter, then those that are refused; in each in the order of the lists.
    """
    rows: dict[tuple[Setting, tuple[str, ...]], list[str]] = {}
    for key in dict.fromkeys(key for settings in lists.values() for key in settings):
        for setting, names in _fates(key, lists).items():
            rows.setdefault((setting, names), []).append(key)
    ordered = sorted(rows.items(), key=lambda row: _ORDER.index(row[0][0].fate))
    several = len(lists) > 1
    head = ["key", "", *([where] if several else []), "why"]
    lines = [head, ["---"] * len(head)]
    for (setting, names), keys in ordered:
        places = [_places(names, lists)] if several else []
        lines.append([", ".join(f"`{key}`" for key in keys), _fate(setting), *places, setting.why])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fates(key: str, lists: Mapping[str, Settings]) -> dict[Setting, tuple[str, ...]]:
    """By what becomes of the key: in which lists."""
    found: dict[Setting, tuple[str, ...]] = {}
    for name, settings in lists.items():
        if key in settings:
            setting = _hashable(settings[key])
            found[setting] = (*found.get(setting, ()), name)
    return found


def _hashable(setting: Setting) -> Setting:
    return setting._replace(values=None if setting.values is None else tuple(map(repr, setting.values)))


def _fate(setting: Setting) -> str:
    if setting.values is None:
        return setting.fate
    return f"neutral: {', '.join(f'`{value}`' for value in setting.values)}; else refused"


def _places(names: tuple[str, ...], lists: Mapping[str, Settings]) -> str:
    if len(names) == len(lists):
        return "all"
    others = [name for name in lists if name not in names]
    return f"all but {', '.join(others)}" if 2 * len(others) <= len(names) else ", ".join(names)
