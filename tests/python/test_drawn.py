"""What a push plays of the tests that are marked ``ci`` is drawn by its commit (circles.py)."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import circles
import conftest
from processes import ROOT

NAMES = [f"tests/python/test_{name}.py::test[{i}]" for name in "abcdef" for i in range(50)]


def drawn(monkeypatch: pytest.MonkeyPatch, commit: str) -> list[str]:
    monkeypatch.setattr(circles, "DRAW", commit)
    return [name for name in NAMES if circles.drawn(name)]


def test_without_a_commit_all_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, "") == NAMES


def test_each_commit_plays_a_third_and_together_they_play_all(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = [drawn(monkeypatch, f"{i:040x}") for i in range(60)]
    assert all(0.2 < len(draw) / len(NAMES) < 0.47 for draw in draws)  # five standard deviations of a third
    assert len({tuple(draw) for draw in draws}) == len(draws)
    assert set().union(*draws) == set(NAMES)


def test_other_processes_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = drawn(monkeypatch, "abc")
    code = f"import circles; print([name for name in {NAMES} if circles.drawn(name)])"
    environment = {"KVTRIE_DRAW": "abc", "PYTHONPATH": str(ROOT / "tests/python"), "PYTHONHASHSEED": "7"}
    told = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert told.stdout.strip() == str(wanted)


def item(file: str, name: str, *marks: str, fixtures: tuple[str, ...] = ()) -> Any:
    """What conftest.py reads of a test."""
    return SimpleNamespace(
        path=ROOT / "tests/python" / file,
        nodeid=f"tests/python/{file}::{name}",
        fixturenames=fixtures,
        get_closest_marker=lambda mark: mark in marks,
    )


@pytest.mark.parametrize(
    ("circle", "marks", "wanted"),
    [("ci", (), 20), ("ci", ("ci",), None), ("ci", ("soak",), 0), ("soak", ("ci",), 20), ("test", ("ci",), 0)],
)
def test_only_those_that_are_marked_are_drawn(
    monkeypatch: pytest.MonkeyPatch, circle: str, marks: tuple[str, ...], wanted: int | None
) -> None:
    monkeypatch.setattr(circles, "CIRCLE", circle)
    monkeypatch.setattr(conftest, "CIRCLE", circle)
    monkeypatch.setattr(circles, "DRAW", "abc")
    items = [item("test_one.py", f"test[{i}]", *marks) for i in range(20)]
    played = sum(conftest.is_played(each, set()) for each in items)
    assert played == wanted if wanted is not None else 0 < played < 20
    if circle == "ci" and marks == ("ci",):
        assert all(conftest.is_played(each, {"test_one.py"}) for each in items), "what changed is played whole"


def test_a_cluster_is_started_for_all_of_a_file_or_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "CIRCLE", "ci")
    monkeypatch.setattr(circles, "CIRCLE", "ci")
    found = set()
    for i in range(20):
        monkeypatch.setattr(circles, "DRAW", f"{i:040x}")
        items = [item("test_far.py", f"test[{j}]", "ci", fixtures=("ray_cluster",)) for j in range(20)]
        found.add(sum(conftest.is_played(each, set()) for each in items))
    assert found == {0, 20}
