"""Claude Code's and Codex's sessions of 20 turns: each turn computes its new tokens alone, and says what was said.

What they send is in claude_code.py and codex.py; a script has the model's answers, with thoughts, one call or several.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import claude_code
import codex
import kvtrie as kv
from agent_rounds import Round, require_only_new, words
from circles import SOAK
from claude_code import ClaudeCode
from codex import Codex
from processes import PATIENCE
from scripted_model import ScriptedModel
from serving import Served, served, tiny_model

pytestmark = pytest.mark.ci

# As templates of models that think between their calls: what was thought stays.
TEMPLATE = """
{%- if tools %}{{ '<|system|># Tools\n' }}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{{ 'Answer with <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call><|end|>' }}{% endif %}
{%- for message in messages %}{{ '<|' + message.role + '|>' }}
{%- if message.reasoning_content %}{{ '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{% endif %}
{%- if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}{{ call.function.arguments | tojson }}
{{- '}\n</tool_call>' }}{% endfor %}{{ '<|end|>' }}{% endfor %}
{%- if reasoning_effort is defined and reasoning_effort == 'none' %}{% endif %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
OPENING = "<|assistant|>"
CONTEXT, TURNS = 16384, 20
SECTIONS = 120 if SOAK else 12  # of instructions: some 9,000 tokens, or 900
BESIDES = 2500  # tokens of requests that are in no round: left, or of another kind


CALLED = {  # tools, as the model sees them, of each client and kind of answer
    "claude call": "Read",
    "claude wrong call": "Read",
    "claude calls": "Read",
    "codex call": "exec_command",
    "codex calls": "exec_command",
    "codex call of a namespace": "mcp__library__Read",
}


def call(tool: str, name: str, at: int) -> str:
    """Not as the template writes it: without spaces."""
    arguments: Any = {"file_path": f"src/{name.replace(' ', '_')}_{at}", "offset": at}
    if tool == "exec_command":
        arguments = {"cmd": f"cat {at}"}
    said = json.dumps({"name": tool, "arguments": arguments}, separators=(",", ":"))
    return f"\n<tool_call>\n{said}\n</tool_call>"


def kind_of(client: str, name: str) -> str:
    agent, turn, *step = name.split()
    kinds = codex.KINDS if client == "codex" else claude_code.KINDS
    return kinds[int(turn) % len(kinds)] if agent == "main" else ("call", "calls", "text")[int(step[0])]


def answer_of(client: str, name: str) -> str:
    """``name``: "" for what nobody looks at."""
    if name in ("", "title"):
        return '{"title":"Locks"}' if name else "Yes."
    kind = kind_of(client, name)
    seed = claude_code.hash_of(name)
    said = f"<think>\n{words(seed, 3)}\n</think>\n\n{words(seed + 1, 12 if kind == 'left' else 4)}."
    tool = CALLED.get(f"{client} {kind}")
    return said + "".join(call(tool, name, at) for at in range(2 if kind == "calls" else 1)) if tool else said


@contextlib.contextmanager
def scripted(client: str) -> Iterator[tuple[ScriptedModel, Served]]:
    """A server whose device has room for one session and a half; host memory has the rest."""
    model = ScriptedModel(tiny_model(TEMPLATE), functools.partial(answer_of, client), OPENING, check=SOAK)
    cache = kv.PrefixCache(model.caches(capacity=3 * CONTEXT // 2), fingerprint="scripted", host_bytes=1 << 24)
    with served(model, context=CONTEXT, cache=cache, temperature=0.0) as server:
        yield model, server
        assert cache.check() == []


def require_counts(model: ScriptedModel, server: Served, rounds: list[Round]) -> None:
    """The model computed what usage and the server's figures say, and no row besides."""
    print(require_only_new(rounds))
    said = httpx.get(server.url + "/metrics", timeout=PATIENCE).text
    figures = dict(re.findall(r"^kvtrie_(prompt|reused|generated)_tokens_total (\S+)$", said, re.M))
    prompt, reused, generated = (int(float(figures[name])) for name in ("prompt", "reused", "generated"))
    assert model.rows <= prompt - reused + generated
    assert prompt - reused <= sum(each.prompt - each.cached for each in rounds) + BESIDES


def test_claude_code() -> None:
    with scripted("claude") as (model, server), contextlib.closing(ClaudeCode(server.url, "tiny", SECTIONS)) as client:
        client.session()
        require_counts(model, server, client.rounds)
        assert len(client.rounds) == TURNS - TURNS // 5 + 3 * 3
        assert len(client.counted) == 3 and all(count == prompt for count, prompt in client.counted)
        for name, content in client.said.items():
            require_blocks(name, content)


def require_blocks(name: str, content: list[Any]) -> None:
    """They are what the script says, as far as the client read them."""
    kind, seed = kind_of("claude", name), claude_code.hash_of(name)
    said = "".join(block.get("thinking") or block.get("text") or "" for block in content)
    whole = f"{words(seed, 3)}{words(seed + 1, 12 if kind == 'left' else 4)}."
    assert whole.startswith(said) if kind == "left" else said == whole
    calls = [block for block in content if block["type"] == "tool_use"]
    assert len(calls) == {"call": 1, "wrong call": 1, "calls": 2}.get(kind, 0)
    assert all(block["name"] == "Read" and block["input"]["offset"] == at for at, block in enumerate(calls))


@pytest.mark.parametrize("kept", [False, True])
def test_codex(kept: bool) -> None:
    """Whether the client keeps the conversation, or the server does."""
    with scripted("codex") as (model, server):
        client = Codex(server.url, "tiny", SECTIONS, kept=kept, effort="medium")
        client.session()
        require_counts(model, server, client.rounds)
        for name, items in client.said.items():
            calls = [(item.get("namespace"), item["name"]) for item in items if item["type"] == "function_call"]
            kind = kind_of("codex", name)
            wanted = {"call": [(None, "exec_command")], "calls": [(None, "exec_command")] * 2}
            assert calls == wanted.get(kind, [("mcp__library", "Read")] if "namespace" in kind else [])
        client.close()
