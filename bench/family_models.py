"""Random models of each kind of layers in a shape that people have, as a GGUF file that kvtrie and llama.cpp both load.

Shapes are those of published models with fewer layers, fewer experts and a vocabulary of 16,384, so that a file has 100
to 300 MB and both sides compute it in seconds. Weights are seeded and random (random_models.py); they keep the scale of
what goes through them. Matrices are Q8_0, those of gpt-oss's experts MXFP4.

``dense``      Llama: 10 layers, hidden 1024, 16 query and 4 K/V heads of 64
``windows``    Gemma 3: 10 layers, 4 query heads and 1 K/V head of 256, windows of 512 but for the sixth layer
``sinks``      gpt-oss: 4 layers, 16 query and 4 K/V heads of 64 with sinks, windows of 128, 4 of 32 experts of 512
``experts``    Qwen3 MoE: 4 layers, 16 query and 4 K/V heads of 64, 8 of 64 experts of 256
``latents``    DeepSeek-V3: 6 layers, 16 heads on latents of 512 + 64, 4 of 32 experts of 256
``ssd``        Granite 4: 10 layers, 9 of them Mamba-2 (32 heads, states 64 x 128)
``delta``      Qwen3.5: 8 layers, 6 of them gated delta (16 value heads, states 128 x 128)
``conv``       LFM2: 12 layers, 8 of them short convolutions of 3 rows
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import random_models
from peers import gguf_file

Raw = dict[str, Any]

_SIZES: Raw = {
    "vocab_size": 16384,
    "hidden_size": 1024,
    "num_hidden_layers": 10,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}


class Shape(NamedTuple):
    """``raw``: config.json. ``form``: of checkpoint_variants.GGUF, with what the file says of itself; "": by
    gguf_file.py. ``experts``: the type of their matrices. ``peer``: whether llama.cpp computes it."""

    raw: Raw
    form: str = ""
    experts: str = "Q8_0"
    peer: bool = True


def _linear(count: int, *attends: int) -> list[str]:
    return ["full_attention" if index in attends else "linear_attention" for index in range(count)]


SHAPES = {
    "dense": Shape({**_SIZES, "model_type": "llama", "hidden_act": "silu", "intermediate_size": 2816}),
    "windows": Shape(
        {
            **{key: value for key, value in _SIZES.items() if key != "rope_parameters"},
            "model_type": "gemma3_text",
            "hidden_activation": "gelu_pytorch_tanh",
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "intermediate_size": 4096,
            "sliding_window": 512,
            "query_pre_attn_scalar": 256,
            "tie_word_embeddings": True,
        }
    ),
    "sinks": Shape(
        {
            **_SIZES,
            "model_type": "gpt_oss",
            "hidden_act": "silu",
            "num_hidden_layers": 4,
            "attention_bias": True,
            "intermediate_size": 512,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 128,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "original_max_position_embeddings": 4096,
            },
        },
        "gpt-oss",
        "MXFP4",
    ),
    "experts": Shape(
        {
            **_SIZES,
            "model_type": "qwen3_moe",
            "hidden_act": "silu",
            "num_hidden_layers": 4,
            "intermediate_size": 2048,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 256,
            "norm_topk_prob": True,
            "mlp_only_layers": [],
        },
        "qwen3moe",
    ),
    "latents": Shape(
        {
            **{key: value for key, value in _SIZES.items() if key != "head_dim"},
            "model_type": "deepseek_v3",
            "hidden_act": "silu",
            "num_hidden_layers": 6,
            "num_key_value_heads": 16,
            "intermediate_size": 2816,
            "kv_lora_rank": 512,
            "q_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "n_routed_experts": 32,
            "num_experts_per_tok": 4,
            "n_shared_experts": 1,
            "moe_intermediate_size": 256,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "first_k_dense_replace": 1,
            "rope_interleave": True,
        },
        "deepseek2",
        peer=False,  # its contexts end with a failed assertion (ggml-backend.cpp:1283) unless all is float32
    ),
    "ssd": Shape(
        {
            **_SIZES,
            "model_type": "granitemoehybrid",
            "hidden_act": "silu",
            "intermediate_size": 2048,
            "shared_intermediate_size": 2048,
            "num_local_experts": 0,
            "num_experts_per_tok": 1,
            "layer_types": _linear(10, 5),
            "mamba_n_heads": 32,
            "mamba_d_head": 64,
            "mamba_n_groups": 1,
            "mamba_d_state": 128,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_chunk_size": 256,
            "mamba_conv_bias": True,
            "mamba_proj_bias": False,
            "embedding_multiplier": 1.0,
            "attention_multiplier": 0.125,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
            "position_embedding_type": None,
        },
        "granitehybrid-dense",
    ),
    "delta": Shape(
        {
            **_SIZES,
            "model_type": "qwen3_5_text",
            "hidden_act": "silu",
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "intermediate_size": 3584,
            "full_attention_interval": 4,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "partial_rotary_factor": 0.25,
        }
    ),
    "conv": Shape(
        {
            **_SIZES,
            "model_type": "lfm2",
            "num_hidden_layers": 12,
            "num_key_value_heads": 8,
            "intermediate_size": 2560,
            "block_auto_adjust_ff_dim": False,
            "conv_L_cache": 3,
            "conv_bias": False,
            "norm_eps": 1e-5,
            "layer_types": ["full_attention" if index % 3 == 2 else "conv" for index in range(12)],
        },
        "lfm2",
    ),
}


def config(kind: str) -> Any:
    """The ``ModelConfig`` of a kind."""
    raw = SHAPES[kind].raw
    return random_models.family(raw["model_type"]).parse_config(raw)


def file(kind: str, folder: Path) -> Path:
    """The model of a kind as ``folder/KIND.gguf``, written once, by a process of its own.

    What writes files for the tests loads torch, whose threads would be llama.cpp's, too.
    """
    path = folder / f"{kind}.gguf"
    if not path.exists():
        subprocess.run([sys.executable, __file__, kind, path], check=True)
    return path


def _write(kind: str, path: Path) -> None:
    shape, found = SHAPES[kind], config(kind)
    weights = random_models.weights_of(found)
    if not shape.form:
        gguf_file.write(found, weights, path, "q8_0")
        return
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "python"))
    from checkpoint_variants import GGUF
    from gguf_models import write

    form = GGUF[shape.form]
    write(form.architecture, found, weights, path, shape.experts, "Q8_0", **form.keys(found))


if __name__ == "__main__":
    _write(sys.argv[1], Path(sys.argv[2]))
