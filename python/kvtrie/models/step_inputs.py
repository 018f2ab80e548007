"""Questions of a model's layers about a step: which rows matter at its end, where rows stand, how heads are rotated.

Threads: `Rope` is read-only once built; the others belong to the thread that computes their step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from .. import ops
from .._arguments import refusal
from .._core import Device, Tensor, tensor
from ..errors import ArgumentError, FormatError, NotSupportedError
from .attention_group import AttentionGroup
from .config import ModelConfig
from .rope_arguments import RopeArguments
from .weights import Array


class StepLike(Protocol):
    """The part of a step that a model reads: of a session, of ``cache.batch()``, or of one that only looks so."""

    @property
    def tokens(self) -> Array: ...

    @property
    def positions(self) -> Array: ...

    @property
    def sequences(self) -> Array: ...

    @property
    def sessions(self) -> Sequence[object]: ...

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor | None = None,
        v: Tensor | None = None,
        scale: float | None = None,
        *,
        precision: str = "auto",
    ) -> Tensor: ...

    def attend_qkv(
        self,
        layer: int,
        qkv: Tensor,
        rope: ops.RopeTable | None = None,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 1e-6,
        offset: float = 0.0,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        *,
        weight: ops.PackedWeight | tuple[ops.PackedWeight, ...] | None = None,
        bias: Tensor | None = None,
        norm: tuple[Tensor, float, float] | None = None,
        precision: str = "auto",
    ) -> Tensor: ...

    def put(self, layer: int, k: Tensor, v: Tensor | None) -> None: ...

    def get(self, layer: int) -> tuple[Tensor, Tensor, Tensor]: ...

    def choose_keys(self, layer: int, q: Tensor, weights: Tensor, count: int) -> Tensor: ...

    def choose_blocks(
        self,
        layer: int,
        q: Tensor,
        weights: Tensor,
        ratio: int,
        count: int,
        rope: ops.RopeTable,
        norm: Tensor,
        eps: float = 1e-6,
        offset: float = 0.0,
    ) -> Tensor: ...

    def attend_chosen(self, layer: int, q: Tensor, chosen: Tensor, scale: float | None = None) -> Tensor: ...

    def conv(self, layer: int, x: Tensor, weight: Tensor) -> Tensor: ...

    def gated_delta(self, layer: int, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor: ...

    def ssd(
        self,
        layer: int,
        x: Tensor,
        dt: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        d: Tensor,
        dt_min: float = 0.0,
        dt_max: float | None = None,
    ) -> Tensor: ...


class HasFactors(Protocol):
    """Hashable: a number for each position (attention.py)."""

    def factors(self, positions: Array) -> Array: ...


def checked_tokens(step: StepLike, config: ModelConfig) -> Array:
    """The token ids of a step, int32 [rows], and whether its positions are ones that the model can compute."""
    _check_positions(step, config)
    tokens = np.asarray(step.tokens, np.int32)
    limit = config.vocab_size
    least, most = (tokens[0], tokens[0]) if tokens.size == 1 else (tokens.min(), tokens.max())
    if least < 0 or most >= limit:
        bad = tokens[(tokens < 0) | (tokens >= limit)]
        raise ArgumentError(f"[models] step.tokens: got token id {int(bad[0])}, allowed 0 to {limit - 1}")
    return tokens


def _check_positions(step: StepLike, config: ModelConfig) -> None:
    limit = config.position_limit()
    if limit is None:
        return
    last = int(np.asarray(step.positions).max())
    if last >= limit:
        scaling = config.rope_scaling or {}
        raise NotSupportedError(
            f"[models] position: got {last}, allowed up to {limit - 1} with rope_type {scaling['rope_type']!r}: "
            "beyond that K depends on the length of the text it was computed in, so it cannot be shared"
        )


class Rows:
    """The rows of a step that matter after the last attention: all of them, some, or each session's last one."""

    def __init__(self, step: StepLike, all_rows: bool, some: Sequence[int] | None = None) -> None:
        sequences = np.asarray(step.sequences)
        if some is not None:
            self._wanted: Array | None = _checked(some, sequences.size, all_rows)
            return
        count = len(step.sessions)
        single = sequences.size == count and (count == 1 or np.array_equal(sequences, np.arange(count)))
        if all_rows or single:
            self._wanted = None
        else:
            # Rows of one session are in order, so its largest row index is its last position.
            self._wanted = np.zeros(count, np.int32)
            np.maximum.at(self._wanted, sequences, np.arange(sequences.size, dtype=np.int32))

    @property
    def all(self) -> bool:
        """Whether all rows matter."""
        return self._wanted is None

    def take(self, x: Tensor) -> Tensor:
        """x [rows, width] -> the wanted rows, in the order of ``step.sessions``."""
        if self._wanted is None:
            return x
        if self._wanted.size == 1:
            last = int(self._wanted[0])
            return x[last : last + 1]
        return ops.embedding(x, self._wanted)


def _checked(rows: Sequence[int], count: int, all_rows: bool) -> Array:
    if all_rows:
        raise ArgumentError("[model] rows: got some beside all_rows, allowed one of them")
    wanted = np.asarray(rows)
    if wanted.ndim != 1 or wanted.size == 0 or wanted.dtype.kind not in "iu":
        raise refusal(rows, "model", "rows", "a list of one or more numbers of rows")
    if wanted.min() < 0 or wanted.max() >= count:
        raise ArgumentError(f"[model] rows: got {wanted.min()} to {wanted.max()}, allowed 0 to {count - 1}")
    return wanted.astype(np.int32)


class Rope:
    """A rotary embedding; its table is uploaded once and shared by the layers that rotate alike."""

    def __init__(self, head_dim: int, parameters: RopeArguments, device: Device) -> None:
        try:
            self.table: ops.RopeTable = ops.RopeTable(head_dim, device=device, **parameters)
        except (ValueError, TypeError) as error:
            raise FormatError(f"[models] rope_parameters or rope_scaling of the configuration: {error}") from error

    def __call__(self, x: Tensor, positions: Positions) -> Tensor:
        """x [rows, heads, head_dim] rotated to ``positions``."""
        return ops.rope(x, positions.tensor, table=self.table)


def ropes_of(groups: Iterable[AttentionGroup], config: ModelConfig, device: Device) -> dict[int, Rope]:
    """By layer; those without rotation are left out."""
    ropes: dict[int, Rope] = {}
    for group in groups:
        if group.rope is not None:
            ropes.update(dict.fromkeys(group.layers, Rope(group.heads_of(config)[1], group.rope, device)))
    return ropes


class Positions:
    """Where the rows of a step stand, and which keys they chose, of one pass of a step through the layers.

    Uploaded when a layer asks for it, which those that use ``attend_qkv`` do not. ``chosen``: the keys that the last
    layer with an index found for each row (indexed.py), int32 [rows, count]; None before the first.
    """

    chosen: Tensor | None = None

    def __init__(self, step: StepLike, device: Device) -> None:
        self._step = step
        self._device = device
        self._tensor: Tensor | None = None
        self._factors: dict[HasFactors, Tensor] = {}

    def factors(self, of: HasFactors) -> Tensor:
        """Those ``of`` the positions, on the device: made and uploaded once for all layers that have an equal one."""
        if of not in self._factors:
            self._factors[of] = tensor(of.factors(np.asarray(self._step.positions)), device=self._device)
        return self._factors[of]

    @property
    def tensor(self) -> Tensor:
        """int32 [rows] on the device."""
        if self._tensor is None:
            self._tensor = tensor(np.asarray(self._step.positions, np.int32), device=self._device)
        return self._tensor
