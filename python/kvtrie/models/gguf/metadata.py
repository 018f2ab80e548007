"""A GGUF file's keys as a checkpoint's ``config.json``: what architectures have in common.

Each family adds its own (``GgufForm.read``) and then reads the whole as it reads a folder's, so each rule about sizes
stands in one place. What a file does not say, because llama.cpp takes it for granted, is filled in here.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ...errors import FormatError
from .keys import Keys
from .reader import GgufFile
from .weights import source

_LLAMA3_ORDER = (1.0, 4.0)  # low_freq_factor and high_freq_factor of every Llama 3


class Description:
    """A file's keys and tensors while they become a configuration."""

    def __init__(self, file: GgufFile, keys: Keys) -> None:
        self.file = file
        self.keys = keys
        blocks = {int(found[1]) for name in file.tensors if (found := re.match(r"blk\.(\d{1,9})\.", name))}
        total = keys.integer(".block_count", 1, max(len(blocks), 1))
        self.layers = total - keys.integer(".nextn_predict_layers", 0, total - 1, 0)

    def has(self, tensor: str) -> bool:
        return tensor in self.file.tensors

    def in_any_layer(self, tensor: str) -> bool:
        return any(self.has(f"blk.{layer}.{tensor}") for layer in range(self.layers))

    def head_dim(self) -> int:
        keys = self.keys
        default = keys.integer(".embedding_length") // keys.integer(".attention.head_count")
        size = keys.integer(".attention.key_length", default=max(default, 1))
        keys.integer(".attention.value_length", size, size, size)
        return size

    def rotated(self) -> int:
        return self.keys.integer(".rope.dimension_count", 2, self.head_dim(), self.head_dim())

    def rows_of(self, tensor: str, axis: int = 0) -> int:
        found = self.file.tensors.get(tensor)
        if found is None or axis >= len(found.shape):
            raise FormatError(f"[models.load] {self.file.path}: tensor {tensor!r} is missing or has too few axes")
        return found.shape[axis]

    def common(self) -> dict[str, object]:
        """What the keys of every architecture say."""
        keys = self.keys
        heads = keys.integer(".attention.head_count")
        raw: dict[str, object] = {
            "vocab_size": self.rows_of("token_embd.weight"),
            "hidden_size": keys.integer(".embedding_length"),
            "num_hidden_layers": self.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": keys.integer(".attention.head_count_kv", 1, heads, heads),
            "head_dim": self.head_dim(),
            "max_position_embeddings": keys.integer(".context_length"),
            "rms_norm_eps": keys.positive(".attention.layer_norm_rms_epsilon"),
            "rope_theta": keys.positive(".rope.freq_base", 10000.0),
            "tie_word_embeddings": not self.has("output.weight"),
            "attention_bias": self.in_any_layer("attn_output.bias"),
        }
        scaling = _rope_scaling(self)
        return raw if scaling is None else {**raw, "rope_scaling": scaling}

    def dense(self) -> dict[str, object]:
        """The same, and what a model without experts says."""
        keys = self.keys
        if keys.has(".expert_count") and keys.integer(".expert_count", 0):
            raise keys.error(
                ".expert_count", keys.integer(".expert_count"), "0: none of this architecture are computed"
            )
        size = self.head_dim()
        keys.integer(".rope.dimension_count", size, size, size)
        return {
            **self.common(),
            "intermediate_size": keys.integer(".feed_forward_length"),
            "mlp_bias": self.in_any_layer("ffn_gate.bias"),
        }


def _rope_scaling(d: Description) -> dict[str, Any] | None:
    """As in ``rope_scaling``: named by keys, or a factor for each frequency in a tensor."""
    keys = d.keys
    if d.has("rope_freqs.weight"):
        return _rope_factors(d)
    kind = keys.text(".rope.scaling.type", "linear" if keys.has(".rope.scaling.factor") else "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise keys.error(".rope.scaling.type", kind, "none, linear, yarn")
    scaling: dict[str, Any] = {"rope_type": kind, "factor": keys.positive(".rope.scaling.factor", 1.0)}
    if kind == "yarn":
        for key in (".rope.scaling.yarn_ext_factor", ".rope.scaling.attn_factor", ".rope.scaling.yarn_log_multiplier"):
            if keys.has(key) and keys.positive(key) != 1.0:
                raise keys.error(key, keys.positive(key), "1")
        original = keys.integer(".rope.scaling.original_context_length", default=keys.integer(".context_length"))
        scaling["original_max_position_embeddings"] = original
        for key in ("attention_factor", "beta_fast", "beta_slow"):
            written = f".rope.scaling.yarn_{key.replace('attention', 'attn')}"
            if keys.has(written):
                scaling[key] = keys.positive(written)
    return None if scaling == {"rope_type": "linear", "factor": 1.0} else scaling


def _rope_factors(d: Description) -> dict[str, Any]:
    """Frequencies divided by one factor each: Llama 3's scaling where they are its factors, else as they are."""
    tensor, pairs = d.file.tensors["rope_freqs.weight"], d.rotated() // 2
    if tensor.shape != (pairs,):
        raise FormatError(
            f"[models.load] {d.file.path}: rope_freqs.weight: got shape {list(tensor.shape)}, expected {[pairs]}"
        )
    factors = source(tensor, tensor.name).read().astype(np.float64)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise FormatError(f"[models.load] {d.file.path}: rope_freqs.weight: allowed positive finite numbers")
    theta = d.keys.positive(".rope.freq_base", 10000.0)
    length = d.keys.integer(".context_length")
    return _llama3(factors, theta) or {
        "rope_type": "longrope",
        "short_factor": factors.tolist(),
        "long_factor": factors.tolist(),
        "attention_factor": 1.0,
        "original_max_position_embeddings": length,
    }


def _llama3(factors: Any, theta: float) -> dict[str, Any] | None:
    """The parameters whose factors these are, to float32's precision; None if there are none."""
    low, high = _LLAMA3_ORDER
    frequencies = theta ** (-np.arange(len(factors)) / len(factors)) / (2 * np.pi)
    factor = float(factors.max())
    between = (factors > 1 + 1e-5) & (factors < factor * (1 - 1e-5))
    if factor <= 1 or not between.any():
        return None
    keep = (1 / factors - 1 / factor) / (1 - 1 / factor)
    original = np.rint(np.median(((keep * (high - low) + low) / frequencies)[between]))
    smooth = np.clip((original * frequencies - low) / (high - low), 0.0, 1.0)
    if not np.allclose(1 / factors, (1 - smooth) / factor + smooth, rtol=1e-5, atol=0):
        return None
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": int(original),
    }
