"""Attention over float16 K and V, some over float32 and q8_0, 32 heads of 128 on 8 K/V heads: device time of a layer.

``decode``   a row each of some conversations with histories of their own
``shared``   a row each of conversations on one prefix, whose K and V are there once
``prefill``  rows at the end of a history, each sees what is before it

``merge`` in its kernel and in a launch behind it: up to how many splits of 512 keys it pays (FamilyRow::merged_splits).

Every case with both precisions, "auto" and "fast": two halves for a number of q and one; others have "auto" alone.

Layers are asked in turn, so that K and V come from memory. ``share``: bytes of K and V that have to be read at least
once, against the rate of a copy.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

import kvtrie as kv
from gpu.products import copy_rate
from gpu.rows import Rows, device_us, is_gpu, open_device

HEADS, KV_HEADS, DIM = 32, 8, 128
CHUNK = 16384  # rows that are put at once
# What, conversations, history of each, rows of each.
CASES = (
    ("decode", 1, 4096, 1),
    ("decode", 1, 32768, 1),
    ("decode", 8, 4096, 1),
    ("prefill", 1, 16384, 512),
    ("shared", 64, 16384, 1),
    ("prefill", 1, 0, 4096),
    ("decode", 64, 4096, 1),
    ("decode", 1, 131072, 1),
    ("decode", 8, 32768, 1),
    ("shared", 8, 16384, 1),
)
OTHERS = (("decode", 1, 32768, 1), ("prefill", 1, 16384, 512), ("decode", 8, 4096, 1))  # also over other K and V
BYTES = {"float16": 2, "float32": 4, "q8_0": 34 / 32}  # of a number
# Conversations and history of what is merged in both ways.
MERGED = tuple((conversations, history) for history in (1024, 4096, 8192, 32768) for conversations in (1, 8))
EVERY = 1 << 20  # splits: more than any history has
POSING = (("decode", 1, 256, 1), ("decode", 3, 64, 1), ("shared", 3, 64, 1), ("prefill", 1, 64, 40))


def attention(rows: Rows) -> None:
    """Every case."""
    device = open_device(times=True)
    rate = copy_rate(rows, device)
    for case in CASES if is_gpu(device) else POSING:
        rows.attempt(" ".join(map(str, case)), partial(_attend, rows, device, rate, "float16", *case))
        device.trim()
    for dtype in ("float32", "q8_0"):
        for case in OTHERS if is_gpu(device) else POSING[:1]:
            rows.attempt(f"{dtype} {' '.join(map(str, case))}", partial(_attend, rows, device, rate, dtype, *case))
            device.trim()
    for merged in MERGED if is_gpu(device) else ((1, 1024),):
        rows.attempt(f"merge {merged}", partial(_merge, rows, device, *merged))
        device.trim()


def _attend(
    rows: Rows, device: Any, rate: float, dtype: str, what: str, conversations: int, history: int, own: int
) -> None:
    works, nbytes = _layers_of(device, what, conversations, history, own, dtype)
    for precision in ("auto", "fast") if dtype == "float16" else ("auto",):
        asked = [partial(work, precision=precision) for work in works]
        us, launches = device_us(device, asked, 4 if own == 1 else 2)
        _tell(rows, what, dtype, precision, conversations, history, own, us, launches, nbytes / us * 1e6 / rate)


def _merge(rows: Rows, device: Any, conversations: int, history: int) -> None:
    """Device time of attention that merges by itself and by a launch; without such a form, of the same twice."""
    works, _ = _layers_of(device, "decode", conversations, history, 1)
    device._merge_in_attention(0)
    apart, launches = device_us(device, works, 4)
    device._merge_in_attention(EVERY)
    inside, fewer = device_us(device, works, 4)
    device._merge_in_attention(None)
    rows.say(
        f"merge of {conversations} conversations on {history:6}: {inside:7.1f} us a layer in {fewer:.0f} launches, "
        f"{apart:7.1f} us in {launches:.0f}",
        what="merge",
        conversations=conversations,
        history=history,
        us=inside,
        launches=fewer,
        apart_us=apart,
        apart_launches=launches,
    )


def _layers_of(
    device: Any, what: str, conversations: int, history: int, own: int, dtype: str = "float16"
) -> tuple[list[Any], int]:
    """What asks each layer for attention, and the bytes of K and V that one has."""
    cells = history + own if what == "shared" else conversations * (history + own)
    nbytes = int(2 * BYTES[dtype] * KV_HEADS * DIM * cells)
    layers = min(8, max(2, math.ceil((200 << 20) / nbytes))) if is_gpu(device) else 2
    lines = conversations * own
    room = cells + conversations * own + 64
    cache = kv.caches.CausalCache(range(layers), KV_HEADS, DIM, room, dtype=dtype, device=device)
    random = np.random.default_rng(4)
    for sequence in range(1 if what == "shared" else conversations):
        _fill(cache, random, device, sequence, history, layers)
    if what == "shared":
        for sequence in range(1, conversations):
            cache.copy_prefix(0, sequence, history)
    places = [history + i for _ in range(conversations) for i in range(own)]
    cache.start_forward(places, [sequence for sequence in range(conversations) for _ in range(own)])
    k = _normal(random, device, lines, KV_HEADS)
    for layer in range(layers):
        cache.put(layer, k, k)
    q = _normal(random, device, lines, HEADS)
    return [partial(cache.attend, layer, q) for layer in range(layers)], nbytes


def _tell(
    rows: Rows,
    what: str,
    dtype: str,
    precision: str,
    conversations: int,
    history: int,
    own: int,
    us: float,
    launches: float,
    share: float,
) -> None:
    seen = own * history + own * (own + 1) / 2  # keys of all rows of one conversation
    flops = 4.0 * conversations * seen * HEADS * DIM / us * 1e6
    rows.say(
        f"{what:8} {dtype} {precision} {conversations:3} conversations, {own:4} rows on {history:6}: {us:10.1f} us a "
        f"layer, {launches:.0f} launches, {share:5.2f} of a copy, {flops / 1e12:6.1f} TFLOP/s",
        what=what,
        dtype=dtype,
        precision=precision,
        conversations=conversations,
        history=history,
        rows=own,
        us=us,
        launches=launches,
        share=share,
        flops_per_second=flops,
    )


def _fill(cache: Any, random: np.random.Generator, device: Any, sequence: int, history: int, layers: int) -> None:
    k = _normal(random, device, min(max(history, 1), CHUNK), KV_HEADS)
    for begin in range(0, history, CHUNK):
        count = min(CHUNK, history - begin)
        cache.start_forward(list(range(begin, begin + count)), [sequence] * count)
        for layer in range(layers):
            cache.put(layer, k[:count], k[:count])


def _normal(random: np.random.Generator, device: Any, *shape: int) -> Any:
    drawn = random.standard_normal((1 << 20) + 7, np.float32)
    return kv.tensor(np.resize(drawn, (*shape, DIM)), device=device)
