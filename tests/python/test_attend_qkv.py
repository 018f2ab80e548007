"""attend_qkv: the bits of the separate operations, whoever else is in the step, and refusals that store nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvtrie as kv

LAYERS, HEADS, KV_HEADS = (0, 3), 6, 2


def make_cache(device: Any, dim: int, v_dim: int, dtype: str) -> Any:
    cache = kv.caches.CausalCache(LAYERS, KV_HEADS, dim, 256, v_head_dim=v_dim, dtype=dtype, device=device)
    return kv.PrefixCache([cache], host_bytes=0)


def projections(random: np.random.Generator, rows: int, dim: int, v_dim: int) -> np.ndarray:
    return random.standard_normal((rows, (HEADS + KV_HEADS) * dim + KV_HEADS * v_dim)).astype(np.float32)


def separately(step: Any, layer: int, qkv: np.ndarray, dim: int, v_dim: int, table: Any, norms: Any) -> np.ndarray:
    """rms_norm, rope, attend."""
    rows = len(qkv)
    parts = np.split(qkv, [HEADS * dim, (HEADS + KV_HEADS) * dim], axis=1)
    q, k = (np.ascontiguousarray(part).reshape(rows, -1, dim) for part in parts[:2])
    v = np.ascontiguousarray(parts[2]).reshape(rows, -1, v_dim)
    if norms is not None:
        q, k = kv.ops.rms_norm(q, norms[0], 1e-5, 1.0), kv.ops.rms_norm(k, norms[1], 1e-5, 1.0)
    if table is not None:
        q, k = (kv.ops.rope(part, np.asarray(step.positions), table=table) for part in (q, k))
    return np.asarray(step.attend(layer, q, k, v, scale=0.2)).reshape(rows, -1)


def together(step: Any, layer: int, qkv: np.ndarray, table: Any, norms: Any) -> np.ndarray:
    q_norm, k_norm = norms if norms is not None else (None, None)
    return np.asarray(step.attend_qkv(layer, qkv, table, q_norm, k_norm, 1e-5, 1.0, scale=0.2))


SHAPES = [(32, 32, 32, False, False), (64, 16, 24, False, True), (20, 12, 14, True, True), (16, 16, 0, False, True)]
QUICK = [("float32", *SHAPES[0]), ("float16", *SHAPES[2]), ("q8_0", 64, 32, 24, False, True)]
OTHERS = [
    each for each in ((dtype, *shape) for shape in SHAPES for dtype in ("float16", "float32")) if each not in QUICK
]


@pytest.mark.parametrize(
    ("dtype", "dim", "v_dim", "rotated", "interleaved", "normed"),
    [
        *QUICK,
        *(pytest.param(*each, marks=pytest.mark.ci if each[0] == "float16" else pytest.mark.soak) for each in OTHERS),
    ],
)
def test_the_bits_are_those_of_the_separate_calls(
    dtype: str, dim: int, v_dim: int, rotated: int, interleaved: bool, normed: bool
) -> None:
    device = kv.Device()
    random = np.random.default_rng(3)
    table = kv.ops.RopeTable(dim, dims=rotated, interleaved=interleaved, device=device) if rotated else None
    norms = random.standard_normal((2, dim)).astype(np.float32) if normed else None
    tokens = [random.integers(0, 50, 70).astype(np.int32), random.integers(50, 90, 9).astype(np.int32)]
    results = []
    for way in ("separate", "together"):
        random = np.random.default_rng(4)
        with make_cache(device, dim, v_dim, dtype) as cache:
            sessions = [cache.begin(each) for each in tokens]
            outs = []
            for turn in range(3):
                step = cache.batch(sessions, chunk=40) if turn < 2 else sessions[0].decode()
                for layer in LAYERS:
                    qkv = projections(random, len(step.tokens), dim, v_dim)
                    if way == "separate":
                        outs.append(separately(step, layer, qkv, dim, v_dim, table, norms))
                    else:
                        outs.append(together(step, layer, qkv, table, norms))
                assert step.complete
                for session in sessions:
                    if len(session.remaining) == 0:
                        session.append(1)
            results.append(outs)
    for one, other in zip(*results):
        np.testing.assert_array_equal(one, other)


def test_a_row_does_not_depend_on_the_others() -> None:
    device, dim = kv.Device(), 32
    table = kv.ops.RopeTable(dim, device=device)
    qkv = projections(np.random.default_rng(5), 8, dim, dim)
    alone = []
    with make_cache(device, dim, dim, "float16") as cache:
        for row in range(8):
            step = cache.begin(np.array([row + 1], np.int32), publish=False).decode()
            alone.append(np.asarray(step.attend_qkv(0, qkv[row : row + 1], table)))
        sessions = [cache.begin(np.array([row + 1], np.int32), publish=False) for row in range(8)]
        batch = np.asarray(cache.batch(sessions).attend_qkv(0, qkv, table))
    np.testing.assert_array_equal(np.concatenate(alone), batch)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("normed", [False, True])
def test_a_product_gives_the_bits_of_packed_rows(parts: int, normed: bool) -> None:
    """Of one weight, and of q, k and v one after the other; steps of few rows and of more, on all devices."""
    device, dim, inside = kv.Device(), 32, 64
    random = np.random.default_rng(7)
    table = kv.ops.RopeTable(dim, device=device)
    widths = [HEADS * dim, KV_HEADS * dim, KV_HEADS * dim]
    widths = widths if parts == 3 else [sum(widths)]
    weights = tuple(kv.ops.pack(kv.tensor(random.standard_normal((n, inside)).astype(np.float16), device=device))
                    for n in widths)  # fmt: skip
    weight = weights if parts == 3 else weights[0]
    bias = random.standard_normal(sum(widths)).astype(np.float32)
    norm = (random.standard_normal(inside).astype(np.float32), 1e-5, 1.0) if normed else None
    x = random.standard_normal((24, inside)).astype(np.float32)
    results = []
    for inside_of in (False, True):
        with make_cache(device, dim, dim, "float16") as cache:
            session, outs = cache.begin(np.arange(13, dtype=np.int32)), []
            for begin, end in ((0, 13), (13, 14), (14, 17), (17, 24)):
                if begin > 0:
                    session.append(np.arange(begin, end, dtype=np.int32))
                step, rows = session.decode(), x[begin:end]
                for layer in LAYERS:
                    if inside_of:
                        out = step.attend_qkv(layer, rows, table, weight=weight, bias=bias, norm=norm)
                    else:
                        out = step.attend_qkv(layer, kv.ops.matmul(rows, weight, add=bias, norm=norm), table)
                    outs.append(np.asarray(out))
            results.append(outs)
    for one, other in zip(*results):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"bias": np.zeros(320, np.float32)}, "bias"),
        ({"norm": (np.zeros(64, np.float32), 1e-5, 0.0)}, "norm"),
        ({"weight": ()}, "w"),
        ({"weight": np.zeros((320, 64), np.float32)}, "weight"),
        ({"packed": (320, 32)}, "x"),
        ({"packed": (288, 64)}, "qkv"),
        ({"packed": (320, 64), "qkv": np.zeros((2, 64), np.float32)}, "qkv"),
        ({"packed": (320, 64), "bias": np.zeros(64, np.float32)}, "add"),
        ({"packed": (320, 64), "norm": (np.zeros(32, np.float32), 1e-5, 0.0)}, "norm"),
    ],
)
def test_a_product_that_is_refused_stores_nothing(change: dict[str, Any], named: str) -> None:
    device, dim = kv.Device(), 32
    if "packed" in change:
        weight = kv.ops.pack(kv.tensor(np.zeros(change["packed"], np.float16), device=device))
        change = {"weight": weight, **{name: each for name, each in change.items() if name != "packed"}}
    with make_cache(device, dim, dim, "float32") as cache:
        session = cache.begin(np.arange(3, dtype=np.int32))
        step = session.decode()
        arguments = {"qkv": np.zeros((3, 64), np.float32), **change}
        with pytest.raises((kv.errors.ArgumentError, kv.errors.ArgumentTypeError), match=named):
            step.attend_qkv(0, **arguments)
        for layer in LAYERS:
            step.attend_qkv(layer, projections(np.random.default_rng(6), 3, dim, dim))
        assert session.length == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"qkv": np.zeros((2, 320), np.float32)}, "qkv"),
        ({"qkv": np.zeros((3, 321), np.float32)}, "qkv"),
        ({"qkv": np.zeros((3, 128), np.float32)}, "qkv"),
        ({"q_norm": np.zeros(31, np.float32)}, "q_norm"),
        ({"k_norm": np.zeros((1, 32), np.float32)}, "k_norm"),
        ({"rope": 3}, "rope"),
        ({"rope_dim": 64}, "rope"),
        ({"sinks": np.zeros(5, np.float32)}, "sinks"),
        ({"eps": -1.0}, "eps"),
        ({"scale": 0.0}, "scale"),
    ],
)
def test_what_is_refused_stores_nothing(change: dict[str, Any], named: str) -> None:
    device, dim = kv.Device(), 32
    if "rope_dim" in change:
        change = {"rope": kv.ops.RopeTable(change["rope_dim"], device=device)}
    with make_cache(device, dim, dim, "float32") as cache:
        session = cache.begin(np.arange(3, dtype=np.int32))
        step = session.decode()
        arguments = {"qkv": projections(np.random.default_rng(6), 3, dim, dim), **change}
        with pytest.raises((kv.errors.ArgumentError, kv.errors.ArgumentTypeError), match=named):
            step.attend_qkv(0, **arguments)
        good = projections(np.random.default_rng(6), 3, dim, dim)
        step.attend_qkv(0, good)
        with pytest.raises(kv.errors.ArgumentError, match="put in this forward already"):
            step.attend_qkv(0, good)
        with pytest.raises(kv.errors.ArgumentError, match="layer"):
            step.attend_qkv(1, good)
        step.attend_qkv(3, good)
        assert session.length == 3


def test_a_cache_on_the_host_says_what_to_use_instead() -> None:
    with make_cache("host", 32, 32, "float32") as cache:
        step = cache.begin(np.arange(3, dtype=np.int32)).decode()
        with pytest.raises(kv.errors.NotSupportedError, match="use attend"):
            step.attend_qkv(0, projections(np.random.default_rng(6), 3, 32, 32))
        weight = kv.ops.pack(kv.tensor(np.zeros((320, 64), np.float16)))
        with pytest.raises(kv.errors.NotSupportedError, match="use attend"):
            step.attend_qkv(0, np.zeros((3, 64), np.float32), weight=weight)
