"""The short scripts in examples/: what they print is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from processes import run_python

ROOT = Path(__file__).resolve().parents[2]
AGENTS = ("Anna", "Ben", "Chloe", "Dora", "Eve")


def run(*command: str) -> str:
    ended: Any = run_python(*command, cwd=ROOT, environment={"PYTHONIOENCODING": "utf-8"})
    assert (ended.returncode, ended.stderr) == (0, "")
    return str(ended.stdout)


def test_five_agents_share_their_system_prompt() -> None:
    printed = run("examples/five_agents.py", "--model", "tiny", "--tokens", "4")
    asked = re.findall(r"^(\w+): .*\n    .*\n    (\d+) tokens read, (\d+) of them reused$", printed, flags=re.M)
    assert sorted(name for name, _, _ in asked) == sorted(2 * AGENTS)
    read, reused = (sum(int(each[place]) for each in asked) for place in (1, 2))
    assert f"10 prompts of {read} tokens in all: {read - reused} computed, {reused} reused" in printed
    longest = max(int(prompt) for _, prompt, _ in asked)
    assert read - reused < longest + 9 * 60, "the manual is computed once, and then each one's own words"
    assert re.search(r"^\d+ tokens written in \d+\.\d s$", printed, flags=re.M)


@pytest.mark.parametrize(("layers", "tokens"), [(1, 40), pytest.param(2, 300, marks=pytest.mark.soak)])
def test_own_model_in_torch(layers: int, tokens: int) -> None:
    printed = run("examples/own_model_torch.py", "--layers", str(layers), "--tokens", str(tokens))
    assert f"the second one: {tokens} of {tokens + 4} tokens reused" in printed
    assert re.search(r"^it goes on with \[(\d+(, )?){5}\]$", printed, flags=re.M)
    assert re.search(r"^from nothing it takes [\d.]+ ms, \d+ times as long$", printed, flags=re.M)
    assert re.search(r"^largest difference of the logits: \d\.\de-?\+?\d\d of \d\.\d$", printed, flags=re.M)
