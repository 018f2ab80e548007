"""Operations through Python, against numpy in float64. The kernels' own cases are in tests/cpp."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest

import bounds
import kvtrie as kv

pytestmark = pytest.mark.usefixtures("nothing_left_over")

random = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def _numbers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test draws the same numbers whichever were played before it."""
    monkeypatch.setattr(sys.modules[__name__], "random", np.random.default_rng(11))


def normal(*shape: int) -> Any:
    return random.standard_normal(shape).astype(np.float32)


def close(result: Any, expected: Any, bound: bounds.Bound = bounds.SMALL_SUMS) -> None:
    assert isinstance(result, kv.Tensor)
    assert result.dtype == "float32"
    bounds.close(result, expected, bound, each=True)


def same(result: Any, expected: Any) -> None:
    assert result.dtype == "float32"
    np.testing.assert_array_equal(np.asarray(result), expected)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(x, np.float64)))


def gelu(x: Any) -> Any:
    x = np.asarray(x, np.float64)
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


UNARY = {
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": sigmoid,
    "softplus": lambda x: np.log1p(np.exp(np.asarray(x, np.float64))),
    "relu_squared": lambda x: np.square(np.maximum(np.asarray(x, np.float64), 0)),
    "signed_root": lambda x: np.sign(x) * np.sqrt(np.maximum(np.abs(np.asarray(x, np.float64)), 1e-6)),
    "softmax": lambda x: (
        np.exp(x - x.max(-1, keepdims=True)) / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)
    ),
}
BINARY = {
    "silu_mul": lambda a, b: a * sigmoid(a) * b,
    "gelu_mul": lambda a, b: gelu(a) * b,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
}


@pytest.mark.parametrize("upload", [False, True])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, upload: bool) -> None:
    x = 3 * normal(3, 5, 33)
    close(getattr(kv.ops, name)(kv.tensor(x) if upload else x), UNARY[name](x))


def test_roots_near_zero() -> None:
    x = np.float32([0, -0.0, 1e-9, -1e-9, 1e-6, -4, np.nan, -np.inf])
    got = np.asarray(kv.ops.signed_root(x))
    np.testing.assert_allclose(got, [0, 0, 1e-3, -1e-3, 1e-3, -2, np.nan, -np.inf], rtol=1e-6)


def test_clamp() -> None:
    x = 3 * normal(5, 33)
    close(kv.ops.clamp(x, -1.0, 2.0, 0.5, 0.25), np.clip(0.5 * x, -1, 2) + 0.25)
    close(kv.ops.clamp(x, low=0.0), np.maximum(x, 0))
    np.testing.assert_array_equal(np.isnan(kv.ops.clamp(np.float32([np.nan, 1.0]), -1.0, 1.0)), [True, False])
    with pytest.raises(kv.errors.ArgumentError, match=r"\[ops.clamp\] low: got 2, allowed numbers up to high \(1\)"):
        kv.ops.clamp(x, 2.0, 1.0)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    a, b = normal(4, 17), normal(4, 17)
    for left, right in ((a, b), (kv.tensor(a), b), (a, kv.tensor(b))):
        close(getattr(kv.ops, name)(left, right), BINARY[name](a, b))


def test_a_bias_is_added_to_every_row() -> None:
    a, b = normal(2, 3, 8), normal(8)
    close(kv.ops.add(a, b), a + b)
    close(kv.ops.mul(a, normal(3, 8) * 0 + 2), a * 2)


def test_norms() -> None:
    x, weight, bias = normal(6, 40), normal(40), normal(40)
    wide = x.astype(np.float64)
    scale = 1 / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
    close(kv.ops.rms_norm(x, weight, 1e-5), wide * scale * weight)
    close(kv.ops.rms_norm(x, weight, 1e-5, offset=1.0), wide * scale * (1 + weight))
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight
    close(kv.ops.layer_norm(x, weight, bias, 1e-5), expected + bias)
    close(kv.ops.layer_norm(x, weight, None, 1e-5), expected)
    close(kv.ops.l2_norm(x, 1e-6), wide / np.sqrt((wide**2).sum(-1, keepdims=True) + 1e-6))


@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_matmul_packed(rows: int, dtype: str) -> None:
    x = normal(rows, 48)
    w = kv.tensor(normal(70, 48), dtype)
    expected = x.astype(np.float64) @ np.asarray(w.astype("float32"), np.float64).T
    packed = kv.ops.pack(w)
    assert (packed.shape, packed.dtype, packed.device) == ((70, 48), dtype, w.device)
    assert packed.nbytes >= w.nbytes
    bounds.close(kv.ops.matmul(x, packed), expected, bounds.PRODUCTS)
    bounds.close(kv.ops.matmul(x, w, backend="packed"), expected, bounds.PRODUCTS)


@pytest.mark.parametrize("backend", ["packed", "clblast", None])
def test_matmul_backends(backend: Any) -> None:
    x, w = normal(2, 3, 16), normal(24, 16)
    expected = x.astype(np.float64) @ w.T
    bounds.close(kv.ops.matmul(x, w, backend=backend), expected, bounds.PRODUCTS)
    turned = np.ascontiguousarray(w.T)
    bounds.close(kv.ops.matmul(x, turned, transpose_w=False, backend=backend), expected, bounds.PRODUCTS)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_added_to_a_product_leaves_its_kernel_with_the_bits_of_add(dtype: str) -> None:
    x, w = normal(2, 3, 48), kv.tensor(normal(70, 48), dtype)
    for weight in (kv.ops.pack(w), w):
        product = kv.ops.matmul(x, weight)
        for add in (normal(2, 3, 70), normal(70), kv.tensor(normal(70))):
            got = kv.ops.matmul(x, weight, add=add).numpy()
            np.testing.assert_array_equal(got, kv.ops.add(product, add).numpy())
            assert not np.array_equal(got, product.numpy())


@pytest.mark.parametrize("rows", [1, 3, 33])
def test_a_norm_before_a_product_has_the_bits_of_rms_norm(rows: int) -> None:
    x, w, up = normal(rows, 64), kv.tensor(normal(70, 64), "float16"), kv.tensor(normal(70, 64), "float16")
    norm = (normal(64), 1e-5, 1.0)
    h, pair = kv.ops.rms_norm(x, *norm), kv.ops.pack_pair(w, up)
    for weight in (kv.ops.pack(w), kv.ops.pack(w, "q8_0"), w, (kv.ops.pack(w), kv.ops.pack(up, "q8_0"))):
        got = kv.ops.matmul(x, weight, norm=norm).numpy()
        np.testing.assert_array_equal(got, kv.ops.matmul(h, weight).numpy())
        assert not np.array_equal(got, kv.ops.matmul(x, weight).numpy())
    got = kv.ops.matmul_gated(x, pair, norm=norm).numpy()
    np.testing.assert_array_equal(got, kv.ops.matmul_gated(h, pair).numpy())


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("rows", [1, 3, 33])
def test_a_gated_product_has_the_bits_of_its_parts(rows: int, activation: str) -> None:
    x, gate, up = normal(rows, 48), kv.tensor(normal(70, 48), "float16"), kv.tensor(normal(70, 48), "float16")
    pair = kv.ops.pack_pair(gate, up)
    assert (pair.shape, pair.dtype, pair.device) == ((70, 48), "float16", gate.device)
    assert pair.nbytes >= 2 * gate.nbytes
    parts = [kv.ops.matmul(x, kv.ops.pack(weight)) for weight in (gate, up)]
    expected = {"silu": kv.ops.silu_mul, "gelu": kv.ops.gelu_mul}[activation](*parts)
    got = kv.ops.matmul_gated(x, pair, activation)
    assert got.shape == (rows, 70)
    np.testing.assert_array_equal(got.numpy(), expected.numpy())


def test_embedding() -> None:
    table = normal(10, 6)
    ids = [3, 0, 9, 3]
    for given in (ids, np.array(ids, np.uint64), kv.tensor(ids)):
        same(kv.ops.embedding(table, given), table[ids])
    same(kv.ops.embedding(kv.tensor(table, "float16"), ids), table.astype(np.float16)[ids])
    assert np.isnan(np.asarray(kv.ops.embedding(table, kv.tensor([10, 0])))[0]).all()
    for parts in (
        (kv.tensor(table[:3]), kv.tensor(table[3:])),
        [kv.ops.pack(kv.tensor(table[:3])), kv.ops.pack(kv.tensor(table[3:]))],
    ):
        same(kv.ops.embedding(parts, ids), table[ids])
        with pytest.raises(
            kv.errors.ArgumentError, match=rf"ids\[0\]: got {len(table)}, allowed 0 to {len(table) - 1}"
        ):
            kv.ops.embedding(parts, [len(table)])


def rotated(x: Any, positions: Any, base: float, dims: int, interleaved: bool, inverse: Any = None) -> Any:
    inverse = base ** -(np.arange(0, dims, 2) / dims) if inverse is None else inverse
    angles = np.asarray(positions)[:, None, None] * inverse
    out = x.astype(np.float64).copy()
    a, b = (slice(0, dims, 2), slice(1, dims, 2)) if interleaved else (slice(0, dims // 2), slice(dims // 2, dims))
    out[..., a] = x[..., a] * np.cos(angles) - x[..., b] * np.sin(angles)
    out[..., b] = x[..., b] * np.cos(angles) + x[..., a] * np.sin(angles)
    return out


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dims", [None, 6])
def test_rope(interleaved: bool, dims: Any) -> None:
    x, positions = normal(5, 3, 16), [0, 1, 2, 70, 500]
    result = kv.ops.rope(x, positions, base=500.0, dims=dims, interleaved=interleaved)
    close(result, rotated(x, positions, 500.0, dims or 16, interleaved), bounds.FAR_ROTATION)
    table = kv.ops.RopeTable(16, 500.0, dims, interleaved=interleaved)
    assert (table.head_dim, table.dims) == (16, dims or 16)
    np.testing.assert_array_equal(np.asarray(kv.ops.rope(x, positions, table=table)), np.asarray(result))


def test_rope_scaling() -> None:
    x, positions = normal(4, 2, 8), [0, 5, 50, 300]
    plain = 10000.0 ** -(np.arange(0, 8, 2) / 8)
    linear = kv.ops.rope(x, positions, scaling={"rope_type": "linear", "factor": 4.0})
    close(linear, rotated(x, positions, 0, 8, False, plain / 4), bounds.ROTATION)
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "max_position_embeddings": 512,
    }
    waves = 2 * math.pi / plain
    blend = np.clip((64 / waves - 1) / 3, 0, 1)
    close(
        kv.ops.rope(x, positions, scaling=llama3),
        rotated(x, positions, 0, 8, False, (1 - blend) * plain / 8 + blend * plain),
        bounds.ROTATION,
    )


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "unheard"},
        {"rope_type": "linear", "facter": 2},
        {"rope_type": "linear", "factor": "2"},
        "linear",
        {5: 1},
    ],
)
def test_rope_scaling_that_is_none(scaling: Any) -> None:
    with pytest.raises(kv.Error, match="allowed"):
        kv.ops.rope(normal(1, 1, 8), [0], scaling=scaling)


def test_attention() -> None:
    q, k, v = normal(3, 4, 16), normal(7, 2, 16), normal(7, 2, 8)
    mask = np.where(random.random((3, 7)) < 0.3, -np.inf, normal(3, 7)).astype(np.float32)
    mask[:, 0] = 0
    sinks = normal(4)

    def scores_of(k: Any) -> Any:
        return np.einsum("qhd,nhd->hqn", q.astype(np.float64), k.repeat(2, 1)) / 4

    def expect(s: Any, extra: Any = 0.0, v: Any = v) -> Any:
        weights = np.exp(s)
        return np.einsum("hqn,nhd->qhd", weights / (weights.sum(-1) + extra)[..., None], v.repeat(2, 1))

    scores = scores_of(k)

    close(kv.ops.attention(q, k, v), expect(scores))
    close(kv.ops.attention(q, k, v, mask=mask), expect(scores + mask))
    close(kv.ops.attention(q, k, v, scale=1.0), expect(scores * 4))
    close(kv.ops.attention(q, k, v, softcap=1.5), expect(1.5 * np.tanh(scores / 1.5)))
    close(kv.ops.attention(q, k, v, sinks=sinks), expect(scores, np.exp(sinks)[:, None]))
    halves = k.astype(np.float16), v.astype(np.float16)
    wanted = expect(scores_of(halves[0].astype(np.float64)), v=halves[1].astype(np.float64))
    close(kv.ops.attention(q, *(kv.tensor(each) for each in halves)), wanted)


@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
def test_concat_and_split(axis: int) -> None:
    x = normal(4, 6, 8)
    parts = kv.ops.split(x, [1, x.shape[axis] - 1], axis=axis)
    for part, expected in zip(parts, np.split(x, [1], axis=axis)):
        same(part, expected)
    same(kv.ops.concat(parts, axis=axis), x)
    same(kv.ops.concat([parts[0], np.asarray(parts[1])], axis=axis), x)
    ints = kv.ops.concat([np.array([1], np.int32), np.array([2], np.int32)])
    assert (ints.dtype, list(ints.numpy())) == ("int32", [1, 2])


def test_argmax_and_sample() -> None:
    logits = normal(5, 40)
    logits[0, [3, 9]] = 50.0
    chosen = kv.ops.argmax(logits)
    assert chosen.dtype == "int32"
    np.testing.assert_array_equal(chosen.numpy(), logits.argmax(-1))
    np.testing.assert_array_equal(kv.ops.sample(logits, 0.0, 0, 1.0, 1).numpy(), logits.argmax(-1))
    np.testing.assert_array_equal(kv.ops.sample(logits, 1.0, 1, 1.0, 1).numpy(), logits.argmax(-1))
    first = kv.ops.sample(logits, 1.0, 5, 0.9, 7).numpy()
    np.testing.assert_array_equal(first, kv.ops.sample(logits, 1.0, 5, 0.9, 7).numpy())
    likely = np.argsort(-logits, -1)[:, :5]
    draws = np.stack([kv.ops.sample(logits, 1.5, 5, 1.0, seed).numpy() for seed in range(40)])
    assert all(set(draws[:, row]) <= set(likely[row]) for row in range(5))
    assert len(np.unique(draws[:, 1])) > 1


def test_sample_takes_parameters_of_each_row() -> None:
    logits = normal(3, 40)
    temperatures, seeds, mins = [0.0, 1.3, 0.8], [1, 2, 3], [0.0, 0.1, 0.0]
    edits = (np.array([0, 2], np.int32), [int(logits[0].argmax()), 5], [1.0, 1.0], [-np.inf, 100.0])
    together = kv.ops.sample(logits, temperatures, [0, 7, 0], 0.9, seeds, mins, edits).numpy()
    assert together[0] == np.argsort(-logits[0])[1] and together[2] == 5
    for seed in range(5):  # a row that has its own seed is drawn as alone
        seeds[1] = seed
        rows = kv.ops.sample(logits, temperatures, [0, 7, 0], 0.9, seeds, mins, edits).numpy()
        assert rows[1] == kv.ops.sample(logits[1:2], 1.3, 7, 0.9, seed, 0.1).numpy()[0]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: kv.ops.matmul(normal(2, 3), normal(4, 5)), "w"),
        (lambda: kv.ops.matmul(normal(2, 3), normal(4, 3), backend="cublas"), "backend"),
        (lambda: kv.ops.matmul(normal(2, 3), kv.ops.pack(normal(4, 3)), transpose_w=False), "transpose_w"),
        (lambda: kv.ops.matmul(normal(2, 3), kv.ops.pack(normal(4, 3)), backend="clblast"), "backend"),
        (lambda: kv.ops.matmul("x", normal(4, 3)), "x"),
        (lambda: kv.ops.pack(normal(4)), "w"),
        (lambda: kv.ops.matmul(normal(2, 3), kv.ops.pack(normal(4, 3)), add=normal(3)), "add"),
        (lambda: kv.ops.matmul(normal(2, 3), normal(4, 3), add=normal(1, 4)), "add"),
        (lambda: kv.ops.matmul(normal(2, 3), normal(4, 3), norm=(normal(4), 1e-6, 0.0)), "norm: got float32"),
        (lambda: kv.ops.matmul(normal(2, 3), kv.ops.pack(normal(4, 3)), norm=(normal(3), 1e-6)), "norm: got 2 items"),
        (lambda: kv.ops.matmul(normal(2, 3), kv.ops.pack(normal(4, 3)), norm=(normal(3), -1.0, 0.0)), "norm: got eps"),
        (lambda: kv.ops.matmul(normal(2, 3), normal(4, 3), norm=normal(3)[0]), "norm"),
        (
            lambda: kv.ops.matmul_gated(
                normal(2, 3), kv.ops.pack_pair(normal(4, 3), normal(4, 3)), norm=(normal(3), 0.0, "no")
            ),
            "norm",
        ),
        (lambda: kv.ops.pack_pair(normal(4, 3), normal(3, 4)), "up"),
        (lambda: kv.ops.pack_pair(normal(4), normal(4)), "gate"),
        (lambda: kv.ops.matmul_gated(normal(2, 3), kv.ops.pack(normal(4, 3))), "w"),
        (lambda: kv.ops.matmul_gated(normal(2, 4), kv.ops.pack_pair(normal(4, 3), normal(4, 3))), "x"),
        (
            lambda: kv.ops.matmul_gated(normal(2, 3), kv.ops.pack_pair(normal(4, 3), normal(4, 3)), "relu"),
            "activation",
        ),
        (lambda: kv.ops.rms_norm(normal(2, 3), normal(4), 1e-5), "weight"),
        (lambda: kv.ops.rms_norm(normal(2, 3), normal(3), "small"), "eps"),
        (lambda: kv.ops.rms_norm(normal(2, 3), normal(3), float("nan")), "eps"),
        (lambda: kv.ops.add(normal(2, 3), normal(2)), "b"),
        (lambda: kv.ops.embedding(normal(4, 2), [4]), r"ids\[0\]"),
        (lambda: kv.ops.embedding((kv.tensor(normal(4, 2)), kv.tensor(normal(4, 3))), [1]), r"table: got"),
        (lambda: kv.ops.embedding([kv.ops.pack(normal(4, 2)), kv.ops.pack(normal(4, 3))], [1]), r"table: got 3"),
        (lambda: kv.ops.embedding(normal(4, 2), [0, -1]), r"ids\[1\]"),
        (lambda: kv.ops.embedding(normal(4, 2), [0.5]), r"ids\[0\]"),
        (lambda: kv.ops.rope(normal(2, 2, 8), [0]), "positions"),
        (lambda: kv.ops.rope(normal(2, 2, 8), [0, 1], dims=7), "dims"),
        (lambda: kv.ops.rope(normal(2, 8), [0, 1]), "x"),
        (lambda: kv.ops.rope(normal(1, 1, 8), [0], table=5), "table"),
        (lambda: kv.ops.attention(normal(1, 3, 8), normal(2, 2, 8), normal(2, 2, 8)), "q"),
        (lambda: kv.ops.attention(normal(1, 2, 8), normal(2, 2, 8), normal(2, 2, 8), scale=-1), "scale"),
        (lambda: kv.ops.attention(normal(1, 2, 8), normal(2, 2, 8), normal(2, 2, 8), softcap=-1), "softcap"),
        (lambda: kv.ops.attention(normal(1, 2, 8), normal(2, 2, 8), normal(2, 2, 8), mask=normal(2, 2)), "mask"),
        (lambda: kv.ops.concat(normal(2, 2)), "tensors"),
        (lambda: kv.ops.concat([normal(2, 2), normal(3, 3)]), "tensors"),
        (lambda: kv.ops.concat([]), "tensors"),
        (lambda: kv.ops.split(normal(2, 4), [1, 1]), "sizes"),
        (lambda: kv.ops.split(normal(2, 4), [2, 2], axis=5), "axis"),
        (lambda: kv.ops.sample(normal(1, 4), -1.0, 0, 1.0, 0), "temperature"),
        (lambda: kv.ops.sample(normal(1, 4), 1.0, -1, 1.0, 0), "top_k"),
        (lambda: kv.ops.sample(normal(1, 4), 1.0, 0, 0.0, 0), "top_p"),
        (lambda: kv.ops.sample(normal(1, 4), 1.0, 0, 1.0, -5), "seed"),
        (lambda: kv.ops.sample(normal(1, 4), 1.0, 0, 1.0, 0, 1.5), "min_p"),
        (lambda: kv.ops.sample(normal(2, 4), [1.0], 0, 1.0, 0), "temperature: got 1 values"),
        (lambda: kv.ops.sample(normal(2, 4), 1.0, [1, -1], 1.0, 0), "top_k"),
        (lambda: kv.ops.sample(normal(1, 4), 1.0, 0, 1.0, 0, 0.0, ([0], [4], [1.0], [0.0])), "edits"),
        (lambda: kv.ops.sample(normal(1, 4), 1.0, 0, 1.0, 0, 0.0, ([0], [1], [1.0])), "edits"),
        (lambda: kv.ops.sample(normal(1, 4), 1.0, 0, 1.0, 0, 0.0, ([0, 0], [1, 2], [1.0], [0.0])), "edits"),
        (lambda: kv.ops.argmax(normal(4)), "logits"),
        (lambda: kv.ops.silu(kv.tensor([1, 2])), "x"),
        (lambda: kv.ops.silu(kv.tensor([1.0], device="host")), "x"),
    ],
)
def test_wrong_arguments_name_the_argument(call: Any, name: str) -> None:
    with pytest.raises((kv.errors.ArgumentError, kv.errors.ArgumentTypeError), match=rf"\b{name}|{name}"):
        call()
