"""Which K and V a model computes: a fingerprint of all that they depend on beside the tokens."""

from __future__ import annotations

import hashlib

import torch

from .._processors import granted
from .states import around
from .tensors import Tensors
from .walk import Walk


def fingerprint(model: torch.nn.Module) -> str:
    """SHA-256 (hex) of what a model's decoder computes with, as it is now: every byte of its parameters and buffers,
    the adapters that are active or merged, its config, its modules and their attributes, and torch's precision.

    Two models have the same one only if they compute the same K and V for the same tokens, up to rounding. All of the
    weights are read, on all cores that the process may use: about a second for each GB and core. Where a model has
    something that can only be told from outside by its address (a hook, a closure, packed weights of torch.ao), its
    fingerprint is one that no other process has.
    """
    decoder = model.get_decoder()
    tensors = Tensors(content=True)
    tensors.read_ahead([*decoder.parameters(), *decoder.buffers()], granted().threads)
    return _of(Walk(decoder, tensors), decoder)


def named(model: torch.nn.Module, name: str) -> str:
    """The same where the caller's ``name`` stands for the numbers: what is left is read from the modules."""
    decoder = model.get_decoder()
    return f"{name} {_of(Walk(decoder, Unread()), decoder)}"


class Unread(Tensors):
    """Names tensors by their shapes."""

    def __init__(self) -> None:
        super().__init__(content=False)

    def name(self, tensor: torch.Tensor, mark: str) -> str:  # noqa: ARG002 (its base's)
        return f"{tensor.dtype} {tuple(tensor.shape)} {tensor.device.type}"


def _of(walk: Walk, decoder: torch.nn.Module) -> str:
    device = next((each.device for each in decoder.parameters()), torch.device("cpu"))
    return hashlib.sha256(f"{walk.digest}\n{around(device)}".encode()).hexdigest()
