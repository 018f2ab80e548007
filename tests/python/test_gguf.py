"""Models from GGUF files: every architecture and type against the same numbers loaded as a checkpoint."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import kvtrie as kv
from bounds import LOGITS_OF_KINDS, LOST_BY_4_BITS, close, difference
from gguf_files import GOLDENS, Kind, checkpoint, gguf_file, random_blocks, rewrite, write
from kvtrie.models.exact_blocks import EXACT
from kvtrie.models.gguf.weights import kinds, reordered_columns
from kvtrie.models.weight_table import BLOCKS
from kvtrie.models.weights import Blocks, WeightSource
from reference_llama import random_llama
from test_models import all_logits

TOKENS = np.load(GOLDENS / "tokens.npy")

# Golden checkpoints, and what of their configuration a GGUF file cannot say.
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "llama-gqa-tied": {},
    "llama-linear-mlp-bias": {},
    "llama-yarn-head-dim": {},
    "llama3-scaled-bias": {},
    "qwen2-bias": {},
    "qwen2-tied-sharded": {},
    "qwen3-bias-tied": {},
    "qwen3-norms": {},
    "gemma3-types-bias-untied": {"query_pre_attn_scalar": 12},
    "gemma3-window-softcap": {"query_pre_attn_scalar": 12},
    "qwen3-5-dense": {},
    "qwen3-5-experts": {},
    "qwen3-next-experts": {},
    "qwen3-next-sparse-bias": {"norm_topk_prob": True},
}
# exp(log(x)) of a recurrent layer's decay is not x to the last bit.
SAME_BITS = [name for name in CHECKPOINTS if not name.startswith(("qwen3-5", "qwen3-next"))]


# An MLP's width where no layer has one; Llama 3's numbers where all frequencies are so long or short that any would do.
NOT_SAID = ("qwen3-5-experts", "qwen3-next-experts", "llama3-scaled-bias")


def same_but_for_the_ends(one: Any, two: Any) -> bool:
    return bool(dataclasses.replace(one, bos_token_id=None, eos_token_ids=()) == two)


# One of each family that kernels of other tests are compiled for.
FEW = ("llama-gqa-tied", "qwen2-tied-sharded", "gemma3-window-softcap", "qwen3-5-dense")


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.ci) for name in CHECKPOINTS]
)
def test_architectures(name: str, tmp_path: Path) -> None:
    """The configuration, and the bits of every logit, are those of the checkpoint that the file was made of."""
    config, weights = checkpoint(name, **CHECKPOINTS[name])
    config = dataclasses.replace(config, bos_token_id=None, eos_token_ids=())
    model = kv.models.load(write(config, weights, tmp_path / "model.gguf"), dtype="float32")
    if name not in NOT_SAID:
        assert same_but_for_the_ends(model.config, config)
    logits = all_logits(model, TOKENS, 72)
    wanted = all_logits(kv.models.from_weights(config, weights), TOKENS, 72)
    if name in SAME_BITS:
        np.testing.assert_array_equal(logits, wanted)
    close(logits, wanted, LOGITS_OF_KINDS)
    if not CHECKPOINTS[name]:
        close(logits, np.load(GOLDENS / name / "logits.npy"), LOGITS_OF_KINDS)


@pytest.mark.parametrize("undone", ["rows", "norms", "heads"])
def test_what_converters_did_matters(undone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without undoing it logits are far off: the comparison above can fail."""
    names = kv.models.gguf.names
    name = {"rows": "llama-gqa-tied", "norms": "gemma3-window-softcap", "heads": "qwen3-5-dense"}[undone]
    config, weights = checkpoint(name, **CHECKPOINTS[name])
    path = write(config, weights, tmp_path / "model.gguf")
    wanted = all_logits(kv.models.from_weights(config, weights), TOKENS, 72)
    if undone == "norms":
        family, form = kv.models.gguf.ARCHITECTURES["gemma3"]
        monkeypatch.setitem(kv.models.gguf.ARCHITECTURES, "gemma3", (family, form._replace(offset_norms=False)))
    else:
        monkeypatch.setattr(names, "reordered", lambda source, _: source)
    assert difference(all_logits(kv.models.load(path, dtype="float32"), TOKENS, 72), wanted) > 1e-2


@pytest.mark.parametrize("name", ["qwen3-5-dense", "qwen3-next"])
def test_float16_stays_so_where_numbers_only_move(name: str, tmp_path: Path) -> None:
    """Converters move columns and rows of hybrids' matrices, and keep the small convolution in float32."""
    name = next(each for each in CHECKPOINTS if each.startswith(name))
    config, exact = checkpoint(name, **CHECKPOINTS[name])
    matrices = {each for each, values in exact.items() if values.ndim > 1 and "conv1d" not in each}
    weights = {each: values.astype(np.float16) if each in matrices else values for each, values in exact.items()}
    model = kv.models.load(write(config, weights, tmp_path / "model.gguf", "float16"))
    assert model.dtype == "float16"
    whole = kv.models.load(tmp_path / "model.gguf", dtype="float32")
    assert model.nbytes < 0.75 * whole.nbytes
    wanted = all_logits(kv.models.from_weights(config, weights, dtype="float16"), TOKENS, 72)
    close(all_logits(model, TOKENS, 72), wanted, LOGITS_OF_KINDS)


@pytest.fixture(scope="module")
def wide() -> tuple[Any, dict[str, Any]]:
    """A Llama whose rows are whole blocks of every type."""
    raw, weights = random_llama(3, hidden=256, heads=4, kv_heads=2, intermediate=256, vocab=128, tied=True)
    return kv.models.Llama.parse_config(raw), weights


# Of each form: floats, blocks of 32 and of 256, what other blocks hold, tables, threes.
QUICK = ("F16", "Q4_0", "Q6_K", "Q3_K", "IQ4_XS", "TQ1_0")


@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.ci) for kind in kinds()]
)
def test_types(kind: str, wide: Any, tmp_path: Path) -> None:
    """A model of blocks has the bits of one of the numbers that ``gguf.quants`` makes of them: exact where kernels
    know them, else rounded to float16."""
    config, weights = wide
    path, numbers = write(config, weights, tmp_path / "model.gguf"), {}

    def quantise(_: Any, tensors: dict[str, Any]) -> None:
        for seed, (name, (array, _kind)) in enumerate(tensors.items()):
            if array.ndim == 2:
                raw = stored(Kind[kind], array, seed)
                tensors[name] = raw, Kind[kind]
                numbers[name] = gguf.quants.dequantize(raw, Kind[kind])

    def stored(kind: Any, array: Any, seed: int) -> Any:
        try:
            return gguf.quants.quantize(array, kind)
        except NotImplementedError:
            return random_blocks(kind, *array.shape, seed)

    rewrite(path, quantise)
    plain = rewrite(
        write(config, weights, tmp_path / "plain.gguf"),
        lambda _, tensors: tensors.update({name: (values, Kind.F32) for name, values in numbers.items()}),
    )
    assert len(numbers) == 15
    model = kv.models.load(path, dtype="float32")
    wanted = all_logits(kv.models.load(plain, dtype="float32"), TOKENS, 72)
    np.testing.assert_array_equal(all_logits(model, TOKENS, 72), wanted)
    default = kv.models.load(path, precision="exact")
    expected = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}.get(kind, "stored")
    assert default.dtype == expected
    assert np.isfinite(wanted).all()
    same = (
        "float32" if kind in BLOCKS or kind in EXACT else expected.replace("stored", "float16")
    )  # kept as they are, or rounded
    wanted = all_logits(kv.models.load(plain, dtype=same), TOKENS, 72)
    np.testing.assert_array_equal(all_logits(default, TOKENS, 72), wanted)
    if kind in EXACT:
        assert set(default.kept.values()) == {EXACT[kind].kind}
    if kind in BLOCKS:
        assert set(default.kept.values()) == {BLOCKS[kind]}
        size = sum(tensor.n_bytes for tensor in gguf.GGUFReader(path).tensors)
        assert default.nbytes <= 1.05 * size, "the embedding is kept once"


def embedding_as_float32(weights: dict[str, Any]) -> Any:
    """For :func:`rewrite`: what is looked up stays exact."""
    values = weights["model.embed_tokens.weight"]
    return lambda _, tensors: tensors.update({"token_embd.weight": (values, Kind.F32)})


@pytest.mark.usefixtures("packed")
def test_q8_0_stays_as_it_is(tmp_path: Path) -> None:
    """By default a Q8_0 file is kept in its blocks, and exact products have the very bits of its numbers in float32."""
    raw, weights = random_llama(4, hidden=64, vocab=128)
    config = kv.models.Llama.parse_config(raw)
    path = write(config, weights, tmp_path / "model.gguf", "q8_0")
    rewrite(path, embedding_as_float32(weights))
    model = kv.models.load(path, precision="exact")
    assert model.dtype == "stored"
    assert {name for name, kept in model.kept.items() if kept == "q8_0"} >= {"lm_head"}
    assert model.kept["model.embed_tokens"] == "float32"
    wanted = all_logits(kv.models.load(path, dtype="float32"), TOKENS, 72)
    np.testing.assert_array_equal(all_logits(model, TOKENS, 72), wanted)


def test_a_tied_head_keeps_the_files_blocks(tmp_path: Path) -> None:
    """The embedding is looked up in float16; the head is not made of that, but of the file's own blocks."""
    raw, weights = random_llama(4, hidden=64, vocab=128, tied=True)
    config = kv.models.Llama.parse_config(raw)
    model = kv.models.load(write(config, weights, tmp_path / "model.gguf", "q8_0"), precision="exact")
    numbers = gguf.quants.quantize(weights["model.embed_tokens.weight"], Kind.Q8_0)
    wanted = gguf.quants.dequantize(numbers, Kind.Q8_0)
    got = model._head(np.eye(64, dtype=np.float32)).numpy().T
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize("mixed_gate", [pytest.param(False, marks=pytest.mark.ci), True])
def test_what_is_multiplied_as_one_may_be_of_several_types(mixed_gate: bool, tmp_path: Path) -> None:
    """As in Q4_K_M files, where v has more bits than q and k. The bits are those of the float32 model."""
    raw, weights = random_llama(4, hidden=64, vocab=128)
    config = kv.models.Llama.parse_config(raw)
    path = write(config, weights, tmp_path / "model.gguf", "q8_0")

    def change(_: Any, tensors: dict[str, Any]) -> None:
        tensors["blk.0.attn_v.weight"] = (weights["model.layers.0.self_attn.v_proj.weight"], Kind.F32)
        for name in ("blk.1.ffn_up", "blk.1.attn_k")[not mixed_gate :]:
            values = gguf.quants.dequantize(*tensors[f"{name}.weight"])
            tensors[f"{name}.weight"] = (gguf.quants.quantize(values, Kind.Q4_1), Kind.Q4_1)

    model = kv.models.load(rewrite(path, change), precision="exact")
    kept = [[model.kept[f"model.layers.{layer}.self_attn.{x}_proj"] for x in "qkv"] for layer in (0, 1)]
    assert kept == [["q8_0", "q8_0", "float32"], ["q8_0", "q4_1", "q8_0"]]
    assert [model.kept[f"model.layers.1.mlp.{x}_proj"] for x in ("gate", "up")] == [
        "q8_0",
        "q4_1" if mixed_gate else "q8_0",
    ]
    wanted = all_logits(kv.models.load(path, dtype="float32"), TOKENS, 72)
    np.testing.assert_array_equal(all_logits(model, TOKENS, 72), wanted)
    for dtype in ("q8_0", "q4_1"):  # some of it in such blocks already
        close(all_logits(kv.models.load(path, dtype=dtype), TOKENS, 72), wanted, LOST_BY_4_BITS)
    greedy = list(kv.generate(model, [1, 2, 3], 12, temperature=0, ignore_eos=True))
    replayed = model.graphs.stats["replays"] > 0
    assert replayed == (model.device.kind == "cpu"), model.graphs.stats["reason"]
    model.replays = False
    assert list(kv.generate(model, [1, 2, 3], 12, temperature=0, ignore_eos=True)) == greedy


@pytest.mark.ci
@pytest.mark.usefixtures("packed")
def test_q2_k_beside_other_kinds(wide: Any, tmp_path: Path) -> None:
    """By integer units, too, where there are any: the same bits whatever the steps are, and in replayed ones."""
    kinds = (Kind.Q2_K, Kind.Q6_K, Kind.Q2_K, Kind.Q5_K)

    def change(_: Any, tensors: dict[str, Any]) -> None:
        for at, (name, (values, _kind)) in enumerate(tensors.items()):
            if values.ndim == 2:
                tensors[name] = (random_blocks(kinds[at % 4], *values.shape, at), kinds[at % 4])

    model = kv.models.load(rewrite(write(*wide, tmp_path / "model.gguf"), change))
    assert set(model.kept.values()) == {"q2_K", "q5_K", "q6_K"}
    wanted = all_logits(model, TOKENS, 72)
    for chunk in (1, 5):
        np.testing.assert_array_equal(all_logits(model, TOKENS, chunk), wanted)
    greedy = list(kv.generate(model, [1, 2, 3], 8, temperature=0, ignore_eos=True))
    replayed = model.graphs.stats["replays"] > 0
    assert replayed == (model.device.kind == "cpu"), model.graphs.stats["reason"]
    model.replays = False
    assert list(kv.generate(model, [1, 2, 3], 8, temperature=0, ignore_eos=True)) == greedy


@pytest.mark.parametrize("name", ["llama-gqa-tied", "qwen3-5-experts", "qwen3-next-experts"])
def test_blocks_are_those_of_the_rows(name: str, tmp_path: Path) -> None:
    """What kernels for blocks will be given: raw blocks in the checkpoint's order, wherever rows stay whole."""
    config, _ = checkpoint(name)
    random = np.random.default_rng(2)
    config = dataclasses.replace(config, hidden_size=32, moe_intermediate_size=32) if "qwen" in name else config
    shapes = kv.models._FAMILIES[config.model_type].tensor_shapes(config)
    weights = {key: -np.abs(random.standard_normal(shape)).astype(np.float32) for key, shape in shapes.items()}
    parts = kv.models.gguf.read(write(config, weights, tmp_path / "model.gguf", "q4_0"))
    with_blocks = [key for key, source in parts.sources.items() if source.blocks is not None]
    assert len(with_blocks) > 6
    for key in with_blocks:
        source = parts.sources[key]
        assert source.blocks is not None
        raw = source.blocks.rows(0, source.shape[0])
        wanted = gguf.quants.quantize(weights[key], Kind.Q4_0)
        np.testing.assert_array_equal(raw, wanted, key)
        assert (source.blocks.kind, source.stored, source.dtype) == ("Q4_0", "Q4_0", "F32")
        np.testing.assert_array_equal(source.read(), gguf.quants.dequantize(raw, Kind.Q4_0))
        np.testing.assert_array_equal(source.rows(1, 3), source.read()[1:3])


@pytest.mark.parametrize(("width", "stay"), [(32, True), (64, True), (16, False)])
def test_columns_that_move_in_whole_blocks_stay_blocks(width: int, stay: bool) -> None:
    kind, order = Kind.Q8_0, np.array([2, 0, 3, 1])
    values = np.random.default_rng(4).standard_normal((5, 4 * width)).astype(np.float32)
    raw = gguf.quants.quantize(values, kind)
    blocks = Blocks(kind.name, lambda first, last: raw[first:last], lambda rows: gguf.quants.dequantize(rows, kind))
    whole = WeightSource("w", "F32", values.shape, raw.nbytes, "here", blocks.numbers, blocks)
    found = reordered_columns(whole, order, width)
    assert (found.blocks is not None) == stay
    wanted = whole.read().reshape(5, 4, width)[:, order].reshape(5, -1)
    np.testing.assert_array_equal(found.read(), wanted)
    np.testing.assert_array_equal(found.rows(1, 3), wanted[1:3])
    assert reordered_columns(whole, np.arange(4), width) is whole


def test_fused_projections(tmp_path: Path) -> None:
    """q, k and v may be one tensor."""
    config, weights = checkpoint("llama3-scaled-bias")
    path = write(config, weights, tmp_path / "model.gguf")
    wanted = kv.models.load(path, dtype="float32")

    def fuse(_: Any, tensors: dict[str, Any]) -> None:
        for layer in range(config.num_hidden_layers):
            for kind in ("weight", "bias"):
                parts = [tensors.pop(f"blk.{layer}.attn_{each}.{kind}")[0] for each in "qkv"]
                tensors[f"blk.{layer}.attn_qkv.{kind}"] = (np.concatenate(parts), Kind.F32)

    model = kv.models.load(rewrite(path, fuse), dtype="float32")
    assert model.fingerprint == wanted.fingerprint
    np.testing.assert_array_equal(all_logits(model, TOKENS, 72), all_logits(wanted, TOKENS, 72))


@pytest.mark.parametrize(("factor", "head_dim", "original"), [(8.0, 128, 8192), (32.0, 64, 8192), (16.0, 128, 4096)])
def test_the_parameters_of_llama_3_are_found(factor: float, head_dim: int, original: int) -> None:
    """From the factors alone, as the converter writes them: Llama 3.1, 3.2 and one that nobody made."""
    config, _ = checkpoint("llama3-scaled-bias")
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }
    changed = dataclasses.replace(config, head_dim=head_dim, rope_scaling=scaling)
    factors = gguf_file._llama3_factors(changed).astype(np.float64)
    assert kv.models.gguf.rope._llama3(factors, config.rope_theta) == scaling
    assert kv.models.gguf.rope._llama3(factors, 10000.0) is None


def test_frequencies_of_any_kind(tmp_path: Path) -> None:
    """rope_freqs that are not Llama 3's are taken as they are, and do not end at the original length."""
    config, weights = checkpoint("llama-gqa-tied")
    factors = np.linspace(1, 3, config.head_dim // 2).astype(np.float32)
    path = write(config, weights, tmp_path / "model.gguf")
    model = kv.models.load(rewrite(path, lambda _, tensors: tensors.update({"rope_freqs.weight": (factors, Kind.F32)})))
    scaling = {
        "rope_type": "longrope",
        "short_factor": factors.tolist(),
        "long_factor": factors.tolist(),
        "attention_factor": 1.0,
        "original_max_position_embeddings": config.max_position_embeddings,
        "max_position_embeddings": config.max_position_embeddings,
    }
    assert model.config.rope_scaling == scaling
    assert model.config.position_limit() is None
    wanted = kv.models.from_weights(dataclasses.replace(config, rope_scaling=scaling), weights)
    np.testing.assert_array_equal(all_logits(model, TOKENS, 72), all_logits(wanted, TOKENS, 72))


def test_layers_that_predict_further_tokens_stay_unread(tmp_path: Path) -> None:
    config, weights = checkpoint("qwen3-5-dense")
    path = write(config, weights, tmp_path / "model.gguf")
    wanted = kv.models.load(path)

    def add(values: dict[str, Any], tensors: dict[str, Any]) -> None:
        values["qwen35.block_count"] = (values["qwen35.block_count"][0], config.num_hidden_layers + 1)
        values["qwen35.nextn_predict_layers"] = ([gguf.GGUFValueType.UINT32], 1)
        tensors["blk.4.nextn.eh_proj.weight"] = (np.zeros((24, 48), np.float32), Kind.F32)

    assert kv.models.load(rewrite(path, add)).fingerprint == wanted.fingerprint


def test_split_files(tmp_path: Path) -> None:
    config, weights = checkpoint("llama-gqa-tied")
    whole = kv.models.load(write(config, weights, tmp_path / "model.gguf"))
    writer = gguf.GGUFWriter(tmp_path / "part.gguf", "llama", split_max_tensors=7)
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(key, field.contents(), field.types[0])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(tmp_path.glob("part-*.gguf"))
    assert len(parts) == 3
    assert kv.models.load(parts[0]).fingerprint == whole.fingerprint
    with pytest.raises(kv.errors.FormatError, match="allowed 1, or the first"):
        kv.models.load(parts[1])
    parts[2].unlink()
    with pytest.raises(kv.errors.FormatError, match=r"part-00003-of-00003\.gguf: the file is missing"):
        kv.models.load(parts[0])


def test_progress_counts_the_files_bytes(tmp_path: Path) -> None:
    config, weights = checkpoint("llama-gqa-tied")
    seen: list[tuple[int, int]] = []
    kv.models.load(write(config, weights, tmp_path / "model.gguf"), progress=lambda *done: seen.append(done))
    assert seen[-1][0] == seen[-1][1] == sum(4 * values.size for values in weights.values())
    assert seen == sorted(seen)
