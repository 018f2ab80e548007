"""Prediction heads as files have them: layers behind the last, copies of the model's tables, and blocks of GGUF files.

A head that was read is held against the same numbers given by their names in a checkpoint, to the bit; those names are
held against a naive twin in test_mtp.py.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import gguf_models
import kvtrie as kv
from checkpoint_variants import GGUF
from gguf_files import Kind, checkpoint, rewrite, write
from kvtrie.models.base import Model
from kvtrie.models.families import FAMILIES
from mtp_twin import LAYER, head_weights
from mtp_twin_layers import RAWS, weights_behind
from test_mtp import load, prompt, raw_of, weights_of

LEAVES = ("eh_proj", "enorm", "hnorm", "shared_head.norm", "shared_head.head", "embed_tokens")
NEXTN = {  # below blk.N, by Qwen's names
    "mtp.fc": "nextn.eh_proj",
    "mtp.pre_fc_norm_embedding": "nextn.enorm",
    "mtp.pre_fc_norm_hidden": "nextn.hnorm",
    "mtp.norm": "nextn.shared_head_norm",
    f"{LAYER}.input_layernorm": "attn_norm",
    f"{LAYER}.post_attention_layernorm": "post_attention_norm",
    **{f"{LAYER}.self_attn.{name}_proj": f"attn_{name}" for name in "qkv"},
    f"{LAYER}.self_attn.o_proj": "attn_output",
    **{f"{LAYER}.self_attn.{name}_norm": f"attn_{name}_norm" for name in "qk"},
    **{f"{LAYER}.mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
    f"{LAYER}.mlp.gate": "ffn_gate_inp",
    f"{LAYER}.mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    **{f"{LAYER}.mlp.shared_expert.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")},
}


def said(model: Any) -> bytes:
    """The bits that the head of ``model`` says about some rows."""
    tokens, hidden = prompt(3, 12), np.random.default_rng(5).standard_normal((12, model.config.hidden_size))
    with kv.PrefixCache(model.mtp.caches(capacity=64, dtype="float32")) as cache, cache.begin(tokens) as session:
        logits, states = model.further(session.decode(), kv.tensor(hidden.astype(np.float32)))
        return np.asarray(logits).tobytes() + np.asarray(states).tobytes()


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_tables_that_the_model_has_are_not_held_twice() -> None:
    for name, own in {**dict.fromkeys(RAWS, False), "glm4-moe": True, "glm-moe-dsa": True}.items():
        mtp = load(name).mtp
        assert (mtp.embedding is not None) == (mtp.lm_head is not None) == own
    weights = weights_of("deepseek-v3")
    one = weights["model.layers.2.embed_tokens.weight"].copy()
    one[5, 5] += 1
    changed = load("deepseek-v3", {**weights, "model.layers.2.embed_tokens.weight": one})
    assert changed.mtp.embedding is not None
    assert changed.mtp.lm_head is None
    assert changed.mtp.fingerprint != load("deepseek-v3").mtp.fingerprint
    assert said(changed) != said(load("deepseek-v3"))


@pytest.mark.parametrize("name", RAWS)
def test_the_model_is_the_same_whatever_stands_behind_it(name: str) -> None:
    """Also where a second layer predicts the token behind: it is known, and refused where heads are asked for."""
    raw, weights, layer = raw_of(name), weights_of(name), f"model.layers.{raw_of(name)['num_hidden_layers']}."
    alone = {key: value for key, value in weights.items() if not key.startswith(layer)}
    plain = kv.models.from_weights(raw, alone, dtype="float32")
    assert plain.fingerprint == kv.models.from_weights(raw, weights, dtype="float32").fingerprint
    with pytest.raises(kv.errors.NotSupportedError, match=r"got a checkpoint without mtp\.\* tensors"):
        kv.models.from_weights(raw, alone, mtp=True)
    again = {key.replace(layer, "model.layers.3."): value for key, value in weights.items() if key.startswith(layer)}
    twice = {**weights, **again}
    assert kv.models.from_weights(raw, twice, dtype="float32").fingerprint == plain.fingerprint
    with pytest.raises(kv.errors.FormatError, match=r"no use for: mtp\.layers\.1\."):
        kv.models.from_weights(raw, twice, mtp=True)
    index = ("self_attn.indexer.wk.weight", "self_attn.indexer.k_norm.bias") if "index_topk" in raw else ()
    for missing in ("eh_proj.weight", "enorm.weight", "mlp.experts.3.up_proj.weight", *index):
        less = {key: value for key, value in weights.items() if key != f"{layer}{missing}"}
        with pytest.raises(kv.errors.FormatError, match=r"is missing|no use for"):
            kv.models.from_weights(raw, less, mtp=True)


def test_experts_of_a_head_may_be_one_tensor_and_old_files_have_frequencies() -> None:
    raw, weights = raw_of("glm4-moe"), weights_of("glm4-moe")
    prefix = "model.layers.2.mlp.experts"
    parts = {
        kind: [weights.pop(f"{prefix}.{each}.{kind}_proj.weight") for each in range(raw["n_routed_experts"])]
        for kind in ("gate", "up", "down")
    }
    weights[f"{prefix}.gate_up_proj"] = np.stack([np.concatenate(pair) for pair in zip(parts["gate"], parts["up"])])
    weights[f"{prefix}.down_proj"] = np.stack(parts["down"])
    weights["model.layers.2.self_attn.rotary_emb.inv_freq"] = (10_000.0 ** -(np.arange(0, 8, 2) / 8)).astype(np.float32)
    assert load("glm4-moe", weights).mtp.fingerprint == load("glm4-moe").mtp.fingerprint


def test_a_head_has_the_type_of_its_model() -> None:
    """Its own tables, too: blocks of 4 bits, the last one of 8, and float16 for what is looked up."""
    name = "glm4-moe"
    for dtype in ("float16", "q8_0", "q4_0"):
        small = kv.models.from_weights(raw_of(name), weights_of(name), dtype=dtype, mtp=True)
        assert small.mtp.nbytes < load(name).mtp.nbytes
        assert said(small) != said(load(name))


def test_the_families_that_are_named_are_those_that_have_one() -> None:
    """In the refusal of others."""
    with pytest.raises(kv.errors.NotSupportedError) as refused:
        kv.models.load(Path(__file__).resolve().parents[2] / "examples" / "tiny", mtp=True)
    named = set(re.split(", ", str(refused.value).partition("computed: ")[2]))
    having = {
        family.family.removesuffix("_text")
        for family in FAMILIES.values()
        if family.mtp_plan.__func__ is not Model.mtp_plan.__func__ and getattr(family, "brings_head", True)  # type: ignore[attr-defined]
    }
    assert named == having


# ---- GGUF files ------------------------------------------------------------------------------------------------------


FORMS = {"glm4-moe": "glm4moe", "deepseek-v3": "deepseek2", "deepseek-v32": "deepseek32", "glm-moe-dsa": "glm-dsa"}


def file_of(name: str, path: Path, weights: dict[str, Any] | None = None) -> Path:
    """Of a model with layers behind the last: with the package's names where it has them for the architecture."""
    raw, weights = raw_of(name), weights_behind(name) if weights is None else weights
    form = GGUF[FORMS[name]]
    config = kv.models._family(raw, name).parse_config(raw)
    layers = config.num_hidden_layers
    whole = dataclasses.replace(config, num_hidden_layers=layers + 1)
    nextn: dict[str, Any] = {}
    if name != "glm4-moe":
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GLM4_MOE, layers + 1)
        own = [
            f"model.layers.{layers}.{leaf}.weight"
            for leaf in LEAVES
            if f"model.layers.{layers}.{leaf}.weight" in weights
        ]
        nextn = {names.get_name(key, try_suffixes=(".weight",)): (weights[key], Kind.F32) for key in own}
        weights = {key: value for key, value in weights.items() if key not in own}
    keys = {**form.keys(config), "nextn_predict_layers": 1}
    if "indexer_types" in raw:
        keys["attention__indexer__types"] = [each == "full" for each in raw["indexer_types"]]
    gguf_models.write(form.architecture, whole, weights, path, **keys)
    return rewrite(path, lambda _, tensors: tensors.update(nextn))


@pytest.mark.parametrize("name", FORMS)
def test_blocks_of_files_are_the_same_head(name: str, tmp_path: Path) -> None:
    path = file_of(name, tmp_path / "model.gguf")
    model, wanted = kv.models.load(path, dtype="float32", mtp=True), load(name)
    assert said(model) == said(wanted)
    plain = kv.models.load(path, dtype="float32")
    assert plain.mtp is None
    assert plain.fingerprint == model.fingerprint
    with kv.PrefixCache(model.caches(capacity=128, dtype="float32")) as cache:
        made = kv.generate(model, cache.begin(prompt(1)), 12, ignore_eos=True, draft="mtp")
        answer = list(made)
        assert made.proposed > 0
        assert list(kv.generate(plain, cache.begin(prompt(1)), 12, ignore_eos=True)) == answer
    model.mtp.prefix_cache.close()


@pytest.mark.parametrize("name", ["qwen3-5-dense", "qwen3-5-experts", "qwen3-next-experts"])
def test_blocks_of_hybrids_are_the_same_head(name: str, tmp_path: Path) -> None:
    """Norms have their one in the file."""
    config, weights = checkpoint(name)
    path = with_block(write(config, weights, tmp_path / "model.gguf"), name)
    head = kv.models.load(path, dtype="float32", mtp=True)
    wanted = kv.models.from_weights(raw_of(name), {**weights, **head_weights(raw_of(name))}, dtype="float32", mtp=True)
    got, kept = (np.frombuffer(said(each), np.float32) for each in (head, wanted))
    assert np.abs(got - kept).max() <= 1e-5 * np.abs(kept).max()  # norms lost the last bits of what is below one half


def with_block(path: Path, name: str) -> Path:
    """The file with the twin's head as its last block."""
    raw = raw_of(name)
    layers = raw.get("text_config", raw)["num_hidden_layers"]
    head = head_weights(raw)
    experts: dict[str, list[Any]] = {}
    found: dict[str, Any] = {}
    for key, values in head.items():
        expert = re.fullmatch(rf"{LAYER}\.mlp\.experts\.\d+\.(\w+)_proj\.weight", key)
        if expert is not None:
            experts.setdefault(f"ffn_{expert[1]}_exps.weight", []).append(values)
            continue
        base, _, kind = key.rpartition(".")
        found[f"{NEXTN[base]}.{kind}"] = values + 1 if base.endswith("norm") or "_norm_" in base else values
    found |= {key: np.stack(values) for key, values in experts.items()}

    def add(values: dict[str, Any], tensors: dict[str, Any]) -> None:
        architecture = next(key for key in values if key.endswith(".block_count")).partition(".")[0]
        values[f"{architecture}.block_count"] = (values[f"{architecture}.block_count"][0], layers + 1)
        values[f"{architecture}.nextn_predict_layers"] = ([gguf.GGUFValueType.UINT32], 1)
        tensors.update({f"blk.{layers}.{key}": (np.float32(each), Kind.F32) for key, each in found.items()})

    return rewrite(path, add)


def test_what_a_file_may_leave_out_is_the_models(tmp_path: Path) -> None:
    """Both tables, and the norm before the head, as llama.cpp reads them."""
    path = file_of("glm4-moe", tmp_path / "model.gguf")

    def drop(_values: dict[str, Any], tensors: dict[str, Any]) -> None:
        for leaf in ("embed_tokens", "shared_head_head", "shared_head_norm"):
            del tensors[f"blk.2.nextn.{leaf}.weight"]

    weights = weights_of("glm4-moe")
    for leaf in ("embed_tokens", "shared_head.head"):
        del weights[f"model.layers.2.{leaf}.weight"]
    weights["model.layers.2.shared_head.norm.weight"] = weights["model.norm.weight"]
    assert said(kv.models.load(rewrite(path, drop), dtype="float32", mtp=True)) == said(load("glm4-moe", weights))


@pytest.mark.parametrize(
    ("leaf", "change", "text"),
    [
        ("nextn.eh_proj.weight", None, "nextn_predict_layers: got 1, allowed 0 where there is no"),
        ("nextn.enorm.weight", None, r"tensor 'blk\.2\.nextn\.enorm\.weight' is missing, expected shape \[32\]"),
        ("nextn.hnorm.weight", (31,), r"blk\.2\.nextn\.hnorm\.weight: got shape \[31\], expected \[32\]"),
        ("attn_q.bias", None, r"tensor 'blk\.2\.attn_q\.bias' is missing"),
        ("ffn_up_exps.weight", (5, 16, 32), r"blk\.2\.ffn_up_exps\.weight: got shape \[5, 16, 32\]"),
        ("nextn.other.weight", (3,), r"1 tensors the model has no use for: blk\.2\.nextn\.other\.weight"),
    ],
)
def test_what_is_no_head_is_named(leaf: str, change: tuple[int, ...] | None, text: str, tmp_path: Path) -> None:
    """Where it is asked for; without, only what says that it is one is looked at."""

    def damage(_values: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors.pop(f"blk.2.{leaf}", None)
        if change is not None:
            tensors[f"blk.2.{leaf}"] = (np.zeros(change, np.float32), Kind.F32)

    path = rewrite(file_of("glm4-moe", tmp_path / "model.gguf"), damage)
    with pytest.raises(kv.errors.FormatError, match=text):
        kv.models.load(path, mtp=True)
    if leaf != "nextn.eh_proj.weight":
        assert kv.models.load(path, dtype="float32").mtp is None


def test_how_many_blocks_predict_is_obeyed_or_refused(tmp_path: Path) -> None:
    path = file_of("glm4-moe", tmp_path / "model.gguf")

    def again(values: dict[str, Any], tensors: dict[str, Any]) -> None:
        values["glm4moe.block_count"] = (values["glm4moe.block_count"][0], 4)
        values["glm4moe.nextn_predict_layers"] = (values["glm4moe.nextn_predict_layers"][0], 2)
        tensors.update({key.replace("blk.2.", "blk.3."): each for key, each in tensors.items() if "blk.2." in key})

    fingerprint = kv.models.load(path, dtype="float32").fingerprint
    assert kv.models.load(rewrite(path, again), dtype="float32").fingerprint == fingerprint
    with pytest.raises(kv.errors.NotSupportedError, match=r"glm4moe\.nextn_predict_layers: got 2, allowed 1 with mtp"):
        kv.models.load(path, mtp=True)
    config, weights = checkpoint("qwen3-5-dense")
    with pytest.raises(kv.errors.NotSupportedError, match="got a checkpoint without"):
        kv.models.load(write(config, weights, tmp_path / "plain.gguf"), mtp=True)
    config, weights = checkpoint("llama-gqa-tied")
    with pytest.raises(kv.errors.NotSupportedError, match="mtp: got llama, allowed"):
        kv.models.load(write(config, weights, tmp_path / "llama.gguf"), mtp=True)
