"""The plots of the benches: the same bytes again, and readable on light and on dark pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import colours
import report
from kvtrie.viz.palette import luminance

ROOT = Path(__file__).resolve().parents[2]
PLOTS = sorted((ROOT / "docs" / "results").glob("*/*.svg"))
PAGES = {"light": ("#ffffff",), "dark": ("#0d1117", "#1e2129")}  # of GitHub, and of the site where it is dark
DARK_RULE = re.compile(r'\[style\*="(fill|stroke): (#\w{6})"\]\{\1: (#\w{6}) !important\}')


def contrast(one: str, other: str) -> float:
    """How far two `#rrggbb` stand apart, 1 to 21 (WCAG 2.2, contrast ratio)."""
    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


def collect(element: Any, fill: str, drawn: dict[tuple[str, str], bool]) -> bool:
    """Adds the colours of `element`, and if text has them, to `drawn`. False: there is text without one."""
    own = dict(re.findall(r"\b(fill|stroke): (#\w{6}|none)", element.get("style", "")))
    fill = own.get("fill", fill)
    is_text = element.tag.endswith("}text")
    used = {**own, "fill": fill} if is_text else own
    for key in ((what, colour) for what, colour in used.items() if colour not in ("", "none")):
        drawn[key] = drawn.get(key, False) or is_text
    return not (is_text and not fill) and all(collect(child, fill, drawn) for child in element)


def faults(svg: str) -> list[str]:
    """What cannot be read in a plot, whichever scheme the reader has."""
    root = ElementTree.fromstring(svg)
    style = "".join(element.text or "" for element in root.iter() if element.tag.endswith("}style"))
    _, media, rules = style.partition("@media (prefers-color-scheme: dark)")
    if not media:
        return ["no dark style"]
    dark = {(what, colour): other for what, colour, other in DARK_RULE.findall(rules)}
    drawn: dict[tuple[str, str], bool] = {}
    if not collect(root, "", drawn):
        return ["text that is black by default"]
    found = [f"{what} {colour}: no dark colour" for what, colour in drawn if (what, colour) not in dark]
    found += ["no card"] if ("fill", colours.CARD) not in drawn else []
    if found:
        return found
    for (what, colour), is_text in drawn.items():
        if colour in (colours.CARD, colours.EDGE):
            continue
        for scheme, shown in (("light", colour), ("dark", dark[what, colour])):
            card = colours.CARD if scheme == "light" else dark["fill", colours.CARD]
            for ground in (card, *PAGES[scheme]):
                if contrast(shown, ground) < (4.5 if is_text else 3.0):
                    found.append(f"{what} {shown} on {ground}, {scheme}")
    return found


def some_lines(axes: Any, rows: report.Rows) -> None:
    for index, row in enumerate(rows):
        axes.plot(row["x"], row["y"], marker="o", label=f"side {index}")
    axes.axhline(1.0, color=colours.GUIDE)
    axes.legend()


def draw(file: Path, drawing: report.Draw = some_lines) -> str:
    pytest.importorskip("matplotlib")
    rows = [{"x": [1, 2, 3], "y": [side, 2 * side, side]} for side in range(len(colours.SERIES))]
    report.plot({"question": "how long?", "machine": "a machine", "devices": ["cpu"], "rows": rows}, drawing, file)
    return file.read_text(encoding="utf-8")


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: f"{plot.parent.name}/{plot.stem}")
def test_a_plot_of_the_docs_can_be_read_in_both_schemes(plot: Path) -> None:
    assert faults(plot.read_text(encoding="utf-8")) == []


def test_a_plot_drawn_now_can_be_read_in_both_schemes(tmp_path: Path) -> None:
    assert faults(draw(tmp_path / "plot.svg")) == []


def test_the_same_figures_give_the_same_bytes(tmp_path: Path) -> None:
    assert draw(tmp_path / "one.svg") == draw(tmp_path / "other.svg")


def test_what_cannot_be_read_is_found(tmp_path: Path) -> None:
    svg = draw(tmp_path / "plot.svg")
    assert faults(re.sub(r"@media .*?\n}\n", "", svg, flags=re.S)) == ["no dark style"]
    assert faults(svg.replace(colours.DARK[colours.INK], "#444444"))
    assert faults(svg.replace(colours.SERIES[1], "#f8c89a"))
    assert faults(svg.replace(f"fill: {colours.INK}", "")) == ["text that is black by default"]


def test_a_colour_without_a_dark_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"got #ff0000, allowed"):
        draw(tmp_path / "plot.svg", lambda axes, rows: axes.plot([1, 2], color="#ff0000"))
    with pytest.raises(ValueError, match="black by default"):
        draw(tmp_path / "plot.svg", lambda axes, rows: axes.text(0, 0, "text", color="black"))


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("bench", sorted((ROOT / "bench").glob("bench_*.py")), ids=lambda bench: bench.stem)
def test_benches_name_no_colour_that_has_no_dark_one(bench: Path) -> None:
    assert set(re.findall(r"#[0-9a-f]{6}\b", bench.read_text(encoding="utf-8"))) <= set(colours.DARK)
