"""Tables for people, as one text without colours: columns are as wide as what stands in them, and never cut."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Sequence

_WIDTH = 10_000  # columns of the paper, so to say: who prints a table decides what to do with long lines


def table_text(rows: Iterable[Sequence[str]], header: Sequence[str] = (), right: Collection[int] = ()) -> str:
    """``rows`` of as many cells each, below ``header`` where there is one; "" for no rows.

    ``right``: columns whose cells stand at their right edge.
    """
    from rich.console import Console  # 40 ms, which only those wait for who look at a table
    from rich.table import Table
    from rich.text import Text

    lines = [[Text(cell) for cell in row] for row in rows]
    if not lines:
        return ""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(header), header_style="")
    for index, name in enumerate(header or [""] * len(lines[0])):
        table.add_column(Text(name), justify="right" if index in right else "left", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    page = Console(file=io.StringIO(), width=_WIDTH, color_system=None, force_terminal=False)
    with page.capture() as captured:
        page.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
