"""GGUF files of any family, written with the published ``gguf`` package: names and keys are those of its own tables.

Concept. The package has, for each architecture, the name of every tensor by what checkpoints call it; nothing here
looks at what kvtrie thinks of them. What converters change beside names is done here again, by architecture: rows of q
and k where llama.cpp rotates neighbouring numbers and checkpoints rotate halves, experts in one tensor for all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

import kvtrie as kv
from config_sweep import Case, build, save
from kvtrie.models.weights import to_float32

FUSED = ("glm4", "phi3")  # architectures of which gate and up are one tensor
# Architectures whose converters interleave rows of q and k.
PAIRED = ("llama", "mistral3", "smollm3", "granite", "granitemoe", "granitehybrid")
_EXPERT = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(\d+)\.(\w+)\.(weight|bias)")
_STREAM = re.compile(r"(model\.altup_(?:unembed_)?projections)\.(\d+)\.weight")


def gguf_file(form: Any, folder: Path, **beside: Any) -> tuple[Path, Any, dict[str, Any]]:
    """A ``Form`` of checkpoint_variants.py as a checkpoint and, in the same folder, a file; its configuration and keys.
    ``beside``: further keys."""
    case = Case(form.family, form.changes)
    save(build(case), case.file(), folder)
    family = kv.models._FAMILIES[form.family]
    config = family.parse_config(case.file())
    sources = family.adapt(config, kv.models.weights.open_folder(folder))
    shapes = family.tensor_shapes(config)
    weights = {name: to_float32(sources[name].read(), sources[name].dtype) for name in shapes}
    keys = {**form.keys(config), **beside}
    return write(form.architecture, config, weights, folder / "model.gguf", **keys), config, keys


def write(
    architecture: str,
    config: Any,
    weights: Mapping[str, Any],
    path: Path,
    experts: str = "F32",
    matrices: str = "F32",
    **keys: Any,
) -> Path:
    """``config``: parsed by kvtrie; ``weights``: by checkpoint names. ``experts``: the type of their matrices;
    ``matrices``: of the others, but for those that files never quantise. ``keys``: the architecture's own, by name with
    ``__`` for a dot, beside those of sizes and RoPE."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("none")
    for key, value in {**_sizes(config), **keys}.items():
        _add(writer, f"{architecture}.{key.replace('__', '.')}", value)
    if "attention__key_length_mla" in keys:
        weights = _latents(weights, config)
    for name, array in {**_tensors(architecture, config, weights), **_beside(architecture, config)}.items():
        kind = gguf.GGMLQuantizationType[_kind(name, array, experts, matrices)]
        numbers = np.ascontiguousarray(array, np.float32)
        writer.add_tensor(name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _kind(name: str, array: Any, experts: str, matrices: str) -> str:
    if name.endswith("_exps.weight"):
        return experts
    if np.ndim(array) < 2 or not name.endswith(".weight"):
        return "F32"
    steers = any(part in name for part in ("ffn_gate_inp", ".conv.", "conv1d", "ssm_a", "ssm_d", "ssm_norm"))
    return "F32" if steers else matrices


def _sizes(config: Any) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention__head_count": config.num_attention_heads,
        "attention__head_count_kv": config.num_key_value_heads,
        "attention__key_length": config.head_dim,
        "attention__value_length": config.head_dim,
        "attention__layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope__freq_base": float(config.rope_theta),
        "rope__dimension_count": config.rotary_dims,
    }


def _add(writer: Any, key: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    kinds.get(type(value), writer.add_array)(key, value)


def _tensors(architecture: str, config: Any, weights: Mapping[str, Any]) -> dict[str, Any]:
    known = {"deepseek32": "glm-dsa"}.get(architecture, architecture)  # the package does not know it yet
    kind = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == known)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    found = {}
    weights = _fused(weights) if architecture in FUSED else _stacked(weights)
    weights = _fused_qkv(weights) if architecture == "phi3" else weights
    weights = _fused_experts(weights) if architecture == "gemma4" else weights
    for name, values in (_convolutions(weights) if architecture == "kimi-linear" else weights).items():
        values, name = _of_states(values, name, config), _theirs(name, architecture)
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        written = _SCALES.get(name.split(".", 3)[-1]) if architecture == "gemma4" else None
        written = f"blk.{name.split('.')[2]}.{written}" if written else names.get_name(name, (".weight", ".bias"))
        assert written is not None, f"{architecture}: the package has no name for {name}"
        written += ".weight" if name.endswith(".sinks") else ""
        paired = architecture in PAIRED and name.endswith(
            ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")
        )
        found[written] = _interleaved(values, config.head_dim) if paired else values
    return found


_MIXERS = {
    ".mamba.dt_bias": ".mixer.dt.bias",
    ".mamba.": ".mixer.",
    ".self_attn.": ".mixer.",
    ".mlp.up_proj.": ".mixer.up_proj.",
    ".mlp.down_proj.": ".mixer.down_proj.",
    "model.norm.": "backbone.norm_f.",
    "model.embed_tokens.": "backbone.embeddings.",
    "model.layers.": "backbone.layers.",
}
# What the package has no names for: converters write these as the scales of quantised matrices.
_SCALES = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}

# Parts of names that the package knows by what some checkpoints call them.
_OTHER = {
    "lfm2": {"model.norm.": "model.embedding_norm."},
    "lfm2moe": {
        "model.norm.": "model.embedding_norm.",
        ".mlp.gate.e_score_correction_bias": ".feed_forward.expert_bias.bias",
    },
    "granitehybrid": {".mlp.gate.weight": ".block_sparse_moe.router.layer.weight", ".dt_bias": ".dt_proj.bias"},
    "gemma3n": {".correct_output_scale": ".correct_output_scale.weight"},
    "gemma4": {
        "mlp.router.": "router.",
        "mlp.experts.": "experts.",
        ".layer_scalar": ".layer_scalar.weight",
    },
    "nemotron_h": _MIXERS,
    "nemotron_h_moe": {
        **_MIXERS,
        ".mlp.gate.e_score": ".mixer.gate.e_score",
        ".mlp.gate.": ".mixer.gate.",
        ".mlp.shared_experts.": ".mixer.shared_experts.",
    },
    "hunyuan-moe": {".mlp.gate.": ".mlp.gate.wg."},
    "kimi-linear": {".dt_bias": ".dt_proj.bias", ".mlp.gate.e_score": ".block_sparse_moe.gate.e_score"},
    "falcon-h1": {".post_attention_layernorm.": ".pre_ff_layernorm.", ".dt_bias": ".dt_proj.bias"},
}


def _theirs(name: str, architecture: str) -> str:
    if architecture == "nemotron_h_moe" and ".mlp.experts." in name:
        return name
    for ours, theirs in _OTHER.get(architecture, {}).items():
        name = name.replace(ours, theirs)
    return name


def _of_states(values: Any, name: str, config: Any) -> Any:
    """Tensors of layers with states as converters write them."""
    if name.endswith((".conv.conv.weight", ".conv1d.weight")):
        return values[:, 0, :]
    if name.endswith("self_attn.A_log"):
        return -np.exp(values)
    if name.endswith(".mamba.A_log"):
        return -np.exp(values)[:, None]
    if name.endswith(".mamba.D"):
        return values[:, None]
    return values.reshape(config.mamba_groups, -1) if name.endswith(".mamba.norm.weight") else values


def _beside(architecture: str, config: Any) -> dict[str, Any]:
    """Tensors that a checkpoint's configuration says, or that it has and no model reads."""
    scaling, found = config.rope_scaling or {}, {}
    if architecture == "phi3" and "long_factor" in scaling:
        found = {f"rope_factors_{kind}.weight": np.array(scaling[f"{kind}_factor"]) for kind in ("short", "long")}
    if architecture == "gemma4":
        found["rope_freqs.weight"] = np.array(scaling["long_factor"])
    for layer, source in enumerate(getattr(config, "sources", ())):
        if source is not None:
            heads, size = config.heads_of(layer)
            unread = {f"blk.{layer}.attn_{part}.weight": np.ones((heads * size, config.hidden_size)) for part in "kv"}
            found |= {**unread, f"blk.{layer}.attn_k_norm.weight": np.ones(size)}
    return found


def _convolutions(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Those of q, k and v one by one."""
    found = dict(weights)
    for name in weights:
        if name.endswith("self_attn.conv1d.weight"):
            for part, values in zip("qkv", np.split(found.pop(name), 3)):
                found[name.replace("conv1d", f"{part}_conv1d")] = values[None]
    return found


def _latents(weights: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """The maps of latents as two tensors, that of keys turned round for each head."""
    found, sizes = dict(weights), config.latent
    for name in weights:
        if name.endswith("kv_b_proj.weight"):
            heads = found.pop(name).reshape(config.num_attention_heads, -1, sizes.rank)
            keys, values = np.split(heads, [sizes.nope], axis=1)
            found[name.replace("kv_b", "k_b")] = keys.swapaxes(1, 2)
            found[name.replace("kv_b", "v_b")] = values
    return found


def _fused(weights: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(weights)
    for name in weights:
        if name.endswith("mlp.gate_proj.weight"):
            up = found.pop(name.replace("gate_proj", "up_proj"))
            found[name.replace("gate_proj", "gate_up_proj")] = np.concatenate([found.pop(name), up])
    return found


def _fused_experts(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Gates and ups of all experts as one tensor, [experts, 2 inner, hidden]."""
    found = dict(weights)
    for name in weights:
        if name.endswith("experts.gate_proj.weight"):
            up = found.pop(name.replace("gate_proj", "up_proj"))
            found[name.replace("gate_proj", "gate_up_proj")] = np.concatenate([found.pop(name), up], axis=1)
    return found


def _fused_qkv(weights: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(weights)
    for name in weights:
        if name.endswith("self_attn.q_proj.weight"):
            parts = [found.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
            found[name.replace("q_proj", "qkv_proj")] = np.concatenate(parts)
    return found


def _stacked(weights: Mapping[str, Any]) -> dict[str, Any]:
    """The same with one tensor for what is numbered: all experts of a layer, [experts, out, in], maps of streams."""
    found: dict[str, Any] = {}
    experts: dict[str, dict[int, Any]] = {}
    for name, values in weights.items():
        expert, stream = _EXPERT.fullmatch(name), _STREAM.fullmatch(name)
        if stream is not None:
            experts.setdefault(f"{stream[1]}.weight", {})[int(stream[2])] = values
        elif expert is None:
            found[name] = values
        else:
            experts.setdefault(f"{expert[1]}.{expert[3]}.{expert[4]}", {})[int(expert[2])] = values
    return {**found, **{name: np.stack([own[i] for i in range(len(own))]) for name, own in experts.items()}}


def _interleaved(values: Any, head_dim: int) -> Any:
    """Rows [head, half, pair] -> [head, pair, half]."""
    halves = values.reshape(-1, 2, head_dim // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)
