"""A prefill that is interrupted: prints what the test asks about. Run as a process of its own, which gets the signal.

The model computes far more than it stores: large products, on K and V of a few numbers.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import Any

import numpy as np

import kvtrie as kv

ROWS, WIDTH, LAYERS = 128, 1024, 8


class HeavyModel:
    """Each layer multiplies [rows, WIDTH] by ``products`` matrices, one after the other."""

    def __init__(self, products: int) -> None:
        random = np.random.default_rng(1)
        weight = random.standard_normal((WIDTH, WIDTH), np.float32) / np.sqrt(WIDTH)
        self.weight = kv.ops.pack(kv.tensor(weight))
        self.x = kv.tensor(random.standard_normal((ROWS, WIDTH), np.float32))
        self.products = products

    def __call__(self, step: Any) -> Any:
        x = self.x[: len(step.tokens)]
        small = np.zeros((len(step.tokens), 1, 4), np.float32)
        for layer in range(LAYERS):
            for _ in range(self.products):
                x = kv.ops.matmul(x, self.weight)
            step.put(layer, small, small)
        return x


def seconds_of_a_step(model: HeavyModel, cache: kv.PrefixCache, salt: int) -> float:
    with cache.begin([salt] * ROWS) as session:
        begin = time.perf_counter()
        for step in session.prefill(chunk=ROWS):
            model(step).numpy()
        return time.perf_counter() - begin


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a program in the background ignores it
    cache = kv.PrefixCache(kv.CausalCache(LAYERS, 1, 4, 64 * ROWS, dtype="float32"))
    model = HeavyModel(1)
    seconds_of_a_step(model, cache, 1)
    model.products = max(1, round(0.5 / seconds_of_a_step(model, cache, 2)))  # about half a second a step
    step_seconds = min(seconds_of_a_step(model, cache, salt) for salt in (3, 4))
    session = cache.begin(np.arange(20 * ROWS))
    sent = []

    def interrupt() -> None:
        sent.append(time.perf_counter())
        signal.raise_signal(signal.SIGINT)

    timer = threading.Timer(2.5 * step_seconds, interrupt)
    timer.start()
    begin = time.perf_counter()
    heard = None
    try:
        for step in session.prefill(chunk=ROWS):
            model(step)
    except KeyboardInterrupt:
        heard = time.perf_counter()
    timer.join()
    result = {
        "step_seconds": step_seconds,
        "ran": None if heard is None else heard - begin,
        "late": None if heard is None else heard - sent[0],
        "kept": session.length,
        "check": cache.check(),
        "seconds_per_token": cache.stats()["seconds_per_token"],
    }
    begin = time.perf_counter()
    kv.Device().finish()
    result["left"] = time.perf_counter() - begin
    for step in session.prefill(chunk=ROWS):  # it goes on from there
        model(step)
        break
    result["then"] = session.length
    print(json.dumps(result))


if __name__ == "__main__":
    main()
