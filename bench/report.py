"""What a bench prints and leaves behind: rows for people, JSON for programs, a plot for the docs.

A bench answers one question, in one file: ``main`` measures and reports, ``draw(axes, rows)`` makes the plot of what
the JSON file holds, so that a plot can be made again without measuring (``python bench/plot.py NAME.json``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

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
        self.rows.append({key: asdict(value) if is_dataclass(value) else value for key, value in values.items()})

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


COLOURS = ("#2a6f97", "#e07a1f", "#5b8c5a", "#a23b72", "#7a6c5d", "#8d99ae")  # ours first


def plot(content: dict[str, Any], draw: Draw, file: Path) -> None:
    """One picture: the question above, the machine below. The same figures give the same bytes."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    style = {
        "svg.hashsalt": "kvtrie",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": plt.cycler(color=COLOURS),
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "legend.frameon": False,
    }
    with plt.rc_context(style):
        figure, axes = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
        axes.set_title(content["question"])
        draw(axes, content["rows"])
        where = ", ".join([content["machine"], *content["devices"]])
        figure.supxlabel(where, fontsize=7, color="#777777")
        figure.savefig(file, metadata={"Date": None, "Creator": "kvtrie"}, facecolor="white")
        plt.close(figure)
