"""No modules of the package import each other, and the check in .ci/circles.py says so when some do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def circles(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / ".ci/circles.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert not done.stderr
    return done.returncode, done.stdout


def test_the_package_has_none() -> None:
    assert circles() == (0, "")


@pytest.mark.parametrize(
    ("back", "refused"),
    [
        ("from . import first", True),
        ("from .first import value", True),
        ("import pack.first", True),
        ("def late():\n    from pack.first import value\n    return value", True),
        ("from . import missing", True),  # a name of the package itself, which imports first
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .first import value", False),
        ("from . import third", False),
        ("import json", False),
    ],
)
def test_a_circle_is_refused(tmp_path: Path, back: str, refused: bool) -> None:
    files = {"__init__": "from . import first", "first": "from .second import value", "second": back, "third": ""}
    (tmp_path / "pack").mkdir()
    for name, text in files.items():
        (tmp_path / "pack" / f"{name}.py").write_text(text)
    status, said = circles(str(tmp_path), "pack")
    assert status == refused
    assert ("pack.second -> " in said) == refused
