"""An adapter beside its base: a LoRA of linear layers is merged while weights are read, anything else is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import kvtrie as kv
from bounds import LOGITS, LOGITS_OF_SETTINGS, close, difference
from config_sweep import FAMILIES, Case, build, computed, tokens, wanted
from reference_llama import random_llama, reference_logits, save_checkpoint
from test_models import all_logits

TEXT = np.random.default_rng(3).integers(0, 128, 12).tolist()
R = 4
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "base_model_name_or_path": "organisation/base",
    "task_type": "CAUSAL_LM",
    "r": R,
    "lora_alpha": 6,
    "target_modules": ["q_proj", "down_proj"],
    "lora_dropout": 0.1,
    "bias": "none",
    "use_rslora": False,
    "use_dora": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "fan_in_fan_out": False,
    "init_lora_weights": True,
    "layers_to_transform": None,
    "inference_mode": True,
    "peft_version": "0.18.0",
    "loftq_config": {},
}
Halves = dict[str, Any]


def adapter(weights: dict[str, Any], modules: list[str], ranks: dict[str, int] | None = None) -> Halves:
    """Random A and B of the layers whose names end so, by peft's names."""
    random = np.random.default_rng(11)
    halves: Halves = {}
    for name, value in weights.items():
        module = name.removesuffix(".weight")
        if value.ndim == 2 and module.endswith(tuple(modules)):
            rank = (ranks or {}).get(module, R)
            for half, shape in (("A", (rank, value.shape[1])), ("B", (value.shape[0], rank))):
                halves[f"base_model.model.{module}.lora_{half}.weight"] = random.standard_normal(
                    shape, np.float32
                ) / math.sqrt(shape[1])
    return halves


def folder_of(folder: Path, config: Any, weights: Any, halves: Halves, **changes: Any) -> Path:
    save_checkpoint(folder, config, weights)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **changes}))
    save_file(halves, folder / "adapter_model.safetensors")
    return folder


def merged(weights: dict[str, Any], halves: Halves, scales: Any) -> dict[str, Any]:
    """From the definition, in float64; ``scales``: a module's name -> its factor."""
    whole = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    for name in [name for name in halves if ".lora_A." in name]:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        change = halves[name.replace("lora_A", "lora_B")].astype(np.float64) @ halves[name].astype(np.float64)
        whole[f"{module}.weight"] = whole[f"{module}.weight"] + change * scales(module)
    return whole


def logits(folder: Path) -> Any:
    return all_logits(kv.models.load(folder, dtype="float32"), TEXT, 12)


SCALES: list[tuple[dict[str, Any], dict[str, int], Any]] = [
    ({}, {}, lambda _: 6 / 4),
    ({"use_rslora": True}, {}, lambda _: 6 / 2),
    (
        {"rank_pattern": {"layers.1.self_attn.q_proj": 2}},
        {"model.layers.1.self_attn.q_proj": 2},
        lambda module: 6 / (2 if module.endswith("1.self_attn.q_proj") else 4),
    ),
    ({"alpha_pattern": {r"layers\.\d+\.mlp\.down_proj": 20}}, {}, lambda m: (20 if "down" in m else 6) / 4),
    ({"target_modules": r".*\.(q_proj|down_proj)"}, {}, lambda _: 6 / 4),
    ({"target_modules": "all-linear"}, {}, lambda _: 6 / 4),
    ({"fan_in_fan_out": True}, {}, lambda _: 6 / 4),
]


@pytest.mark.parametrize(("changes", "ranks", "scales"), SCALES)
def test_a_merged_model_is_that_of_the_definition(
    changes: dict[str, Any], ranks: dict[str, int], scales: Any, tmp_path: Path
) -> None:
    config, weights = random_llama(5)
    halves = adapter(weights, ["q_proj", "down_proj"], ranks)
    got = logits(folder_of(tmp_path, config, weights, halves, **changes))
    close(got, reference_logits(config, merged(weights, halves, scales), TEXT), LOGITS)
    assert difference(got, reference_logits(config, weights, TEXT)) > 100 * LOGITS.value


def test_a_base_of_float16_is_added_to_in_float32_and_the_fingerprint_tells(tmp_path: Path) -> None:
    config, weights = random_llama(5, dtype=np.float16)
    halves = adapter(weights, ["q_proj"])
    plain = kv.models.load(save_checkpoint(tmp_path / "base", config, weights))
    one = kv.models.load(folder_of(tmp_path / "one", config, weights, halves))
    again = kv.models.load(folder_of(tmp_path / "again", config, weights, halves))
    other = kv.models.load(folder_of(tmp_path / "other", config, weights, halves, lora_alpha=7))
    assert (plain.dtype, one.dtype) == ("float16", "float32")
    assert one.fingerprint == again.fingerprint
    assert len({plain.fingerprint, one.fingerprint, other.fingerprint}) == 3
    assert one.account == kv.models.describe(tmp_path / "one")
    assert one.account["adapter_config.json"].read["lora_alpha"] == 6
    wanted = reference_logits(config, merged(weights, halves, lambda _: 6 / 4), TEXT)
    close(all_logits(one, TEXT, 12), wanted, LOGITS)


def test_a_change_of_a_tied_head_leaves_the_embedding(tmp_path: Path) -> None:
    config, weights = random_llama(5, tied=True)
    with_head = {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}
    halves = adapter(with_head, ["lm_head"])
    got = logits(folder_of(tmp_path, config, weights, halves, target_modules=["lm_head"]))
    untied = {**config, "tie_word_embeddings": False}
    close(got, reference_logits(untied, merged(with_head, halves, lambda _: 6 / 4), TEXT), LOGITS)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "IA3"}, "peft_type: got 'IA3', allowed 'LORA'"),
    ({"use_dora": True}, "use_dora: got True"),
    ({"bias": "lora_only"}, "bias: got 'lora_only', allowed 'none'"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters"),
    ({"trainable_token_indices": [1]}, "trainable_token_indices"),
    ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication"),
    ({"layers_to_transform": [1]}, "layers_to_transform"),
    ({"lora_bias": True}, "lora_bias"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights: got 'pissa'"),
    ({"task_type": "SEQ_CLS"}, "task_type: got 'SEQ_CLS', allowed 'CAUSAL_LM'"),
    ({"some_new_way": 3}, "some_new_way: got 3"),
    ({"target_modules": ["q_proj"]}, "target_modules: got"),
    ({"exclude_modules": ["down_proj"]}, "down_proj, which peft would ignore"),
    ({"target_modules": "("}, r"got the expression '\('"),
    ({"target_modules": 7}, "target_modules: got 7"),
    ({"r": 8}, "allowed a rank of 8"),
    ({"rank_pattern": 3}, "rank_pattern: got 3"),
    ({"lora_alpha": "x"}, "lora_alpha: got 'x'"),
]


@pytest.mark.parametrize(("changes", "named"), REFUSED)
def test_any_other_adapter_is_refused_by_name(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    config, weights = random_llama(5)
    halves = adapter(weights, ["q_proj", "down_proj"])
    with pytest.raises((kv.errors.NotSupportedError, kv.errors.FormatError), match=named):
        kv.models.load(folder_of(tmp_path, config, weights, halves, **changes))


def _embedding(halves: Halves) -> None:
    halves["base_model.model.model.embed_tokens.lora_embedding_A"] = np.zeros((R, 128), np.float32)


def _bias(halves: Halves) -> None:
    halves["base_model.model.model.layers.0.self_attn.q_proj.bias"] = np.zeros(64, np.float32)


def _one_half(halves: Halves) -> None:
    del halves["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"]


def _stranger(halves: Halves) -> None:
    for half, shape in (("A", (R, 64)), ("B", (64, R))):
        halves[f"base_model.model.model.layers.9.self_attn.q_proj.lora_{half}.weight"] = np.zeros(shape, np.float32)


def _wide(halves: Halves) -> None:
    halves["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"] = np.zeros((R, 65), np.float32)


def _whole_numbers(halves: Halves) -> None:
    halves["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"] = np.zeros((R, 64), np.int8)


def _another_embedding(halves: Halves) -> None:
    halves["base_model.model.model.embed_tokens.weight"] = np.zeros((128, 64), np.float32)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (_embedding, "lora_embedding_A"),
        (_bias, "q_proj.bias with other numbers than the base"),
        (_another_embedding, "model.embed_tokens.weight with other numbers than the base"),
        (_one_half, "model.layers.0.self_attn.q_proj: got lora_A alone"),
        (_stranger, "model.layers.9.self_attn.q_proj: got a change of what is no linear layer"),
        (_wide, r"q_proj.weight: got a change of shape \[64, 65\], allowed \[64, 64\]"),
        (_whole_numbers, "got I8, allowed F32"),
    ],
)
def test_tensors_that_do_not_fit_are_named(damage: Any, named: str, tmp_path: Path) -> None:
    config, weights = random_llama(5)
    halves = adapter(weights, ["q_proj", "down_proj"])
    damage(halves)
    with pytest.raises((kv.errors.NotSupportedError, kv.errors.FormatError), match=named):
        kv.models.load(folder_of(tmp_path, config, weights, halves))


def test_an_adapter_without_its_tensors_or_without_its_base(tmp_path: Path) -> None:
    config, weights = random_llama(5)
    folder_of(tmp_path, config, weights, adapter(weights, ["q_proj", "down_proj"]))
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(kv.errors.FormatError, match=r"adapter_model.safetensors: the file is missing"):
        kv.models.load(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(
        kv.errors.FormatError, match=r"an adapter alone \(adapter_config.json, peft_type LORA\).*'organisation"
    ):
        kv.models.load(tmp_path)


# w1 and out_proj of LFM2 and all of Nemotron-H have other names here, qkv_proj and gate_up_proj are several matrices.
TARGETS = ["q_proj", "k_proj", "o_proj", "in_proj_qkv", "in_proj_qkvz", "out_proj", "shared_expert_gate", "lm_head",
           "qkv_proj", "gate_up_proj", "w1"]  # fmt: skip
LEFT = dict.fromkeys(("falcon_h1", "nemotron_h"), ("out_proj",))  # peft refuses it beside Mamba-2


def test_an_adapter_beside_a_gguf_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(kv.errors.NotSupportedError, match=r"adapter_config.json beside model.gguf"):
        kv.models.load(tmp_path)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # peft asks for it
@pytest.mark.ci  # peft takes seconds to import
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_logits_are_those_of_peft(name: str, tmp_path: Path) -> None:
    """Saved by peft beside the base that transformers saved; not merged on peft's side."""
    import peft

    case = Case(name, {})
    model = build(case)
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(case.file()))
    linear = [module for module, part in model.named_modules() if isinstance(part, torch.nn.Linear)]
    mine = [
        each for each in TARGETS if any(module.endswith(each) for module in linear) and each not in LEFT.get(name, ())
    ]
    ranks = {"k_proj": 2} if "k_proj" in mine else {"o_proj": 2}
    lora = peft.LoraConfig(
        r=R, lora_alpha=10, target_modules=mine, use_rslora=True, task_type="CAUSAL_LM", rank_pattern=ranks
    )
    changed = peft.get_peft_model(model, lora)
    changed.save_pretrained(tmp_path, save_embedding_layers=True)  # copies of what is the base's, which are compared
    path = tmp_path / "adapter_model.safetensors"
    random = np.random.default_rng(4)
    stored = load_file(path)
    for key in [key for key in stored if "lora_" in key]:
        stored[key] = random.standard_normal(stored[key].shape).astype(np.float32) / 4
    save_file(stored, path)
    loaded = peft.PeftModel.from_pretrained(build(case), tmp_path).eval()
    want = wanted(loaded)
    close(computed(tmp_path), want, LOGITS_OF_SETTINGS)
    assert difference(want, wanted(build(case))) > 100 * LOGITS_OF_SETTINGS.value
    assert tokens().shape == (len(want),)
