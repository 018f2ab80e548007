"""State that says what it is, for tests of the tiers, and a process that goes on with what another one left.

`TierModel` puts K, V and states that are codes of the namespace and all tokens they stand for, small integers that
float16 has exactly, and compares all that a step gives back, bit for bit.

    python disk_worker.py write FOLDER KIND DTYPE    pages the conversations out to a disk tier
    python disk_worker.py read FOLDER KIND DTYPE     goes on with each; what was reused, as JSON
    python disk_worker.py limited FOLDER BYTES       opens the folder with so much more address space; its stats
    python disk_worker.py save FOLDER                the tiny model's conversations, saved; what it says next
    python disk_worker.py resume FOLDER              the same, in a process that only has the folder
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import kvtrie as kv

KINDS = ("dense", "window", "chunk", "recurrent", "hybrid")
WINDOW, CHUNK, SPACING = 20, 50, 16
FINGERPRINT = "the tests' weights"
TINY = Path(__file__).parents[2] / "examples" / "tiny"

Codes = npt.NDArray[np.uint64]


def prefix_codes(namespace: str, tokens: Sequence[int]) -> Codes:
    """[n + 1]: a number for each prefix, of the empty one to the whole."""
    code = 1469598103934665603
    for letter in namespace.encode():
        code = (code ^ letter) * 1099511628211 % 2**64
    codes = [code]
    for token in tokens:
        code = ((code ^ (int(token) + 1)) * 1099511628211 + 0x9E3779B97F4A7C15) % 2**64
        codes.append(code)
    return np.array(codes, np.uint64)


def values(codes: Codes, layer: int, role: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """[n, *shape] for n codes: integers in [-1024, 1023]."""
    count = int(np.prod(shape))
    mixed = codes[:, None] + np.arange(count, dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x94D049BB133111EB + 2 * (layer * 4 + role))
    numbers = (mixed >> np.uint64(40)) & np.uint64(2047)
    return (numbers.astype(np.float32) - 1024).reshape(-1, *shape)


class TierModel:
    """`model(step)` puts what each row stands for and compares the history it then reads."""

    def __init__(self, caches: Sequence[Any]) -> None:
        self.layers = sorted((layer, cache) for cache in caches for layer in cache.layers)
        self.compared = 0  # rows and states that were read back

    def __call__(self, step: Any) -> None:
        (session,) = step.sessions
        codes = prefix_codes(session.namespace, self.named(session.tokens))
        for layer, cache in self.layers:
            if isinstance(cache, kv.caches.RecurrentCache):
                self._move_states(step, layer, cache, codes)
            else:
                self._store_rows(step, layer, cache, codes)

    def named(self, tokens: Sequence[int]) -> Sequence[int]:
        """What the codes are made of, where that is not the tokens themselves."""
        return tokens

    def _store_rows(self, step: Any, layer: int, cache: Any, codes: Codes) -> None:
        first, last = int(step.positions[0]), int(step.positions[-1])
        shape = (cache.kv_heads, cache.head_dim)
        own = codes[first + 1 : last + 2]
        step.put(layer, values(own, layer, 0, shape), values(own, layer, 1, shape))
        k, v, mask = (np.asarray(part) for part in step.get(layer))
        low = 0
        if cache.window is not None:
            low = max(low, first - cache.window + 1)
        if cache.chunk is not None:
            low = max(low, first - first % cache.chunk)
        seen = codes[low + 1 : last + 2]
        wanted = np.concatenate([values(seen, layer, role, shape) for role in (0, 1)], -1)
        columns = np.flatnonzero((mask == 0).any(0))
        found = np.concatenate([k[columns], v[columns]], -1).astype(np.float32)
        order = [np.lexsort(rows.reshape(len(rows), -1).T) for rows in (found, wanted)]
        np.testing.assert_array_equal(found[order[0]], wanted[order[1]], f"layer {layer}, rows [{low}, {last}]")
        self.compared += len(seen)

    def _move_states(self, step: Any, layer: int, cache: Any, codes: Codes) -> None:
        (inside,) = step.boundaries()
        begin, lengths = int(step.positions[0]), [*inside, int(step.positions[-1]) + 1]
        shapes = (cache.conv_tail, cache.conv_dim), (cache.v_heads, cache.v_dim, cache.k_dim)
        for role, (shape, found) in enumerate(zip(shapes, step.states(layer))):
            wanted = values(codes[begin : begin + 1], layer, role, shape) * (begin > 0)
            np.testing.assert_array_equal(np.asarray(found), wanted, f"layer {layer}, state at {begin}")
            self.compared += 1
        step.put_states(layer, *(values(codes[lengths], layer, role, shape) for role, shape in enumerate(shapes)))


def make_caches(kind: str, dtype: str = "float32", capacity: int = 1024, device: Any = "host") -> list[Any]:
    """The caches of a model of `kind`: full attention and what the kind has besides; "recurrent" has that alone."""

    def causal(layers: list[int], **sees: Any) -> Any:
        return kv.caches.CausalCache(layers, 2, 4, capacity, dtype=dtype, device=device, **sees)

    caches = {
        "dense": lambda: [causal([0, 1])],
        "window": lambda: [causal([1]), causal([0, 2], window=WINDOW)],
        "chunk": lambda: [causal([1]), causal([0], chunk=CHUNK)],
        "recurrent": lambda: [kv.caches.RecurrentCache([0, 1], 3, 4, 2, 2, 3, 128, dtype=dtype, device=device)],
        "hybrid": lambda: [
            causal([5]),
            causal([4], window=WINDOW),
            causal([3], chunk=CHUNK),
            kv.caches.RecurrentCache([0, 1], 3, 4, 2, 2, 3, 128, dtype=dtype, device=device),
        ],
    }
    return caches[kind]()


def make(
    kind: str, dtype: str = "float32", device: Any = "host", capacity: int = 1024, **options: Any
) -> tuple[kv.PrefixCache, TierModel]:
    """A prefix cache of `kind` and its model."""
    caches = make_caches(kind, dtype, capacity, device)
    options = {"fingerprint": FINGERPRINT, "host_bytes": "16MiB", "checkpoint_every": SPACING, **options}
    if options.get("disk") is not None:
        options.setdefault("disk_bytes", "64MiB")
    return kv.PrefixCache(caches, **options), TierModel(caches)


def go_on(cache: Any, model: TierModel, tokens: Sequence[int], namespace: str = "default", **options: Any) -> Any:
    """Begins with `tokens` and computes the rest; the closed session."""
    with cache.begin(list(tokens), namespace, **options) as session:
        for step in session.prefill(chunk=64):
            model(step)
    return session


def names_in(folder: Path) -> list[str]:
    """Of the files of a disk tier, also of those that are being written."""
    return sorted(name for name in os.listdir(folder) if name != "lock")


def words(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 1000, count)]


def conversations() -> list[tuple[str, list[int]]]:
    """(namespace, tokens): some share a beginning, two are the same under another name."""
    trunk = words(1, 130)
    texts = [trunk[:at] + words(seed, 60) for seed, at in enumerate((0, 1, 63, 64, 65, 127, 128, 130))]
    return [("default", text) for text in texts] + [("other", texts[4])]


# ---- commands --------------------------------------------------------------------------------------------------------


def write(folder: str, kind: str, dtype: str) -> Any:
    cache, model = make(kind, dtype, disk=folder)
    for namespace, text in conversations():
        go_on(cache, model, text, namespace)
    assert cache.flush()
    return [cache.plan(text, namespace).reusable for namespace, text in conversations()]


def read(folder: str, kind: str, dtype: str) -> Any:
    cache, model = make(kind, dtype, disk=folder)
    sessions = [go_on(cache, model, text, namespace, publish=False) for namespace, text in conversations()]
    assert cache.check() == []
    return {"reused": [session.reused for session in sessions], "tiers": sorted({each.tier for each in sessions})}


def limited(folder: str, extra: str) -> Any:
    make("dense")[0].close()  # all that a cache takes by itself is there
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + int(extra)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    cache, _ = make("dense", disk=folder)
    return cache.stats()["disk"]


def _tiny(folder: str) -> tuple[Any, list[list[int]], dict[str, Any]]:
    model = kv.models.load(TINY)
    tokens = model.tokenizer.encode((TINY / "prompt.txt").read_text())
    prompts = [tokens[:200], tokens[:120] + tokens[300:350], tokens[100:190]]
    return model, prompts, {"fingerprint": model.fingerprint, "host_bytes": "64MiB"}


def _say(model: Any, cache: Any, prompts: list[list[int]]) -> dict[str, Any]:
    """What the model says next after each prompt, and how much of it was reused."""
    said, reused = [], []
    for prompt in prompts:
        with cache.begin(prompt, publish=False) as session:
            reused.append(session.reused)
            said.append(list(kv.generate(model, session, max_tokens=12)))
    return {"said": said, "reused": reused}


def save(folder: str) -> Any:
    model, prompts, options = _tiny(folder)
    cold = _say(model, kv.PrefixCache(model.caches(capacity=2048), **options), prompts)
    cache = kv.PrefixCache(model.caches(capacity=2048), **options)
    for prompt in prompts:
        with cache.begin(prompt) as session:
            for step in session.prefill(chunk=64):
                model(step)
    cache.save(folder)
    return {"cold": cold["said"], **_say(model, cache, prompts)}


def resume(folder: str) -> Any:
    model, prompts, options = _tiny(folder)
    cache = kv.PrefixCache.open(folder, model.caches(capacity=2048), **options)
    known = [cache.plan(prompt).tier for prompt in prompts]
    return {"tiers": known, **_say(model, cache, prompts)}


if __name__ == "__main__":
    command = {"write": write, "read": read, "limited": limited, "save": save, "resume": resume}[sys.argv[1]]
    print(json.dumps(command(*sys.argv[2:])))
