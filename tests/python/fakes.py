"""A model without weights: K and V say which namespace, tokens, layer and position they were computed for.

So any row that comes back from a cache can be checked alone, and a foreign or stale one is recognised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import kvtrie as kv

LAYERS, KV_HEADS, DIM = 2, 2, 4
BYTES_PER_TOKEN = LAYERS * KV_HEADS * 2 * DIM * 4  # float32
A = [*range(100, 130), 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]  # 30 tokens in common with B
B = [*range(100, 130), 21, 22, 23, 24, 25, 26, 27, 28, 29, 30]
_MODULUS = 1 << 21  # codes and their halves are exact in float32

Floats = npt.NDArray[np.float32]


def prefix_codes(namespace: str, tokens: Sequence[int]) -> npt.NDArray[np.int64]:
    """One number for each prefix of `tokens`; it depends on all of them and on the namespace."""
    code = sum(map(ord, namespace)) % _MODULUS
    codes = []
    for token in tokens:
        code = (code * 31 + int(token) + 7) % _MODULUS
        codes.append(code)
    return np.array(codes, np.int64)


def expected_k(codes: npt.NDArray[np.int64], layer: int) -> Floats:
    """[n, kv_heads, dim] for positions whose prefix codes are `codes`."""
    offsets = np.arange(KV_HEADS * DIM).reshape(KV_HEADS, DIM)
    return ((codes[:, None, None] * 5 + layer * 1009 + offsets) % _MODULUS).astype(np.float32)


def expected_v(codes: npt.NDArray[np.int64], layer: int) -> Floats:
    return -expected_k(codes, layer) - 1


def proposed_in(step: Any) -> list[list[int]]:
    """Of each session of a step the last rows, as far as they are drafts."""
    sequences, tokens = np.asarray(step.sequences), np.asarray(step.tokens)
    rows = [tokens[sequences == index] for index in range(len(step.sessions))]
    return [own[len(own) - int(count) :].tolist() for own, count in zip(rows, step.drafted)]


def texts_in(step: Any) -> list[list[int]]:
    """Of each session all tokens, with those that the step proposes."""
    return [[*session.tokens.tolist(), *drafts] for session, drafts in zip(step.sessions, proposed_in(step))]


class CodingModel:
    """`model(step)` puts the K and V of every row, and checks what the caches then say the history is."""

    def __init__(self, check: bool = True) -> None:
        self.check = check
        self.rows = 0  # computed so far

    def __call__(self, step: Any) -> None:
        texts = texts_in(step)
        histories = [prefix_codes(session.namespace, text) for session, text in zip(step.sessions, texts)]
        own = np.array([histories[i][p] for i, p in zip(step.sequences, step.positions)], np.int64)
        for layer in range(LAYERS):
            step.put(layer, expected_k(own, layer), expected_v(own, layer))
            if self.check:
                self._check_history(step, layer, histories)
        self.rows += len(step.tokens)

    @staticmethod
    def _check_history(step: Any, layer: int, histories: Sequence[npt.NDArray[np.int64]]) -> None:
        k, v, mask = (np.asarray(part) for part in step.get(layer))
        for row, (sequence, position) in enumerate(zip(step.sequences, step.positions)):
            seen = np.flatnonzero(mask[row] == 0)
            codes = histories[sequence][: position + 1]
            np.testing.assert_array_equal(k[seen], expected_k(codes, layer))
            np.testing.assert_array_equal(v[seen], expected_v(codes, layer))


class DictStore:
    """A store of this process alone, in a dict. Its methods are Python, and so a place for signals."""

    def __init__(self, values: dict[str, bytes] | None = None) -> None:
        self.values = dict(values or {})

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


def make_cache(capacity: int = 64, device: Any = None, host_bytes: Any = 0, **options: Any) -> kv.PrefixCache:
    """A prefix cache over one small float32 cache."""
    layers = kv.caches.CausalCache(LAYERS, KV_HEADS, DIM, capacity, dtype="float32", device=device)
    return kv.PrefixCache(layers, host_bytes=host_bytes, **options)


def compute(session: Any, model: Any, chunk: int = 512) -> int:
    """Runs the prefill of `session`; the number of steps."""
    steps = 0
    for step in session.prefill(chunk=chunk):
        model(step)
        steps += 1
    return steps


def run(
    cache: Any, tokens: Iterable[int], model: Any, namespace: str = "default", chunk: int = 512, **options: Any
) -> Any:
    """Begins with `tokens` and computes them; the closed session, whose report can still be read."""
    with cache.begin(list(tokens), namespace, **options) as session:
        compute(session, model, chunk)
    return session


def steady(stats: dict[str, Any]) -> dict[str, Any]:
    """Of `cache.stats()` what a refused call must not change."""
    totals = ("begins", "hits", "matched_tokens", "reused_tokens", "dropped_steps", "rewinds", "branches")
    return {name: value for name, value in stats.items() if name not in totals}


def state_of(cache: Any) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """What a refused call must leave as it was: stats and tree."""
    nodes = [
        (node.namespace, node.start, tuple(node.tokens), node.tier, node.live, node.pinned) for node in cache.nodes()
    ]
    return steady(cache.stats()), nodes


def spans_of(cache: Any) -> list[tuple[int, int, str]]:
    """(start, end, tier) of every node, parents first."""
    return [(node.start, node.end, node.tier) for node in cache.nodes()]
