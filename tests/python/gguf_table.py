"""The table of docs/gguf.md: each key of a GGUF file and what becomes of it, made of the lists that loading uses.

./dev run python tests/python/gguf_table.py      writes it into the page; test_gguf_settings.py says when it is due
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from kvtrie.models.gguf import ARCHITECTURES
from kvtrie.models.gguf_settings import GENERAL, OFF, TOKENIZERS, architecture_settings
from kvtrie.models.settings import Setting

PAGE = Path(__file__).parents[2] / "docs" / "gguf.md"
BEGIN = "<!-- The table is made by tests/python/gguf_table.py. -->\n"
END = "<!-- The table ends. -->\n"
_FATES = ("read", "neutral", "refused")


def table() -> str:
    """Markdown, one line for keys that fare alike in the same architectures, or with the same kind of vocabulary."""
    lines = ["| key | in | taken | what it says, or why it does not matter |", "|---|---|---|---|"]
    for places, settings in _parts():
        rows: dict[tuple[Setting, tuple[str, ...]], list[str]] = defaultdict(list)
        for key, each in settings.items():
            for setting, where in each.items():
                rows[_alike(setting), tuple(where)].append(key)
        for (setting, where), keys in sorted(rows.items(), key=lambda row: (_FATES.index(row[0][0].fate), row[1])):
            named = ", ".join(f"`{key}`" for key in keys)
            lines.append(f"| {named} | {_place(where, places)} | {_fate(setting)} | {_cell(setting.why)} |")
    return "\n".join(lines) + "\n"


_Part = dict[str, dict[Setting, list[str]]]  # by key, what becomes of it, and where


def _parts() -> Iterator[tuple[tuple[str, ...], _Part]]:
    """Keys of any file, of vocabularies by their kind, and of architectures."""
    yield ("",), {key: {setting: [""]} for key, setting in GENERAL.items()}
    for lists in (
        TOKENIZERS,
        {name: architecture_settings(form) for name, (_, form) in ARCHITECTURES.items()},
    ):
        part: _Part = defaultdict(lambda: defaultdict(list))
        for place, settings in lists.items():
            for key, setting in settings.items():
                part[key][setting].append(place)
        yield tuple(lists), part


def _alike(setting: Setting) -> Setting:
    """Features that must be off, and keys of other files, are one line; errors say of each what it would be."""
    if setting.fate == "refused":
        return setting._replace(why="of other files, or of what is not computed here")
    if setting.values == OFF:
        return setting._replace(why="what anything else would mean is not computed here; the error says what it is")
    return setting


def _place(where: tuple[str, ...], places: tuple[str, ...]) -> str:
    if where == places:
        return "all" if len(places) > 1 else ""
    return ", ".join(where) if len(where) <= len(places) // 2 else f"all but {', '.join(sorted({*places} - {*where}))}"


def _fate(setting: Setting) -> str:
    if setting.fate != "neutral":
        return setting.fate
    if setting.values is None:
        return "any"
    return " or ".join(dict.fromkeys(_value(each) for each in setting.values))


def _value(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page() -> str:
    """The whole page, with the table as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
