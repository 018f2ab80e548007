"""Makes the goldens of models with windows, chunks, recurrent layers and experts.

    pip install torch transformers safetensors
    python tests/python/make_goldens_kinds.py

Each folder holds a loadable checkpoint and ``logits.npy`` [tokens, vocab]; those with recurrent layers also
``states.npz`` with ``conv.N`` [tail, conv_dim] (oldest first) and ``delta.N`` [v_heads, v_dim, k_dim] of layer N after
all tokens. Float32 throughout, on the CPU, with eager attention. ``tokens.npy`` and ``versions.json`` are those of
make_goldens.py and have to fit. Tests read the files and need neither torch nor transformers.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "goldens"
COMMON: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
HYBRID: dict[str, Any] = {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}

# name -> (configuration over COMMON, stored type). The 72 tokens are many windows and several chunks.
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "gemma3-window-softcap": (
        {
            "model_type": "gemma3_text",
            "head_dim": 12,
            "num_hidden_layers": 5,
            "sliding_window": 9,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 24,
            "final_logit_softcapping": 15.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        "bfloat16",
    ),
    "gemma3-types-bias-untied": (
        {
            "model_type": "gemma3_text",
            "head_dim": 12,
            "num_hidden_layers": 4,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "sliding_window": 16,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "rope_theta": 50000.0,
            "rope_local_base_freq": 300.0,
        },
        "float16",
    ),
    "qwen3-next-experts": (
        {
            **HYBRID,
            "model_type": "qwen3_next",
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 12,
            "mlp_only_layers": [1],
        },
        "bfloat16",
    ),
    "qwen3-next-sparse-bias": (
        {
            **HYBRID,
            "model_type": "qwen3_next",
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_conv_kernel_dim": 3,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 12,
            "decoder_sparse_step": 2,
            "norm_topk_prob": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
        },
        "float16",
    ),
    "qwen3-5-dense": ({**HYBRID, "model_type": "qwen3_5_text"}, "bfloat16"),
    "qwen3-5-experts": (
        {
            **HYBRID,
            "model_type": "qwen3_5_moe_text",
            "num_hidden_layers": 4,
            "layer_types": None,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 16,
        },
        "bfloat16",
    ),
    "llama4-chunks": (
        {
            "model_type": "llama4_text",
            "head_dim": 12,
            "num_hidden_layers": 5,
            "no_rope_layer_interval": 3,
            "attention_chunk_size": 16,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 28,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "floor_scale": 10,
            "attn_scale": 0.5,
        },
        "bfloat16",
    ),
    "llama4-scaled-one-expert": (
        {
            "model_type": "llama4_text",
            "head_dim": 16,
            "num_hidden_layers": 4,
            "attention_chunk_size": 25,
            "intermediate_size": 16,
            "intermediate_size_mlp": 28,
            "num_local_experts": 3,
            "num_experts_per_tok": 1,
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        "float16",
    ),
}


def random_weight(random: np.random.Generator, name: str, shape: tuple[int, ...], plain_norms: bool) -> Any:
    """Large enough that a forgotten bias, norm or gate changes logits by far more than any tolerance."""
    if name.endswith("A_log"):
        return np.log(random.uniform(0.05, 3.0, shape))
    if name.endswith("norm.weight"):
        about = 1.0 if plain_norms or "linear_attn.norm" in name else 0.0
        return about + 0.2 * random.standard_normal(shape)
    if len(shape) == 1:
        return 0.3 * random.standard_normal(shape)
    if "embed_tokens" in name:
        return random.standard_normal(shape)
    if "conv1d" in name:
        return 0.5 * random.standard_normal(shape)
    # Llama 4 stores its experts input times output.
    inner = shape[-2] if "feed_forward.experts" in name else shape[-1]
    return random.standard_normal(shape) / math.sqrt(inner)


def fill(model: Any, seed: int, dtype: Any) -> None:
    import torch

    random = np.random.default_rng(seed)
    plain = model.config.model_type.startswith("llama4")
    for name, value in sorted(model.named_parameters()):
        numbers = random_weight(random, name, tuple(value.shape), plain)
        value.data = torch.from_numpy(np.asarray(numbers, np.float32)).to(dtype)
    model.tie_weights()


def states_of(model: Any, tokens: Any) -> tuple[Any, dict[str, Any]]:
    """(logits [n, vocab], states by name) after ``tokens`` [1, n]."""
    import torch

    with torch.no_grad():
        out = model(tokens, use_cache=True)
    states = {}
    for index, kind in enumerate(model.config.layer_types):
        if kind == "linear_attention":
            tail = model.config.linear_conv_kernel_dim - 1
            conv = out.past_key_values.get_conv_state(index, state_idx=0)
            delta = out.past_key_values.get_recurrent_state(index, state_idx=0)
            states[f"conv.{index}"] = conv[0, :, -tail:].T.float().numpy()
            states[f"delta.{index}"] = delta[0].transpose(1, 2).float().numpy()
    return out.logits[0].float().numpy(), {name: np.ascontiguousarray(value) for name, value in states.items()}


def make(name: str, config: dict[str, Any], dtype: str, seed: int, tokens: Any) -> None:
    import torch
    import transformers

    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    wanted = {key: value for key, value in {**COMMON, **config}.items() if value is not None}
    wanted = {**wanted, **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))}
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**wanted), attn_implementation="eager"
    ).to(getattr(torch, dtype))
    fill(model, seed, getattr(torch, dtype))
    model.save_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    logits, states = states_of(model, torch.from_numpy(tokens.astype(np.int64))[None])
    np.save(folder / "logits.npy", logits)
    if states:
        np.savez(folder / "states.npz", **states)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name:28} {size / 1024:6.0f} KiB  logits up to {np.abs(logits).max():.2f}")


def main() -> None:
    import torch
    import transformers

    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    if json.loads((FOLDER / "versions.json").read_text(encoding="utf-8")) != versions:
        raise SystemExit(f"goldens/versions.json names other versions than {versions}: run make_goldens.py first")
    tokens = np.load(FOLDER / "tokens.npy")
    for seed, (name, (config, dtype)) in enumerate(CASES.items()):
        make(name, config, dtype, 100 + seed, tokens)


if __name__ == "__main__":
    main()
