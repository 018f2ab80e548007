"""Whether answers are the same bits where kvtrie promises it, on the device itself.

A row has the bits of its product alone, among 8 and among many; its attention those of a decode step and of a prefill,
whatever lies in cells that nobody holds, whoever merges its splits, and whoever rotates and stores q, k and v. What
differs is a row of its own, and the part fails.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import product
from typing import Any

import numpy as np

import kvtrie as kv
from gpu.products import random_weight
from gpu.rows import Rows, is_gpu, open_device

STORED = ("float16", "bfloat16", "q8_0", "q4_K", "q4_0")
PRECISIONS = ("auto", "fast")
HEADS, KV_HEADS, DIM = 8, 2, 128


def bits(rows: Rows) -> None:
    """Products of each kind of weight, then attention; ends with 1 where something differs."""
    device = open_device(times=False)
    inputs, out, many = (4096, 4096, 512) if is_gpu(device) else (256, 512, 64)
    history = 5000 if is_gpu(device) else 300
    same = []
    for stored, precision in product(STORED, PRECISIONS):
        what = f"{stored}, {precision}"
        same.append(rows.attempt(what, partial(_product, rows, device, stored, precision, inputs, out, many)))
        same.append(rows.attempt(f"put, {what}", partial(_puts, rows, device, stored, precision, inputs)))
    for dtype, precision in (("float16", "auto"), ("float16", "fast"), ("float32", "auto"), ("q8_0", "auto")):
        what = f"{dtype}, {precision}"
        same.append(rows.attempt(what, partial(_attention, rows, device, dtype, precision, history)))
    if not all(same):
        sys.exit(1)


def _same(rows: Rows, what: str, one: Any, other: Any) -> bool:
    differ = int((one.view(np.uint32) != other.view(np.uint32)).sum())
    said = "the same bits" if not differ else f"{differ} of {one.size} numbers differ"
    rows.say(f"{what}: {said}", what="bits", name=what, differ=differ, numbers=one.size)
    return differ == 0


def _product(rows: Rows, device: Any, stored: str, precision: str, inputs: int, out: int, many: int) -> bool:
    weight = random_weight(device, stored, inputs, out, precision)
    x = np.random.default_rng(5).standard_normal((many, inputs)).astype(np.float32)

    def of(count: int) -> Any:
        return kv.ops.matmul(kv.tensor(x[:count], device=device), weight).numpy()

    whole = of(many)
    what = f"{stored}, {precision}"
    told = [_same(rows, f"{what}: {n} rows among {many}", of(n), whole[:n]) for n in (1, 2, 8, 9, 64)]
    return all(told)


def _attention(rows: Rows, device: Any, dtype: str, precision: str, history: int) -> bool:
    """The last row of a prefill, and the same row as a step of its own in a pool full of NaN."""
    random = np.random.default_rng(6)
    k, v = (random.standard_normal((history, KV_HEADS, DIM)).astype(np.float32) for _ in range(2))
    q = random.standard_normal((history, HEADS, DIM)).astype(np.float32)

    def attended(cuts: list[int]) -> Any:
        cache = kv.caches.CausalCache([0], KV_HEADS, DIM, 2 * history, dtype=dtype, device=device)
        _fill_with_nan(cache, history)
        begun, out = 0, None
        for end in cuts:
            cache.start_forward(np.arange(begun, end), np.zeros(end - begun, np.int32))
            cache.put(0, k[begun:end], v[begun:end])
            out = cache.attend(0, q[begun:end], precision=precision).numpy()
            begun = end
        assert out is not None
        return out[-1]

    prefill, name = attended([history]), f"{dtype}, {precision}"
    told = [
        _same(rows, f"{name}: the last row of {history} after {cut}", attended([cut, history]), prefill)
        for cut in (history - 1, history - 8, history - 9, history // 2)
    ]
    device._merge_in_attention(0)
    for cut in (history - 1, history - 8):
        what = f"{name}: the last row of {history} after {cut}, merged by a launch"
        told.append(_same(rows, what, attended([cut, history]), prefill))
    device._merge_in_attention(None)
    return all(told)


def _puts(rows: Rows, device: Any, stored: str, precision: str, inputs: int) -> bool:
    """Attention of steps whose products store their rows, and of steps with a launch for that."""
    weight = random_weight(device, stored, inputs, (HEADS + 2 * KV_HEADS) * DIM, precision)
    table = kv.ops.RopeTable(DIM, device=device)
    norm = (np.ones(inputs, np.float32), 1e-6, 0.0)
    x = np.random.default_rng(8).standard_normal((8, inputs)).astype(np.float32)
    found = []
    for puts in (None, False):
        device._put_in_products(puts)
        caches = [kv.caches.CausalCache([0], KV_HEADS, DIM, 64, device=device)]
        with kv.PrefixCache(caches, host_bytes=0) as cache, cache.begin(np.arange(16)) as session:
            asked = partial(kv.Step.attend_qkv, weight=weight, norm=norm, precision=precision)
            found.append(np.concatenate([asked(step, 0, x, table).numpy() for step in session.prefill(chunk=8)]))
    device._put_in_products(None)
    return _same(rows, f"{stored}, {precision}: q, k and v stored by their product", *found)


def _fill_with_nan(cache: Any, count: int) -> None:
    """Cells that a sequence had and gave back hold NaN."""
    cache.start_forward(np.arange(count), np.ones(count, np.int32))
    nan = np.full((count, KV_HEADS, DIM), np.nan, np.float32)
    cache.put(0, nan, nan)
    cache.remove(1, 0)
