"""Checkpoint folders and arguments that are missing, damaged, strange or not supported: typed errors that name them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from reference_llama import random_llama, save_checkpoint

Damage = Callable[[Path], None]


def edit_config(**changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "config.json"
        config = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))

    return damage


def truncate(name: str, keep: int) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep]) and None


def drop_tensor(folder: Path) -> None:
    config, weights = random_llama(3)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_checkpoint(folder, config, weights)


def extra_tensor(folder: Path) -> None:
    config, weights = random_llama(3)
    save_checkpoint(folder, config, {**weights, "model.layers.9.extra": np.zeros(3, np.float32)})


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "config is no JSON": (truncate("config.json", 20), "config.json"),
    "config is a list": (lambda folder: (folder / "config.json").write_text("[]") and None, "config.json"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
    "empty weights": (truncate("model.safetensors", 0), "model.safetensors"),
    "header cut": (truncate("model.safetensors", 100), "model.safetensors"),
    "data cut": (truncate("model.safetensors", 100_000), "model.safetensors"),
    "tensor missing": (drop_tensor, "model.layers.1.mlp.up_proj.weight"),
    "tensor too many": (extra_tensor, "model.layers.9.extra"),
    "other width": (edit_config(intermediate_size=80), "gate_proj.weight: got shape [128, 64], expected [80, 64]"),
    "more layers": (edit_config(num_hidden_layers=3), "model.layers.2."),
    "key missing": (edit_config(hidden_size="absent"), "hidden_size"),
    "key of another type": (edit_config(hidden_size="64"), "hidden_size"),
    "heads do not divide": (edit_config(num_key_value_heads=3), "num_key_value_heads"),
    "zero layers": (edit_config(num_hidden_layers=0), "num_hidden_layers"),
    "tokenizer damaged": (lambda folder: (folder / "tokenizer.json").write_text("{}") and None, "tokenizer.json"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_checkpoint_is_a_format_error(name: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, *random_llama(3))
    kv.models.load(tmp_path)
    damage, message = DAMAGES[name]
    damage(tmp_path)
    with pytest.raises(kv.errors.FormatError) as error:
        kv.models.load(tmp_path)
    assert message in str(error.value)


STRANGE: list[Any] = [
    None,
    True,
    -1,
    0,
    7,
    2**40,
    10**400,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "text",
    [],
    ["x"],
    {},
    {"a": {}},
]
KEYS = [*random_llama(3)[0], "rope_scaling", "rope_parameters", "layer_types", "quantization_config", "eos_token_id"]


@pytest.mark.filterwarnings("ignore::kvtrie.errors.IgnoredWarning")  # of keys that nobody knows
@pytest.mark.parametrize("key", KEYS)
def test_strange_values_never_escape_as_other_errors(key: str) -> None:
    """Whatever stands in a configuration: it is refused with an error of kvtrie, or the model loads."""
    config, weights = random_llama(3)
    for value in STRANGE:
        try:
            kv.models.from_weights({**config, key: value}, weights)
        except kv.Error as error:
            assert str(error).startswith("[models")  # noqa: PT017 (not every value is refused)


@pytest.mark.filterwarnings("ignore::kvtrie.errors.IgnoredWarning")  # of keys that nobody knows
@pytest.mark.parametrize("key", ["rope_type", "factor", "low_freq_factor", "original_max_position_embeddings"])
def test_strange_scalings_never_escape_as_other_errors(key: str) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config, weights = random_llama(3, rope_scaling={**scaling, "original_max_position_embeddings": 32})
    for value in STRANGE:
        changed = {**config, "rope_scaling": {**config["rope_scaling"], key: value}}
        try:
            kv.models.from_weights(changed, weights)
        except kv.Error as error:
            assert str(error).startswith("[models")  # noqa: PT017 (not every value is refused)


def missing_shard(folder: Path) -> None:
    (folder / "model-00002-of-00003.safetensors").unlink()


def swapped_shard(folder: Path) -> None:
    shutil.copy(folder / "model-00001-of-00003.safetensors", folder / "model-00002-of-00003.safetensors")


def shard_outside(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    path.write_text(path.read_text().replace("model-00002", "../model-00002"))


@pytest.mark.parametrize("damage", [missing_shard, swapped_shard, shard_outside])
def test_damaged_shards_are_format_errors(damage: Damage, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, *random_llama(3), shards=3)
    damage(tmp_path)
    with pytest.raises(kv.errors.FormatError, match="model-00002-of-00003"):
        kv.models.load(tmp_path)


UNSUPPORTED = [
    ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
    ({"architectures": [], "model_type": "mamba"}, "mamba"),
    ({"use_sliding_window": True}, "use_sliding_window"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
    ({"hidden_act": "gelu"}, "hidden_act"),
    ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
    ({"rope_scaling": {"rope_type": "su"}}, "rope_type"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
]


@pytest.mark.parametrize(("changes", "named"), UNSUPPORTED)
def test_unsupported_features_are_refused_by_name(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, *random_llama(3))
    edit_config(**changes)(tmp_path)
    with pytest.raises(kv.errors.NotSupportedError, match=named):
        kv.models.load(tmp_path)


def test_wrong_arguments() -> None:
    config, weights = random_llama(4)
    with pytest.raises(kv.errors.FormatError, match="allowed a checkpoint folder"):
        kv.models.load("/nonexistent/folder")
    with pytest.raises(TypeError, match="path"):
        kv.models.load(7)
    with pytest.raises(ValueError, match="dtype"):
        kv.models.from_weights(config, weights, dtype="int8")
    with pytest.raises(TypeError, match=r"weights\['lm_head.weight'\]"):
        kv.models.from_weights(config, {**weights, "lm_head.weight": np.zeros((128, 64), np.int8)})
    with pytest.raises(ValueError, match=r"model.norm|lm_head.*65504"):
        kv.models.from_weights(config, {**weights, "lm_head.weight": np.full((128, 64), 1e6)}, dtype="float16")
    model = kv.models.from_weights(config, weights)
    with pytest.raises(TypeError, match="step"):
        model(object())
