"""Rounds of circles through a cache in threads: `collector_worker.py SEED ROUNDS FOLDER` prints how many are left."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
import weakref
from typing import Any

import kvtrie as kv
from fakes import CodingModel, DictStore, make_cache, run
from processes import PATIENCE


class Owner(DictStore):
    """Has a cache, and is its clock and its store: a circle through whatever a round chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []
        self.cache: Any = None

    def now(self) -> float:
        return time.monotonic()

    def put(self, key: str, value: bytes) -> None:
        super().put(key, value)
        if len(self.values) % 5 == 0:
            gc.collect()  # on the cache's own thread


def make(random: random.Random, folder: str) -> Owner:
    owner = Owner()
    options: dict[str, Any] = {"clock": owner.now} if random.random() < 0.8 else {}
    if random.random() < 0.5:
        options.update(store=owner, fingerprint="weights")
    if random.random() < 0.3:
        options.update(disk=folder, disk_bytes="1MiB", fingerprint="weights")
    owner.cache = make_cache(64, device="host", host_bytes="256KiB", **options)
    return owner


def use(random: random.Random, owner: Owner, model: CodingModel) -> None:
    """Some work, and some of its objects are kept in the circle."""
    first = random.randrange(3)
    run(owner.cache, [first, *range(40)], model)
    session = owner.cache.begin([first, *range(30), 7])
    step = session.decode()
    if random.random() < 0.5:
        model(step)
    made = [session, step, session.branch() if step.complete else None, owner.cache.begin([5, 6]).prefill()]
    owner.kept = random.sample(made, random.randrange(5))
    if random.random() < 0.2:
        owner.cache = None  # only what is kept holds it
    if random.random() < 0.2 and owner.cache is not None:
        owner.cache.close()


def rounds(seed: int, count: int, folder: str, watched: list[Any]) -> None:
    chance, model = random.Random(seed), CodingModel()
    for number in range(count):
        try:
            owner = make(chance, folder)
        except kv.errors.BusyError:  # the one before has the folder until it is collected
            gc.collect()
            continue
        use(chance, owner, model)
        watched += [weakref.ref(owner)]
        del owner
        if number % 7 == 0:
            gc.collect()


def main(seed: int, count: int, folder: str) -> None:
    watched: list[Any] = []
    failed: list[str] = []

    def guarded(number: int) -> None:
        try:
            rounds(seed * 10 + number, count, f"{folder}/{number}", watched)
        except BaseException as error:
            failed.append(f"{type(error).__name__}: {error}")
            raise

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del threads
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:  # what was let go without the GIL is given back by this thread soon after
        gc.collect()
        if not any(watch() is not None for watch in watched):
            break
        time.sleep(0.01)
    left = sum(watch() is not None for watch in watched)
    print(f"{len(watched)} circles, {left} left, {len(failed)} failed {failed[:1]}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
