"""Models that all benches and their peers compute alike: named shapes with seeded random weights, and the shipped one.

A bench asks for a model by name. ``build`` makes ours; ``peers/gguf_file.py`` writes the same numbers for llama.cpp.
Matrices are float16 (what is stored is what both sides compute with), norms, biases and the small convolution float32.
Random matrices keep the scale of what goes through them, so activations and logits stay about 1 at every depth.

``tiny``       the model of examples/tiny, 6 layers, trained
``dense-28m``  llama: 8 layers, hidden 512, 8 query and 4 K/V heads of 64, vocabulary 4096, 27.8 M parameters
``window``     Gemma 3: 12 layers of the same width, window 512 but for each sixth, tied head, 30.4 M parameters
``hybrid``     Qwen3.5: 12 layers, 9 of them gated delta (8 value heads, states 64 x 64), 35.4 M parameters
``experts``    Qwen3.5 MoE: 6 layers of the same kinds, 4 of 32 experts of 256 and a shared one, 88.2 M parameters
``indexed``    DeepSeek-V3.2: 6 layers, latents of 128, which choose 2,048 keys by 8 heads of 64; 4 of 16 experts
``blocks``     Qwen4-Exp without n-grams: 6 layers, 2 of which choose 512 blocks of 4 tokens by 8 heads of 64
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

import kvtrie as kv
from kvtrie.models.weights import open_folder, to_float16, to_float32

TINY = Path(__file__).resolve().parents[1] / "examples" / "tiny"
_COMMON: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
}
SHAPES: dict[str, dict[str, Any]] = {
    "dense-28m": {
        "model_type": "llama",
        "hidden_act": "silu",
        "num_hidden_layers": 8,
        "intermediate_size": 1408,
        "tie_word_embeddings": False,
    },
    "window": {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "num_hidden_layers": 12,
        "intermediate_size": 1024,
        "sliding_window": 512,
        "query_pre_attn_scalar": 64,
        "tie_word_embeddings": True,
    },
    "hybrid": {
        "model_type": "qwen3_5_text",
        "hidden_act": "silu",
        "num_hidden_layers": 12,
        "num_key_value_heads": 2,
        "intermediate_size": 1024,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "partial_rotary_factor": 0.5,
        "tie_word_embeddings": False,
    },
}
SHAPES["experts"] = {
    **SHAPES["hybrid"],
    "model_type": "qwen3_5_moe_text",
    "num_hidden_layers": 6,
    "full_attention_interval": 3,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
}
SHAPES["indexed"] = {
    "model_type": "deepseek_v32",
    "hidden_act": "silu",
    "num_hidden_layers": 6,
    "num_key_value_heads": 8,
    "head_dim": 32,
    "intermediate_size": 1024,
    "kv_lora_rank": 128,
    "q_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 256,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "index_topk": 2048,
    "index_head_dim": 64,
    "index_n_heads": 8,
    "tie_word_embeddings": False,
}
SHAPES["blocks"] = {
    **SHAPES["experts"],
    "model_type": "qwen4_exp_text",
    "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
    "eos_token_id": 0,
    "hc_count": 2,
    "hc_lowrank": 64,
    "indexer_n_heads": 8,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 64,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
}
SHAPES["ngrams"] = {
    **SHAPES["blocks"],
    "ple_layer_ids": [2, 5],
    "ple_embed_dim": 512,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 2000,
}
KINDS = ("tiny", *SHAPES)


def config(kind: str) -> Any:
    """The ``ModelConfig`` of a kind."""
    if kind == "tiny":
        return kv.models.Llama.parse_config(kv.models.weights.read_json(TINY / "config.json"))
    raw = {**_COMMON, **SHAPES[kind]}
    return family(raw["model_type"]).parse_config(raw)


def family(model_type: str) -> Any:
    """The class that computes models of this type."""
    return kv.models._FAMILIES[model_type]


def weights(kind: str, seed: int = 5) -> dict[str, np.ndarray]:
    """Every tensor by its checkpoint name: matrices float16, the others float32."""
    if kind == "tiny":
        return {name: _shipped(source) for name, source in open_folder(TINY).items()}
    return weights_of(config(kind), seed)


def weights_of(found: Any, seed: int = 5) -> dict[str, np.ndarray]:
    """The same for any ``ModelConfig``."""
    random = np.random.default_rng(seed)
    shapes = family(found.model_type).tensor_shapes(found)
    return {name: _random(random, name, shape, found) for name, shape in shapes.items()}


def build(kind: str, *, device: Any = None, dtype: str = "float16", seed: int = 5) -> Any:
    """Our model of a kind; ``dtype``: how matrices are kept on the device."""
    if kind == "tiny":
        return kv.models.load(TINY, device, dtype)
    return kv.models.from_weights(config(kind), weights(kind, seed), device, dtype)


def parameters(kind: str) -> int:
    """How many numbers a kind is made of."""
    found = config(kind)
    return sum(math.prod(shape) for shape in family(found.model_type).tensor_shapes(found).values())


def _shipped(source: Any) -> np.ndarray:
    values = source.read()
    matrix = len(source.shape) == 2
    return to_float16(values, source.dtype, source.name) if matrix else to_float32(values, source.dtype)


def _random(random: np.random.Generator, name: str, shape: tuple[int, ...], found: Any) -> np.ndarray:
    if name.endswith("A_log"):
        values = np.log(random.uniform(0.05, 3.0, shape))
    elif name.endswith("norm.weight"):
        offset = family(found.model_type).norm_offset
        plain = offset == 0.0 or name.endswith("linear_attn.norm.weight")
        values = (1.0 if plain else 0.0) + 0.1 * random.standard_normal(shape)
    elif len(shape) == 1:
        values = 0.3 * random.standard_normal(shape)
    elif "embed_tokens" in name and not found.tie_word_embeddings:
        values = random.standard_normal(shape)
    else:
        values = random.standard_normal(shape) / math.sqrt(shape[-1])
    return values.astype(np.float16 if len(shape) == 2 else np.float32)
