"""Questions of a model's layers about a step: which rows matter at its end, where rows stand, how heads are rotated.

Threads: `Rope` is read-only once built; the others belong to the thread that computes their step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from .. import ops
from .._arguments import refusal
from .._core import Device, Tensor, tensor
from ..errors import ArgumentError, FormatError
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
        self, layer: int, q: Tensor, k: Tensor | None = None, v: Tensor | None = None, scale: float | None = None
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
    ) -> Tensor: ...

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


class Positions:
    """Where the rows of a step stand: uploaded when a layer asks for it, which those that use ``attend_qkv`` do not."""

    def __init__(self, step: StepLike, device: Device) -> None:
        self._step = step
        self._device = device
        self._tensor: Tensor | None = None

    @property
    def tensor(self) -> Tensor:
        """int32 [rows] on the device."""
        if self._tensor is None:
            self._tensor = tensor(np.asarray(self._step.positions, np.int32), device=self._device)
        return self._tensor
