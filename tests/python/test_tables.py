"""Tables and widths: columns stand below each other whatever their characters take, nothing is cut or interpreted."""

from __future__ import annotations

import pytest

from kvtrie.viz.table import table_text
from kvtrie.viz.words import clip, text_columns
from processes import run_python

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # three people, joined to one picture


@pytest.mark.parametrize(
    ("text", "columns"),
    [("", 0), ("abc", 3), ("\u6f22\u5b57", 4), ("e\u0301", 1), (FAMILY, 2), ("a\x1bb", 2), ("\u200b", 0)],
)
def test_columns_are_those_of_a_terminal(text: str, columns: int) -> None:
    assert text_columns(text) == columns


def test_clip_keeps_to_columns() -> None:
    for text in ("plain words", "\u6f22\u5b57" * 4, FAMILY * 3):
        for room in range(12):
            cut = clip(text, room)
            assert text_columns(cut) <= room
            assert cut == text if text_columns(text) <= room else cut == "" or cut.endswith("\u2026")


def test_columns_stand_below_each_other() -> None:
    lines = table_text([("\u6f22\u5b57", "7"), ("  [red]", "1,000")], ("name", "count"), right=(1,)).splitlines()
    assert lines == ["name     count", "\u6f22\u5b57         7", "  [red]  1,000"]
    assert len({text_columns(line) for line in lines}) == 1


def test_nothing_is_cut() -> None:
    assert table_text([("x" * 3000, "end")]) == "x" * 3000 + "  end"
    assert table_text([], ("name",)) == ""


def test_importing_kvtrie_imports_neither_rich_nor_wcwidth() -> None:
    program = "import sys, kvtrie, kvtrie.viz, kvtrie.replay; print({'rich', 'wcwidth'} & sys.modules.keys())"
    assert run_python("-c", program).stdout.strip() == "set()"
