"""Weights in GGML's blocks: what ``kv.ops`` takes, and models that are quantised while they are loaded."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest

import kvtrie as kv
from gguf_files import Kind, random_blocks
from kvtrie.models.exact_blocks import EXACT
from kvtrie.models.weight_table import BLOCKS
from reference_llama import random_llama
from test_models import all_logits

TOKENS = np.arange(40) * 7 % 90


def blocks_of(kind: str, out: int, width: int, seed: int = 0) -> Any:
    return random_blocks(Kind[kind], out, width, seed)


# Every kind is multiplied in tests/cpp/ops_matmul_q8_test.cpp; here one, whose kernels take a second to compile.
CIRCLES: dict[str, Any] = {"Q4_K": [], "Q4_1": pytest.mark.ci, "Q6_K": pytest.mark.ci}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=CIRCLES.get(kind, pytest.mark.soak)) for kind in BLOCKS])
def test_a_product_has_the_bits_of_what_gguf_makes_of_the_blocks(kind: str) -> None:
    raw = blocks_of(kind, 70, 512)
    packed = kv.ops.pack_blocks(raw, BLOCKS[kind], precision="exact")
    assert (packed.shape, packed.dtype) == ((70, 512), BLOCKS[kind])
    plain = kv.ops.pack(gguf.quants.dequantize(raw, Kind[kind]))
    for rows in (1, 7, 30):
        x = np.random.default_rng(rows).standard_normal((rows, 512)).astype(np.float32)
        np.testing.assert_array_equal(kv.ops.matmul(x, packed).numpy(), kv.ops.matmul(x, plain).numpy())
        pair = kv.ops.pack_pair_blocks(raw, blocks_of(kind, 70, 512, 1), BLOCKS[kind], precision="exact")
        gate, up = (
            kv.ops.matmul(x, packed),
            kv.ops.matmul(x, kv.ops.pack_blocks(blocks_of(kind, 70, 512, 1), pair.dtype, precision="exact")),
        )
        np.testing.assert_array_equal(kv.ops.matmul_gated(x, pair).numpy(), kv.ops.silu_mul(gate, up).numpy())
    ids = [0, 69, 5, 5]
    np.testing.assert_array_equal(
        kv.ops.embedding(packed, ids).numpy(), gguf.quants.dequantize(raw, Kind[kind])[ids].astype(np.float32)
    )


def test_wrong_blocks_are_refused() -> None:
    raw = blocks_of("Q4_1", 6, 64)
    for blocks, message in (
        (raw[:, :-1], r"w: got 234 bytes, allowed 6 rows of blocks of 20 bytes for q4_1"),
        (raw[0], r"blocks: got \[40\], allowed \[out, bytes\]"),
        (raw.astype(np.int32), r"blocks: got .*, allowed a numpy array of uint8"),
        (raw[:0], r"w: got 0 outputs"),
    ):
        with pytest.raises(kv.errors.ArgumentError, match=message):
            kv.ops.pack_blocks(blocks, "q4_1")
    with pytest.raises(kv.errors.ArgumentError, match="dtype: got float16, allowed q8_0"):
        kv.ops.pack_blocks(raw, "float16")
    with pytest.raises(kv.errors.ArgumentError, match="dtype: got q4, allowed float32"):
        kv.ops.pack_blocks(raw, "q4")
    with pytest.raises(kv.errors.ArgumentError, match="up: got q4_1"):
        kv.ops.pack_pair_blocks(raw, raw[:3], "q4_1")
    packed = kv.ops.pack_blocks(raw, "q4_1")
    with pytest.raises(kv.errors.ArgumentError, match=r"ids\[1\]: got 6, allowed 0 to 5"):
        kv.ops.embedding(packed, [0, 6])
    with pytest.raises(kv.errors.ArgumentTypeError, match="packed weights only"):
        kv.ops.matmul(np.zeros((1, 64), np.float32), (packed, raw))
    with pytest.raises(kv.errors.ArgumentError, match="allowed a last size of 32"):
        kv.ops.matmul(np.zeros((1, 64), np.float32), (packed, kv.ops.pack(np.zeros((4, 32), np.float32))))


@pytest.mark.parametrize(
    ("dtype", "tied"),
    [
        ("q4_0", True),
        *(
            pytest.param(dtype, tied, marks=pytest.mark.ci)
            for dtype, tied in (("q4_1", False), ("q5_0", True), ("q5_1", False))
        ),
    ],
)
@pytest.mark.usefixtures("packed")
def test_a_checkpoint_is_quantised_while_it_is_loaded(dtype: str, tied: bool) -> None:
    """The bits are those of a float32 model of the rounded numbers; what was lost is told."""
    config, weights = random_llama(5, hidden=64, vocab=96, tied=tied)
    model = kv.models.from_weights(config, weights, dtype=dtype, precision="exact")
    rounded = dict(weights)
    for name, values in weights.items():
        if values.ndim == 2 and not (name.startswith("model.embed") and not tied):
            is_head = name.startswith(("lm_head", "model.embed"))
            kind = Kind.Q8_0 if is_head else Kind[dtype.upper()]
            rounded[name] = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
    if not tied:
        rounded["model.embed_tokens.weight"] = (
            weights["model.embed_tokens.weight"].astype(np.float16).astype(np.float32)
        )
    wanted = all_logits(kv.models.from_weights(config, rounded, dtype="float32"), TOKENS, 40)
    np.testing.assert_array_equal(all_logits(model, TOKENS, 40), wanted)
    assert len(model.losses) == 7 * config["num_hidden_layers"]
    most = {"q4_0": 0.13, "q4_1": 0.13, "q5_0": 0.07, "q5_1": 0.07}[dtype]
    assert all(most / 10 < loss < most for loss in model.losses.values())
    assert model.fingerprint != kv.models.from_weights(config, weights, dtype="float32").fingerprint


def test_rows_that_are_no_whole_blocks_and_numbers_that_are_none() -> None:
    config, weights = random_llama(5, hidden=48, heads=4, kv_heads=2, intermediate=96, vocab=96)
    model = kv.models.from_weights(config, weights, dtype="q4_0")
    assert {model.kept[f"model.layers.0.mlp.{name}_proj"] for name in ("gate", "up")} == {"q8_0"}
    assert model.kept["model.layers.0.mlp.down_proj"] == "q4_0"
    config, weights = random_llama(5, hidden=64)
    broken = {**weights, "model.layers.1.mlp.up_proj.weight": weights["model.layers.1.mlp.up_proj.weight"] * np.inf}
    with pytest.raises(kv.errors.ArgumentError, match=r"dtype 'q4_1' cannot hold .*up_proj.*not finite"):
        kv.models.from_weights(config, broken, dtype="q4_1")


@pytest.mark.usefixtures("packed")
def test_precision_is_kept_told_and_refused_by_name() -> None:
    config, weights = random_llama(5, hidden=64)
    names = ("auto", "exact", "fast")
    auto, exact, fast = (kv.models.from_weights(config, weights, dtype="q4_1", precision=each) for each in names)
    assert (auto.precision, exact.precision, fast.precision) == names
    assert auto.fingerprint == kv.models.from_weights(config, weights, dtype="q4_1").fingerprint
    assert len({auto.fingerprint, exact.fingerprint, fast.fingerprint}) == 3
    # An activation of 16 bits, in every product: some 2^-16 of the logits, never 2^-10. Of 8 bits: 2^-8, never 2^-2.
    wanted = all_logits(exact, TOKENS, 40)
    for model, most in ((auto, 2**-10), (fast, 2**-2)):
        assert np.abs(all_logits(model, TOKENS, 40) - wanted).max() <= most * np.abs(wanted).max()
    w = np.ones((32, 32), np.float32)
    for packed in (kv.ops.pack(w, "q8_0", precision="fast"), kv.ops.pack_pair(w, w, "q8_0", precision="fast")):
        assert packed.precision == "fast"
    allowed = r"allowed \"auto\", \"exact\", \"fast\""
    with pytest.raises(kv.errors.ArgumentError, match=rf"\[pack\] precision: got \"half\", {allowed}"):
        kv.ops.pack(w, "q8_0", precision="half")
    for call in (kv.models.load, lambda _, precision: kv.models.from_weights(config, weights, precision=precision)):
        with pytest.raises(kv.errors.ArgumentError, match=r"precision: got 'half', allowed auto, exact, fast"):
            call("tiny", precision="half")
        with pytest.raises(kv.errors.ArgumentTypeError, match=r"precision: got"):
            call("tiny", precision=16)


def fused(a: Any, b: Any, c: Any) -> Any:
    """a * b + c in float32 with one rounding: the sum in float64 is rounded to odd, then once more."""
    product, added = a.astype(np.float64) * b, c.astype(np.float64)  # exact
    total = product + added
    rest = total - product
    lost = (product - (total - rest)) + (added - rest)
    other = np.nextafter(total, np.copysign(np.inf, lost))
    even = total.view(np.int64) & 1 == 0
    return np.where((lost != 0) & even, other, total).astype(np.float32)


def by_integers(x: Any, raw: Any, levels: int) -> Any:
    """x times blocks of Q4_1 as kernels/matmul_integer.clh says it, bit by bit: float32 [rows, out]."""
    blocks = raw.reshape(len(raw), -1, 20)
    scale, shift = (blocks[:, :, at : at + 2].copy().view(np.float16)[:, :, 0].astype(np.float32) for at in (0, 2))
    integers = np.concatenate((blocks[:, :, 4:] & 15, blocks[:, :, 4:] >> 4), 2).astype(np.int64)
    y = np.zeros((len(x), len(raw)), np.float32)
    for b, own in enumerate(np.split(x, blocks.shape[1], 1)):
        most = np.abs(own).max(1)
        q = np.rint(own * (np.float32(levels) / most)[:, None]).astype(np.int64)
        step = most * (np.float32(1) / np.float32(levels))
        sums = (q @ integers[:, b].T).astype(np.float32)
        y = fused(sums * scale[:, b], step[:, None], y)
        y = fused(shift[:, b], (step * q.sum(1).astype(np.float32))[:, None], y)
    return y


@pytest.mark.parametrize(("precision", "levels"), [("auto", 32639), ("fast", 127)])
def test_a_product_by_integers_has_the_bits_of_its_rule(precision: str, levels: int) -> None:
    """Where the processor has no integer units, those of exact."""
    raw = blocks_of("Q4_1", 70, 608)
    random = np.random.default_rng(7)
    x = random.standard_normal((300, 608)).astype(np.float32) * np.exp2(random.integers(-9, 9, 608)).astype(np.float32)
    packed = kv.ops.pack_blocks(raw, "q4_1", precision=precision)
    exact = kv.ops.matmul(x, kv.ops.pack_blocks(raw, "q4_1", precision="exact")).numpy()
    wanted = exact if kv.ops.integer_units() == "none" else by_integers(x, raw, levels)
    for rows in (1, 5, 16, 300):
        np.testing.assert_array_equal(kv.ops.matmul(x[-rows:], packed).numpy(), wanted[-rows:])


def test_experts_of_one_set_have_one_precision() -> None:
    raw = blocks_of("Q4_1", 64, 64, 0)
    auto, exact = (kv.ops.pack_blocks(raw, "q4_1", precision=each) for each in ("auto", "exact"))
    experts = kv.ops.PackedSet(exact, 2)
    experts.put(0, exact)
    assert experts.precision == experts[0].precision == "exact"
    with pytest.raises(kv.errors.ArgumentError, match=r"weight: got precision auto, allowed exact"):
        experts.put(1, auto)


@pytest.mark.parametrize("kind", ["IQ4_NL", "Q3_K"])
def test_what_no_kernel_reads_becomes_blocks_of_the_same_numbers(kind: str) -> None:
    """Of blocks of any bits but those whose factor is no number."""
    size = gguf.GGML_QUANT_SIZES[Kind[kind]][1]
    raw = np.random.default_rng(3).integers(0, 256, (400, 3 * size), np.uint8)
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(raw, Kind[kind])
    finite = np.isfinite(wanted).all(axis=1)
    assert finite.sum() > 200
    kept = EXACT[kind].make(raw[finite], "w")
    found = gguf.quants.dequantize(kept, Kind[EXACT[kind].kind.upper()])
    np.testing.assert_array_equal(found, wanted[finite])
