"""Plays the Python tests in random orders, under conditions that they must not depend on: ``./dev shuffle``.

    shuffle.py [--rounds N] [--seed N] [--only CONDITION ...] [-- ARGUMENT ...]    what follows -- goes to pytest

By default each condition is played once, and the first one again at the end:

    plain     another order
    load      and stress-ng on every processor
    later     and stress-ng, with a clock that is an hour ahead
    nobody    as another user without a home, in a network without interfaces but its own; programs are compiled anew

Prints for each round its condition, its seed, which plays the same order again, its seconds and pytest's last line.
Ends with 1 if a round failed. ``nobody`` takes root. Needs stress-ng, a C compiler, and what `./dev build` builds.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONDITIONS = ("plain", "load", "later", "nobody", "plain")
LOGS = ROOT / "build" / "logs"
NOBODY = 65534
# What a user has in the environment and nobody has not.
KEPT = ("PATH", "LANG", "LC_ALL", "KVTRIE_CIRCLE", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


@contextmanager
def busy() -> Iterator[None]:
    """Every processor has something else to do, too."""
    with subprocess.Popen(["stress-ng", "--quiet", "--cpu", str(os.cpu_count())]) as others:
        try:
            yield
        finally:
            others.terminate()


@contextmanager
def owned_folder() -> Iterator[Path]:
    """A folder of nobody's, for what is compiled and what tests write."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in ("", "programs", "pocl", "tmp"):
            (folder / name).mkdir(mode=0o700, exist_ok=True)
            os.chown(folder / name, NOBODY, NOBODY)
        yield folder


def as_nobody(command: list[str], folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command in namespaces of its own, and its environment."""
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment |= {
        "KVTRIE_CACHE_DIR": str(folder / "programs"),
        "POCL_CACHE_DIR": str(folder / "pocl"),
        "TMPDIR": str(folder / "tmp"),
    }
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command]
    return ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *drop], environment


def an_hour_ahead() -> Path:
    """A library that moves the time of day for the processes that load it."""
    library = ROOT / "build" / "an_hour_ahead.so"
    source = Path(__file__).with_name("an_hour_ahead.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def pytest(seed: int, arguments: list[str]) -> list[str]:
    workers = str(min(4, os.cpu_count() or 1))
    options = ["-q", "-n", workers, "--dist", "worksteal", "-p", "no:cacheprovider", "-p", "randomly"]
    return [sys.executable, "-m", "pytest", *options, f"--randomly-seed={seed}", *arguments]


def play(number: int, condition: str, seed: int, arguments: list[str]) -> bool:
    """One round; whether it passed."""
    log = LOGS / f"shuffle-{number}-{condition}.log"
    begun = time.monotonic()
    environment: dict[str, str] = dict(os.environ)
    command = pytest(seed, arguments)
    with (
        busy() if condition in ("load", "later") else nullcontext(),
        owned_folder() if condition == "nobody" else nullcontext() as folder,
        log.open("w") as out,
    ):
        if condition == "later":
            environment["LD_PRELOAD"] = str(an_hour_ahead())
        if folder is not None:
            command, environment = as_nobody(command, folder)
        status = subprocess.run(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        ).returncode
    text = log.read_text(errors="replace")
    last = re.findall(r"^.*\d+ (?:passed|failed|error).*$", text, re.MULTILINE) or [f"ended with {status}"]
    print(f"  {condition:<7} seed {seed:<6} {time.monotonic() - begun:5.0f} s  {last[-1].strip('= ')}", flush=True)
    for line in re.findall(r"^(?:FAILED|ERROR) .*$", text, re.MULTILINE):
        print(f"      {line[:200]}", flush=True)
    return status == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=len(CONDITIONS))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(100_000))
    parser.add_argument("--only", choices=sorted(set(CONDITIONS)), action="append")
    parser.add_argument("arguments", nargs="*", help="of pytest, after --")
    options = parser.parse_args()
    conditions = options.only or CONDITIONS
    missing = [name for name in ("stress-ng", "cc", "setpriv", "unshare") if shutil.which(name) is None]
    if missing:
        parser.error(f"needs {', '.join(missing)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    passed = [
        play(number, conditions[number % len(conditions)], options.seed + number, options.arguments)
        for number in range(options.rounds)
    ]
    print(f"{sum(passed)} passed, {len(passed) - sum(passed)} failed")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
