"""Python's fuzz targets play what is in their corpora: inputs that reach far, and each that once was a finding.

Each target runs in a process of its own, with a limit on memory. ``test_fuzz`` plays those of the C++ targets.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from processes import PATIENCE

ROOT = Path(__file__).resolve().parent.parent.parent
FUZZ = ROOT / "tests/fuzz"
SCRIPT = [sys.executable, str(FUZZ / "python_targets.py")]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests/python'}"}
    return subprocess.run(
        [*SCRIPT, *arguments], env={**os.environ, **paths}, capture_output=True, text=True, timeout=PATIENCE
    )


def inputs(target: str) -> list[Path]:
    return sorted(path for path in (FUZZ / "corpus" / target).iterdir() if path.is_file())


TARGETS = sorted(path.name for path in (FUZZ / "corpus").glob("python_*"))


def test_every_target_has_a_corpus() -> None:
    assert run("--list").stdout.split() == TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_holds_to_its_promises(target: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    paths = [empty, *inputs(target)]
    done = run(target, *map(str, paths))
    assert done.returncode == 0, done.stdout[-500:] + done.stderr
    assert len(done.stdout.splitlines()) == len(paths) > 1


def test_a_finding_ends_a_target(tmp_path: Path) -> None:
    """The targets notice: an error that is not typed leaves as it is."""
    path = tmp_path / "input"
    path.write_bytes(b"{{ 1 }}")
    code = (
        "import sys; import kvtrie.models.chat_template as t; import python_targets as p\n"
        "def broken(*_): raise ValueError('planted')\n"
        "t.ChatTemplate.render = broken; p.main(sys.argv[1:])"
    )
    paths = {"PYTHONPATH": f"{FUZZ}:{ROOT / 'python'}:{ROOT / 'tests/python'}"}
    done = subprocess.run(
        [sys.executable, "-c", code, "python_chat_template", str(path)],
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode != 0 and "planted" in done.stderr
