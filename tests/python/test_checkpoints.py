"""Random checkpoints of each family of causal.py: logits of transformers, the same bits however computed, GGUF files.

Three sets of settings for each family (``checkpoint_variants.py``), stored in float32 or bfloat16. Weights depend on
their names only (config_sweep.randomise).
"""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import gguf_files
import gguf_sweep
import kvtrie as kv
from bounds import LOGITS, close, difference
from checkpoint_variants import GGUF, VARIANTS, Variant
from config_sweep import Case, build, computed, save, tokens, unchanged
from gguf_models import gguf_file
from kvtrie.models.weights import to_float32
from sweep_families import FAMILIES

VOCAB_SHARED = 64  # tokens that the vocabularies of all variants have

# A family for each kind of part; the others are played in CI.
QUICK = ("qwen3_moe-normed", "deepseek_v3-yarn")


def marked(names: Any) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.ci) for name in names]


def checkpoint(variant: Variant, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The variant's checkpoint, as transformers saves it in ``dtype``; transformers' logits of those numbers."""
    case = Case(variant.family, variant.changes)
    save(build(case).to(dtype), case.file(), folder)
    kind = getattr(transformers, FAMILIES[variant.family].architecture)
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.from_numpy(tokens())[None], use_cache=False).logits[0].numpy()


@pytest.mark.parametrize("name", marked(VARIANTS))
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    dtype = (torch.float32, torch.bfloat16)[zlib.crc32(name.encode()) % 2]
    wanted = checkpoint(variant, tmp_path, dtype)
    close(computed(tmp_path), wanted, LOGITS)
    if variant.changes and dtype == torch.float32:
        assert difference(wanted[:, :VOCAB_SHARED], unchanged(variant.family)[:, :VOCAB_SHARED]) > 100 * LOGITS.value


@pytest.mark.parametrize("name", marked(VARIANTS))
def test_cached_cold_and_branched_rows_have_the_same_bits(name: str, tmp_path: Path) -> None:
    """A prompt in one step; in steps of 7; gone on with after a branch that saw another token."""
    variant = VARIANTS[name]
    case = Case(variant.family, variant.changes)
    save(build(case), case.file(), tmp_path)
    model = kv.models.load(tmp_path, dtype="float32")
    text = tokens().tolist()
    with kv.PrefixCache(model.caches(capacity=128, dtype="float32", warm_up=False)) as cache:
        with cache.begin(text, namespace="cold") as session:
            cold = rows(model, session, 64)
        with cache.begin(text, namespace="parts") as session:
            np.testing.assert_array_equal(rows(model, session, 7), cold)
        with cache.begin([*text[:25], 1, 2, 3], namespace="parts") as session:
            rows(model, session, 64)
        with cache.begin(text, namespace="parts") as session:
            assert session.reused == len(text) - 1
            np.testing.assert_array_equal(rows(model, session, 64), cold[session.reused :])


def rows(model: Any, session: Any, chunk: int) -> Any:
    return np.concatenate([np.array(model(step, all_rows=True)) for step in session.prefill(chunk=chunk)])


@pytest.mark.parametrize("name", marked(GGUF))
def test_gguf_files_are_the_same_model(name: str, tmp_path: Path) -> None:
    """Names of tensors by the tables of the ``gguf`` package; the bits of each logit are the checkpoint's."""
    path, config, keys = gguf_file(GGUF[name], tmp_path)
    with gguf_sweep.recorded() as records:
        model = kv.models.load(path, dtype="float32")
    gguf_sweep.check_record(path, records[0])
    assert type(model) is kv.models._FAMILIES[GGUF[name].family]
    assert dataclasses.replace(model.config, bos_token_id=None, eos_token_ids=()) == dataclasses.replace(
        config, bos_token_id=None, eos_token_ids=()
    )
    stored = logits(kv.models.load(tmp_path_without(path), dtype="float32"))
    if {
        "ssm__state_size",
        "kda__head_dim",
    } & keys.keys():  # of exp(A_log), whose logarithm is not A_log to the last bit
        close(logits(model), stored, LOGITS)
    else:
        np.testing.assert_array_equal(logits(model), stored)


@pytest.mark.ci
@pytest.mark.parametrize("kept", ["all", "all but one"])
def test_files_of_2023_have_experts_one_by_one(kept: str, tmp_path: Path) -> None:
    """Mixtral's first files: ffn_gate.0, ffn_gate.1, ... for ffn_gate_exps."""
    path = gguf_file(GGUF["llama/experts"], tmp_path)[0]
    wanted = logits(kv.models.load(path, dtype="float32"))

    def separate(values: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.endswith("_exps.weight")]:
            array, kind = tensors.pop(name)
            singles = {name.replace("_exps.", f".{index}."): (each, kind) for index, each in enumerate(array)}
            tensors.update(singles)
        if kept == "all but one":
            tensors.pop("blk.1.ffn_down.1.weight")

    gguf_files.rewrite(path, separate)
    if kept == "all":
        np.testing.assert_array_equal(logits(kv.models.load(path, dtype="float32")), wanted)
    else:
        with pytest.raises(kv.errors.FormatError, match=r"expert_count: got \d+, allowed the experts of blk\.1\."):
            kv.models.load(path)


def tmp_path_without(path: Path) -> Path:
    """The folder of the checkpoint, once the GGUF file in it was read."""
    path.unlink()
    return path.parent


def logits(model: Any) -> Any:
    with kv.PrefixCache(model.caches(capacity=64, dtype="float32", warm_up=False)).begin(tokens().tolist()) as session:
        return rows(model, session, 64)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "outer"),
    [
        ("mistral-window", ("Mistral3ForConditionalGeneration", "mistral3")),
        ("ministral3-growth", ("Mistral3ForConditionalGeneration", "mistral3")),
        ("deepseek_v3-yarn", ("KimiK25ForConditionalGeneration", "kimi_k25")),
    ],
)
def test_a_text_model_inside_another_goes_by_its_own_type(name: str, outer: tuple[str, str], tmp_path: Path) -> None:
    """Mistral3ForConditionalGeneration has one of two families inside; what sees images is not used."""
    variant = VARIANTS[name]
    case = Case(variant.family, variant.changes)
    save(build(case), case.file(), tmp_path)
    stored = kv.models.weights.open_folder(tmp_path)
    arrays = {key: to_float32(source.read(), source.dtype) for key, source in stored.items()}
    whole = {f"language_model.{key}": value for key, value in arrays.items()}
    whole["vision_tower.ln_pre.weight"] = np.ones(4, np.float32)
    raw = {
        "architectures": [outer[0]],
        "model_type": outer[1],
        "text_config": {key: value for key, value in case.file().items() if key != "architectures"},
        "spatial_merge_size": 2,
        "vision_config": {"hidden_size": 4},
    }
    model = kv.models.from_weights(raw, whole, dtype="float32")
    assert type(model).family == variant.family
    np.testing.assert_array_equal(logits(model), logits(kv.models.load(tmp_path, dtype="float32")))
