# /// script
# dependencies = ["httpx==0.28.1"]
# ///
"""Claude Code's requests (tests/python/claude_code.py), as it is no package: 20 turns, each computes what is new."""

from __future__ import annotations

import sys
from pathlib import Path

import shared

sys.path.append(str(Path(__file__).resolve().parents[1] / "python"))

from agent_rounds import require_only_new
from claude_code import ClaudeCode

client = ClaudeCode(shared.URL, shared.MODEL, sections=20, most=60, seconds=shared.SECONDS, required=True)
client.session()
print(require_only_new(client.rounds))
assert all(count == prompt for count, prompt in client.counted)
calls = [block for content in client.said.values() for block in content if block["type"] == "tool_use"]
assert len(calls) > 10, len(calls)
client.close()
