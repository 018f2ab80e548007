"""How near does a GPU come to its own memory and to PyTorch, and what does a step ask of it?

One prepared run, since minutes on a GPU are rare: parts in order of worth, each a process with a limit of its own, each
figure on disk before the next is taken (bench/gpu/rows.py). What a part measures its module says:

facts      driver.py    what the driver is and compiles to
launches   driver.py    the host's microseconds a launch, by what comes with it
probes     driver.py    which instructions and binaries its compiler takes
bits       bits.py      whether rows have the same bits alone and among others, and decode those of prefill
table      steps.py      device time by kernel of decode steps and prefills
products   products.py   packed weights of each kind, from 1 to 4096 rows
attention  attention.py  decode, shared prefixes and prefill
peers      peers.py      PyTorch's products and attention on the same card
steps      steps.py      seconds of whole steps of 135M, 1B and 8B shapes, and the host's part of them
doctor     checks.py     self-tests of every kernel
demo       checks.py     conversations that branch and come back, against cold runs
tests      checks.py     the tests of devices

`./dev gpu` runs it. Where a CPU emulates a GPU, sizes shrink: then it shows that the parts run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent


class Part(NamedTuple):
    """``limit``: seconds after which it is ended."""

    module: str
    limit: int


PARTS = {
    "facts": Part("driver", 15),
    "launches": Part("driver", 45),
    "probes": Part("driver", 30),
    "bits": Part("bits", 45),
    "table": Part("steps", 150),
    "products": Part("products", 100),
    "attention": Part("attention", 90),
    "peers": Part("peers", 60),
    "steps": Part("steps", 150),
    "doctor": Part("checks", 60),
    "demo": Part("checks", 40),
    "tests": Part("checks", 240),
}


def main() -> int:
    """Runs parts, or is one."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", metavar="PART,...", help=f"these, in this order, of {', '.join(PARTS)}")
    options.add_argument("--seconds", type=float, default=540, help="for all of them together (540)")
    options.add_argument("--json", type=Path, metavar="FILE", help="the figures, a line each (build/gpu/rows.jsonl)")
    options.add_argument(
        "--patience", type=float, default=1, metavar="N", help="N times as long for each part, and all"
    )
    options.add_argument("--part", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    file = (chosen.json or HERE.parent / "build/gpu/rows.jsonl").resolve()
    if chosen.part:
        from gpu.rows import Rows

        getattr(importlib.import_module(f"gpu.{PARTS[chosen.part].module}"), chosen.part)(Rows(chosen.part, file))
        return 0
    names = chosen.only.split(",") if chosen.only else list(PARTS)
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        options.error(f"got part {unknown[0]!r}, allowed {', '.join(PARTS)}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    return run(names, chosen.seconds * chosen.patience, file, chosen.patience)


def run(names: list[str], seconds: float, file: Path, patience: float) -> int:
    """The parts, one after the other, in processes of their own; 1 where one of them failed or was left out."""
    end, failed = time.monotonic() + seconds, []
    for name in names:
        left = end - time.monotonic()
        print(f"== {name}", flush=True)
        begun = time.monotonic()
        said = _child(name, min(left, patience * PARTS[name].limit), file) if left > 2 else "left out, no time"
        print(f"== {name}: {said} after {time.monotonic() - begun:.0f} s\n", flush=True)
        if said != "done":
            failed.append(name)
    if failed:
        print(f"failed or left out: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


def _child(name: str, limit: float, file: Path) -> str:
    command = [sys.executable, str(HERE / "bench_gpu.py"), "--part", name, "--json", str(file)]
    search = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": search, "PYTHONUNBUFFERED": "1"}
    child = subprocess.Popen(command, env=environment, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        code = child.wait(limit)
    except subprocess.TimeoutExpired:
        return f"ended at its limit of {limit:.0f} s"
    finally:
        end_group(child)
    return "done" if code == 0 else f"failed with {code}"


def end_group(child: subprocess.Popen[bytes]) -> None:
    """Ends a part and whatever it started, which would disturb the parts behind it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


if __name__ == "__main__":
    sys.exit(main())
