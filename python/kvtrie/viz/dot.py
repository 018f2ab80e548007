"""The tree in DOT, for Graphviz: `dot -Tsvg`. Boxes are nodes, coloured by tier; line width grows with sharing."""

from __future__ import annotations

from .outline import Decode, Row, TreeSource, collect
from .palette import ink_for, tier_colour
from .words import clip, format_age, format_bytes


def tree_dot(cache: TreeSource, decode: Decode | None = None, *, max_nodes: int = 200) -> str:
    """The tree of `cache` as a DOT digraph. `decode` and `max_nodes` as in `tree_text`."""
    outline = collect(cache, decode, max_nodes)
    lines = [
        "digraph kvtrie {",
        "  rankdir=LR;",
        '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=10, color="#00000000"];',
        '  edge [color="#8a93a0", arrowhead=none];',
    ]
    for number, section in enumerate(outline.sections):
        root = f"n{number}"
        lines.append(f'  {root} [label={_quote(section.name)}, shape=plaintext, style="", fontsize=12];')
        for index, row in enumerate(section.rows):
            parent = root if row.parent < 0 else f"{root}_{row.parent}"
            lines.append(f"  {root}_{index} [{_attributes(row)}];")
            lines.append(f"  {parent} -> {root}_{index} [penwidth={min(1 + 0.5 * (row.shared_by - 1), 6):g}];")
    lines.append("}")
    return "\n".join(lines) + "\n"


def _attributes(row: Row) -> str:
    label = [f"{row.folded} more nodes" if row.folded else f"[{row.start}, {row.end})"]
    label.append(f"{row.token_count} tok, {format_bytes(row.nbytes)}, {row.tier}, {format_age(row.age)}")
    marks = [word for word, on in (("pinned", row.pinned), ("user point", row.user)) if on]
    if row.live:
        marks.append(f"{row.live} live")
    if marks:
        label.append(", ".join(marks))
    if row.snippet:
        label.append(clip(row.snippet, 32))
    style = "rounded,dashed" if row.folded else "rounded,filled"
    border = ', color="#d6453d", penwidth=2' if row.live else ', color="#8a93a0"' if row.folded else ""
    colour = tier_colour(row.tier)
    ink = "#1f2733" if row.folded else ink_for(colour)
    return f'label={_quote(*label)}, style="{style}", fillcolor="{colour}", fontcolor="{ink}"{border}'


def _quote(*lines: str) -> str:
    """A DOT string with one line for each argument; a backslash or a quote in the text stays text."""
    escaped = [line.replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "\\n".join(escaped) + '"'
