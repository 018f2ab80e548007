# /// script
# dependencies = ["aider-chat==0.86.2"]
# ///
"""aider-chat: the command, asked about a long file, with a stream and without. It makes no calls: edits are text."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import shared

QUIET = [
    "--yes-always", "--no-check-update", "--no-show-release-notes", "--analytics-disable", "--no-show-model-warnings",
    "--no-pretty", "--no-git", "--no-auto-lint", "--no-detect-urls", "--no-suggest-shell-commands",
    "--map-tokens", "0", "--edit-format", "whole",
]  # fmt: skip


def ask(folder: Path, text: str, *options: str) -> str:
    """The model's words."""
    model = ["--model", f"openai/{shared.MODEL}", "--openai-api-base", shared.OPENAI, "--openai-api-key", shared.KEY]
    environment = {**os.environ, "HOME": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "aider", *model, *QUIET, *options, "--message", text, "notes.txt"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=shared.SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Added notes.txt to the chat." in done.stdout and "Tokens:" in done.stdout, done.stdout
    said = done.stdout.split("Added notes.txt to the chat.")[1].split("Tokens:")[0]
    return " ".join(said.split())  # lines end where a terminal's do


def reused() -> int:
    """Tokens of prompts that were known, of all requests so far."""
    lines = urllib.request.urlopen(f"{shared.URL}/metrics").read().decode().splitlines()
    return int(float(next(line for line in lines if line.startswith("kvtrie_reused_tokens_total")).split()[-1]))


with tempfile.TemporaryDirectory() as made:
    folder = Path(made)
    (folder / "notes.txt").write_text(f"{shared.long_text('aider')}\n")
    (folder / ".aider.model.settings.yml").write_text(
        f"- name: openai/{shared.MODEL}\n  edit_format: whole\n  use_temperature: 0\n"
        "  extra_params:\n    max_tokens: 60\n"
    )
    before = reused()
    first = ask(folder, "Say hello.", "--no-stream", "--chat-mode", "ask")
    second = ask(folder, "Say hello.", "--stream", "--chat-mode", "ask")
    shared.require_same(second, first)
    assert reused() - before > 2000, (before, reused())
