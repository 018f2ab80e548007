"""The protocol of compiling ahead (warm_up.py, helper.py): so that neither needs the class, which needs both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .._core import CausalCache, Device, RecurrentCache, StepGraphs, Tensor
from .attention_group import AttentionGroup
from .config import ModelConfig
from .decoder import DecoderLayer, Shapes
from .linear import Linear, Norm
from .step_inputs import Rows, StepLike
from .weights import Array

__all__ = ["Warmed"]


class Warmed(Protocol):
    """A ``Model``, as far as it is asked."""

    config: ModelConfig
    device: Device
    dtype: str
    precision: str
    replays: bool
    graphs: StepGraphs
    _head: Linear
    _norm: Norm | None
    kept: dict[str, str]
    _layers: list[DecoderLayer]
    _packs: bool
    _stored: dict[str, str]

    def __call__(self, step: StepLike, all_rows: bool = False) -> Tensor: ...

    def attention_groups(self, config: ModelConfig) -> Sequence[AttentionGroup]: ...

    def layers_shapes(self, config: ModelConfig) -> list[Shapes]: ...

    def caches(
        self, capacity: int = ..., dtype: str = ..., *, warm_up: bool = ...
    ) -> list[CausalCache | RecurrentCache]: ...

    def embed(self, tokens: Array) -> Tensor: ...

    def through(self, layers: Sequence[int], step: StepLike, tokens: Array, rows: Rows | None) -> Tensor: ...

    def finish(self, logits: Tensor) -> Tensor: ...

    def _launch(self, step: StepLike, tokens: Array, rows: Rows) -> Tensor: ...
