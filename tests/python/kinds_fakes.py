"""Models without weights for caches of every kind: what they store says whose it is, and they check all they can read.

K and V of a row name its position, the tokens up to it (two codes of the namespace and the prefix), and the layer; a
state names the length and the prefix it stands for. Rows of a span that goes as one (an image, or what was passed as
``atomic``) depend on all of it, so they carry the code of the span's end: half a span is recognised, too.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

import kvtrie as kv
from fakes import proposed_in

WINDOW = CHUNK = SPACING = 512
VOCAB = 97
_MODULUS = 1 << 20  # codes, and what is added to them, are exact in float32
_WEIGHTS = np.random.default_rng(20).integers(1, _MODULUS, (2, 1 << 15))
_counts: dict[int, int] = {}  # media id -> positions of the item

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Spans = Sequence[tuple[int, int]]


def image(name: str, count: int) -> list[int]:
    """The tokens of an image; the models here then know it as a span."""
    ids = [int(token) for token in kv.media(name, count)]
    _counts[ids[0]] = count
    return ids


class History:
    """What a conversation's state has to be: codes of all its prefixes, and up to where each row depends on it."""

    def __init__(self, namespace: str, tokens: Any, spans: Spans = ()) -> None:
        tokens = np.asarray(tokens, np.int64)
        terms = (tokens + 7) * _WEIGHTS[:, : len(tokens)] % _MODULUS
        start = np.full((2, 1), zlib.crc32(namespace.encode()) % _MODULUS)
        self.codes: Ints = np.concatenate([start, terms], 1).cumsum(1) % _MODULUS  # [2, n + 1]
        self.spans = [*spans, *media_spans(tokens)]
        self.ends: Ints = np.arange(1, len(tokens) + 1)
        for begin, end in self.spans:
            self.ends[begin:end] = end

    def inside(self, position: int) -> bool:
        return any(begin < position < end for begin, end in self.spans)

    def rows(self, positions: Ints, layer: int) -> Ints:
        """[n, 4]: position, two codes, layer."""
        ends = self.ends[positions]
        return np.stack([positions, self.codes[0, ends], self.codes[1, ends], np.full(len(ends), layer)], 1)

    def state(self, length: int, layer: int, shape: tuple[int, ...]) -> Floats:
        """A state after `length` tokens; zeros before the first."""
        numbers = np.array([length, self.codes[0, length], self.codes[1, length], layer])
        index = np.arange(int(np.prod(shape)))
        return (numbers[index % 4] + index // 4 if length else 0 * index).reshape(shape).astype(np.float32)


def media_spans(tokens: Ints) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for position in np.flatnonzero(tokens < 0):
        if not spans or position >= spans[-1][1]:
            spans.append((int(position), int(position) + _counts[int(tokens[position])]))
    return spans


def keys_of(rows: Ints, heads: int, dim: int) -> Floats:
    """[n, heads, dim] of `History.rows`; the number 0 of head 0 is the position."""
    numbers = rows[:, np.arange(dim) % 4]
    return (numbers[:, None, :] + np.arange(heads)[:, None]).astype(np.float32)


def values_of(rows: Ints, heads: int, dim: int) -> Floats:
    return -keys_of(rows[:, [1, 2, 3, 0]], heads, dim) - 1


class KindsModel:
    """`model(step)` writes every layer of `caches` and checks what they then say; gives logits [sessions, VOCAB].

    ``spans``: those that its sessions pass as ``atomic``. On "null" caches nothing is read.
    """

    def __init__(self, caches: Sequence[Any], spans: Spans = (), check: bool = True) -> None:
        self.spans = spans
        self.check = check and all(cache.device != "null" for cache in caches)
        self.layers = sorted((layer, cache) for cache in caches for layer in cache.layers)
        self.rows = 0  # computed so far
        self.captured: list[int] = []  # lengths inside steps at which states were wanted
        self.drafts: dict[
            int, list[list[int]]
        ] = {}  # of steps, by id: what the step has to propose, where a test knows

    def __call__(self, step: Any) -> Floats:
        sequences, positions = np.asarray(step.sequences), np.asarray(step.positions, np.int64)
        drafts = proposed_in(step)
        assert drafts == self.drafts.get(id(step), drafts)
        histories = [
            History(session.namespace, [*session.tokens, *own], self.spans)
            for session, own in zip(step.sessions, drafts)
        ]
        parts = [positions[sequences == index] for index in range(len(histories))]
        for history, part in zip(histories, parts):
            assert (np.diff(part) == 1).all()
            assert not history.inside(int(part[0]))
            assert not history.inside(int(part[-1]) + 1)
        if any(isinstance(cache, kv.caches.RecurrentCache) for _, cache in self.layers):
            self.captured += [length for lengths in step.boundaries() for length in lengths]
        for layer, cache in self.layers:
            if isinstance(cache, kv.caches.RecurrentCache):
                self._move_states(step, layer, cache, histories, parts)
            else:
                self._store_rows(step, layer, cache, histories, parts)
        self.rows += len(positions)
        return self._logits(histories, parts)

    def _store_rows(self, step: Any, layer: int, cache: Any, histories: list[History], parts: list[Ints]) -> None:
        rows = np.concatenate([history.rows(part, layer) for history, part in zip(histories, parts)])
        shape = (cache.kv_heads, cache.head_dim), (cache.kv_heads, cache.v_head_dim)
        step.put(layer, keys_of(rows, *shape[0]), values_of(rows, *shape[1]))
        if not self.check:
            return
        k, v, mask = (np.asarray(part) for part in step.get(layer))
        seen = mask == 0
        assert np.isneginf(mask[~seen]).all()
        for index, (history, part) in enumerate(zip(histories, parts)):
            self._check_rows(cache, layer, history, part, seen[np.asarray(step.sequences) == index], k, v)

    @staticmethod
    def _check_rows(
        cache: Any, layer: int, history: History, part: Ints, seen: npt.NDArray[np.bool_], k: Floats, v: Floats
    ) -> None:
        """Each row of one session sees exactly the keys it should, and they are this session's."""
        columns = np.flatnonzero(seen.any(0))
        found = k[columns, 0, 0].astype(np.int64)
        low = floor_of(cache, int(part[0]))
        np.testing.assert_array_equal(np.sort(found), np.arange(low, part[-1] + 1), f"layer {layer}")
        rows = history.rows(found, layer)
        np.testing.assert_array_equal(k[columns], keys_of(rows, cache.kv_heads, cache.head_dim), f"layer {layer}")
        np.testing.assert_array_equal(v[columns], values_of(rows, cache.kv_heads, cache.v_head_dim), f"layer {layer}")
        floors = np.array([floor_of(cache, int(position)) for position in part])
        wanted = (found >= floors[:, None]) & (found <= part[:, None])
        np.testing.assert_array_equal(seen[:, columns], wanted, f"layer {layer}")

    def _move_states(self, step: Any, layer: int, cache: Any, histories: list[History], parts: list[Ints]) -> None:
        """Checks the states before the rows, and gives back one for each boundary and one for the end."""
        shapes = (cache.conv_tail, cache.conv_dim), (cache.v_heads, cache.v_dim, cache.k_dim)
        lengths = [[*own, int(part[-1]) + 1] for own, part in zip(step.boundaries(), parts)]
        found = step.states(layer) if self.check else (None, None)
        for number, shape in enumerate(shapes):
            if not self.check or not all(shape):
                continue
            wanted = [history.state(int(part[0]), layer, shape) for history, part in zip(histories, parts)]
            np.testing.assert_array_equal(np.asarray(found[number]), (-1) ** number * np.stack(wanted))
        made = [
            (-1) ** number
            * np.stack([h.state(length, layer, shape) for h, own in zip(histories, lengths) for length in own])
            if all(shape)
            else None
            for number, shape in enumerate(shapes)
        ]
        step.put_states(layer, *made)

    @staticmethod
    def _logits(histories: list[History], parts: list[Ints]) -> Floats:
        """The likeliest next token depends on the whole prefix."""
        logits = np.zeros((len(parts), VOCAB), np.float32)
        for index, (history, part) in enumerate(zip(histories, parts)):
            logits[index, history.codes[0, part[-1] + 1] % VOCAB] = 1
        return logits


def floor_of(cache: Any, position: int) -> int:
    """The first position that the query at `position` sees."""
    low = 0
    if cache.window is not None:
        low = max(low, position - cache.window + 1)
    if cache.chunk is not None:
        low = max(low, position - position % cache.chunk)
    return low


KINDS = ("dense", "window", "chunk", "hybrid", "latent")


def make_caches(
    kind: str,
    capacity: int = 4096,
    *,
    window_capacity: Optional[int] = None,
    slots: int = 64,
    window: int = WINDOW,
    chunk: int = CHUNK,
    device: Any = "host",
    **options: Any,
) -> list[Any]:
    """The caches of a model of four layers: one of full attention and three of `kind`, or all four dense."""

    def causal(layers: list[int], cells: int = capacity, v_head_dim: int = 3, **sees: Any) -> Any:
        sees["v_head_dim"] = v_head_dim
        return kv.caches.CausalCache(layers, 1, 4, cells, dtype="float32", device=device, **sees, **options)

    def recurrent(layers: list[int]) -> Any:
        return kv.caches.RecurrentCache(layers, 3, 4, 2, 2, 3, slots, device=device)

    cells = capacity if window_capacity is None else window_capacity
    if kind == "dense":
        return [causal([0, 1, 2, 3])]
    if kind == "window":
        return [causal([3]), causal([0, 1, 2], cells, window=window)]
    if kind == "chunk":
        return [causal([3]), causal([0, 1, 2], cells, chunk=chunk)]
    if kind == "hybrid":
        return [causal([3]), recurrent([0, 1, 2])]
    if kind == "latent":
        return [causal([3], v_head_dim=0, latent_dim=2), causal([0, 1, 2])]
    if kind == "window alone":
        return [causal([0, 1], cells, window=window)]
    if kind == "chunk alone":
        return [causal([0, 1], cells, chunk=chunk)]
    if kind == "recurrent alone":
        return [recurrent([0, 1])]
    assert kind == "all"  # and layers that are not contiguous
    return [causal([7, 2]), causal([9, 0], cells, window=window), causal([4], cells, chunk=chunk), recurrent([5, 1])]


def make(
    kind: str,
    capacity: int = 4096,
    *,
    host_bytes: Any = 0,
    growth: int = 256,
    spacing: int = SPACING,
    spans: Spans = (),
    **options: Any,
) -> tuple[kv.PrefixCache, KindsModel]:
    """A prefix cache of `kind`, and its model."""
    caches = make_caches(kind, capacity, **options)
    cache = kv.PrefixCache(caches, host_bytes=host_bytes, growth=growth, checkpoint_every=spacing)
    return cache, KindsModel(caches, spans)


def words(seed: int, count: int) -> list[int]:
    """`count` random tokens."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, count)]


def diverging(text: list[int], at: int, seed: int, length: int) -> list[int]:
    """`length` tokens: `text` up to `at`, then something else; another seed parts there, too."""
    return [*text[:at], (text[at] + 1 + seed) % VOCAB, *words(1000 + seed, length - at - 1)]


def points_of(cache: kv.PrefixCache) -> dict[int, str]:
    """The kinds of all restore points by their length."""
    return {node.end: node.point for node in cache.nodes() if node.point}
