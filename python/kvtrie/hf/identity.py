"""Which weights K and V come from: a fingerprint of config and parameters, and a quick look whether they changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

# What a config says about the library, the place of the files, or how attention is computed, and nothing about K and V.
_IGNORED = ("_name_or_path", "transformers_version", "_attn_implementation", "use_cache", "torch_dtype")
_BLOCK = 1 << 26  # bytes hashed at a time


def fingerprint(model: torch.nn.Module) -> str:
    """SHA-256 (hex) of a model's config and of every byte of its parameters and buffers, with their names and dtypes.

    Two models have the same one exactly when they compute the same K and V for the same tokens, up to rounding. All of
    the weights are read, on all cores: about a second for each GB and core.
    """
    text = json.dumps(_plain(model.config.to_dict()), sort_keys=True, default=str)
    whole = hashlib.sha256(f"{type(model).__name__}\n{text}\n".encode())
    named = sorted(model.state_dict().items())
    with ThreadPoolExecutor(max(1, os.cpu_count() or 1)) as pool:
        for (name, tensor), digest in zip(named, pool.map(_digest, (tensor for _, tensor in named))):
            whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            whole.update(digest)
    return whole.hexdigest()


def _plain(config: dict[str, object]) -> dict[str, object]:
    return {
        key: _plain(value) if isinstance(value, dict) else value for key, value in config.items() if key not in _IGNORED
    }


def _digest(tensor: object) -> bytes:
    if not isinstance(tensor, torch.Tensor):  # what a module's get_extra_state gave
        return hashlib.sha256(repr(tensor).encode()).digest()
    held = hashlib.sha256()
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    for start in range(0, flat.numel() * flat.element_size(), _BLOCK):
        first, last = start // flat.element_size(), (start + _BLOCK) // flat.element_size()
        held.update(flat[first:last].view(torch.uint8).numpy())
    return held.digest()


class Versions:
    """Whether the parameters of a model were replaced or written to since this was made; microseconds for each.

    What goes round torch's own count of writes is not seen: ``parameter.data``, other processes, an adapter that is
    switched on by a flag.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._seen = list(_versions(model))

    def changed(self, model: torch.nn.Module) -> bool:
        return self._seen != list(_versions(model))


def _versions(model: torch.nn.Module) -> Iterator[tuple[int, int]]:
    for parameter in model.parameters():
        yield parameter.data_ptr(), -1 if parameter.is_inference() else parameter._version
