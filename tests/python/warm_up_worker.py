"""The child of test_warm_up: makes caches, then does whatever conversations do, and tells what was compiled for it.

    python warm_up_worker.py        with KVTRIE_CACHE_DIR and POCL_CACHE_DIR in its environment

Prints one line of JSON: for each model its {"programs", "kernels", "files"} after the caches were made, and how many of
each came on top.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

import kvtrie as kv
from random_models import random_model

GOLDENS = Path(__file__).parent / "goldens"
ROWS = (1, 2, 3, 4, 5, 17, 64, 100, 516)  # of prefill steps
BATCHES = (1, 4, 8)  # conversations in a decode step


def models(device: Any) -> dict[str, Any]:
    """One of each kind of state."""
    folder = GOLDENS / "qwen3-5-dense"
    return {
        "dense": random_model("dense"),
        "window": random_model("window"),
        "hybrid": kv.models.load(folder, device, "float32"),
    }


def compiled(device: Any, folder: Path) -> dict[str, int]:
    """What the device object built or loaded so far, and the driver's own files of compiled kernels in ``folder``."""
    device.finish()
    memory = device.memory()
    files = sum(1 for path in folder.rglob("*.so") if path.is_file())
    return {"programs": memory["programs"], "kernels": memory["kernels"], "files": files}


def prompt(model: Any, kind: int, length: int) -> list[int]:
    """Tokens that no other prompt begins with."""
    random = np.random.default_rng(1000 * kind + length)
    return [int(token) for token in random.integers(0, model.config.vocab_size, length)]


def converse(model: Any, cache: Any) -> None:
    """Prefill of each size, prefill and decode of several at once, argmax and sampling, branches, paging."""
    for length in ROWS:
        with cache.begin(prompt(model, 1, length)) as session:
            list(kv.generate(model, session, 3, 0.0, stop=(), chunk=516))
            list(kv.generate(model, session, 3, 0.8, stop=(), top_k=20, top_p=0.9, seed=5))
            with session.branch() as other:
                list(kv.generate(model, other, 2, stop=()))
    for count in BATCHES:
        sessions = [cache.begin(prompt(model, 2 + count, 20 + index)) for index in range(count)]
        step = cache.batch(sessions)
        for _ in range(3):
            tokens = np.asarray(kv.ops.argmax(model(step)))
            for session, token in zip(sessions, tokens):
                session.append(int(token))
            step = cache.batch(sessions)
        model(step)
        for session in sessions:
            session.close()
    long = prompt(model, 1, ROWS[-1])
    cache.page_out(long)
    with cache.begin(long) as session:
        list(kv.generate(model, session, 2, stop=()))


def main() -> None:
    device, folder = kv.Device(), Path(os.environ["POCL_CACHE_DIR"])
    report = {}
    for name, model in models(device).items():
        cache = kv.PrefixCache(model.caches(capacity=4096), host_bytes="64 MiB")
        before = compiled(device, folder)
        converse(model, cache)
        after = compiled(device, folder)
        report[name] = {**before, "more": {key: after[key] - before[key] for key in before}}
        cache.close()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
