"""SIGINT and SIGTERM anywhere: the same process goes on, or ends by that signal, and files are whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from circles import SOAK
from interrupted_worker import KINDS
from kinds_fakes import KindsModel, make_caches, words
from processes import PATIENCE, PYTHON_PATH, run_python

WORKER = Path(__file__).with_name("interrupted_worker.py")


@pytest.mark.parametrize("seed", range(20 if SOAK else 1))
def test_interrupts_anywhere(seed: int, tmp_path: Path) -> None:
    rounds = 400 if SOAK else 60
    done = run_python(WORKER, seed, rounds, tmp_path)
    said = f"interrupted_worker.py {seed} {rounds} FOLDER: {done.stdout}{done.stderr}"
    assert done.returncode == 0, said
    assert "Error" not in done.stderr, said  # nothing that was printed because nobody could be told
    interrupts = int(done.stdout.split()[2])
    assert interrupts >= rounds // 4, said


@pytest.mark.parametrize(("how", "code"), [("term", -signal.SIGTERM), ("exit", 7)])
@pytest.mark.parametrize("seed", range(10 if SOAK else 1))
def test_a_process_that_is_ended(how: str, code: int, seed: int, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PYTHON_PATH)}
    command = [sys.executable, str(WORKER), str(seed), how, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "working\n"
        time.sleep(random.Random(seed).uniform(0, 0.5))
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=PATIENCE)
        assert (child.returncode, errors) == (code, "")
    for kind in KINDS:
        opened(kind, tmp_path / kind)


def opened(kind: str, folder: Path) -> None:
    """What is in the folder is complete: nothing of it is refused, and its rows are those of their own prefix."""
    caches: list[Any] = make_caches(kind, 2048, window=64, slots=64)
    model = KindsModel(caches)
    with kv.PrefixCache(
        caches,
        fingerprint="weights",
        host_bytes="16MiB",
        checkpoint_every=64,
        disk=folder,
        disk_bytes="4MiB",
        load="always",
    ) as cache:
        assert cache.check() == []
        for text in range(6):
            with cache.begin(words(text, 200)) as session:
                for step in session.prefill(chunk=64):
                    model(step)  # which checks the rows
        stats = cache.stats()
        assert stats["checksum_failures"] == stats["unusable_snapshots"] == stats["disk"]["failed_reads"] == 0
        assert cache.check() == []
