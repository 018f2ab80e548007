"""What a bench prints and leaves behind: rows for people, JSON for programs, a plot for the docs.

A bench answers one question, in one file: ``main`` measures and reports, ``draw(axes, rows)`` makes the plot of what
the JSON file holds, so that a plot can be made again without measuring (``python bench/plot.py NAME.json``).
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from colours import CARD, EDGE, GUIDE, INK, SERIES, SOFT, with_dark_style
from timing import machine

Rows = list[dict[str, Any]]
Draw = Callable[[Any, Rows], None]


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """A parser that knows what every bench takes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, and the plot beside them")
    return parser


class Report:
    """Prints rows as they come; ``close`` writes them as JSON, and the plot beside it, when a file was asked for."""

    def __init__(self, question: str, json_file: Path | None = None) -> None:
        self.question = question
        self.rows: Rows = []
        self._file = json_file
        self._devices: list[str] = []
        print(question)
        print(f"  on {machine()}")

    def device(self, device: Any) -> None:
        """Name the OpenCL device the figures belong to."""
        print(f"  device {device.name} ({device.kind})")
        self._devices.append(device.name)

    def note(self, text: str) -> None:
        """A line for people only."""
        print("  " + text, flush=True)

    def row(self, text: str, **values: Any) -> None:
        """One line for people and the same figures for programs."""
        self.note(text)
        self.rows.append(plain(values))

    def close(self, draw: Draw | None = None) -> None:
        """Write the JSON file and the plot when they were asked for."""
        if self._file is None:
            return
        content = {
            "bench": Path(sys.argv[0]).stem,
            "question": self.question,
            "machine": machine(),
            "devices": self._devices,
            "rows": self.rows,
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(content, indent=1) + "\n")
        if draw is not None:
            plot(content, draw, self._file.with_suffix(".svg"))


def plain(value: Any) -> Any:
    """``value`` as JSON has it: dataclasses as dictionaries and numpy's numbers as Python's, however deep they lie."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value.item() if hasattr(value, "item") else value


def plot(content: dict[str, Any], draw: Draw, file: Path) -> None:
    """One picture: the question above, the machine below. The same figures give the same bytes.

    `draw` takes its colours from bench/colours.py (`C0`, `C1`, ... are its `SERIES`), so that all have dark ones.
    """
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import FancyBboxPatch

    style = {
        "svg.hashsalt": "kvtrie",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": plt.cycler(color=SERIES),
        "figure.constrained_layout.h_pad": 0.1,
        "figure.constrained_layout.w_pad": 0.12,
        "axes.facecolor": "none",
        "axes.edgecolor": GUIDE,
        "axes.labelcolor": INK,
        "text.color": INK,
        "xtick.color": GUIDE,
        "xtick.labelcolor": INK,
        "ytick.color": GUIDE,
        "ytick.labelcolor": INK,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "legend.frameon": False,
    }
    with plt.rc_context(style):
        width, height, border = 7.2, 3.8, 0.5 / 72
        figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
        card = FancyBboxPatch(
            (border, border),
            width - 2 * border,
            height - 2 * border,
            boxstyle="round,pad=0,rounding_size=0.1",
            facecolor=CARD,
            edgecolor=EDGE,
            linewidth=1,
            transform=figure.dpi_scale_trans,
            zorder=-1,
        )
        card.set_in_layout(False)
        figure.add_artist(card)
        axes.set_title(content["question"])
        draw(axes, content["rows"])
        where = ", ".join([content["machine"], *content["devices"]])
        figure.supxlabel(where, fontsize=7, color=SOFT)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": "kvtrie"}, facecolor="none")
        plt.close(figure)
    file.write_text(with_dark_style(drawn.getvalue()), encoding="utf-8")


def bar_of_ratio(axes: Any, at: float, ratio: dict[str, float], width: float, **style: Any) -> None:
    """A bar of a ratio's median at ``at``, with its spread. ``style``: of the bar."""
    spread = [[ratio["median"] - ratio["low"]], [ratio["high"] - ratio["median"]]]
    axes.bar(at, ratio["median"], width, **style)
    axes.errorbar(at, ratio["median"], spread, color=INK, linewidth=0.8)
