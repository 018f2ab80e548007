"""Logits beside llama.cpp's, where `./dev peers` has built it: one file of each part that is new to GGUF reading."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import kvtrie as kv
import llama_forms

sys.path.append(str(Path(__file__).parents[1] / "campaign"))

import llama_cpp
from peers import llama

ROWS = 60


def test_every_architecture_is_compared() -> None:
    """Or a reason is given; and the page has what is compared."""
    left, compared = {*llama_forms.LEFT_OUT}, {*llama_forms.NAMES}
    assert {*kv.models.gguf.ARCHITECTURES} <= left | compared and left <= {*llama_forms.BASES, *llama_forms.GGUF}
    page = llama_cpp.PAGE.read_text(encoding="utf-8")
    measured = page.split(llama_cpp.BEGIN)[1].split(llama_cpp.END)[0]
    assert re.findall(r"^\| `([^`]+)` \|", measured, re.MULTILINE) == llama_forms.NAMES
    assert re.findall(r"^- `([^`]+)`: (.*)$", measured, re.MULTILINE) == [*llama_forms.LEFT_OUT.items()]


@pytest.mark.soak
@pytest.mark.parametrize("name", llama_forms.NAMES)
def test_logits_are_those_of_llama_cpp(name: str) -> None:
    if not llama.installed():
        pytest.skip("there is no llama.cpp: ./dev peers")
    outcome = llama_cpp.compare(name, ROWS)
    assert outcome.off <= llama_forms.bound(name), outcome.failure or f"off by {outcome.off:.1e}"
