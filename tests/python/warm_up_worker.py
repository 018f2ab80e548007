"""The child of test_warm_up: makes caches, then does whatever conversations do, and tells what was compiled for it.

    python warm_up_worker.py KIND [cold]        cold: the caches prepare nothing

Prints one line of JSON: the {"programs", "kernels", "binaries"} that the model's caches made, and how many of each came
on top. Where programs lie on disk already, they are counted when they are taken from there: a step that needs one more
than the caches prepared would compile it on another machine.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import kvtrie as kv
from random_models import random_model

GOLDENS = Path(__file__).parent / "goldens"
ROWS = (1, 2, 3, 4, 5, 17, 64, 100, 516)  # of prefill steps
BATCHES = (1, 4, 8)  # conversations in a decode step


def model_of(kind: str) -> Any:
    return kv.models.load(GOLDENS / "qwen3-5-dense", dtype="float32") if kind == "hybrid" else random_model(kind)


def driver_folder() -> Path:
    """Where PoCL keeps what it compiled, one library for each kernel and local size."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("POCL_CACHE_DIR") or Path(caches) / "pocl").resolve()


def compiled(device: Any) -> dict[str, int]:
    """What the device object built or took from disk so far, and the driver's libraries in this process."""
    device.finish()
    memory, folder = device.memory(), str(driver_folder())
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if folder in line}
    return {"programs": memory["programs"], "kernels": memory["kernels"], "binaries": len(mapped)}


def prompt(model: Any, kind: int, length: int) -> list[int]:
    """Tokens that no other prompt begins with."""
    random = np.random.default_rng(1000 * kind + length)
    return [int(token) for token in random.integers(0, model.config.vocab_size, length)]


def converse(model: Any, cache: Any) -> None:
    """Prefill of each size, prefill and decode of several at once, argmax and sampling, branches, paging."""
    for length in ROWS:
        with cache.begin(prompt(model, 1, length)) as session:
            list(kv.generate(model, session, 3, 0.0, ignore_eos=True, chunk=516))
            list(kv.generate(model, session, 3, 0.8, ignore_eos=True, top_k=20, top_p=0.9, seed=5))
            with session.branch() as other:
                list(kv.generate(model, other, 2, ignore_eos=True))
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
        list(kv.generate(model, session, 2, ignore_eos=True))


def main() -> None:
    kind, *cold = sys.argv[1:]
    device, model = kv.Device(), model_of(kind)
    cache = kv.PrefixCache(model.caches(capacity=4096, warm_up=not cold), host_bytes="64 MiB")
    before = compiled(device)
    converse(model, cache)
    after = compiled(device)
    cache.close()
    print(json.dumps({**before, "more": {key: after[key] - before[key] for key in before}}))


if __name__ == "__main__":
    main()
