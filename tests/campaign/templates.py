"""Prompts by all chat templates that llama.cpp and vLLM ship, beside those that transformers makes of them.

    templates.py fetch                          their sources, by pip, and of these the templates, into build/templates
    templates.py play [--seed N] [--count N]    so many random conversations over them, and fixed ones with each

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fetch", "play"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args()
    if options.what == "fetch":
        fetch()
        return 0
    return play(options.seed, options.count)


if __name__ == "__main__":
    sys.exit(main())
