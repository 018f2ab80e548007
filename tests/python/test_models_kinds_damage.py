"""Configurations and checkpoints of windows, chunks, hybrids and experts that are damaged, strange or not supported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from test_models_damage import STRANGE
from test_models_kinds import CASES, config_of, weights_of

GEMMA, HYBRID, DENSE_HYBRID, LLAMA = "gemma3-window-softcap", "qwen3-next-experts", "qwen3-5-dense", "llama4-chunks"
LOADED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}


def parts_of(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    if name not in LOADED:
        LOADED[name] = config_of(name), weights_of(name)
    config, weights = LOADED[name]
    return dict(config), dict(weights)


UNSUPPORTED: list[tuple[str, dict[str, Any], str]] = [
    (GEMMA, {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "bitsandbytes"),
    (HYBRID, {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
    (DENSE_HYBRID, {"quantization_config": {"quant_method": "awq"}}, "awq"),
    (LLAMA, {"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
    (GEMMA, {"architectures": ["GptOssForCausalLM"]}, "GptOssForCausalLM"),
    (GEMMA, {"layer_types": ["full_attention"] * 4 + ["chunked_attention"]}, "layer_types: got 'chunked_attention'"),
    (HYBRID, {"layer_types": ["mamba", *["full_attention"] * 3]}, "layer_types: got 'mamba'"),
    (LLAMA, {"layer_types": ["sliding_attention"] * 5}, "layer_types: got 'sliding_attention'"),
    (GEMMA, {"hidden_activation": "silu"}, "hidden_activation"),
    (GEMMA, {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    (GEMMA, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    (HYBRID, {"hidden_act": "gelu"}, "hidden_act"),
    (LLAMA, {"rope_parameters": {"rope_type": "su", "factor": 2.0}}, "rope_type"),
    (
        GEMMA,
        {"rope_parameters": {"sliding_attention": {"rope_type": "dynamic", "factor": 2.0}}},
        "rope_type of sliding_attention",
    ),
]


@pytest.mark.parametrize(("name", "changes", "named"), UNSUPPORTED)
def test_unsupported_features_are_refused_by_name(name: str, changes: dict[str, Any], named: str) -> None:
    config, weights = parts_of(name)
    with pytest.raises(kv.errors.NotSupportedError, match=named):
        kv.models.from_weights({**config, **changes}, weights)


def test_packed_weights_of_a_larger_model_are_refused_by_name() -> None:
    config, weights = parts_of(GEMMA)
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": config}
    with pytest.raises(kv.errors.NotSupportedError, match="compressed-tensors"):
        kv.models.from_weights({**whole, "quantization_config": {"quant_method": "compressed-tensors"}}, weights)


@pytest.mark.parametrize("packed", ["mlp.gate_proj.weight_packed", "mlp.gate_proj.qweight", "mlp.gate_proj.weight"])
def test_packed_tensors_are_refused_even_without_a_word_in_the_configuration(packed: str, tmp_path: Any) -> None:
    import json

    from safetensors.numpy import save_file

    config, weights = parts_of(GEMMA)
    del weights["model.layers.1.mlp.gate_proj.weight"]
    weights[f"model.layers.1.{packed}"] = np.zeros((32, 12), np.uint8)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(kv.errors.NotSupportedError, match=f"model.layers.1.{packed}"):
        kv.models.load(tmp_path)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    (GEMMA, {"layer_types": ["full_attention"]}, "layer_types: got 1 entries, allowed a list of 5"),
    (GEMMA, {"layer_types": "full_attention"}, "layer_types"),
    (GEMMA, {"sliding_window": 0}, "sliding_window: got 0"),
    (GEMMA, {"layer_types": None, "sliding_window_pattern": 0}, "sliding_window_pattern: got 0"),
    (GEMMA, {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    (GEMMA, {"final_logit_softcapping": -1.0}, "final_logit_softcapping"),
    (GEMMA, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope_parameters"),
    (GEMMA, {"text_config": 7}, "text_config"),
    (HYBRID, {"linear_num_value_heads": 3}, "linear_num_value_heads: got 3, allowed a multiple"),
    (HYBRID, {"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim"),
    (HYBRID, {"num_experts_per_tok": 7}, "num_experts_per_tok: got 7, allowed 1 to 6"),
    (HYBRID, {"mlp_only_layers": ["1"]}, "mlp_only_layers"),
    (HYBRID, {"decoder_sparse_step": 0}, "decoder_sparse_step"),
    (HYBRID, {"rope_parameters": {"partial_rotary_factor": 1.5}}, "partial_rotary_factor"),
    (HYBRID, {"rope_parameters": {"partial_rotary_factor": 0.2}}, "partial_rotary_factor: got 3 rotated of 16"),
    (HYBRID, {"intermediate_size": 17}, "gate_proj.weight: got shape"),
    (LLAMA, {"attention_chunk_size": 0}, "attention_chunk_size"),
    (LLAMA, {"no_rope_layers": [1]}, "no_rope_layers: got 1 entries, allowed at least 5"),
    (LLAMA, {"no_rope_layers": [2, 1, 1, 1, 1]}, "no_rope_layers"),
    (LLAMA, {"moe_layers": [5]}, "moe_layers"),
    (LLAMA, {"num_local_experts": 3}, "gate_up_proj: got shape"),
    (LLAMA, {"floor_scale": 0}, "floor_scale"),
]


@pytest.mark.parametrize(("name", "changes", "named"), WRONG)
def test_impossible_values_are_format_errors(name: str, changes: dict[str, Any], named: str) -> None:
    config, weights = parts_of(name)
    with pytest.raises(kv.errors.FormatError) as error:
        kv.models.from_weights({**config, **changes}, weights)
    assert named in str(error.value)


@pytest.mark.parametrize("name", CASES)
def test_every_missing_tensor_is_named(name: str) -> None:
    config, weights = parts_of(name)
    for missing in weights:
        with pytest.raises(kv.errors.FormatError) as error:
            kv.models.from_weights(config, {key: value for key, value in weights.items() if key != missing})
        assert f"{missing}'" in str(error.value)


@pytest.mark.parametrize("name", CASES)
def test_every_tensor_of_another_shape_is_named(name: str) -> None:
    config, weights = parts_of(name)
    for changed, value in weights.items():
        with pytest.raises(kv.errors.FormatError) as error:
            kv.models.from_weights(config, {**weights, changed: np.concatenate([value, value])})
        assert f"{changed}: got shape" in str(error.value)


def test_a_tensor_too_many_is_named() -> None:
    config, weights = parts_of(DENSE_HYBRID)
    with pytest.raises(kv.errors.FormatError, match=r"model\.layers\.0\.mlp\.experts\.gate_up_proj"):
        kv.models.from_weights(config, {**weights, "model.layers.0.mlp.experts.gate_up_proj": np.zeros((2, 3))})


@pytest.mark.filterwarnings("ignore::kvtrie.errors.IgnoredWarning")  # of keys that nobody knows
@pytest.mark.parametrize(
    "name", [GEMMA, *(pytest.param(name, marks=pytest.mark.ci) for name in (HYBRID, "qwen3-5-experts", LLAMA))]
)
def test_strange_values_never_escape_as_other_errors(name: str) -> None:
    """Whatever stands in a configuration: it is refused with an error of kvtrie, or the model loads."""
    config, weights = parts_of(name)
    more = ("rope_scaling", "rope_theta", "rope_local_base_freq", "text_config", "partial_rotary_factor")
    keys = [*config, *more, "full_attention_interval", "quantization_config", "sliding_window_pattern"]
    for key in keys:
        for value in STRANGE:
            try:
                kv.models.from_weights({**config, key: value}, weights)
            except kv.Error as error:
                assert str(error).startswith("[models"), (key, value)  # noqa: PT017 (not every value is refused)
