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
STEPS, ASKED_FOR, WAITED_FOR = 20, 5, 12  # of an interrupted prefill; where the signal is asked for, waited for


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


class Interrupts:
    """SIGINT by another thread, once somebody asks for it. Counts are those of launches on the device."""

    def __init__(self) -> None:
        self.wanted, self.sent = threading.Event(), threading.Event()
        self.launches = 0  # when it was sent
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        self.wanted.wait()
        signal.raise_signal(signal.SIGINT)
        self.launches = launches()
        self.sent.set()

    def join(self) -> None:
        self.wanted.set()
        self._thread.join()


def launches() -> int:
    return int(kv.Device().memory()["launches"])


def interrupted(model: HeavyModel, cache: kv.PrefixCache, first: int) -> dict[str, Any]:
    """A prefill of STEPS steps of tokens that begin with ``first``, interrupted in one of them; and what came of it."""
    with cache.begin(np.arange(first, first + STEPS * ROWS)) as session:
        interrupts = Interrupts()
        heard = 0
        begin = time.perf_counter()
        try:
            for number, step in enumerate(session.prefill(chunk=ROWS)):
                if number == ASKED_FOR:
                    interrupts.wanted.set()
                if number == WAITED_FOR:
                    interrupts.sent.wait()  # the sender may be slower than all of the steps
                model(step)
        except KeyboardInterrupt:
            heard = launches()
        ran = time.perf_counter() - begin
        kv.Device().finish()
        left = time.perf_counter() - begin - ran
        interrupts.join()
        result = {
            "heard": heard > 0,
            "late": heard - interrupts.launches,
            "left": left / ran,
            "kept": session.length,
            "check": cache.check(),
        }
        for step in session.prefill(chunk=ROWS):  # it goes on from there
            model(step)
            break
        return {**result, "then": session.length}


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a program in the background ignores it
    cache = kv.PrefixCache(kv.caches.CausalCache(LAYERS, 1, 4, 64 * ROWS, dtype="float32"))
    model = HeavyModel(1)
    seconds_of_a_step(model, cache, 1)
    one_product = min(seconds_of_a_step(model, cache, salt) for salt in range(2, 7))
    model.products = max(1, round(0.25 / one_product))  # about a quarter of a second a step
    begun = launches()
    seconds_of_a_step(model, cache, 7)
    a_step = launches() - begun
    runs = [interrupted(model, cache, 1000 + number * 100_000) for number in range(3)]
    print(json.dumps({"launches_of_a_step": a_step, "runs": runs}))


if __name__ == "__main__":
    main()
