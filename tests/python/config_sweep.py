"""Random small checkpoints with settings changed, computed by transformers and by kvtrie: equal, refused, or neutral.

A case changes keys of a family's ``config.json``. Its checkpoint is made by transformers' own class for that file,
with weights that depend on their names only, and saved; then both load the folder. What may come of it (``OUTCOMES``):

    equal     the same logits, other than the unchanged model's
    neutral   the same logits, which are those of the unchanged model
    refused   kvtrie raises an error that names a key of the case
    fails     transformers cannot build or run such a model, so there is nothing to be equal to
    wrong     anything else: other logits, an error that names no key of the case

``cases_of`` takes every field of the configuration's class, and the keys that transformers reads beyond them, to each
plausible other value: by its type, and those that transformers' code mentions.
"""

from __future__ import annotations

import copy
import functools
import json
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import kvtrie as kv
from bounds import LOGITS_OF_SETTINGS, difference, note
from rope_sweep import ropes
from sweep_families import FAMILIES, Family
from sweep_recurrent import RECURRENT_VALUES

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

OUTCOMES = ("equal", "neutral", "refused", "fails", "wrong")
ABSENT = object()  # in place of a value: the key is left out
TOKENS = 40
Raw = dict[str, Any]


# ---- the values of each key ------------------------------------------------------------------------------------------

_KINDS = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")
_TYPES = [
    *([kind] * 3 for kind in _KINDS),
    ["full_attention", "linear_attention", "full_attention"],
    ["sliding_attention", "full_attention", "full_attention"],
    ["chunked_attention", "full_attention", "full_attention"],
    ["attention", "mamba", "attention"],
    ["conv", "full_attention", "full_attention"],
    ["full_attention"],
]
_ROPE = [
    {"rope_type": "linear", "factor": 4.0},
    {"type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 2.0, "rope_theta": 90.0, "attention_factor": 1.4},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    {"rope_theta": 77.0},
    {"factor": 4.0},
    {},
    {"full_attention": {"rope_type": "linear", "factor": 4.0}},
    {"sliding_attention": {"rope_type": "linear", "factor": 4.0}, "full_attention": {"rope_theta": 9.0}},
]

# Values by key: of fields whose type says little, and of keys that transformers' code reads though no field has them.
SPECIAL: dict[str, list[Any]] = {
    **RECURRENT_VALUES,
    "architectures": [None, [], ["MistralForCausalLM"], ["LlamaForSequenceClassification"]],
    "model_type": [None, "mistral", "gemma2", "qwen3"],
    "hidden_act": ["gelu", "gelu_pytorch_tanh", "relu", "swish", "quick_gelu"],
    "hidden_activation": ["gelu", "silu", "relu", "gelu_new"],
    "layer_types": _TYPES,
    "rope_parameters": [*_ROPE, None],
    "rope_scaling": _ROPE,
    "rope_theta": [9.0, 1e6],
    "rope_local_base_freq": [9.0],
    "partial_rotary_factor": [0.5, 1.0],
    "original_max_position_embeddings": [16, 4096],
    "max_position_embeddings": [48, 128],
    "sliding_window": [4, 8, None, 1024],
    "sliding_window_pattern": [1, 2],
    "_sliding_window_pattern": [2],
    "full_attention_interval": [1, 2],
    "attention_chunk_size": [4, 8, None],
    "use_sliding_window": [True, False],
    "max_window_layers": [0, 1],
    "is_causal": [False, True],
    "use_bidirectional_attention": [True, False, "vision", "all"],
    "global_head_dim": [8, 32, 7],
    "altup_num_inputs": [1, 2],
    "altup_active_idx": [1, 2, 9],
    "laurel_rank": [1, 16],
    "activation_sparsity_pattern": [None, [0.0] * 4, [0.9, 0.9, 0.1, 0.1], [0.5] * 3, [1.0, 0.0, 0.0, 0.0], 0.5],
    "num_global_key_value_heads": [1, 4, 3],
    "top_k_experts": [1, 2],
    "moe_intermediate_size": [8, 16],
    "hidden_size_per_layer_input": [0, 4],
    "vocab_size_per_layer_input": [40, 200],
    "num_kv_shared_layers": [0, 1, 3],
    "per_layer_config": [
        {"1": {"sliding_window": 4}},
        {"0": {"num_attention_heads": 2}},
        {"1": {"head_dim": 12}, "3": {"head_dim": 12}},
        {"1": {"head_dim": 16, "num_key_value_heads": 1}, "3": {"head_dim": 16, "num_key_value_heads": 1}},
        {"1": {"head_dim": 16}},
    ],
    "kv_sharing_modes": [["none", "none", "reuse"]],
    "number_of_conv_states": [2, 1],
    "fusion_config": [{"mlp": True}],
    "quantization_config": [{"quant_method": "gptq", "bits": 4}, {}],
    "transformers_weights": ["other.safetensors"],
    "attn_implementation": ["eager"],
    "_attn_implementation": ["eager"],
    "experts_implementation": ["eager"],
    "attn_output_gate": [True, False],
    "mamba_ssm_dtype": ["float32", "bfloat16"],
    "mtp_num_hidden_layers": [1],
    "attn_logit_softcapping": [5.0],
    "final_logit_softcapping": [2.0, 5.0],
    "pruned_heads": [{}, {"0": [1]}],
    "is_encoder_decoder": [True, False],
    "is_decoder": [True],
    "add_cross_attention": [True],
    "torch_dtype": ["float32"],
    "dtype": ["float32"],
    "attention_bias": [True, False],
    "mlp_bias": [True, False],
    "head_dim": [4, 16, 12, None],
    "hidden_size": [16, 64],
    "intermediate_size": [16, 64],
    "num_hidden_layers": [2, 4],
    "num_attention_heads": [2, 8],
    "num_key_value_heads": [1, 4, None],
    "vocab_size": [100, 64],
    "no_rope_layers": [None, [], [1, 1, 1], [0, 1, 1], [1, 0, 1, 1]],
    "no_rope_layer_interval": [1, 2, 3],
    "moe_layers": [None, [], [1], [0, 1, 2]],
    "mlp_only_layers": [None, [], [0], [0, 1, 2]],
    "num_local_experts": [2, 5],
    "num_experts": [2, 5, 0],
    "num_experts_per_tok": [1, 3],
    "attn_temperature_tuning": [False, 4],
    "query_pre_attn_scalar": [4, 100],
    "embedding_multiplier": [1.0, 5.5],
    "attention_multiplier": [1.0, 0.01],
    "residual_multiplier": [1.0, 0.1],
    "logits_scaling": [1.0, 13.0],
    "attention_out_bias": [True, False],
    "qkv_bias": [True, False],
    "use_bias": [True, False],
    "use_qk_norm": [True, False],
    "n_routed_experts": [4, 12],
    "n_shared_experts": [1, 2],
    "n_group": [1, 4],
    "topk_group": [1, 2],
    "first_k_dense_replace": [0, 2],
    "routed_scaling_factor": [1.0, 2.5],
    "rotary_dim": [4, 8],
    "moe_k": [1, 3],
    "moe_num_experts": [2, 5],
    "moe_num_shared_experts": [0, 1],
    "moe_layer_start_index": [0, 2],
    "moe_layer_end_index": [1, -1],
    "moe_layer_interval": [2],
    "moe_norm_min": [1e-12, 0.9],
    "decoder_sparse_step": [2, 3],
    "interleave_moe_layer_step": [2],
    "eos_token_id": [None, 1, [1, 2]],
    "bos_token_id": [None, 1],
    "pad_token_id": [None, 1, 5],
    "attention_dropout": [0.0, 0.5],
    "rms_norm_eps": [1e-3, 0.1],
    "initializer_range": [0.5],
    "pretraining_tp": [2],
    "chunk_size_feed_forward": [2],
    "id2label": [{"0": "a", "1": "b", "2": "c"}],
    "label2id": [{"a": 0}],
    "problem_type": ["regression"],
    "transformers_version": ["4.30.0"],
    "router_jitter_noise": [0.5],
    "router_aux_loss_coef": [0.5],
    "output_hidden_states": [True],
    "return_dict": [False],
}
_OTHERS = [  # that are no fields of the classes, and still in files or read by transformers
    "model_type",
    "rope_scaling",
    "rope_theta",
    "rope_local_base_freq",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "sliding_window",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "full_attention_interval",
    "attention_chunk_size",
    "use_sliding_window",
    "max_window_layers",
    "is_causal",
    "use_bidirectional_attention",
    "per_layer_config",
    "kv_sharing_modes",
    "num_kv_shared_layers",
    "number_of_conv_states",
    "fusion_config",
    "quantization_config",
    "transformers_weights",
    "attn_implementation",
    "_attn_implementation",
    "experts_implementation",
    "attn_output_gate",
    "mamba_ssm_dtype",
    "mtp_num_hidden_layers",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "pruned_heads",
    "is_decoder",
    "add_cross_attention",
    "torch_dtype",
    "layer_types",
    "head_dim",
    "attention_bias",
    "mlp_bias",
    "hidden_act",
    "hidden_activation",
]

# Keys that do nothing beside others which the base has: with which changes they are seen.
_ALONE: dict[str, Raw] = {
    "full_attention_interval": {"layer_types": ABSENT},
    "sliding_window_pattern": {"layer_types": ABSENT},
    "_sliding_window_pattern": {"layer_types": ABSENT},
    "no_rope_layer_interval": {"no_rope_layers": ABSENT},
    "interleave_moe_layer_step": {"moe_layers": ABSENT},
    "decoder_sparse_step": {"mlp_only_layers": ABSENT},
    "rope_theta": {"rope_parameters": ABSENT},
    "rope_local_base_freq": {"rope_parameters": ABSENT},
    "rope_scaling": {"rope_parameters": ABSENT},
    "partial_rotary_factor": {"rope_parameters": {"rope_theta": 500.0}},
    "max_window_layers": {"use_sliding_window": True, "sliding_window": 8},
    "sliding_window": {"use_sliding_window": True, "max_window_layers": 1},
    "num_global_key_value_heads": {"attention_k_eq_v": True},
    "enable_moe_block": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16},
}


def fields_of(family: Family) -> dict[str, Any]:
    """The fields of its configuration's class, with their defaults."""
    kind = getattr(transformers, family.config)
    return {each.name: each.default for each in fields(kind) if not each.name.startswith("_")}


def _aliases(family: Family) -> list[str]:
    """Other names of its fields, which a file may have as well."""
    names: dict[str, str] = getattr(transformers, family.config).attribute_map
    return [name for pair in names.items() for name in pair if name in SPECIAL]


def _values(key: str, value: object) -> list[Any]:
    """``value``: what the base has, or the class's default."""
    if key in SPECIAL:
        return SPECIAL[key]
    if isinstance(value, bool):
        return [not value, value]
    if isinstance(value, int):
        return [1, 2 * value]
    if isinstance(value, float):
        return [value / 4, value * 4]
    raise KeyError(f"{key}: no values are known for a field of the kind {value!r}")


@dataclass(frozen=True)
class Case:
    family: str
    changes: dict[str, Any]

    def __str__(self) -> str:
        shown = {key: "ABSENT" if value is ABSENT else value for key, value in self.changes.items()}
        return f"{self.family} {shown}"

    def file(self) -> Raw:
        raw = {**FAMILIES[self.family].file, **self.changes}
        return copy.deepcopy({key: value for key, value in raw.items() if value is not ABSENT})


def cases_of(family: Family, seed: int = 0, more_ropes: int = 30) -> list[Case]:
    """One key changed in each; of RoPE, whose keys are merged, also ``more_ropes`` changes of several at random."""
    own = {**dict.fromkeys((*_OTHERS, *_aliases(family))), **fields_of(family), **family.raw}
    cases = []
    for key, value in own.items():
        values = _values(key, value)
        if key in family.raw:
            values = [*values, ABSENT, *([] if any(each is None for each in values) else [None])]
        cases += [Case(family.name, {key: each}) for each in values]
        if key in _ALONE:
            cases += [Case(family.name, {**_ALONE[key], key: each}) for each in values]
    random = np.random.default_rng([seed, zlib.crc32(family.name.encode())])
    by_kind = family.name in ("gemma3_text", "gemma3n_text", "gemma4_text", "olmo3")
    cases += [Case(family.name, changes) for changes in ropes(random, more_ropes, by_kind, ABSENT)]
    return cases


def pairs_of(family: Family, count: int, seed: int = 0) -> Iterator[Case]:
    """``count`` of two changes at once."""
    cases = cases_of(family, seed, more_ropes=10)
    random = np.random.default_rng([seed, 1, zlib.crc32(family.name.encode())])
    while count:
        one, other = (cases[i] for i in random.choice(len(cases), 2, replace=False))
        if not one.changes.keys() & other.changes.keys():
            count -= 1
            yield Case(family.name, {**one.changes, **other.changes})


# ---- both sides ------------------------------------------------------------------------------------------------------


def randomise(model: Any) -> None:
    """Weights that depend on their names and shapes: a change of settings leaves those alone that it does not touch."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            random = np.random.default_rng(zlib.crc32(name.encode()))
            deviation = 0.25 if parameter.ndim > 1 else 0.5
            if name.endswith("conv1d.weight"):
                deviation = 0.5
            values = random.standard_normal(tuple(parameter.shape), np.float32) * deviation
            parameter.copy_(torch.from_numpy(np.abs(values) if name.endswith("A_log") else values))
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                random = np.random.default_rng(zlib.crc32(name.encode()))
                buffer.copy_(torch.from_numpy(random.standard_normal(tuple(buffer.shape), np.float32) * 0.25))


def tokens() -> Any:
    return np.random.default_rng(3).integers(2, 60, TOKENS)


def build(case: Case) -> Any:
    """transformers' model for the case's file."""
    family = FAMILIES[case.family]
    config = getattr(transformers, family.config).from_dict(case.file())
    model = getattr(transformers, family.architecture)._from_config(config, dtype=torch.float32).eval()
    randomise(model)
    return model


def wanted(model: Any) -> Any:
    """Its logits; the last rows also come one by one out of its cache, and have to be the same."""
    ids = torch.from_numpy(tokens())[None]
    with torch.no_grad():
        whole = _logits(model(ids, use_cache=False))
        begun = model(ids[:, :-2], use_cache=True, return_dict=True)
        at = [torch.tensor([[i]]) for i in (TOKENS - 2, TOKENS - 1)]  # which Bamba would count from 0 again
        last = [_logits(model(ids[:, i[0]], position_ids=i, cache=begun.cache)) for i in at]
    if difference(np.concatenate(last), whole[-2:]) > LOGITS_OF_SETTINGS.value:
        raise Contradicts("a decoded token has other logits than the same token in a whole text")
    return whole


class Contradicts(Exception):
    """transformers computes two things for one file."""


def _logits(output: Any) -> Any:
    return (output[0] if isinstance(output, tuple) else output.logits)[0].float().numpy()


def computed(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kv.errors.IgnoredWarning)
        model = kv.models.load(folder, dtype="float32")
    with kv.PrefixCache(model.caches(capacity=64, dtype="float32", warm_up=False)).begin(tokens().tolist()) as session:
        return np.concatenate([np.asarray(model(step, all_rows=True)) for step in session.prefill()])


def save(model: Any, raw: Raw, folder: Path) -> None:
    """The checkpoint as transformers saves it, with ``raw`` as its configuration."""
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))


@functools.cache
def unchanged(family: str) -> Any:
    """Logits of the model that no case changed, by transformers."""
    return wanted(build(Case(family, {})))


def outcome(case: Case) -> tuple[str, str]:
    """One of ``OUTCOMES``, and what was seen."""
    refusal = refused(case)
    if refusal is not None:
        named = _names(case.changes) & set(_words(refusal))
        return ("refused", refusal) if named else ("wrong", f"names no key: {refusal}")
    with tempfile.TemporaryDirectory() as name:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = build(case)
                save(model, case.file(), Path(name))
                want = wanted(model)
        except Contradicts as error:
            return "wrong", f"not refused, and transformers contradicts itself: {error}"
        except Exception as error:
            return "fails", f"{type(error).__name__}: {error}"
        return compare(case, Path(name), want)


def refused(case: Case) -> str | None:
    """What kvtrie says to the configuration alone."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", kv.errors.IgnoredWarning)
        (Path(name) / "config.json").write_text(json.dumps(case.file()))
        try:
            kv.models.describe(name)
        except (kv.errors.NotSupportedError, kv.errors.FormatError) as error:
            return str(error)
    return None


def compare(case: Case, folder: Path, want: Any) -> tuple[str, str]:
    try:
        got = computed(folder)
    except (kv.errors.NotSupportedError, kv.errors.FormatError) as error:
        return ("refused" if _names(case.changes) & set(_words(str(error))) else "wrong"), str(error)
    if not np.isfinite(want).all():
        return "fails", "logits that are not finite"
    apart, bound = difference(got, want), FAMILIES[case.family].bound
    if not apart <= bound.value:
        return "wrong", f"logits are {apart:.2g} off"
    note(apart, bound)
    base = unchanged(case.family)
    same = want.shape == base.shape and difference(want, base) <= bound.value
    return ("neutral" if same else "equal"), f"{apart:.2g}"


def _names(changes: Raw) -> set[str]:
    """The keys that a case changes, those inside of objects among them."""
    names = set(changes)
    for value in changes.values():
        if isinstance(value, dict):
            names |= _names(value)
    called = {"architectures": "architecture", "type": "rope_type"}  # what messages call them
    return names | {new for old, new in called.items() if old in names}


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else " " for c in text).split()
