"""What files of gguf_forms.py say is obeyed, or refused by name where it is another model than kvtrie computes."""

from __future__ import annotations

import functools
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from checkpoint_variants import GGUF
from gguf_files import Kind, rewrite
from gguf_models import gguf_file
from gguf_sweep import Type


def changed(name: str, folder: Path, keys: dict[str, Any], tensors: dict[str, Any] | None = None) -> Path:
    """The file of a form after keys or tensors of it were changed; None: it is not there any more."""

    def change(values: dict[str, Any], arrays: dict[str, Any]) -> None:
        own = GGUF[name].architecture
        for key, value in keys.items():
            values.pop(f"{own}{key}", None)
            if value is not None:
                values[f"{own}{key}"] = (_types(value), value)
        for tensor, array in (tensors or {}).items():
            arrays.pop(tensor, None)
            if array is not None:
                arrays[tensor] = (np.asarray(array, np.float32), Kind.F32)

    return rewrite(written(name, folder), change)


@functools.cache
def _bytes(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return gguf_file(GGUF[name], Path(folder))[0].read_bytes()


def written(name: str, folder: Path) -> Path:
    """The file of a form."""
    path = folder / "model.gguf"
    path.write_bytes(_bytes(name))
    return path


def _types(value: Any) -> list[Any]:
    kinds = {bool: Type.BOOL, int: Type.UINT32, float: Type.FLOAT32, str: Type.STRING}
    return [Type.ARRAY, kinds[type(value[0])]] if isinstance(value, list) else [kinds[type(value)]]


_HALF = [1.0, 2.0, 1e30, 1e30, 1e30, 1e30, 1e30, 1e30]
REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "yarn in phi3": ("phi3", {".rope.scaling.type": "yarn"}, {}, "rope.scaling.type: got 'yarn', allowed none, linear"),
    "longrope without factors": (
        "phi3-long",
        {},
        {"rope_factors_short.weight": None, "rope_factors_long.weight": None},
        "rope.scaling.type: got 'longrope', allowed none, linear without rope_factors_long.weight",
    ),
    "one of two factors": ("phi3-long", {}, {"rope_factors_short.weight": None}, "rope_factors_short.weight: got no"),
    "linear in phi3": (
        "phi3",
        {".rope.scaling.type": "linear", ".rope.scaling.factor": 2.0},
        {},
        "rope.scaling.factor: got 2.0, allowed 0 or 1",
    ),
    "growth without yarn": (
        "mistral3/growth",
        {".rope.scaling.type": "none", ".rope.scaling.yarn_log_multiplier": None},
        {},
        "rope.scaling.type: got 'none', allowed yarn beside attention.temperature_scale",
    ),
    "two factors of attention": (
        "mistral3",
        {".rope.scaling.yarn_attn_factor": 1.1386294},
        {},
        "rope.scaling.yarn_attn_factor: got 1.1386294, allowed none beside rope.scaling.yarn_log_multiplier",
    ),
    "growth by other steps": (
        "mistral3/growth",
        {".attention.temperature_length": 24},
        {},
        "attention.temperature_length: got 24, allowed 0 or 16",
    ),
    "types of fewer layers": ("glm-dsa-types", {".attention.indexer.types": [True, False]}, {}, "indexer.types: got"),
    "a first layer without an index": (
        "glm-dsa-types",
        {".attention.indexer.types": [False, True, True]},
        {},
        "indexer_types: got 'shared' for the first layer",
    ),
    "no size of index keys": ("deepseek32", {".attention.indexer.key_length": None}, {}, "indexer.key_length' is"),
    "sizes of sliding heads": ("olmo2/windows", {".attention.key_length_swa": 16}, {}, "key_length_swa: got 16"),
    "scaled gemma3n": ("gemma3n", {".rope.scaling.factor": 2.0}, {}, "rope.scaling.factor: got 2.0, allowed 0 or 1"),
    "streams": ("gemma3n", {".altup.num_inputs": 3}, {}, "altup.num_inputs: got 3"),
    "another active stream": ("gemma3n", {".altup.active_idx": 4}, {}, "altup.active_idx: got 4"),
    "all gates": (
        "gemma3n",
        {".activation_sparsity_scale": [9.0, 0.1, 0.1, 0.1]},
        {},
        "activation_sparsity_pattern: got",
    ),
    "a last layer that slides": (
        "gemma4",
        {".attention.sliding_window_pattern": [True, True, False, False, True]},
        {},
        "sliding_window_pattern: got 'a last layer that slides'",
    ),
    "heads of k in layers of a kind": (
        "gemma4",
        {".attention.head_count_kv": [1, 2, 1, 1, 1]},
        {},
        "head_count_kv: got",
    ),
    "widths": ("gemma4", {".feed_forward_length": [48, 48, 48, 96, 48]}, {}, "feed_forward_length: got"),
    "two factors of frequencies": ("gemma4", {}, {"rope_freqs.weight": _HALF}, "rope_freqs.weight: got"),
    "cells and a width": (
        "nemotron_h",
        {".feed_forward_length": [0, 48, 48, 48]},
        {},
        "feed_forward_length: got 48, allowed 0 in layer 2, which attends",
    ),
    "experts of latents": ("nemotron_h_moe", {".moe_latent_size": 8}, {}, "moe_latent_size: got 8"),
    "weights that are not normed": (
        "kimi-linear",
        {".expert_weights_norm": False},
        {},
        "expert_weights_norm: got False, allowed True",
    ),
    "shares of experts": ("kimi-linear", {".expert_gating_func": 1}, {}, "expert_gating_func: got 1, allowed 2"),
    "layers of two kinds": ("kimi-linear", {".attention.head_count_kv": [0, 2, 0]}, {}, "head_count_kv: got"),
    "a pattern by number, for all layers": (
        "gemma4",
        {".attention.sliding_window_pattern": 5},
        {},
        "sliding_window_pattern: got 5, allowed a list of 5 numbers",
    ),
    "another theta of windows": (
        "exaone4-windows",
        {".rope.freq_base_swa": 77.0},
        {},
        "rope.freq_base_swa: got 77.0, allowed 500, as rope.freq_base says",
    ),
    "rows in another order": (
        "glm4",
        {".rope.dimension_sections": [1, 1, 0, 0]},
        {},
        "rope.dimension_sections: got 4 entries, allowed 0 as one of the first two",
    ),
    "a fourth axis": (
        "glm4moe",
        {".rope.dimension_sections": [1, 1, 0, 1]},
        {},
        "rope.dimension_sections: got 4 entries, allowed 0 as the fourth",
    ),
    "scores of linear scaling": (
        "deepseek2",
        {".rope.scaling.factor": 2.0, ".rope.scaling.yarn_log_multiplier": 0.5},
        {},
        "rope.scaling.yarn_log_multiplier: got 0.5, allowed 0 with linear scaling",
    ),
    "growth by factors": (
        "mistral3/growth",
        {".rope.scaling.type": "none", ".rope.scaling.yarn_log_multiplier": None},
        {"rope_freqs.weight": [1.0, 1.0, 2.0, 3.0]},
        "rope.scaling.type: got 'none', allowed yarn beside attention.temperature_scale",
    ),
    "granite that does not rotate": (
        "granite",
        {".rope.scaling.finetuned": False},
        {},
        "rope.scaling.finetuned: got False, allowed True",
    ),
    "bamba that does not rotate": (
        "granitehybrid/partly",
        {".rope.scaling.finetuned": False},
        {},
        "rope.scaling.finetuned: got False, allowed True",
    ),
}


@pytest.mark.ci
@pytest.mark.parametrize("case", REFUSED)
def test_another_model_is_refused_by_name(case: str, tmp_path: Path) -> None:
    name, keys, tensors, message = REFUSED[case]
    with pytest.raises(kv.Error, match=re.escape(message)):
        kv.models.gguf.read(changed(name, tmp_path, keys, tensors))


# A key, and what it makes of the configuration.
OBEYED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a window of all": ("phi3-long", {".attention.sliding_window": 5}, {"sliding_window": 5}),
    "a pattern by number": (
        "olmo2/windows",
        {".attention.sliding_window_pattern": 3},
        {"layer_types": ("sliding_attention", "sliding_attention", "full_attention")},
    ),
    "no pattern": (
        "olmo2/windows",
        {".attention.sliding_window_pattern": None},
        {"layer_types": ("sliding_attention",) * 3},
    ),
    "one theta for all": ("olmo2/windows", {".rope.freq_base_swa": None}, {"sliding_theta": 500.0}),
    "growth": ("mistral3/growth", {".attention.temperature_scale": 0.25}, {"growth": 0.25}),
    "its own length": ("mistral3/growth", {".attention.temperature_length": 16}, {"growth": 0.1}),
    "a cap": ("gemma3n", {".final_logit_softcapping": 7.0}, {"cap": 7.0}),
    "the usual cap": ("gemma3n", {".final_logit_softcapping": None}, {"cap": 30.0}),
    "no cap": ("gemma3n", {".final_logit_softcapping": 0.0}, {"cap": None}),
    "shares of gates": (
        "gemma3n",
        {".activation_sparsity_scale": [0.0, 1.2815515, -1.2815515, 1.6448533535]},
        {"sparsity": (0.5, 0.9, 0.1, 0.95)},
    ),
    "a theta of windows": ("gemma4", {".rope.freq_base_swa": 77.0}, {"sliding_theta": 77.0}),
    "factors": ("nemotron_h_moe", {".expert_weights_scale": 3.0}, {"routed_scale": 3.0}),
    "groups": ("nemotron_h_moe", {".expert_group_used_count": 3}, {"kept_groups": 3}),
    "shares": ("nemotron_h_moe", {".expert_weights_norm": False}, {"norm_topk_prob": False}),
    "rotation where nothing says it": ("granitehybrid", {".rope.scaling.finetuned": None}, {}),
    "a pattern of 64 layers": (
        "exaone4-windows",
        {".attention.sliding_window_pattern": 2},
        {
            "layer_types": ("sliding_attention", "full_attention") * 32,
            "still_layers": tuple(range(1, 64, 2)),
        },
    ),
    "no rotation to obey": ("kimi-linear", {".rope.freq_base": 7.0}, {}),
}


@pytest.mark.ci
@pytest.mark.parametrize("case", OBEYED)
def test_a_key_is_obeyed(case: str, tmp_path: Path) -> None:
    name, keys, wanted = OBEYED[case]
    before = kv.models.gguf.read(written(name, tmp_path)).config
    config = kv.models.gguf.read(changed(name, tmp_path, keys)).config
    assert {key: getattr(config, key) for key in wanted} == wanted
    other = {field for field in vars(config) if getattr(config, field) != getattr(before, field)}
    assert other <= wanted.keys(), f"{other} changed, too"


def test_experts_of_gemma4_may_have_gates_apart(tmp_path: Path) -> None:
    """ffn_gate_exps and ffn_up_exps for ffn_gate_up_exps: the bits of each logit are the same."""
    path = written("gemma4-experts", tmp_path)
    whole = kv.models.load(path, dtype="float32").fingerprint

    def separate(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if "gate_up_exps" in name]:
            array, kind = tensors.pop(name)
            for part, values in zip(("gate", "up"), np.split(array, 2, axis=1)):
                tensors[name.replace("gate_up", part)] = (values, kind)

    assert kv.models.load(rewrite(path, separate), dtype="float32").fingerprint == whole
