"""A process with a prefix cache on a shared store, on one of the hosts of network.py.

    python network_worker.py STORE OPTIONS     options of the cache, as JSON

For each line of its input, {"tokens": [...], "flush": true}, it begins with those tokens as if it had never seen them,
computes what is missing with the model of fakes.py, and prints what came of it: seconds of ``begin``, tokens reused,
and figures of the store. Where something was reused, every K and V that the model sees is compared with what it should
be.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from fakes import CodingModel, compute, make_cache


def played(cache: Any, request: Any) -> dict[str, Any]:
    cache.evict(request["tokens"])
    before = cache.stats()["store"]
    start = time.monotonic()
    with cache.begin(request["tokens"]) as session:
        seconds = time.monotonic() - start
        now = cache.stats()["store"]
        model = CodingModel(check=session.reused > 0)
        compute(session, model)
        found = {"reused": session.reused, "tier": session.tier, "seconds": round(seconds, 3), "rows": model.rows}
    flushed = cache.flush() if request.get("flush") else None
    assert cache.check() == []
    took = {name: now[name] - before[name] for name in ("calls", "bytes_in", "failures", "skipped")}
    return {**found, **took, "flushed": flushed, "sent": cache.stats()["store"]["sent"], "state": now["state"]}


def main(store: str, options: str) -> None:
    given = {"host_bytes": "8MiB", "capacity": 8192, "load": "always", **json.loads(options)}
    with make_cache(device="host", store=store, fingerprint="weights", **given) as cache:
        for line in sys.stdin:
            print(json.dumps(played(cache, json.loads(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
