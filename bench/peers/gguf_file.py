"""Writes a model's weights as GGUF, the file llama.cpp loads, with the published ``gguf`` package.

Both sides then compute the same function of the same numbers: float16 matrices, float32 norms. With ``q8_0``, matrices
are quantised by that package, to the very numbers of ``kv.ops.pack`` (tests/python/test_q8.py); the embedding,
too, as ``llama-quantize`` does, where ours stays float16. The tests of ``kv.models.load`` read such files back, with
other types, too. What differs from a checkpoint is layout:

- arch ``llama`` rotates neighbouring numbers, checkpoints of Hugging Face the halves of a head: rows of q and k are
  interleaved accordingly. The other families' RoPE works on halves in both.
- Gemma 3, Qwen3-Next and Qwen3.5 multiply by (1 + weight): the one is added here.
- Qwen3.5's value heads lie grouped by their key head in a checkpoint; llama.cpp wants them round robin. Qwen3-Next's q,
  k, v and z lie key head by key head; it wants each of them together.
- Experts are one tensor for all.

The tokenizer in the file holds bytes and fillers only: prompts are sent as ids.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
_ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
    "qwen3_next": "qwen3next",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
}
_HYBRID = ("qwen3next", "qwen35", "qwen35moe")
_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
# The norm behind attention: before the MLP in one family, on attention's own output in another.
_NORMS = {
    **{arch: {"post_attention_layernorm": "ffn_norm"} for arch in ("llama", "qwen2", "qwen3")},
    **{arch: {"post_attention_layernorm": "post_attention_norm"} for arch in _HYBRID},
    "gemma3": {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


# Small matrices that are float16 on both sides in a q8_0 model.
_STEERING = ("ssm_alpha", "ssm_beta", "ssm_ba", "ssm_conv1d", "ffn_gate_inp")


def package() -> Any | None:
    """The ``gguf`` package: installed, or as llama-cpp-python ships it; None if neither is there."""
    sources = ROOT / "build/peers/sources/llama-cpp-python"
    shipped = sorted(sources.glob("*/vendor/llama.cpp/gguf-py"))
    sys.path.extend(str(folder) for folder in shipped if str(folder) not in sys.path)
    try:
        import gguf
    except ImportError:
        return None
    return gguf


def write(
    config: Any,
    weights: Mapping[str, np.ndarray],
    path: Path,
    dtype: str = "float16",
    *,
    tokenizer: Callable[[Any], None] | None = None,
) -> Path:
    """The model as GGUF at ``path``; ``config``: its ``ModelConfig``, ``weights`` by checkpoint name.

    ``dtype``: of the matrices, "float16" (as they come) or a type of ggml's that the package can quantise to ("q8_0",
    "q4_1", "bf16", ...). ``tokenizer`` gives the ``GGUFWriter`` other keys than those of a tokenizer of bytes.
    """
    gguf = package()
    assert gguf is not None, "the gguf package is missing: ./dev peers"
    arch = _ARCHITECTURES[config.model_type]
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, arch)
    _keys(writer, config, arch)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if dtype == "q8_0" else gguf.LlamaFileType.MOSTLY_F16)
    if tokenizer is None:
        _tokenizer(writer, gguf, config)
    else:
        tokenizer(writer)
    for written, array in tensors(config, weights).items():
        array = np.ascontiguousarray(array)
        kind = gguf.GGMLQuantizationType.F16 if dtype == "float16" else gguf.GGMLQuantizationType[dtype.upper()]
        if dtype != "float16" and _is_quantised(written, array, gguf.GGML_QUANT_SIZES[kind][0]):
            writer.add_tensor(written, gguf.quants.quantize(array.astype(np.float32), kind), raw_dtype=kind)
        else:
            writer.add_tensor(written, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(config: Any, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of the file, by their names in it."""
    arch = _ARCHITECTURES[config.model_type]
    found: dict[str, np.ndarray] = {}
    for name, values in weights.items():
        if ".experts." in name:
            continue
        if name.endswith("in_proj_qkvz.weight"):
            found.update(_unfused(config, name.split(".")[2], values))
        else:
            written, array = _tensor(config, arch, name, values)
            found[written] = array
    found.update(_stacked_experts(config, weights))
    if (config.rope_scaling or {}).get("rope_type") == "llama3":
        found["rope_freqs.weight"] = _llama3_factors(config)
    return found


def _keys(writer: Any, config: Any, arch: str) -> None:
    writer.add_name("random")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_vocab_size(config.vocab_size)
    rotated = config.rotary_dims if arch in _HYBRID else config.head_dim
    writer.add_rope_dimension_count(rotated)
    if arch == "gemma3":
        _gemma3_keys(writer, config)
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_freq_base_swa(config.rope_local_theta)
    if arch in _HYBRID:
        _hybrid_keys(writer, config, arch)
    _rope_keys(writer, config)


def _rope_keys(writer: Any, config: Any) -> None:
    gguf, scaling = package(), config.rope_scaling or {}
    kind = scaling.get("rope_type")
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(scaling["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    assert kind in (None, "linear", "yarn", "llama3"), f"no keys for {kind}"


def _llama3_factors(config: Any) -> np.ndarray:
    """What each frequency is divided by, [head_dim / 2]."""
    s = config.rope_scaling
    frequencies = config.rope_theta ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
    turns = s["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    keep = np.clip((turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"]), 0.0, 1.0)
    return (1 / ((1 - keep) / s["factor"] + keep)).astype(np.float32)


def _gemma3_keys(writer: Any, config: Any) -> None:
    kinds = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(config.num_hidden_layers)]
    if list(config.layer_types) != kinds:
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if config.final_logit_softcapping is not None:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    assert config.query_pre_attn_scalar == config.head_dim, "llama.cpp scales by the head's size"


def _hybrid_keys(writer: Any, config: Any, arch: str) -> None:
    pairs = config.rotary_dims // 2
    # Three axes of multimodal RoPE, round robin over the pairs; a text has the same position on each.
    writer.add_rope_dimension_sections([-(-pairs // 3), -(-(pairs - 1) // 3), -(-(pairs - 2) // 3), 0])
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.sizes.value_width)
    kinds = config.layer_types
    every = kinds.index("full_attention") + 1
    if list(kinds) == ["linear_attention" if (i + 1) % every else "full_attention" for i in range(len(kinds))]:
        writer.add_full_attention_interval(every)
    else:
        writer.add_array(f"{arch}.attention.recurrent_layers", [kind == "linear_attention" for kind in kinds])
    if arch != "qwen35":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def _tokenizer(writer: Any, gguf: Any, config: Any) -> None:
    """<unk>, the two ends of a text, 256 bytes, fillers.

    Only the line feed is marked as a byte: random models say what is no UTF-8, and the server then withholds tokens.
    """
    kinds = gguf.TokenType
    fixed = [("<unk>", kinds.UNKNOWN), ("<s>", kinds.CONTROL), ("</s>", kinds.CONTROL)]
    tokens = fixed + [(f"<0x{byte:02X}>", kinds.BYTE if byte == 10 else kinds.NORMAL) for byte in range(256)]
    tokens += [(f"w{index}", kinds.NORMAL) for index in range(len(tokens), config.vocab_size)]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_scores([-float(index) for index in range(len(tokens))])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)


def _tensor(config: Any, arch: str, name: str, values: np.ndarray) -> tuple[str, np.ndarray]:
    """The name and the array llama.cpp expects for a checkpoint's tensor."""
    base, _, kind = name.rpartition(".")
    if base in _TOP:
        return f"{_TOP[base]}.weight", _normed(arch, base, values)
    _, _, number, inner = name.split(".", 3)
    block = f"blk.{number}"
    if arch in ("qwen35", "qwen35moe") and inner.startswith("linear_attn."):
        values = _by_value_head(config, inner, values)
    if arch == "qwen3next" and inner == "linear_attn.conv1d.weight":
        values = values[:, 0, :]
    if inner == "linear_attn.A_log":
        return f"{block}.ssm_a", -np.exp(values)
    if inner == "linear_attn.dt_bias":
        return f"{block}.ssm_dt.bias", values
    inner = inner.removesuffix(f".{kind}")
    if arch == "llama" and inner in ("self_attn.q_proj", "self_attn.k_proj"):
        values = _interleaved(values, config.head_dim)
    written = _NORMS[arch].get(inner) or _NAMES[inner]
    return f"{block}.{written}.{kind}", _normed(arch, inner, values)


def _unfused(config: Any, block: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """q, k and v of all heads, then z, from [key head: its q, its k, its values, their z]."""
    size = config.sizes.value_width // config.linear_num_key_heads
    ends = np.cumsum([config.linear_key_head_dim, config.linear_key_head_dim, size])
    parts = np.split(values.reshape(config.linear_num_key_heads, -1, values.shape[1]), ends, axis=1)
    q, k, v, z = (part.reshape(-1, values.shape[1]) for part in parts)
    return {f"blk.{block}.attn_qkv.weight": np.concatenate([q, k, v]), f"blk.{block}.attn_gate.weight": z}


def _stacked_experts(config: Any, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """[experts, out, in] of each layer that has experts."""
    return {
        f"blk.{layer}.ffn_{part}_exps.weight": np.stack(
            [weights[f"model.layers.{layer}.mlp.experts.{e}.{part}_proj.weight"] for e in range(config.num_experts)]
        )
        for layer in getattr(config, "expert_layers", ())
        for part in ("gate", "up", "down")
    }


def _is_quantised(name: str, array: np.ndarray, block: int) -> bool:
    """Matrices whose rows are whole blocks, as in files that ``llama-quantize`` makes."""
    return array.ndim >= 2 and array.shape[-1] % block == 0 and not any(part in name for part in _STEERING)


def _normed(arch: str, base: str, values: np.ndarray) -> np.ndarray:
    plain = arch in ("llama", "qwen2", "qwen3")
    if plain or not base.endswith("norm") or base == "linear_attn.norm":
        return values
    return values + np.float32(1)


def _interleaved(values: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows [head, half, pair] -> [head, pair, half]."""
    halves = values.reshape(-1, 2, head_dim // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def _by_value_head(config: Any, inner: str, values: np.ndarray) -> np.ndarray:
    """Value heads from [key head, its values] to [values, key head], wherever the tensor counts them."""
    groups, size = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads

    def moved(part: np.ndarray) -> np.ndarray:
        return part.reshape(groups, size, -1).swapaxes(0, 1).reshape(part.shape)

    if inner == "linear_attn.norm.weight":
        return values
    if inner == "linear_attn.out_proj.weight":
        return np.ascontiguousarray(moved(np.ascontiguousarray(values.T)).T)
    if inner == "linear_attn.conv1d.weight":
        values = values[:, 0, :]
    if inner in ("linear_attn.conv1d.weight", "linear_attn.in_proj_qkv.weight"):
        keys = 2 * config.sizes.key_width
        return np.concatenate([values[:keys], moved(values[keys:])])
    return moved(values)
