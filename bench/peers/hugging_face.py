"""Hugging Face transformers as a peer: its ``DynamicCache``, the cache its users get, and its models from a folder.

What a user does with it: ``copy.deepcopy`` to branch or to go on from a kept prompt (the recipe of its documentation),
``crop`` to rewind, one object for each conversation to switch. torch runs on as many threads as the machine has cores.
Each decode step concatenates, that is, copies the whole cache; that is no part of what the methods here time.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any


def installed() -> bool:
    """Whether torch and transformers are there."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))


def torch() -> Any:
    """The module, set to as many threads as there are cores."""
    module = importlib.import_module("torch")
    if module.get_num_threads() != os.cpu_count():
        module.set_num_threads(os.cpu_count() or 1)
    return module


def random_cache(layers: int, kv_heads: int, head_dim: int, tokens: int) -> Any:
    """A ``DynamicCache`` of one sequence: K and V float16 [1, kv_heads, tokens, head_dim] for each layer, random."""
    dynamic = importlib.import_module("transformers").DynamicCache()
    for layer in range(layers):
        # Made one by one: equal pages or pages of zeros would be cheaper to copy than real ones.
        k, v = (torch().randn(1, kv_heads, tokens, head_dim).half() for _ in range(2))
        dynamic.update(k, v, layer)
    return dynamic


def append(cache: Any, tokens: int) -> None:
    """What a forward pass over ``tokens`` more tokens does to the cache."""
    for index, layer in enumerate(cache.layers):
        _, heads, _, dim = layer.keys.shape
        k, v = (torch().randn(1, heads, tokens, dim).half() for _ in range(2))
        cache.update(k, v, index)


def tensors(cache: Any) -> list[tuple[Any, Any]]:
    """K and V of each layer; :func:`put_back` takes them."""
    return [(layer.keys, layer.values) for layer in cache.layers]


def put_back(cache: Any, kept: list[tuple[Any, Any]]) -> None:
    """Undoes a ``crop``, which only narrows views, without copying anything."""
    for layer, (keys, values) in zip(cache.layers, kept):
        layer.keys, layer.values = keys, values


def nbytes(cache: Any) -> int:
    """Bytes of K and V."""
    return sum(tensor.numel() * tensor.element_size() for pair in tensors(cache) for tensor in pair)
