"""Processes of the campaign that end anywhere, and two at one folder.

    kills.py talk FOLDER STORE SEED     conversations for ever on disk and store; prints "open" when it begins
    kills.py look FOLDER STORE SEED     what a new process finds there; every row compared; one line of JSON
    kills.py campaign --seed N --rounds N [--races N]
                                        kills `talk` at random, looks, goes on where it stopped; then two at one folder

STORE is a folder in which a store keeps its values as files, so that it outlives whoever writes. A seed gives every
process its calls and the moment of its kill; what the kill meets is chance.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Optional

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / "python"),
    str(Path(__file__).resolve().parents[2] / "python"),
]

import kvtrie as kv
from kinds_fakes import KINDS, make_caches, words
from naming import NamingModel
from processes import DISK_WORKER, PATIENCE, PYTHON_PATH

WINDOW, CHUNK, SPACING, TEXTS = 24, 40, 32, 12
HERE = Path(__file__).resolve()


class FileStore:
    """Values as files, each replaced at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / key.replace("/", "_")

    def get(self, key: str) -> Optional[bytes]:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, key: str, value: bytes) -> None:
        path = self._path(key)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
        temporary.write_bytes(value)
        temporary.rename(path)

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)


def texts_of(seed: int) -> list[list[int]]:
    dice = random.Random(f"texts {seed}")
    trunk = words(seed % 1000, 150)
    return [trunk[: dice.choice([0, 1, 63, 64, 65, 100, 150])] + words(dice.randrange(10**6), 90) for _ in range(TEXTS)]


def opened(folder: str, store: str, seed: int) -> tuple[Any, NamingModel]:
    """The kind follows from the seed, so that every process of a folder has the same."""
    dice = random.Random(f"settings {seed}")
    kind = KINDS[seed % len(KINDS)]
    caches = make_caches(kind, 700, slots=40, window=WINDOW, chunk=CHUNK)
    cache = kv.PrefixCache(
        caches,
        fingerprint=f"kills {seed}",
        host_bytes=dice.choice([60_000, 400_000]),
        disk=folder,
        disk_bytes=dice.choice([150_000, 2_000_000]),
        store=FileStore(Path(store)),
        checkpoint_every=SPACING,
    )
    return cache, NamingModel(caches)


def talk(folder: str, store: str, seed: int, turn: int) -> None:
    cache, model = opened(folder, store, seed)
    print("open", flush=True)
    dice, texts = random.Random(f"{seed} {turn}"), texts_of(seed)
    while True:
        text, namespace = dice.choice(texts), dice.choice("ab")
        with cache.begin(text[: dice.randrange(1, len(text) + 1)], namespace) as session:
            for step in session.prefill(chunk=dice.randrange(10, 80)):
                model(step)
            for _ in range(dice.randrange(6)):
                session.append(dice.randrange(50))
                model(session.decode())
            if dice.random() < 0.2:
                session.checkpoint()
        what = dice.random()
        if what < 0.2:
            cache.page_out(text, to=dice.choice(["host", "disk", "store"]), namespace=namespace)
        elif what < 0.25:
            cache.evict(text, namespace=namespace)
        elif what < 0.3:
            cache.flush()


def look(folder: str, store: str, seed: int) -> dict[str, Any]:
    """All that is known of every text, compared; from files, then from the store alone."""
    found: Counter[str] = Counter()
    for where in (folder, f"{folder}-empty"):
        cache, model = opened(where, store, seed)
        disk = cache.stats()["disk"]
        assert sum(disk["refused"].values()) == 0, disk
        found["strays"] += disk["strays_removed"]
        for text in texts_of(seed):
            for namespace in "ab":
                with cache.begin(text, namespace, publish=where == folder) as session:
                    found[session.tier] += session.reused
                    for step in session.prefill():
                        model(step)
        assert cache.check() == [], cache.check()
        stats = cache.stats()
        assert stats["checksum_failures"] == 0 and stats["disk"]["failed_reads"] == 0, stats
        found["rows"] += model.compared
        cache.close()
    return dict(found)


# ---- the campaign ---------------------------------------------------------------------------------------------------


def child(*arguments: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PYTHON_PATH), "KVTRIE_HELPER": "0"}
    command = [sys.executable, str(HERE), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def kill_round(seed: int, turn: int, folder: Path, dice: random.Random) -> dict[str, Any]:
    """Talks, is stopped for a while perhaps, and is killed; a second process is refused until then."""
    arguments = (folder / "tier", folder / "store", seed)
    with child("talk", *arguments, turn) as first:
        if first_line(first) != "open\n":
            _, errors = first.communicate(timeout=PATIENCE)
            raise AssertionError(f"it could not open what a kill left: {errors}")
        time.sleep(dice.expovariate(6))
        if dice.random() < 0.3:
            first.send_signal(signal.SIGSTOP)
            expect_refused(folder / "tier", seed)
            if dice.random() < 0.5:
                first.send_signal(signal.SIGCONT)
        first.kill()
        _, errors = first.communicate(timeout=PATIENCE)
        assert first.returncode == -signal.SIGKILL, errors
    with child("look", *arguments) as second:
        said, errors = second.communicate(timeout=PATIENCE)
        assert second.returncode == 0, f"after kill {turn}: {errors}"
    return json.loads(said.splitlines()[-1])


def expect_refused(folder: Path, seed: int) -> None:
    try:
        opened(str(folder), f"{folder}-store", seed)
    except kv.errors.BusyError:
        return
    raise AssertionError("a folder was opened while a stopped process held it")


def race(folder: Path, kind: str, number: int, dice: random.Random) -> None:
    """Two at the same moment: one opens, the other is refused; when the first is killed, a third has the folder."""
    command = [str(DISK_WORKER), "random", str(folder), kind, str(number), str(10**7)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    pair = [subprocess.Popen(command, **pipes) for _ in range(2)]
    said = {}
    for process in pair:
        said[process] = first_line(process)
    holders = [process for process in pair if said[process] == "open\n"]
    try:
        assert len(holders) == 1, f"{len(holders)} of two have it"
        for process in pair:
            if process not in holders:
                _, errors = process.communicate(timeout=PATIENCE)
                assert process.returncode == 1 and "which another cache holds open" in errors, errors
        time.sleep(dice.uniform(0, 0.02))
    finally:
        for process in pair:
            process.kill()
            process.wait(PATIENCE)
    third = subprocess.run([str(DISK_WORKER), "verify", str(folder), kind], capture_output=True, text=True, check=False)
    assert third.returncode == 0, third.stderr


def campaign(seed: int, rounds: int, races: int) -> dict[str, Any]:
    totals: Counter[str] = Counter()
    dice = random.Random(f"kills {seed}")
    with tempfile.TemporaryDirectory(prefix="kvtrie-kills-") as name:
        for turn in range(rounds):
            of_kind = seed * 100 + turn % len(KINDS)
            folder = Path(name) / KINDS[of_kind % len(KINDS)]
            folder.mkdir(exist_ok=True)
            totals.update(kill_round(of_kind, turn, folder, dice))
            totals["kills"] += 1
        for number in range(races if DISK_WORKER.exists() else 0):
            kind = dice.choice(["dense", "mixed"])
            race(Path(name) / f"race-{kind}", kind, number, dice)
            totals["races"] += 1
    return {"seed": seed, **totals, "operations": totals["kills"] + totals["races"], "faults": totals["kills"]}


def main() -> None:
    if sys.argv[1] == "talk":
        talk(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    elif sys.argv[1] == "look":
        print(json.dumps(look(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("campaign", choices=["campaign"])
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--rounds", type=int, default=8)
        parser.add_argument("--races", type=int, default=20)
        options = parser.parse_args()
        print(f"seed {options.seed}", flush=True)
        print(json.dumps(campaign(options.seed, options.rounds, options.races)))


if __name__ == "__main__":
    main()
