"""bench/report.py: what a row holds is written as it was measured, and can be drawn again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from report import Report
from timing import Race


def test_figures_that_lie_deep_are_written(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    race = Race({"one": [1.0, 2.0, 3.0], "other": [2.0, 4.0, 6.0]})
    report = Report("how long?", file)
    report.row("text", ratios={"other": race.ratio("other", "one")}, list=[race["one"]], count=np.int64(3), name="a")
    report.close()
    (row,) = json.loads(file.read_text())["rows"]
    assert row["ratios"]["other"]["median"] == 2.0
    assert row["list"][0]["median"] == 2.0
    assert row["count"] == 3 and row["name"] == "a"
