"""The run that is prepared for a GPU (bench/bench_gpu.py), on a device that emulates one: its parts run and have rows.

What they say of a GPU only a GPU shows. A part that ends early, fails, or leaves a row with an error fails here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What each part has at least one row of.
SAID = {
    "facts": {"facts", "binary"},
    "launches": {"call", "launch"},
    "probes": {"probe"},
    "bits": {"bits"},
    "products": {"copy", "product"},
    "attention": {"copy", "decode", "shared", "prefill"},
    "table": {"made", "decode of 1", "decode of 8", "prefill of 40"},
    "steps": {"made", "prefill", "decode"},
}


def rows_of(part: str, folder: Path) -> list[dict[str, Any]]:
    """Runs one part as ./dev gpu does, and what it wrote."""
    file = folder / "rows.jsonl"
    command = [
        sys.executable,
        str(ROOT / "bench/bench_gpu.py"),
        "--only",
        part,
        "--json",
        str(file),
        "--patience",
        "20",
    ]
    environment = {**os.environ, "KVTRIE_EMULATED_DEVICE": "gpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.ci
@pytest.mark.parametrize("part", SAID)
def test_a_part_runs_and_says_what_it_is_for(part: str, tmp_path: Path) -> None:
    rows = rows_of(part, tmp_path)
    assert {row["what"] for row in rows} >= SAID[part]
    assert {row["part"] for row in rows} == {part}
    assert not [row for row in rows if "error" in row]
    if part in ("products", "attention"):
        assert {row["precision"] for row in rows if "precision" in row} == {"auto", "fast"}


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench/bench_gpu.py"), "--only", "fact", "--json", str(tmp_path / "rows")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2
    assert "got part 'fact', allowed facts, launches" in done.stderr
