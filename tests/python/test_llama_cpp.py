"""Logits beside llama.cpp's, where `./dev peers` has built it: one file of each part that is new to GGUF reading."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import llama_forms

sys.path.append(str(Path(__file__).parents[1] / "campaign"))

import llama_cpp
from peers import llama

ROWS = 60


@pytest.mark.soak
@pytest.mark.parametrize("name", llama_forms.NAMES)
def test_logits_are_those_of_llama_cpp(name: str) -> None:
    if not llama.installed():
        pytest.skip("there is no llama.cpp: ./dev peers")
    outcome = llama_cpp.compare(name, ROWS)
    assert outcome.off <= llama_forms.bound(name), outcome.failure or f"off by {outcome.off:.1e}"
