"""Ctrl-C in the middle of a prompt: heard soon, whatever was enqueued; what is computed stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

WORKER = Path(__file__).with_name("interrupt_worker.py")
ROWS = 128


def test_an_interrupted_prefill_is_heard_soon_and_keeps_its_work() -> None:
    """Of 20 steps, the third is interrupted. The measure is how long a step takes on this machine at this moment."""
    run = subprocess.run([sys.executable, str(WORKER)], capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    step = said["step_seconds"]
    assert said["late"] is not None, "it ran to its end before the signal was seen"
    assert said["late"] < 2 * step, "without a bound it is seen when all 20 steps are done"
    assert said["left"] < 2 * step, "little was enqueued ahead of the device"
    assert 0 < said["kept"] < 10 * ROWS and said["kept"] % ROWS == 0
    assert said["then"] == said["kept"] + ROWS
    assert said["check"] == []


def test_a_step_is_measured_until_the_device_is_done() -> None:
    """The cache reports the time that a token takes, not that of enqueueing it, which is thousands of times less."""
    code = (
        "import interrupt_worker as w, kvtrie as kv, numpy as np, time\n"
        "cache = kv.PrefixCache(kv.CausalCache(w.LAYERS, 1, 4, 64 * w.ROWS, dtype='float32'))\n"
        "model = w.HeavyModel(8)\n"
        "w.seconds_of_a_step(model, cache, 1)\n"
        "session = cache.begin(np.arange(8 * w.ROWS))\n"
        "begin = time.perf_counter()\n"
        "for step in session.prefill(chunk=w.ROWS): last = model(step)\n"
        "last.numpy()\n"
        "seconds = time.perf_counter() - begin\n"
        "print(cache.stats()['seconds_per_token'] * len(session.tokens) / seconds)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=False, cwd=WORKER.parent
    )
    assert run.returncode == 0, run.stderr
    assert 0.3 < float(run.stdout) < 1.5
