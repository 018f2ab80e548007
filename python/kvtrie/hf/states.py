"""The states that a model has been in while a cache was open on it: what a decoder computes for the same tokens.

K and V belong to the tokens and to the state. The one in which the cache was made is ``base``; what is known of others
stands in namespaces of their own, so an adapter that is switched on again finds what it computed before. A state is
told by a walk over the decoder (walk.py) and by what torch has been told globally.

In some states nothing is kept or found, and ``why`` says so: where hooks or other code may do anything, where weights
were written to since (they will not come back), and where layers would keep something else than the cache was made for.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from transformers import cache_utils as hf

from .._locks import make_lock
from ..errors import NotSupportedError
from .layout import Layout, layout_of
from .tensors import Tensors
from .walk import Walk

_PRECISIONS = (("mkldnn", "matmul"), ("cuda", "matmul"))  # of products in float32, by backend and operation


@dataclass(frozen=True, eq=False)
class State:
    """``key``: hex, or "" for the base. ``why`` nothing is kept in it, or None. ``like``: layers of the model as
    transformers makes them, to be looked at only. ``longest``: tokens of a text whose K and V follow from the tokens
    alone, or None for any number."""

    key: str
    why: str | None
    like: tuple[hf.CacheLayerMixin, ...]
    longest: int | None

    def namespace(self, name: str) -> str:
        """Where the tree has what is computed in this state for the caller's namespace."""
        return f"{name}\0{self.key}" if self.key else name


class States:
    """Of one model. ``content``: whether keys have to mean the same in other processes. Any thread may call."""

    def __init__(self, model: torch.nn.Module, decoder: torch.nn.Module, layout: Layout, content: bool) -> None:
        self._model, self._decoder, self._layout = model, decoder, layout
        self._device = _device(model)
        self._tensors = Tensors(content)
        self._lock = make_lock()
        self._walk = self._first = Walk(decoder, self._tensors)
        self._around = around(self._device)
        self.base = State("", self._walk.why, _layers(model), self._walk.longest)
        self._known: dict[tuple[str, object], State] = {(self._walk.digest, self._around): self.base}

    def current(self, thorough: bool = False) -> State:
        """The state that the model is in, for the calling thread. ``thorough``: looks at numbers of each tensor, too,
        which shows most writes that torch does not count."""
        now = around(self._device)
        with self._lock:
            if not self._walk.unchanged(thorough):
                self._walk = Walk(self._decoder, self._tensors)
            digest = self._walk.digest
            found = self._known.get((digest, now))
            if found is None:
                found = self._known[digest, now] = self._made(now)
            return found

    def close(self) -> None:
        """Lets go of the model."""
        with self._lock:
            self._walk.release()
            self._first.release()

    def _made(self, now: object) -> State:
        key = hashlib.sha256(f"{self._walk.digest}\n{now}".encode()).hexdigest()[:40]
        why = self._walk.why or self._written() or self._elsewhere()
        return State(key, why, _layers(self._model), self._walk.longest)

    def _written(self) -> str | None:
        """Weights that have other numbers than in the base state, but for those that peft merges adapters into."""
        now = self._walk
        for path, mark in self._first.marks.items():
            if path not in now.rewritten and now.marks.get(path, mark) != mark:
                return f"parameters or buffers were written to since the cache was made: {path}"
        return None

    def _elsewhere(self) -> str | None:
        """The kinds of state that the layers keep now, if they are others; by passes over a few tokens."""
        if _device(self._model) != self._device:
            return f"the model is on {_device(self._model)} now, and was on {self._device} when the cache was made"
        try:
            layout = layout_of(self._model, self._decoder)
        except NotSupportedError as error:
            return str(error)
        same = layout == self._layout
        return None if same else "its layers keep K and V of other shapes or dtypes than when the cache was made"


def around(device: torch.device) -> tuple[object, ...]:
    """Settings of torch, global or of this thread, that change numbers by more than the order of sums."""
    kind = device.type
    casts = torch.is_autocast_enabled(kind)
    return (
        torch.get_autocast_dtype(kind) if casts else None,
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        *(_precision(*each) for each in _PRECISIONS),
    )


def _precision(backend: str, operation: str) -> str:
    """The setting of the operation, its backend or all of them; "ieee" is float32 itself."""
    get: Any = getattr(torch._C, "_get_fp32_precision_getter", None)  # newer than the oldest torch that is allowed
    asked = () if get is None else ((backend, operation), (backend, "all"), ("generic", "all"))
    return next((found for found in (str(get(*each)) for each in asked) if found != "none"), "ieee")


def _layers(model: torch.nn.Module) -> tuple[hf.CacheLayerMixin, ...]:
    return tuple(hf.DynamicCache(config=model.config).layers)


def _device(model: torch.nn.Module) -> torch.device:
    device: torch.device = model.get_input_embeddings().weight.device
    return device
