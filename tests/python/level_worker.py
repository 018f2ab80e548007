"""The child of test_levels and test_emulated: steps of a small model on whatever processor PoCL takes this one for.

    POCL_KERNELLIB_NAME=sse41 python level_worker.py
    qemu-x86_64 -cpu Nehalem python level_worker.py

A prefill and eight decode steps, each computed by a model that replays its steps and by one that launches them, then
the same conversation from host memory. Which tokens are said is fixed, so runs on any processor can be compared. Sizes
are multiples of 16, so that the kernels for the widest vectors there are run, and there is one layer: what takes time
under an emulator is compiling. Prints one line of JSON: the device, the logits, whose bits are equal, and what was
logged.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np

import kvtrie as kv
from collected import collect
from random_models import VOCAB, random_model

PROMPT_LENGTH = 20  # rows of the prefill: more than the 8 that few-row kernels take
DECODES = 8
SIZES = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


def rows(logits: Any) -> Any:
    return np.asarray(logits, np.float32)


class Conversation:
    """One session of a model of one's own; the weights are those of every other one."""

    def __init__(self, replays: bool, prompt: list[int]) -> None:
        self.model = random_model("dense", **SIZES)
        self.model.replays = replays
        caches = self.model.caches(capacity=256, dtype="float16", warm_up=False)
        self.cache = kv.PrefixCache(caches, host_bytes="1 MiB")
        self.session = self.cache.begin(prompt)

    def prefill(self) -> Any:
        return [rows(self.model(step)) for step in self.session.prefill(chunk=64)][-1]

    def decode(self, token: int) -> Any:
        self.session.append(token)
        return rows(self.model(self.session.decode()))

    def again(self) -> tuple[Any, int]:
        """The last step once more, its history from host memory; and how many tokens came from there."""
        tokens = list(self.session.tokens)
        self.session.close()
        self.cache.page_out(tokens)
        with self.cache.begin(tokens) as session:
            return [rows(self.model(step)) for step in session.prefill()][-1], session.reused


def report() -> dict[str, Any]:
    random = np.random.default_rng(12)
    prompt, said = ([int(token) for token in random.integers(0, VOCAB, count)] for count in (PROMPT_LENGTH, DECODES))
    replaying, launching = Conversation(True, prompt), Conversation(False, prompt)
    logits = [(replaying.prefill(), launching.prefill())]
    logits += [(replaying.decode(token), launching.decode(token)) for token in said]
    last, reused = launching.again()
    return {
        "logits": [one.tolist() for one, _ in logits],
        "same_bits": [one.tobytes() == other.tobytes() for one, other in logits],
        "replays": replaying.model.graphs.stats["replays"],
        "refusal": replaying.model.graphs.stats["reason"],
        "returned_bits": last.tobytes() == logits[-1][1].tobytes(),
        "reused": reused,
        "problems": [problem for each in (replaying, launching) for problem in each.cache.check()],
    }


def main() -> None:
    logged = collect(logging.WARNING)
    found = report()
    device = kv.Device()
    print(json.dumps({"device": device.name, **found, "logged": logged}))


if __name__ == "__main__":
    main()
