"""The tree as text: one line a node, columns aligned.

default                        3 nodes  2900 tok  45.3 MiB
`- [0,1500)    1500 tok  23.4 MiB  device  3 s  shared by 2, pinned
   |- [1500,2200)   700 tok  10.9 MiB  device  3 s  1 live
   `- [1500,2200)   700 tok  10.9 MiB  host   12 s
"""

from __future__ import annotations

from .._arguments import flag, whole
from .outline import Decode, Row, Section, TreeSource, collect
from .words import clip, format_age, format_bytes, plural, text_columns

_UNICODE = {
    "tee": "\u251c\u2500 ",
    "end": "\u2514\u2500 ",
    "bar": "\u2502  ",
    "gap": "   ",
    "open": "\u201c",
    "close": "\u201d",
}
_ASCII = {"tee": "|- ", "end": "`- ", "bar": "|  ", "gap": "   ", "open": '"', "close": '"'}


def tree_text(
    cache: TreeSource,
    decode: Decode | None = None,
    *,
    max_nodes: int = 200,
    ascii_only: bool = False,
    width: int = 100,
) -> str:
    """The tree of `cache`, one line a node: range, tokens, bytes, tier, time since last use, marks, beginning of text.

    `decode` turns token ids into text for the labels (`model.tokenizer.decode`). At most `max_nodes` lines are drawn;
    what is beyond is folded into lines that say how much. `ascii_only` keeps to ASCII. `width` is the number of
    terminal columns that labels are cut to; figures are never cut. An empty cache gives "(empty)".
    """
    flag(ascii_only, "viz", "ascii_only")
    whole(width, "viz", "width", 0)
    outline = collect(cache, decode, max_nodes)
    marks = _ASCII if ascii_only else _UNICODE
    lines: list[str] = []
    for section in outline.sections:
        lines += _section_lines(section, marks, width)
    text = "\n".join(lines) if outline.nodes else "(empty)"
    return text.replace("\u2026", "...").encode("ascii", "replace").decode("ascii") if ascii_only else text


def _section_lines(section: Section, marks: dict[str, str], width: int) -> list[str]:
    heads = [lead + _range(row) for lead, row in zip(_leads(section.rows, marks), section.rows)]
    table = [
        (f"{row.token_count} tok", format_bytes(row.nbytes), row.tier, format_age(row.age)) for row in section.rows
    ]
    head_width = max([text_columns(head) for head in heads] + [0])
    widths = [max([len(cells[column]) for cells in table] + [0]) for column in range(4)]
    lines = [_title(section)]
    for head, cells, row in zip(heads, table, section.rows):
        tokens, nbytes, tier, age = (cells[column] for column in range(4))
        line = (
            f"{head}{' ' * (head_width - text_columns(head))}  {tokens:>{widths[0]}}  {nbytes:>{widths[1]}}  "
            f"{tier:<{widths[2]}}  {age:>{widths[3]}}"
        )
        notes = ", ".join(_notes(row))
        if notes:
            line += f"  ({notes})"
        room = width - text_columns(line) - 4
        if row.snippet and room >= 8:
            line += f"  {marks['open']}{clip(row.snippet, room)}{marks['close']}"
        lines.append(line)
    return lines


def _title(section: Section) -> str:
    title = f"{section.name}: {plural(section.nodes, 'node')}, {section.tokens} tok, {format_bytes(section.nbytes)}"
    return f"{title}, {section.live} live" if section.live else title


def _range(row: Row) -> str:
    return f"({row.folded} more)" if row.folded else f"[{row.start},{row.end})"


def _leads(rows: list[Row], marks: dict[str, str]) -> list[str]:
    """The lines left of each row: its own corner, and for each ancestor a bar if that ancestor has later siblings."""
    before: list[str] = []  # per row: what its children start with
    leads: list[str] = []
    for row in rows:
        indent = before[row.parent] if row.parent >= 0 else ""
        leads.append(indent + (marks["end"] if row.last else marks["tee"]))
        before.append(indent + (marks["gap"] if row.last else marks["bar"]))
    return leads


def _notes(row: Row) -> list[str]:
    notes = []
    if row.shared_by > 1:
        notes.append(f"{row.shared_by} branches")
    if row.pinned:
        notes.append("pinned")
    if row.user:
        notes.append("user point")
    if row.live:
        notes.append(f"{row.live} live")
    return notes
