"""The map of imports (.ci/circles.py): it sees every kind of import, finds circles, and draws rows."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def circles() -> ModuleType:
    spec = importlib.util.spec_from_file_location("import_circles", ROOT / ".ci" / "circles.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(folder: Path, **files: str) -> Path:
    (folder / "made").mkdir()
    (folder / "made" / "__init__.py").touch()
    for name, text in files.items():
        (folder / "made" / f"{name}.py").write_text(text)
    return folder


def test_there_is_no_circle_in_the_package(circles: ModuleType) -> None:
    assert circles.circle(circles.graph(ROOT / "python", "kvtrie")) == []


@pytest.mark.parametrize(
    "back",
    [
        "from . import one",
        "from .one import x",
        "import made.one",
        "def f():\n    from .one import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .one import x",
    ],
)
def test_circles_are_found(circles: ModuleType, tmp_path: Path, back: str) -> None:
    found = circles.circle(circles.graph(package(tmp_path, one="from .two import y\nx = 1", two=back), "made"))
    assert sorted(set(found)) == ["made.one", "made.two"] and found[0] == found[-1]


def test_rows_need_rows_above_them_only(
    circles: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = package(tmp_path, one="from . import two, three", two="from .three import z", three="z = 1")
    rows = circles.rows(circles.graph(folder, "made"))
    assert [row for row in rows if row != ["made"]][-2:] == [["made.two"], ["made.one"]]
    monkeypatch.setattr(sys, "argv", ["circles.py", "--map", str(folder), "made"])
    assert circles.main() == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["2", "one"]
