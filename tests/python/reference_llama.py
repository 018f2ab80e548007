"""A dense Llama, Qwen2 or Qwen3 in plain numpy and float64: the oracle of model and parity tests.

No cache, no chunks: each call runs the whole text with causal attention. It shares no code with the package; RoPE and
its scalings are written down here again from the Hugging Face definitions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Config = dict[str, Any]
Weights = dict[str, npt.NDArray[Any]]


def random_llama(
    seed: int,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    vocab: int = 128,
    *,
    head_dim: int | None = None,
    intermediate: int | None = None,
    family: str = "llama",
    tied: bool = False,
    dtype: Any = np.float32,
    **config: Any,
) -> tuple[Config, Weights]:
    """(config, weights) of a random model whose every part matters to its logits. Further ``config`` entries override.

    Matrices are normal with variance 1/in, norms about 1, biases about 0.3: large enough that a forgotten bias, norm or
    rotation changes logits by far more than any tolerance.
    """
    random = np.random.default_rng(seed)
    head_dim = head_dim or hidden // heads
    intermediate = intermediate or 2 * hidden
    full: Config = {
        "architectures": [{"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family] + "ForCausalLM"],
        "model_type": family,
        "hidden_act": "silu",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        **config,
    }
    weights: Weights = {}

    def matrix(name: str, out: int, inner: int, bias: bool = False) -> None:
        weights[f"{name}.weight"] = (random.standard_normal((out, inner)) / math.sqrt(inner)).astype(dtype)
        if bias:
            weights[f"{name}.bias"] = (0.3 * random.standard_normal(out)).astype(dtype)

    def norm(name: str, width: int) -> None:
        weights[f"{name}.weight"] = (1 + 0.2 * random.standard_normal(width)).astype(dtype)

    attention_bias = bool(full.get("attention_bias"))
    weights["model.embed_tokens.weight"] = random.standard_normal((vocab, hidden)).astype(dtype)
    for index in range(layers):
        prefix = f"model.layers.{index}"
        norm(f"{prefix}.input_layernorm", hidden)
        for name, out in (("q", heads * head_dim), ("k", kv_heads * head_dim), ("v", kv_heads * head_dim)):
            matrix(f"{prefix}.self_attn.{name}_proj", out, hidden, attention_bias or family == "qwen2")
        matrix(f"{prefix}.self_attn.o_proj", hidden, heads * head_dim, attention_bias)
        if family == "qwen3":
            norm(f"{prefix}.self_attn.q_norm", head_dim)
            norm(f"{prefix}.self_attn.k_norm", head_dim)
        norm(f"{prefix}.post_attention_layernorm", hidden)
        for name, out, inner in (
            ("gate", intermediate, hidden),
            ("up", intermediate, hidden),
            ("down", hidden, intermediate),
        ):
            matrix(f"{prefix}.mlp.{name}_proj", out, inner, bool(full.get("mlp_bias")))
    norm("model.norm", hidden)
    if not tied:
        matrix("lm_head", vocab, hidden)
    return full, weights


def save_checkpoint(folder: Path, config: Mapping[str, Any], weights: Mapping[str, Any], shards: int = 1) -> Path:
    """Writes a loadable Hugging Face folder; with ``shards`` > 1 an index and that many files."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config), indent=1) + "\n", encoding="utf-8")
    if shards == 1:
        save_file(dict(weights), folder / "model.safetensors")
        return folder
    names = sorted(weights)
    table = {}
    for index in range(shards):
        file = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        part = names[index::shards]
        save_file({name: weights[name] for name in part}, folder / file)
        table.update(dict.fromkeys(part, file))
    text = json.dumps({"metadata": {}, "weight_map": table}, indent=1)
    (folder / "model.safetensors.index.json").write_text(text + "\n", encoding="utf-8")
    return folder


def reference_logits(config: Mapping[str, Any], weights: Mapping[str, Any], tokens: Sequence[int]) -> Float64:
    """Logits [n, vocab] after each of ``tokens`` [n], in float64."""
    w = {name: np.asarray(value).astype(np.float64) for name, value in weights.items()}
    eps = float(config.get("rms_norm_eps", 1e-6))
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    dim = int(config.get("head_dim") or config["hidden_size"] // heads)
    x = w["model.embed_tokens.weight"][np.asarray(tokens)]
    cos, sin = rope_tables(config, dim, len(tokens))
    for index in range(int(config["num_hidden_layers"])):
        prefix = f"model.layers.{index}"
        h = _rms_norm(x, w[f"{prefix}.input_layernorm.weight"], eps)
        q = _linear(w, f"{prefix}.self_attn.q_proj", h).reshape(-1, heads, dim)
        k = _linear(w, f"{prefix}.self_attn.k_proj", h).reshape(-1, kv_heads, dim)
        v = _linear(w, f"{prefix}.self_attn.v_proj", h).reshape(-1, kv_heads, dim)
        if f"{prefix}.self_attn.q_norm.weight" in w:
            q = _rms_norm(q, w[f"{prefix}.self_attn.q_norm.weight"], eps)
            k = _rms_norm(k, w[f"{prefix}.self_attn.k_norm.weight"], eps)
        attended = causal_attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v)
        x = x + _linear(w, f"{prefix}.self_attn.o_proj", attended.reshape(len(tokens), -1))
        h = _rms_norm(x, w[f"{prefix}.post_attention_layernorm.weight"], eps)
        gate = _linear(w, f"{prefix}.mlp.gate_proj", h)
        gated = gate / (1 + np.exp(-gate)) * _linear(w, f"{prefix}.mlp.up_proj", h)
        x = x + _linear(w, f"{prefix}.mlp.down_proj", gated)
    head = w["model.embed_tokens.weight"] if config.get("tie_word_embeddings") else w["lm_head.weight"]
    result: Float64 = _rms_norm(x, w["model.norm.weight"], eps) @ head.T
    return result


def causal_attention(q: Float64, k: Float64, v: Float64) -> Float64:
    """q [n, heads, dim], k and v [n, kv_heads, dim] -> [n, heads, dim]; one head at a time to bound memory."""
    n, heads, dim = q.shape
    group = heads // k.shape[1]
    hidden = np.triu(np.ones((n, n), bool), 1)
    out = np.empty_like(q)
    for head in range(heads):
        scores = q[:, head] @ k[:, head // group].T / math.sqrt(dim)
        scores[hidden] = -np.inf
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, head] = scores / scores.sum(-1, keepdims=True) @ v[:, head // group]
    return out


def rope_tables(config: Mapping[str, Any], dim: int, length: int) -> tuple[Float64, Float64]:
    """cos and sin [length, dim / 2], attention factor included, of a Hugging Face configuration."""
    scaling = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    maximum = int(config.get("max_position_embeddings", 2048))
    original = int(scaling.get("original_max_position_embeddings") or maximum)
    inverse = theta ** -(np.arange(0, dim, 2) / dim)
    attention = 1.0
    if kind == "linear":
        inverse = inverse / scaling["factor"]
    elif kind == "llama3":
        inverse = _llama3(inverse, scaling, original)
    elif kind == "yarn":
        inverse, attention = _yarn(inverse, scaling, theta, dim, original)
    elif kind not in ("default", "dynamic") or (kind == "dynamic" and length > original):
        raise ValueError(f"rope_type {kind!r} at length {length}: not defined by this reference")
    angles = np.arange(length)[:, None] * inverse[None, :]
    return attention * np.cos(angles), attention * np.sin(angles)


def _llama3(inverse: Float64, scaling: Mapping[str, Any], original: int) -> Float64:
    """Long waves are slowed by ``factor``, short ones kept, those between interpolated."""
    waves = 2 * math.pi / inverse
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    blend = np.clip((original / waves - low) / (high - low), 0, 1)
    result: Float64 = (1 - blend) * inverse / scaling["factor"] + blend * inverse
    return result


def _yarn(inverse: Float64, scaling: Mapping[str, Any], theta: float, dim: int, original: int) -> tuple[Float64, float]:
    """Peng et al. 2023 (arXiv 2309.00071), section 3.2, with the defaults of Hugging Face transformers."""

    def dimension(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(dimension(scaling.get("beta_fast") or 32)), 0)
    high = min(math.ceil(dimension(scaling.get("beta_slow") or 1)), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
    attention = scaling.get("attention_factor") or 0.1 * math.log(scaling["factor"]) + 1
    return (1 - ramp) * inverse + ramp * inverse / scaling["factor"], float(attention)


def _linear(w: Mapping[str, Float64], name: str, x: Float64) -> Float64:
    y: Float64 = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def _rms_norm(x: Float64, weight: Float64, eps: float) -> Float64:
    result: Float64 = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
    return result


def _rotate(x: Float64, cos: Float64, sin: Float64) -> Float64:
    """x [n, heads, dim], pairs (i, i + dim / 2)."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    c, s = cos[:, None, :], sin[:, None, :]
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)
