"""Models of known shapes with random weights, made fast and in little memory: for how long a step takes.

Of deep models a few layers are made, whose weights all others use in turn: enough that none is still in the device's
cache when its turn comes again, and no gigabytes that have to be uploaded. Texts of such a model mean nothing.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

import kvtrie as kv
from kvtrie.models.weights import WeightSource

_COMMON: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
}


class Shape(NamedTuple):
    """``own``: layers with weights of their own; ``dtype``: of the matrices."""

    config: dict[str, Any]
    dtype: str
    own: int


def _shape(
    layers: int, hidden: int, inner: int, heads: tuple[int, int, int], vocab: int, tied: bool, dtype: str, own: int
) -> Shape:
    config = {
        **_COMMON,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
    }
    return Shape(config, dtype, own)


SHAPES = {
    "135m": _shape(30, 576, 1536, (9, 3, 64), 49152, True, "q8_0", 30),
    "1b": _shape(16, 2048, 8192, (32, 8, 64), 128256, True, "float16", 4),
    "8b": _shape(32, 4096, 14336, (32, 8, 128), 128256, False, "float16", 3),
    "emulated": _shape(4, 128, 256, (4, 2, 32), 512, True, "q8_0", 2),
    "emulated deep": _shape(6, 128, 256, (4, 2, 32), 512, False, "float16", 3),
}


def build(name: str, device: Any) -> Any:
    """The model of a shape. Reads of its weights in a step are as many and as far apart as in a real one."""
    shape = SHAPES[name]
    whole = kv.models.Llama.parse_config(shape.config)
    made = dataclasses.replace(whole, num_hidden_layers=shape.own)
    sources = {name: _source(name, size) for name, size in kv.models.Llama.tensor_shapes(made).items()}
    model = kv.models.Llama(made, sources, device=device, dtype=shape.dtype)
    model._layers = [_layer(model._layers[index % shape.own], index) for index in range(whole.num_hidden_layers)]
    model.config = whole
    return model


def _layer(like: Any, index: int) -> Any:
    """A layer with another's weights and a place of its own in the caches."""
    layer = copy.copy(like)
    layer.mixer = copy.copy(like.mixer)
    layer.mixer.index = index
    return layer


def _source(name: str, shape: tuple[int, ...]) -> WeightSource:
    scale = 1.0 if len(shape) == 1 or "embed" in name else 1 / math.sqrt(shape[-1])
    dtype = np.dtype(np.float32 if len(shape) == 1 else np.float16)

    def rows(begin: int, end: int) -> np.ndarray:
        drawn = np.random.default_rng(len(name) + begin).standard_normal((1 << 20) + 7, np.float32)
        values = (drawn * np.float32(scale)).astype(dtype)
        return np.resize(values, (end - begin, *shape[1:]))  # the same over and over: drawing takes longer than copying

    stored = "F32" if len(shape) == 1 else "F16"
    return WeightSource(name, stored, shape, math.prod(shape) * dtype.itemsize, "random", rows)
