"""What every script of this folder is told and asks with: the server's address, the model's name, a tool, a long text.

A script is run by the Python of its client's environment, which has this folder on its path and nothing of kvtrie:

    PYTHON SCRIPT http://127.0.0.1:8080 MODEL

It asserts what matters of a tool call, a stream and a long prompt, and says nothing where all of it holds.
"""

from __future__ import annotations

import json
import sys
from typing import Any

URL, MODEL = sys.argv[1], sys.argv[2]
OPENAI = f"{URL}/v1"
KEY = "none"  # clients want one; the server has no keys
SECONDS = 300.0  # that a client waits for an answer: far more than a busy machine needs

QUESTION = "How many pages does the book 'Locks' have?"
DESCRIPTION = "Looks up a book in the library."
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 40, "description": "its title"},
        "what": {"type": "string", "enum": ["pages", "author"], "description": "what is asked about it"},
    },
    "required": ["title", "what"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look_up", "description": DESCRIPTION, "parameters": PARAMETERS},
}
RESULT = "The book has 321 pages."


def long_text(client: str) -> str:
    """More than 2,000 tokens, which begin with the client's name: no other client has asked for them."""
    lines = [f"Row {at}: cell {at * 37 % 101} of page {at % 7} is kept." for at in range(125)]
    return "\n".join([f"A register, as {client} reads it.", *lines, "Which row is the last one?"])


def require_call(name: str, arguments: Any, any_what: bool = False) -> None:
    """``arguments``: JSON, or what a client has made of it. ``any_what``: the client's schema has no enumeration."""
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert name == "look_up", name
    assert set(given) == {"title", "what"}, given
    assert isinstance(given["title"], str), given
    assert any_what or given["what"] in ("pages", "author"), given


def require_same(streamed: str, whole: str) -> None:
    """The texts of a stream, joined, and those of an answer in one piece."""
    assert whole.strip(), "an empty answer"
    assert streamed == whole, f"{streamed!r} was streamed, {whole!r} was not"


def require_long(tokens: int) -> None:
    """``tokens``: of a prompt that was answered."""
    assert tokens > 2000, f"a long prompt of {tokens} tokens"
