"""Prompts by all chat templates that llama.cpp and vLLM ship, beside those that transformers makes of them.

    templates.py fetch                          their sources, by pip, and of these the templates, into build/templates
    templates.py play [--seed N] [--count N]    so many random conversations over them, and fixed ones with each
    templates.py calls                          whether the server reads the tool call that each of them writes

The templates are others' work, so none is kept here: they are read out of the sources of llama-cpp-python and vllm.
What is equal and what may differ is said in tests/python/template_twins.py. Ends with a line of JSON; 1 if anything
differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python")]

FOLDER = ROOT / "build" / "templates"
SOURCES = {  # what pip is asked for, and where templates stand in it
    "llama-cpp-python==0.3.36": ("vendor/llama.cpp/models/templates",),
    "vllm==0.33.0": ("examples", "vllm/transformers_utils/chat_templates"),
}


def fetch() -> None:
    """pip unpacks a source and asks it what it needs. That may fail; what is unpacked stays."""
    for wanted, places in SOURCES.items():
        name = wanted.split("==")[0]
        with tempfile.TemporaryDirectory() as place:
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--no-binary",
                ":all:",
                "--no-clean",
            ]
            command += ["--no-build-isolation", "--no-cache-dir", "--dest", place, wanted]
            said = subprocess.run(
                command, env={**os.environ, "TMPDIR": place}, capture_output=True, text=True, check=False
            )
            unpacked = [path.parent for path in Path(place).glob("*/*/PKG-INFO")]
            found = [path for root in unpacked for each in places for path in sorted((root / each).rglob("*.jinja"))]
            if not found:
                sys.exit(f"{wanted}: no templates came\n{said.stderr[-2000:]}")
            (FOLDER / name).mkdir(parents=True, exist_ok=True)
            for path in found:
                shutil.copy(path, FOLDER / name / path.name)
            print(f"  {wanted}: {len(found)} templates")


def templates() -> dict[str, str]:
    """By their names; of those that are alike, one."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(FOLDER.glob("*/*.jinja")):
        text = path.read_text(encoding="utf-8")
        found.setdefault(hashlib.sha256(text.encode()).hexdigest(), (f"{path.parent.name}/{path.stem}", text))
    if not found:
        sys.exit(f"there are no templates in {FOLDER}: {Path(__file__).name} fetch")
    return dict(found.values())


def conversations(name: str, seed: int, count: int) -> Iterator[tuple[str, object]]:
    from template_conversations import fixed, random_conversation

    yield from fixed()
    dice = random.Random(f"{seed} {name}")
    for number in range(count):
        yield f"random {number}", random_conversation(dice)


def play(seed: int, count: int) -> int:
    """Each template has an equal share of ``count``."""
    from template_twins import Twins

    every = templates()
    total: Counter[str] = Counter()
    share = -(-count // len(every))
    for name, text in every.items():
        twins, counts = Twins(text), Counter[str]()
        for what, conversation in conversations(name, seed, share):
            twin = twins.of(conversation)  # type: ignore[arg-type]
            counts[twin.outcome] += 1
            if twin.outcome == "DIFFERENT":
                print(f"  DIFFERENT: {name}, {what}, seed {seed}\n    {conversation}")
                print(f"    {twin.ours!r}\n    {twin.theirs!r}")
        print(f"  {name:62} {dict(counts)}", flush=True)
        total += counts
    print(json.dumps({"seed": seed, "templates": len(every), "operations": sum(total.values()), "outcomes": total}))
    return 1 if total["DIFFERENT"] else 0


_TOOL = {
    "name": "get_weather",
    "description": "The weather.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "description": "How many."},
        },
        "required": ["city"],
    },
}
_ARGUMENTS = {"city": "Paris", "days": 3}
_CALL = {"id": "call00001", "type": "function", "function": {"name": _TOOL["name"], "arguments": _ARGUMENTS}}
_ASKED = {"role": "user", "content": "QUESTION"}
_ANSWERED = {"role": "assistant", "content": "", "reasoning_content": "REASON", "tool_calls": [_CALL]}


def written(template: str) -> tuple[str, str]:
    """The end of the prompt, and the answer that a template makes of a call, without what ends a turn."""
    import tokenizers

    import kvtrie as kv

    raw = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer = kv.models.Tokenizer(raw, special={"bos_token": "<s>", "eos_token": "</s>"}, chat_template=template)

    def said(*messages: dict[str, object], begins: bool = False) -> str:
        tools = [{"type": "function", "function": _TOOL}]
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=begins, tools=tools)

    prompt, whole = said(_ASKED, begins=True), said(_ASKED, _ANSWERED)
    end = said(_ASKED, {"role": "assistant", "content": "PLAIN"}).rpartition("PLAIN")[2]
    at = len(prompt) if whole.startswith(prompt) else whole.rfind("QUESTION") + len("QUESTION")
    return whole[:at], whole[at:].removesuffix(end)


def outcome_of_calls(template: str) -> str:
    from kvtrie.errors import ArgumentError
    from kvtrie.serve.tool_calls import syntax_of
    from kvtrie.thinking.reasoning import reasoning_of

    try:
        before, answer = written(template)
    except ArgumentError:
        return "refused"
    if "get_weather" not in answer:
        return "not written"
    syntax = syntax_of(template)
    if syntax is None:
        return "no form"
    reader, calls = reasoning_of(template, before), syntax.reader({"get_weather": _TOOL["parameters"]})
    pieces = [("text", answer)] if reader is None else reader.feed(answer) + reader.finish()
    for kind, text in pieces:
        if kind == "text":
            calls.feed(text)
    calls.finish()
    found = [(each.name, json.loads(each.arguments)) for each in calls.calls]
    return f"read as {syntax.form.kind}" if found == [("get_weather", _ARGUMENTS)] else "LOST"


def read_calls() -> int:
    total: Counter[str] = Counter()
    for name, text in templates().items():
        found = outcome_of_calls(text)
        print(f"  {name:62} {found}", flush=True)
        total[found] += 1
    print(json.dumps({"templates": sum(total.values()), "outcomes": total}))
    return 1 if total["LOST"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fetch", "play", "calls"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args()
    if options.what == "fetch":
        fetch()
        return 0
    if options.what == "calls":
        return read_calls()
    return play(options.seed, options.count)


if __name__ == "__main__":
    sys.exit(main())
