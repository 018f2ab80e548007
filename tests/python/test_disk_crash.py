"""Processes that are killed while they write: whatever the instruction, the folder opens and says nothing wrong.

`tests/cpp/disk_worker.cpp` works with a disk tier; strace kills it before the n-th call of a kind, for n = 1, 2, ...
until nothing is killed any more, and chance kills it anywhere. After each kill the worker's `verify` opens the folder,
compares every byte with what it has to be, and pages out more. `./dev soak` plays every n, `./dev test` every rename,
which is where a file begins to be there, and some of the rest.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from circles import CIRCLE, SOAK
from disk_worker import go_on, make, words
from processes import DISK_WORKER as WORKER
from processes import PATIENCE, run_command, started_python

KILLS = 500 if SOAK else 60
STRIDE = 1 if SOAK else 11 if CIRCLE == "ci" else 23  # from a call that is killed before to the next one
# What is called between "nothing is there" and "it is on the disk", and when something goes.
RENAMES = "/^rename"
CALLS = ("openat", "write,pwrite64,writev", "fsync,fdatasync", RENAMES, "close", "/^unlink")
MODES = ("page_out", "evict", "save")

pytestmark = [
    pytest.mark.skipif(not WORKER.exists(), reason=f"{WORKER} was not built"),
    pytest.mark.timeout(3600),
]
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def verify(folder: Path, kind: str) -> dict[str, Any]:
    """What a new process finds there; fails when any of it is not what it has to be."""
    found = run_command(WORKER, "verify", folder, kind)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def killed_before(calls: str, number: int, *command: Any) -> bool:
    """Runs the worker, killed before the `number`-th of these calls in any of its threads; False: there is none."""
    inject = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}"]
    inject += ["-e", f"inject={calls}:signal=KILL:when={number}"]
    ended = run_command(*inject, WORKER, *command)
    assert ended.returncode in (0, -signal.SIGKILL, 128 + signal.SIGKILL), ended.stderr
    return ended.returncode != 0


def kinds_and_modes() -> list[Any]:
    """Evicting in the least circle, as it has all calls; what a folder of one kind has is a part of the mixed one."""
    quick = [pytest.param(mode, "mixed", marks=[] if mode == "evict" else pytest.mark.ci) for mode in MODES]
    return quick + [pytest.param(mode, "dense", marks=pytest.mark.soak) for mode in MODES]


@needs_strace
@pytest.mark.parametrize(("mode", "kind"), kinds_and_modes())
def test_killed_before_calls(mode: str, kind: str, tmp_path: Path) -> None:
    def sweep(calls: str) -> list[dict[str, Any]]:
        """What each kill left; at the end what a run had that nobody killed."""
        found: list[dict[str, Any]] = []
        for number in range(1, 1000, 1 if calls == RENAMES else STRIDE):
            folder = tmp_path / f"{calls.strip('/^').split(',')[0]}-{number}"
            killed = killed_before(calls, number, mode, folder, kind)
            found.append(verify(folder, kind))
            shutil.rmtree(folder)
            if not killed:
                return found
        raise AssertionError("it never ended")

    with ThreadPoolExecutor(2) as pool:
        sweeps = dict(zip(CALLS, pool.map(sweep, CALLS)))
    whole = sweeps[RENAMES][-1]
    assert whole["files"] > 3
    assert whole["reused"] > 200
    for calls, found in sweeps.items():
        print(f"{mode}, {kind}: {len(found) - 1} kills before {calls}, {sum(each['strays'] for each in found)} strays")
        assert found[-1]["tokens"] == whole["tokens"]  # the run that nobody killed
    # Each file is written, synced and renamed: so many kills came in between, and left something to remove.
    renames = len(sweeps[RENAMES]) - 1
    assert renames >= 4
    assert sum(each["strays"] for each in sweeps[RENAMES]) == renames
    assert any(each["tokens"] == 0 for each in sweeps[RENAMES])
    if STRIDE == 1:
        syncs, writes = (len(sweeps[calls]) - 1 for calls in (CALLS[2], CALLS[1]))
        assert syncs == 2 * renames
        assert writes >= 2 * renames
        assert mode == "page_out" or len(sweeps["/^unlink"]) > 3
    # Written root first, removed leaf first: whatever is there can be reached.
    assert sum(each["orphans"] for found in sweeps.values() for each in found) == 0


def wait_for_changes(folder: Path, count: int) -> None:
    """Until so many files have come or gone: a kill lands in the middle of work, however slow this machine is."""
    seen, deadline = set(os.listdir(folder)), time.monotonic() + PATIENCE
    while count > 0:
        assert time.monotonic() < deadline, "the worker does nothing"
        time.sleep(0.0005)
        now = set(os.listdir(folder))
        count -= len(now ^ seen)
        seen = now


def test_killed_at_random(tmp_path: Path) -> None:
    def kill(kind: str) -> list[dict[str, Any]]:
        chance = random.Random(f"seed 41 {kind}")
        folder = tmp_path / kind
        found = []
        for seed in range(KILLS // 2):
            command = [str(part) for part in (WORKER, "random", folder, kind, seed, 10**7)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
                if chance.random() < 0.8:
                    assert worker.stdout is not None and worker.stdout.readline() == b"open\n"
                    wait_for_changes(folder, chance.randrange(8))
                time.sleep(chance.uniform(0, 0.02))
                worker.kill()
                _, errors = worker.communicate(timeout=PATIENCE)
            assert worker.returncode == -signal.SIGKILL, errors.decode()
            if folder.exists():  # not killed before it made it
                found.append(verify(folder, kind))
        return found

    with ThreadPoolExecutor(2) as pool:
        for kind, found in zip(("dense", "mixed"), pool.map(kill, ("dense", "mixed"))):
            strays = sum(each["strays"] for each in found)
            # A file whose path was evicted while it was being written; the next opening removes it.
            orphans = sum(each["orphans"] for each in found)
            print(f"{kind}: {len(found)} kills looked at, {strays} strays, {orphans} orphans")
            assert len(found) > KILLS // 4
            assert strays > 0 or not SOAK  # chance says where each kill lands
            assert max(each["reused"] for each in found) > 100


HOLDS_AND_FORKS = """
import os, signal, sys
from disk_worker import go_on, make, words

cache, model = make("dense", disk=sys.argv[1])
go_on(cache, model, words(1, 50))
reads, writes = os.pipe()
if os.fork() == 0:
    os.write(writes, b"x")  # it runs: what a fork does to the lock is done
    sys.stdin.read()  # it lives on until the test ends it
    os._exit(0)
os.read(reads, 1)
print("open", flush=True)
signal.pause()
"""


def test_a_forked_process_that_lives_on_holds_no_folder(tmp_path: Path) -> None:
    """The lock goes with the process that took it."""
    folder = tmp_path / "folder"
    with started_python("-c", HOLDS_AND_FORKS, folder) as first:
        assert first.stdout is not None and first.stdout.readline() == "open\n"
        with pytest.raises(kv.errors.BusyError, match="which another cache holds open"):
            make("dense", disk=folder)
        first.kill()
        first.wait(PATIENCE)
        cache, model = make("dense", disk=folder)
        assert go_on(cache, model, words(1, 50)).reused in (0, 49)  # it may have been written before the kill
        assert cache.check() == []
        cache.close()


def test_two_processes_cannot_write_one_folder(tmp_path: Path) -> None:
    command = [str(part) for part in (WORKER, "random", tmp_path / "folder", "dense", 1, 10**7)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None and first.stdout.readline() == b"open\n"
        second = run_command(*command)
        first.kill()
    assert second.returncode == 1
    assert "which another cache holds open" in second.stderr
    verify(tmp_path / "folder", "dense")  # the lock went with the process
