"""Check this machine: OpenCL, devices, libraries, kernels; say what is missing and what to install."""

from __future__ import annotations

import argparse
import importlib.metadata
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

import kvtrie as kv
from kvtrie import _devices, _health
from kvtrie._health import MISSING, NOTE, OK, Finding

from .devices import format_bytes

PACKAGES = ("safetensors", "tokenizers", "jinja2", "tqdm", "gguf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="do not run kernels on the devices")


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    return _health.write(examine(quick=arguments.quick), out)


def examine(*, quick: bool = False) -> Iterator[Finding]:
    """Every finding, in the order in which a fault in one explains faults in the next."""
    yield from _health.basics()
    yield from _python_packages()
    yield _program_cache()
    found = kv.devices()
    if not found:
        package = _health.DRIVER_PACKAGE
        advice = f"apt-get install {package} (a CPU device), or the OpenCL driver of your GPU"
        yield Finding(MISSING, "OpenCL device", "none", advice, package)
    for device in found:
        detail = f"{device.name} ({device.kind}, {format_bytes(device.global_bytes)})"
        yield Finding(OK, "OpenCL device", detail)
        if not quick:
            yield _vectors(device)
            yield _self_test(device)


def _python_packages() -> Iterator[Finding]:
    for name in PACKAGES:
        try:
            yield Finding(OK, f"python: {name}", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(
                NOTE, f"python: {name}", "not installed: needed for checkpoints", "pip install 'kvtrie[models]'"
            )


def _program_cache() -> Finding:
    folder = _devices.cache_folder()
    if not folder:
        advice = "set KVTRIE_CACHE_DIR to a folder that only you can write to"
        return Finding(NOTE, "kernel cache", "none: kernels are compiled again in every process", advice)
    files = [file for file in Path(folder).rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    return Finding(OK, "kernel cache", f"{folder}: {len(files)} files, {format_bytes(size)}")


def _vectors(device: Any) -> Finding:
    """How wide the kernels' vectors are: what the driver's compiler aims at, which need not be what the device has."""
    try:
        width = kv.ops.vector_width(device)
    except kv.Error as error:
        return Finding(MISSING, "vectors", str(error), "report this with the output of `python -m kvtrie devices`")
    return Finding(OK, "vectors", f"{width} floats")


def _self_test(device: Any) -> Finding:
    """Runs the kernels of a transformer block against numpy; the kernels also test themselves at first use."""
    begin = time.perf_counter()
    try:
        worst = max(_operation_errors(device).items(), key=lambda item: item[1])
    except kv.Error as error:
        return Finding(MISSING, "kernels", str(error), "report this with the output of `python -m kvtrie devices`")
    detail = f"largest relative error {worst[1]:.1e} ({worst[0]}), {time.perf_counter() - begin:.1f} s"
    if worst[1] > 1e-4:
        return Finding(MISSING, "kernels", detail, "this driver computes wrong results: choose another device")
    return Finding(OK, "kernels", detail)


def _operation_errors(device: Any) -> dict[str, float]:
    """max|a-b| / max|b| of each operation on fixed random input."""
    random = np.random.default_rng(7)
    x, w = random.standard_normal((5, 64), np.float32), random.standard_normal((48, 64), np.float32)
    g = random.standard_normal(64, np.float32)
    on_device = kv.tensor(x, device=device)
    shifted = np.exp(x - x.max(-1, keepdims=True))
    wanted = {
        "matmul": (kv.ops.matmul(on_device, kv.tensor(w, device=device)), x @ w.T),
        "rms_norm": (
            kv.ops.rms_norm(on_device, kv.tensor(g, device=device), 1e-6),
            x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g,
        ),
        "softmax": (kv.ops.softmax(on_device), shifted / shifted.sum(-1, keepdims=True)),
        "attention": _attention(device, random),
    }
    return {name: float(np.abs(np.asarray(got) - b).max() / np.abs(b).max()) for name, (got, b) in wanted.items()}


def _attention(device: Any, random: np.random.Generator) -> tuple[Any, Any]:
    """(got, wanted) of seven rows of one sequence through a cache: 4 heads over 2 K/V heads of 32."""
    rows, heads, kv_heads, dim = 7, 4, 2, 32
    q = random.standard_normal((rows, heads, dim), np.float32)
    k = random.standard_normal((rows, kv_heads, dim), np.float32)
    v = random.standard_normal((rows, kv_heads, dim), np.float32)
    cache = kv.CausalCache([0], kv_heads, dim, 64, dtype="float32", device=device)
    cache.start_forward(list(range(rows)), [0] * rows)
    cache.put(0, kv.tensor(k, device=device), kv.tensor(v, device=device))
    got = cache.attend(0, kv.tensor(q, device=device))
    wide_k, wide_v = np.repeat(k, heads // kv_heads, 1), np.repeat(v, heads // kv_heads, 1)
    scores = np.einsum("qhd,khd->hqk", q, wide_k) / np.sqrt(dim)
    scores = np.where(np.tril(np.ones((rows, rows), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return got, np.einsum("hqk,khd->qhd", weights, wide_v)
