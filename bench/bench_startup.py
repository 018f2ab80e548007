"""How long from a fresh interpreter to the first token of the shipped model, and where do the seconds go?

Each run is a process of its own (first_token.py): import, device, load (weights and, for kvtrie, the tokenizer),
caches, prefill of a short prompt, the first token. Same weights in float16, same prompt, same threads, files in the
page cache, in turns. ``to token`` is everything after the import: from "load this model" to the token.

``warm``: programs were compiled before, by an earlier process, and lie on disk. ``cold``: nothing of it is there, not
our program binaries (KVTRIE_CACHE_DIR) nor the driver's own (POCL_CACHE_DIR): what the first token needs is compiled
and self-tested, in two processes. ``again``: the next start after a cold one that ended with its first token.
llama.cpp and torch come compiled, so they have no cold start. ``import`` alone is measured in an interpreter that does
nothing else, with numpy's share by itself, since numpy would be there anyway.

Targets: import under 0.3 s, first token after a warm program cache within 1 s of loading.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import kvtrie as kv
import random_models
from peers import gguf_file, hugging_face, llama
from report import Report, Rows, arguments
from timing import human, race, summarise

PHASES = ("import", "device", "load", "caches", "prefill", "sample")
TO_TOKEN = PHASES[1:]
CHILD = Path(__file__).with_name("first_token.py")
PROMPT = "Once upon a time there was a"


def child(system: str, model: Path, prompt: str, folder: str | None = None) -> dict[str, Any]:
    """One process; ``folder``: where its compiled programs go instead of the usual places."""
    environment = dict(os.environ)
    if folder is not None:
        environment |= {"KVTRIE_CACHE_DIR": f"{folder}/kvtrie", "POCL_CACHE_DIR": f"{folder}/pocl"}
        Path(folder, "pocl").mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, str(CHILD), system, str(model), prompt],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def starts(systems: dict[str, Path], prompt: str, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Every system in turns; the first round warms the page cache and the program caches and is left out."""
    runs: dict[str, list[dict[str, Any]]] = {system: [] for system in systems}
    for index in range(rounds + 1):
        for system, model in systems.items():
            found = child(system, model, prompt)
            if index > 0:
                runs[system].append(found)
    return runs


def show(report: Report, system: str, programs: str, runs: list[dict[str, Any]]) -> None:
    """One row: each phase's median, and the sums."""
    values = {phase: summarise(run["phases"].get(phase, 0.0) for run in runs) for phase in PHASES}
    to_token = summarise(sum(run["phases"].get(phase, 0.0) for phase in TO_TOKEN) for run in runs)
    whole = summarise(sum(run["phases"].values()) for run in runs)
    text = "  ".join(f"{phase} {human(values[phase].median):>7}" for phase in PHASES)
    report.row(
        f"{system:<12} {programs:<5}  {text}   to token {to_token}  whole {human(whole.median)}",
        system=system,
        programs=programs,
        **values,
        to_token=to_token,
        whole=whole,
        token=runs[0]["token"],
    )


def importing(report: Report, rounds: int) -> None:
    """``import kvtrie`` in an interpreter of its own, less the interpreter."""

    codes = {"bare": "pass", "numpy": "import numpy", "kvtrie": "import kvtrie"}
    sides = {
        name: functools.partial(subprocess.run, [sys.executable, "-c", code], check=True)
        for name, code in codes.items()
    }
    result = race(sides, rounds=rounds, warm_up=1)
    bare, numpy, own = (result[name] for name in codes)
    report.row(
        f"import kvtrie {human(own.median - bare.median)}, of which numpy {human(numpy.median - bare.median)} "
        f"(interpreter alone {human(bare.median)})",
        system="import",
        kvtrie=own,
        numpy=numpy,
        bare=bare,
    )


def slowest_imports(report: Report, count: int = 6) -> None:
    """Where the import goes, by ``-X importtime``, which itself costs time."""
    command = [sys.executable, "-X", "importtime", "-c", "import kvtrie"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stderr.splitlines()
    found = [line.removeprefix("import time:").split("|") for line in lines if line.count("|") == 2]
    timed = sorted(((int(own), name.strip()) for own, _, name in found if own.strip().isdigit()), reverse=True)
    report.note("slowest by themselves: " + ", ".join(f"{name} {own / 1e3:.1f} ms" for own, name in timed[:count]))


def main() -> None:
    """The import, then a row for each system with warm programs, then ours with cold ones."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cold", type=int, default=3, metavar="RUNS", help="of some seconds each; 0 for none")
    options = parser.parse_args()
    report = Report("from a fresh interpreter to the first token of the shipped model", options.json)
    report.device(kv.Device())
    importing(report, 2 * options.rounds)
    slowest_imports(report)
    ids = ",".join(map(str, kv.models.Tokenizer.load(random_models.TINY).encode(PROMPT)))
    with tempfile.TemporaryDirectory() as folder:
        systems = {"kvtrie": random_models.TINY}
        if llama.installed() and gguf_file.package() is not None:
            file = Path(folder, "tiny.gguf")
            systems["llama.cpp"] = gguf_file.write(random_models.config("tiny"), random_models.weights("tiny"), file)
        if hugging_face.installed():
            systems["transformers"] = random_models.TINY
        for absent in {"llama.cpp", "transformers"} - set(systems):
            report.note(f"{absent} is not installed (./dev peers): left out")
        kv.models.load(random_models.TINY, dtype="float16").warm_up()
        for system, runs in starts(systems, ids, options.rounds).items():
            show(report, system, "warm", runs)
        for programs in ("cold", "again") if options.cold else ():
            runs = [child("kvtrie", random_models.TINY, ids, f"{folder}/{index}") for index in range(options.cold)]
            show(report, "kvtrie", programs, runs)
    report.close(draw)


def draw(axes: Any, rows: Rows) -> None:
    """A bar for each system, its phases one after the other; cold programs apart, since they take seconds."""
    timed = [row for row in rows if "to_token" in row and row["programs"] == "warm"]
    for place, row in enumerate(reversed(timed)):
        left = 0.0
        for index, phase in enumerate(PHASES):
            width = row[phase]["median"] * 1e3
            axes.barh(place, width, left=left, color=f"C{index}", label=phase if place == 0 else None)
            left += width
        axes.text(left, place, f"  {left:.0f} ms", va="center", fontsize=8)
    axes.set_yticks(range(len(timed)), [row["system"] for row in reversed(timed)])
    axes.set_xlabel("milliseconds, programs warm")
    axes.margins(x=0.12)
    axes.legend(fontsize=7, ncols=len(PHASES), loc="upper center", bbox_to_anchor=(0.5, -0.18))


if __name__ == "__main__":
    main()
