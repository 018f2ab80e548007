"""Our side of the day of chats, in a process of its own: prompts come in as JSON lines, answers go out as such.

    engine = Engine("hybrid", tokens=16384, window_tokens=None, host_mib=512)   # starts the process
    answer = engine.complete(prompt, 32)            # as peers/llama_server.py, and the seconds of each part
    engine.held_mib()                               # by tier

Times are taken in that process around the public Python calls, as a program would use them: from ``begin`` with a list
of ids to the first token as an int, prefill in steps of 512 rows, and on until the last one. What was answered is
published when the session closes, which counts into the total.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from piped import Piped, answer_all

CHUNK = 512  # rows of a prefill step, as llama.cpp's


class Engine(Piped):
    """The process, seen from the bench. ``kind``: of random_models, or a GGUF file. ``tokens``: cells of the device
    pool; ``host_mib``: the host tier's limit; ``use``: whether anything is kept and found again; ``precision``: of
    products of blocks.
    """

    def __init__(
        self,
        kind: str,
        *,
        tokens: int,
        window_tokens: int | None = None,
        slots: int = 64,
        host_mib: int,
        use: bool = True,
        precision: str = "auto",
    ) -> None:
        settings = {"kind": kind, "tokens": tokens, "window_tokens": window_tokens, "slots": slots}
        settings["precision"] = precision
        super().__init__([sys.executable, __file__, json.dumps({**settings, "host_mib": host_mib, "use": use})])

    def complete(self, prompt: Sequence[int], count: int) -> dict[str, Any]:
        """``first`` and ``total`` in seconds, ``reused``, ``tokens``, and what the time went into."""
        return self.ask({"prompt": list(map(int, prompt)), "count": count})

    def held_mib(self) -> dict[str, Any]:
        """``device``: MiB of the pools; ``host``: the most that the host tier has held."""
        return self.ask({"stats": True})


class _Chats:
    """One model and one prefix cache: what runs in the process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import kvtrie as kv
        import random_models

        self.kv = kv
        self.use = settings["use"]
        kind = settings["kind"]
        self.model = (
            random_models.build(kind)
            if kind in random_models.KINDS
            else kv.models.load(kind, precision=settings["precision"])
        )
        own: dict[str, Any] = {"window_capacity": settings["window_tokens"]}
        if settings["kind"] == "hybrid":
            own["slots"] = settings["slots"]
        self.model.warm_up()  # all of it: no helper compiles beside what is timed
        caches = self.model.caches(settings["tokens"], **own)
        self.pool = sum(cache.nbytes for cache in caches)
        self.cache = kv.PrefixCache(caches, host_bytes=settings["host_mib"] << 20)

    def complete(self, prompt: list[int], count: int) -> dict[str, Any]:
        kv, clock = self.kv, time.perf_counter
        start = clock()
        with self.cache.begin(prompt, use=self.use, publish=self.use) as session:
            begun = clock()
            for step in session.prefill(chunk=CHUNK):
                logits = self.model(step)
            answer = kv.generate(self.model, session, max_tokens=count, ignore_eos=True, logits=logits)
            tokens = [next(answer)]
            first = clock()
            tokens.extend(answer)
            last = clock()
            reused, matched, moved = session.reused, session.matched, session.bytes_moved
        end = clock()
        parts = {"begin": begun - start, "compute": first - begun, "close": end - last}
        found = {"reused": reused, "matched": matched, "moved": moved, "tokens": tokens}
        return {"first": first - start, "total": end - start, **found, **parts}

    def stats(self) -> dict[str, Any]:
        host = self.cache.stats()["host_peak_bytes"]
        return {"device": self.pool / 2**20, "host": host / 2**20, "weights": self.model.nbytes / 2**20}


def _serve(settings: dict[str, Any]) -> None:
    chats = _Chats(settings)
    print(json.dumps(chats.stats()), flush=True)
    answer_all(lambda asked: chats.stats() if "stats" in asked else chats.complete(asked["prompt"], asked["count"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("settings", type=json.loads)
    _serve(parser.parse_args().settings)
