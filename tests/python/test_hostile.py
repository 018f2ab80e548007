"""Wrong arguments everywhere: each call succeeds, or raises an error of kvtrie, or lets pass what the argument raised.

No crash, no hang, no error of pybind11, numpy, jinja2 or tokenizers, nothing that fills the memory. hostile_values.py
has the arguments; hostile_worker.py finds the calls in the stubs and signatures.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from circles import SOAK
from processes import run_python

WORKER = Path(__file__).with_name("hostile_worker.py")
CALLS = 5000 if SOAK else 1000


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(40 if SOAK else 1))
def test_hostile_arguments(seed: int, tmp_path: Path) -> None:
    done = run_python(WORKER, seed, CALLS, tmp_path)
    now = (tmp_path / "now").read_text().strip() if (tmp_path / "now").exists() else "nothing"
    said = f"hostile_worker.py {seed} {CALLS} FOLDER -v: {done.stdout}\n{done.stderr}\nat call {now}"
    assert done.returncode == 0, said
    assert " functions, 0 faults" in done.stdout, said
