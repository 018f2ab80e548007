"""MXFP4: read from safetensors and GGUF files, kept exactly in blocks, and models of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import bounds
import gguf_models
import kvtrie as kv
from bounds import LOGITS, close
from config_sweep import Case, build, save, tokens
from kvtrie.models import mxfp4
from kvtrie.models.weights import from_arrays, open_folder, to_float32
from sweep_families import FAMILIES

CASE = Case("gpt_oss", {"intermediate_size": 32, "num_local_experts": 3, "swiglu_limit": 0.5})
LEAST, MOST = 104, 143  # of e, for which half a scale is a float16


def random_blocks(*shape: int, least: int = LEAST, most: int = MOST) -> Any:
    """uint8 [..., 17 a block] with scales of e from ``least`` to ``most``."""
    random = np.random.default_rng(7)
    found = random.integers(0, 256, (*shape, 17), np.uint8)
    found[..., 0] = random.integers(least, most + 1, shape)
    return found.reshape(*shape[:-1], -1)


def test_q5_0_holds_the_same_numbers() -> None:
    blocks = random_blocks(80, 3)
    wanted = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(mxfp4.numbers(blocks), wanted)
    kept = mxfp4.as_q5_0(blocks, "w")
    np.testing.assert_array_equal(gguf.quants.dequantize(kept, gguf.GGMLQuantizationType.Q5_0), wanted)
    assert {LEAST, MOST} <= set(blocks.reshape(-1, 17)[:, 0].tolist())


@pytest.mark.parametrize("scale", [LEAST, LEAST + 10, 127, MOST])
def test_products_have_the_smallest_and_the_largest_scales(scale: int) -> None:
    blocks = random_blocks(64, 2, least=scale, most=scale)
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    y = kv.ops.matmul(x, kv.ops.pack_blocks(mxfp4.as_q5_0(blocks, "w"), "q5_0", precision="exact"))
    power = 2.0 ** (scale - 127)
    bounds.close(np.asarray(y) / power, x.astype(np.float64) @ (mxfp4.numbers(blocks) / power).T, bounds.PRODUCTS)


@pytest.mark.parametrize("scale", [0, LEAST - 1, MOST + 1, 254])
def test_a_scale_that_no_float16_holds_is_refused(scale: int) -> None:
    blocks = random_blocks(2, 1, least=scale, most=scale)
    with pytest.raises(
        kv.errors.ArgumentError, match=re.escape(f"cannot hold w: got an MXFP4 scale of 2^{scale - 127}, ")
    ):
        mxfp4.as_q5_0(blocks, "w")
    blocks[:, 1:] = 0x80  # zero, and minus zero
    assert not gguf.quants.dequantize(mxfp4.as_q5_0(blocks, "w"), gguf.GGMLQuantizationType.Q5_0).any()


def test_the_two_tensors_of_safetensors_are_read_as_transformers_reads_them() -> None:
    random = np.random.default_rng(3)
    blocks = random.integers(0, 256, (3, 4, 2, 16), np.uint8)
    scales = random.integers(110, 130, (3, 4, 2)).astype(np.uint8)
    sources = from_arrays({"w_blocks": blocks, "w_scales": scales})
    whole = mxfp4.stacked(sources["w_blocks"], sources["w_scales"], "w")
    wanted = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32)
    np.testing.assert_array_equal(whole.read().swapaxes(1, 2), wanted.numpy())
    assert (whole.stored, whole.shape, whole.nbytes) == ("MXFP4", (3, 4, 64), 3 * 4 * 2 * 17)
    own = mxfp4.matrix(whole, "own", 1, slice(1, None, 2))
    np.testing.assert_array_equal(own.read(), whole.read()[1, 1::2])


# ---- models ----------------------------------------------------------------------------------------------------------


def quantised(values: Any) -> tuple[Any, Any]:
    """[..., in] -> blocks [..., in / 32, 16] and scales, as a checkpoint has them; by the gguf package."""
    rows = gguf.quants.quantize(values.reshape(-1, values.shape[-1]), gguf.GGMLQuantizationType.MXFP4)
    each = rows.reshape(*values.shape[:-1], -1, 17)
    apart = np.concatenate([each[..., 1:] & 15, each[..., 1:] >> 4], axis=-1)
    return apart[..., 0::2] | apart[..., 1::2] << 4, each[..., 0]


def folder_of(path: Path) -> Path:
    """A checkpoint of :data:`CASE` whose experts are MXFP4, as it is published."""
    save(build(CASE), {**CASE.file(), "quantization_config": {"quant_method": "mxfp4"}}, path)
    arrays: dict[str, Any] = {}
    for name, source in open_folder(path).items():
        values = to_float32(source.read(), source.dtype)
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            for kind, part in zip(("blocks", "scales"), quantised(np.ascontiguousarray(values.swapaxes(1, 2)))):
                arrays[f"{name}_{kind}"] = np.ascontiguousarray(part)
        else:
            arrays[name] = values
    save_file(arrays, path / "model.safetensors", {"format": "pt"})
    return path


def logits(model: Any) -> Any:
    with kv.PrefixCache(model.caches(capacity=64, dtype="float32", warm_up=False)).begin(tokens().tolist()) as session:
        return np.concatenate([np.asarray(model(step, all_rows=True)) for step in session.prefill()])


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("mxfp4"))


def test_a_published_checkpoint_has_the_logits_of_transformers(published: Path) -> None:
    """transformers turns the blocks into numbers where it has no kernels of them."""
    kind = getattr(transformers, FAMILIES["gpt_oss"].architecture)
    whole = kind.from_pretrained(published, dtype=torch.float32).eval()
    with torch.no_grad():
        wanted = whole(torch.from_numpy(tokens())[None], use_cache=False).logits[0].numpy()
    for dtype in ("float32", None):
        close(logits(kv.models.load(published, dtype=dtype)), wanted, LOGITS)


def test_experts_stay_blocks(published: Path) -> None:
    """Of 22 bytes where the file has 17, and of the numbers that are in the file."""
    model, wide = (kv.models.load(published, dtype=dtype) for dtype in (None, "float32"))
    experts = [name for name in model.kept if ".experts." in name]
    assert model.dtype == "stored" and len(experts) == 3 * 3 * 3
    assert {model.kept[name] for name in experts} == {"q5_0"} and not model.losses
    numbers = len(experts) * 64 * 32  # packed in groups of 64 rows
    assert wide.nbytes - model.nbytes == numbers * 4 - numbers // 32 * 22


@pytest.mark.parametrize(
    ("name", "scales", "message"),
    [
        ("down_proj_scales", None, "down_proj_scales' is missing"),
        (
            "down_proj_scales",
            np.zeros((3, 32, 2), np.uint8),
            "down_proj_blocks: got shape [3, 32, 1, 16], expected [3, 32, 2, 16] beside ",
        ),
        ("gate_up_proj_scales", np.ones((3, 64, 1), np.float32), "gate_up_proj_scales: got F32, allowed U8"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(published: Path, name: str, scales: Any, message: str) -> None:
    arrays: dict[str, Any] = {key: source.read() for key, source in open_folder(published).items()}
    arrays[f"model.layers.0.mlp.experts.{name}"] = scales
    arrays = {key: values for key, values in arrays.items() if values is not None}
    raw = json.loads((published / "config.json").read_text())
    with pytest.raises(kv.errors.FormatError, match=re.escape(message)):
        kv.models.from_weights(raw, arrays)


def test_another_method_is_refused_by_name() -> None:
    raw = {**CASE.file(), "quantization_config": {"quant_method": "gptq"}}
    with pytest.raises(
        kv.errors.NotSupportedError, match=r"quantization_config: .* got quant_method 'gptq', allowed mxfp4, "
    ):
        kv.models.GptOss.parse_config(raw)


def test_gguf_files_with_mxfp4_are_the_same_model(published: Path, tmp_path: Path) -> None:
    raw = json.loads((published / "config.json").read_text())
    config = kv.models.GptOss.parse_config(raw)
    sources = kv.models.GptOss.adapt(config, open_folder(published))
    names = kv.models.GptOss.tensor_shapes(config)
    weights = {name: to_float32(sources[name].read(), sources[name].dtype) for name in names}
    keys = {
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "attention__sliding_window": config.sliding_window,
        "rope__scaling__type": "none",
    }
    path = gguf_models.write("gpt-oss", config, weights, tmp_path / "a.gguf", experts="MXFP4", **keys)
    model = kv.models.load(path)
    assert {kept for name, kept in model.kept.items() if ".experts." in name} == {"q5_0"}
    raw.update({"layer_types": list(model.config.layer_types), "swiglu_limit": 7.0})
    folder = kv.models.from_weights(raw, {name: source.read() for name, source in open_folder(published).items()})
    np.testing.assert_array_equal(logits(model), logits(folder))
