"""The operations of a transformer block against numpy: what `doctor` and the probing of drivers run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from . import ops
from ._core import CausalCache, Device, Tensor, tensor

Array = npt.NDArray[np.float32]
Check = Callable[[Device, np.random.Generator], tuple[Tensor, Array]]  # (device, random) -> (got, wanted)


def error_of(check: Check, device: Device) -> float:
    """max|got - wanted| / max|wanted|."""
    got, wanted = check(device, np.random.default_rng(7))
    return float(np.abs(np.asarray(got) - wanted).max() / np.abs(wanted).max())


def _matmul(device: Device, random: np.random.Generator) -> tuple[Tensor, Array]:
    x, w = random.standard_normal((5, 64), np.float32), random.standard_normal((48, 64), np.float32)
    return ops.matmul(tensor(x, device=device), tensor(w, device=device)), x @ w.T


def _rms_norm(device: Device, random: np.random.Generator) -> tuple[Tensor, Array]:
    x, g = random.standard_normal((5, 64), np.float32), random.standard_normal(64, np.float32)
    got = ops.rms_norm(tensor(x, device=device), tensor(g, device=device), 1e-6)
    return got, x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g


def _softmax(device: Device, random: np.random.Generator) -> tuple[Tensor, Array]:
    x = random.standard_normal((5, 64), np.float32)
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return ops.softmax(tensor(x, device=device)), shifted / shifted.sum(-1, keepdims=True)


def _attention(device: Device, random: np.random.Generator) -> tuple[Tensor, Array]:
    """Seven rows of one sequence through a cache: 4 heads over 2 K/V heads of 32."""
    rows, heads, kv_heads, dim = 7, 4, 2, 32
    q = random.standard_normal((rows, heads, dim), np.float32)
    k = random.standard_normal((rows, kv_heads, dim), np.float32)
    v = random.standard_normal((rows, kv_heads, dim), np.float32)
    cache = CausalCache([0], kv_heads, dim, 64, dtype="float32", device=device)
    cache.start_forward(list(range(rows)), [0] * rows)
    cache.put(0, tensor(k, device=device), tensor(v, device=device))
    got = cache.attend(0, tensor(q, device=device))
    wide_k, wide_v = np.repeat(k, heads // kv_heads, 1), np.repeat(v, heads // kv_heads, 1)
    scores = np.einsum("qhd,khd->hqk", q, wide_k) / np.sqrt(dim)
    scores = np.where(np.tril(np.ones((rows, rows), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return got, np.einsum("hqk,khd->qhd", weights, wide_v)


CHECKS: dict[str, Check] = {"matmul": _matmul, "rms_norm": _rms_norm, "softmax": _softmax, "attention": _attention}
