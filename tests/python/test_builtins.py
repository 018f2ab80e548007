"""Kernels declare the builtins that they call, since reading the compiler's own header takes most of a build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from processes import run_python

WORKER = Path(__file__).with_name("builtins_worker.py")


@pytest.mark.ci
def test_no_program_needs_the_compilers_own_header(device: Any) -> None:
    """One that does is built twice; kernels/builtins.clh lacks a function that it calls."""
    if "Portable Computing Language" not in device.platform:
        pytest.skip("only PoCL's compiler reads a header for each program")
    done = run_python(WORKER, environment={"KVTRIE_CACHE_DIR": "/dev/null/none"})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["programs"] > 30
    assert found["said"] == []
