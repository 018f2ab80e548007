"""Products of packed weights: device time, the share of the memory's rate, and operations a second.

Several weights of one shape are used in turn, so that they come from memory and not from a cache. ``copy`` is what the
share is of: bytes read and written by a copy of this process' own on the same device, in the same run.

The first shape is also multiplied with ``precision="fast"``, one half for each number of x instead of two; bfloat16 has
two terms there instead of three.

``norm`` compares a norm inside of a product with one in a launch of its own: up to how many numbers of x it pays
(FamilyRow::norm_numbers).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import kvtrie as kv
from gpu.rows import Rows, device_us, is_gpu, open_device

PLAIN = ("float16", "bfloat16")
BLOCK_BYTES = {"q8_0": (32, 34), "q4_0": (32, 18), "q4_K": (256, 144)}  # numbers of a block, its bytes
SHAPES = ((4096, 14336), (4096, 4096), (14336, 4096), (2048, 128256), (576, 1536))
ROWS = (1, 8, 16, 64, 512, 4096)
APART = 200 << 20  # bytes of weights in turn: several times what a GPU's caches hold
MOST = 8  # weights in turn
NORMED = ((576, 960), (576, 3072), (2048, 3072), (2048, 16384), (4096, 6144), (4096, 28672))
FAST = (SHAPES[0], (256, 512))  # also with one half for a number of x; the second is that of an emulated device
EVERY = 1 << 20  # numbers of x: more than any product of few rows has


def products(rows: Rows) -> None:
    """Every shape, the most telling first."""
    device = open_device(times=True)
    gpu = is_gpu(device)
    rate = copy_rate(rows, device)
    for inputs, out in SHAPES if gpu else ((256, 512),):
        for stored in (*PLAIN, "q8_0", "q4_K", "q4_0"):
            if stored not in PLAIN and inputs % BLOCK_BYTES[stored][0]:
                continue  # no whole blocks
            name = f"{stored} {inputs} -> {out}"
            for precision in ("auto", "fast") if (inputs, out) in FAST else ("auto",):
                what = partial(_products_of, rows, device, stored, inputs, out, rate, precision)
                rows.attempt(f"{name}, {precision}", what)
    for inputs, out in NORMED if gpu else ((256, 512),):
        for stored in (*PLAIN, "q8_0"):
            rows.attempt(f"norm, {stored} {inputs} -> {out}", partial(_norms_of, rows, device, stored, inputs, out))


def _norms_of(rows: Rows, device: Any, stored: str, inputs: int, out: int) -> None:
    """Device time of norm and product in one launch and in two; where there is no such form, of the same two twice."""
    weights = _in_turn(device, stored, inputs, out)
    random = np.random.default_rng(2)
    norm = (kv.tensor(np.ones(inputs, np.float32), device=device), 1e-6, 0.0)
    for lines in (1, 4, 8):
        x = kv.tensor(random.standard_normal((lines, inputs), np.float32), device=device)
        works: list[Callable[[], Any]] = [partial(kv.ops.matmul, x, weight, norm=norm) for weight in weights]
        device._norm_in_products(0)
        apart, launches = device_us(device, works)
        device._norm_in_products(EVERY)
        inside, fewer = device_us(device, works)
        device._norm_in_products(None)
        rows.say(
            f"norm and {stored:8} {inputs:6} -> {out:6} {lines:2} rows: {inside:7.1f} us in {fewer:.0f} launches, "
            f"{apart:7.1f} us in {launches:.0f}",
            what="norm",
            stored=stored,
            inputs=inputs,
            out=out,
            rows=lines,
            numbers=lines * inputs,
            us=inside,
            launches=fewer,
            apart_us=apart,
            apart_launches=launches,
        )


def copy_rate(rows: Rows, device: Any) -> float:
    """Bytes a second, read and written, of a kernel that adds two tensors; 12 bytes a number."""
    count = (1 << 27) if is_gpu(device) else (1 << 20)
    a = kv.tensor(np.zeros((1 << 10, count >> 10), np.float32), device=device)
    us, _ = device_us(device, [lambda: kv.ops.add(a, a)])
    rate = 8.0 * count / us * 1e6  # `a` is read once
    rows.say(f"addition of a tensor to itself: {rate / 1e12:.2f} TB/s", what="copy", us=us, bytes_per_second=rate)
    torch_rate = rows.attempt("torch's copy", lambda: _torch_copy(rows, count)) if is_gpu(device) else None
    return float(torch_rate or rate)


def _torch_copy(rows: Rows, count: int) -> float | None:
    """The same by a copy of PyTorch's, which leaves nothing to wish; None where there is no PyTorch."""
    from gpu import peers

    torch: Any = peers.torch_on_gpu()
    if torch is None:
        return None
    a = torch.zeros(2 * count, dtype=torch.float32, device="cuda")
    us = peers.graph_us(torch, partial(torch.empty_like(a).copy_, a), 4)
    rate = 16.0 * count / us * 1e6
    rows.say(f"torch's copy: {rate / 1e12:.2f} TB/s", what="torch copy", us=us, bytes_per_second=rate)
    return rate


def _products_of(rows: Rows, device: Any, stored: str, inputs: int, out: int, rate: float, precision: str) -> None:
    weights = _in_turn(device, stored, inputs, out, precision)
    first = weights[0]
    random = np.random.default_rng(2)
    for lines in ROWS if is_gpu(device) else (1, 8, 64):
        if lines * out > 1 << 27:
            continue  # half a gigabyte of outputs
        x = kv.tensor(random.standard_normal((lines, inputs), np.float32), device=device)
        works: list[Callable[[], Any]] = [partial(kv.ops.matmul, x, weight) for weight in weights]
        us, launches = device_us(device, works, 5 if lines < 512 else 2)
        share, flops = first.nbytes / us * 1e6 / rate, 2.0 * lines * inputs * out / us * 1e6
        rows.say(
            f"{stored:8} {precision} {inputs:6} -> {out:6} {lines:5} rows {us:9.1f} us {share:5.2f} of a copy"
            f" {flops / 1e12:7.1f} TFLOP/s",
            what="product",
            stored=stored,
            precision=precision,
            inputs=inputs,
            out=out,
            rows=lines,
            us=us,
            launches=launches,
            share=share,
            flops_per_second=flops,
            bytes=first.nbytes,
        )


def _in_turn(device: Any, stored: str, inputs: int, out: int, precision: str = "auto") -> list[Any]:
    """As many weights as do not fit the caches together."""
    first = random_weight(device, stored, inputs, out, precision)
    count = min(MOST, max(1, APART // first.nbytes)) if is_gpu(device) else 2
    return [first, *(random_weight(device, stored, inputs, out, precision) for _ in range(count - 1))]


def random_weight(device: Any, stored: str, inputs: int, out: int, precision: str = "auto") -> Any:
    """Random blocks, scales of 2^-6, or random numbers."""
    random = np.random.default_rng(inputs)
    if stored in PLAIN:
        numbers = (random.standard_normal((1 << 20) + 7, np.float32) * 0.05).astype(np.float16)
        plain = kv.tensor(np.resize(numbers, (out, inputs)), device=device)
        return kv.ops.pack(plain.astype(stored), precision=precision)
    numbers_of, nbytes = BLOCK_BYTES[stored]
    blocks = random.integers(0, 256, ((1 << 14) + 7, nbytes), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(2.0**-6).tobytes(), np.uint8)
    if stored == "q4_K":
        blocks[:, 2:4] = blocks[:, :2]
    packed = np.resize(blocks, (out, inputs // numbers_of * nbytes))
    return kv.ops.pack_blocks(packed, stored, device=device, precision=precision)
