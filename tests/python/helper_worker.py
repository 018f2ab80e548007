"""The child of test_helper: a conversation while a helper compiles; prints one line of JSON.

python helper_worker.py follow [SECONDS]   goes on until the helper is over, then replays; HELPER_MODEL: of that file
python helper_worker.py leave              tells the helper's process id and ends
python helper_worker.py stay               tells it and waits to be killed
python helper_worker.py close              closes the cache from another thread while the helper runs
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import kvtrie as kv
from processes import PATIENCE
from random_models import random_weights

PROMPT = list(range(1, 21))


def model_of() -> Any:
    path = os.environ.get("HELPER_MODEL")
    return kv.models.load(path) if path else kv.models.from_weights(*random_weights("dense"), dtype="float16")


def say(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def pid_of(model: Any) -> int | None:
    helper = model._helper
    return None if helper is None else helper.pid


def zombies() -> list[str]:
    """Children that ended and were not waited for."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        pids = file.read().split()
    return [pid for pid in pids if Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split(") ")[1][0] == "Z"]


def logits_of(model: Any, session: Any) -> Any:
    return np.asarray([model(step) for step in session.prefill(chunk=64)][-1])


def follow(model: Any, cache: Any) -> None:
    """Steps until the helper is over and four more, the same ones launched; then the helper's end."""
    began, plain = time.monotonic(), model_of()
    plain.replays = False
    other = kv.PrefixCache(plain.caches(1024, warm_up=False), host_bytes=0)
    with cache.begin(PROMPT) as session, other.begin(PROMPT) as copy:
        same, more = [logits_of(model, session).tobytes() == logits_of(plain, copy).tobytes()], 4
        started = pid_of(model) is not None
        while more > 0 and time.monotonic() < began + PATIENCE:
            token = len(same) % 50
            session.append(token), copy.append(token)
            same.append(np.asarray(model(session.decode())).tobytes() == np.asarray(plain(copy.decode())).tobytes())
            over = model._helper is None or model._helper.over
            more -= over
            if not over:
                time.sleep(0.1 if len(same) < 100 else 2.0)
        for helper in (model._helper, plain._helper):  # binaries come last
            if helper is not None and helper._process is not None:
                helper._process.wait()
        say(same=all(same), started=started, replays=model.graphs.stats["replays"], zombies=zombies())


def main() -> None:
    what = sys.argv[1]
    model = model_of()
    cache = kv.PrefixCache(model.caches(1024), host_bytes=0)
    if what == "follow":
        follow(model, cache)
        return
    with cache.begin(PROMPT) as session:
        logits_of(model, session)
        if what == "close":
            thread = threading.Thread(target=cache.close)
            thread.start()
            thread.join()
        say(pid=pid_of(model))
        if what == "stay":
            time.sleep(PATIENCE)


if __name__ == "__main__":
    main()
