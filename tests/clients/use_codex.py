# /// script
# dependencies = ["httpx==0.28.1"]
# ///
"""Codex's requests (tests/python/codex.py), as it is no package: 20 turns, kept by the client, then by the server."""

from __future__ import annotations

import sys
from pathlib import Path

import shared

sys.path.append(str(Path(__file__).resolve().parents[1] / "python"))

from agent_rounds import require_only_new
from codex import Codex

for kept in (False, True):
    client = Codex(shared.URL, shared.MODEL, sections=20, most=60, seconds=shared.SECONDS, required=True, kept=kept)
    client.session()
    print(require_only_new(client.rounds))
    calls = [item for items in client.said.values() for item in items if item["type"] == "function_call"]
    assert len(calls) > 10, len(calls)
    client.close()
