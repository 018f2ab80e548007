"""What a process of test_endings.py does: `ending_worker.py daemon WHERE`, `ending_worker.py fork STATE FOLDER`."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Optional

import kvtrie as kv
from fakes import CodingModel, compute, make_cache


class Store:
    """A store in a dict whose ``get`` takes a while."""

    def __init__(self, inside: threading.Event) -> None:
        self.inside, self.values = inside, dict[str, bytes]()

    def get(self, key: str) -> Optional[bytes]:
        self.inside.set()
        time.sleep(0.05)
        return self.values.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


def daemon(where: str) -> None:
    """Ends the interpreter while daemon threads are in calls: in a clock, in a store, or anywhere."""
    inside = threading.Event()

    def clock() -> float:
        inside.set()
        if where == "clock":
            time.sleep(0.05)
        return 0.0

    more: dict[str, Any] = {"store": Store(inside)} if where == "store" else {}
    cache = make_cache(64, device="host", host_bytes="64KiB", clock=clock, fingerprint="weights", **more)

    def talk() -> None:
        turn = 0
        while True:
            turn += 1
            with cache.begin([turn % 7, 2, 3, 4]) as session:
                compute(session, CodingModel())

    for _ in range(3):
        threading.Thread(target=talk, daemon=True).start()
    assert inside.wait(600)
    time.sleep(int.from_bytes(os.urandom(1), "big") / 5000)  # wherever they are


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except kv.errors.NotSupportedError as error:
        return "forked" if "forked" in str(error) else str(error)
    return "not refused"


def fork(state: str, folder: str) -> None:
    """Forks with a cache that has state to write; the child is refused by name, ends, and leaves the parent alone."""
    lower = {} if state == "device" else {"disk": f"{folder}/tier", "disk_bytes": "1MiB", "fingerprint": "weights"}
    where = {} if state == "device" else {"device": "host", "host_bytes": "64KiB"}
    cache = make_cache(64, **lower, **where)
    session = cache.begin([1, 2, 3, 4])
    compute(session, CodingModel())
    step = next(iter(cache.begin([7, 8, 9]).prefill())) if state == "open step" else None
    if state == "closed":
        session.close()
    child = os.fork()
    if child == 0:
        calls: list[Callable[[], object]] = [cache.stats, cache.check, cache.flush, lambda: session.append(3)]
        print([refusal(call) for call in calls], flush=True)
        session.close()
        cache.close()
        del cache, session, step
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    assert cache.check() == []
    if state == "closed":
        assert cache.flush()
    print("the parent goes on")


if __name__ == "__main__":
    if sys.argv[1] == "daemon":
        daemon(sys.argv[2])
    else:
        fork(sys.argv[2], sys.argv[3])
