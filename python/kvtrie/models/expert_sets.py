"""The experts of one layer in a few buffers, so that which of them a row goes through is a number on the device.

Both halves of an expert's MLP are products with weights that are chosen there (``kv.ops.matmul_routed``). The first
half is one product of a pair where that exists, else gate and up are a product each, and biases are looked up by the
choice, too. Sizes in rows and in elements.

Threads: filled by the thread that builds a model, read-only then.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from .. import ops
from .._core import Device, Tensor
from .decoder import GatedMlp
from .linear import Activation, Gated, GatedParts, Linear, joined

ROUTED_ROWS = 8  # at most so many are routed on the device: as many as a replayed step may have


@functools.lru_cache
def routed_rows(experts: int, k: int) -> int:
    """Rows up to which a product for each choice reads little more than one for each expert that was chosen.

    Of rows that choose ``k`` of ``experts`` at random, experts (1 - (1 - k / experts)^rows) are chosen by some.
    Products of a few rows take as long as reading their weights; not having to wait is worth reading some twice.
    """
    most = 1
    for rows in range(2, ROUTED_ROWS + 1):
        chosen = experts * (1 - (1 - k / experts) ** rows)
        if rows * k <= 1.75 * chosen:
            most = rows
    return most


class ExpertSets:
    """The weights of ``count`` experts, by part: pairs (or gates and ups), and downs."""

    def __init__(self, parts: Sequence[ops.PackedPair | ops.PackedWeight], activation: Activation, count: int) -> None:
        self._activation = activation
        self._sets = [ops.PackedSet(part, count) for part in parts]
        self._biases: list[Tensor] = []  # [experts, width] of each part, or none at all

    @classmethod
    def like(cls, expert: GatedMlp, count: int, device: Device) -> ExpertSets | None:
        """Room for ``count`` such experts; None where products are not routed, or the buffers would be too large."""
        parts = _parts(expert)
        if not ops.can_route(device) or parts is None:
            return None
        if max(part.nbytes for part in parts) * count > device.capabilities["max_alloc_bytes"]:
            return None
        return cls(parts, expert.inner.activation, count)

    def put(self, index: int, expert: GatedMlp) -> bool:
        """Takes over the expert's weights; False, and nothing done, when they are kept otherwise than the first's."""
        parts = _parts(expert)
        if parts is None or [part.dtype for part in parts] != [each.dtype for each in self._sets]:
            return False
        for part, each in zip(parts, self._sets):
            each.put(index, part)
        own = [each[index] for each in self._sets]
        assert isinstance(own[-1], ops.PackedWeight)
        expert.down = Linear(own[-1], expert.down.bias)
        if isinstance(expert.inner, Gated):
            assert isinstance(own[0], ops.PackedPair)
            expert.inner = Gated(own[0], expert.inner.activation)
        else:
            gate, up = own[:2]
            assert isinstance(gate, ops.PackedWeight) and isinstance(up, ops.PackedWeight)
            both = Linear(gate, expert.inner.gate.bias), Linear(up, expert.inner.up.bias)
            expert.inner = GatedParts(*both, expert.inner.activation)
        return True

    def complete(self, experts: Sequence[GatedMlp]) -> None:
        """Keeps the biases of all ``experts``, whose weights were put."""
        each = [_linears(expert) for expert in experts]
        for maps in zip(*each):
            own = [linear.bias for linear in maps if linear.bias is not None]
            if own:
                self._biases.append(ops.concat(own, axis=0).reshape(len(own), own[0].shape[0]))

    def __call__(self, h: Tensor, chosen: Tensor) -> Tensor:
        """h [rows, hidden], or [rows, k, hidden], one for each choice; chosen [rows, k] -> [rows, k, hidden]."""
        if len(self._sets) > 2:
            inner = joined(self._activation, self._product(0, h, chosen), self._product(1, h, chosen))
        else:
            assert isinstance(self._activation, str)
            inner = ops.matmul_routed(h, self._sets[0], chosen, self._activation)
        return self._product(len(self._sets) - 1, inner, chosen)

    def _product(self, part: int, x: Tensor, chosen: Tensor) -> Tensor:
        y = ops.matmul_routed(x, self._sets[part], chosen)
        if not self._biases:
            return y
        rows, k = chosen.shape
        return ops.add(y, ops.embedding(self._biases[part], chosen.reshape(rows * k)).reshape(*y.shape))


def _linears(expert: GatedMlp) -> list[Linear]:
    """The maps of an expert that may have a bias, in the order of its parts."""
    inner = expert.inner
    return [expert.down] if isinstance(inner, Gated) else [inner.gate, inner.up, expert.down]


def _parts(expert: GatedMlp) -> list[ops.PackedPair | ops.PackedWeight] | None:
    """The packed weights that its products read; None where a part is no packed weight."""
    pairs: list[object] = [expert.inner.pair] if isinstance(expert.inner, Gated) else []
    found = [*pairs, *(linear.weight for linear in _linears(expert))]
    packed = [part for part in found if isinstance(part, (ops.PackedPair, ops.PackedWeight))]
    return packed if len(packed) == len(found) else None
