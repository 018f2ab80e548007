"""Interrupted anywhere, right afterwards: every way to generate is read on after an exception at any point of it.

`interruption_worker.py` tries the points of `ways.py`, each in a child that ends itself where something hangs. What it
counts as wrong: a token that an undisturbed run does not have, one that the reader is not given, reading on that raises
without the object saying that it has ended, and sessions, threads, places or counts that are left over.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from circles import CIRCLE
from processes import PATIENCE, run_python

WORKER = Path(__file__).with_name("interruption_worker.py")
POINTS = {"test": 4, "ci": 6, "soak": 0}[CIRCLE]  # of each way, and answers under signals; 0: all points, 200 answers
WAYS = "GenerateSession,AsyncReplies,CrowdedBatches,DraftedBatches,TextRequests" if CIRCLE == "test" else "all"
SEED = 34


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        ("errors,inner,closing,closing inner,forks,signals", "dense"),
        pytest.param("errors,closing", "hybrid", marks=pytest.mark.ci),
        pytest.param("inner,closing inner,forks,signals", "hybrid", marks=pytest.mark.ci),
        pytest.param("errors", "window", marks=pytest.mark.ci),
        pytest.param("errors", "chunk", marks=pytest.mark.ci),
    ],
)
def test_read_on(what: str, kind: str) -> None:
    arguments = (what, kind, WAYS, POINTS, SEED)
    done = run_python(WORKER, *arguments, timeout=12 * 3600 if CIRCLE == "soak" else PATIENCE)
    said = f"interruption_worker.py {arguments}: {done.stdout}{done.stderr[-4000:]}"
    assert done.returncode == 0, said
    reports = {name: json.loads(report) for name, report in re.findall(r"^([a-z ]+) (.*)$", done.stdout, re.MULTILINE)}
    assert list(reports) == what.split(","), said
    assert all(report["played"] > 0 and report["wrongs"] == 0 for report in reports.values()), said
    if "errors" in reports:
        assert reports["errors"]["outcomes"]["raised, went on"] > reports["errors"]["played"] / 2, said
    print(kind, done.stdout)
