"""The states of recurrent layers: how large a state is, and the caches of the layers that have one.

Units: sizes in elements, capacities in slots and cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .._core import CausalCache, Device, RecurrentCache
from .._spacing import NARROW, is_small
from ..errors import ArgumentError

SLOTS = 64  # where states are large


class States(NamedTuple):
    """The state of each of ``layers``, as ``kv.caches.RecurrentCache`` takes it: the last ``conv_tail`` inputs of a
    convolution over ``conv_dim`` channels, and ``heads`` matrices [head_dim, state], in float32. Zeros: none of that.
    ``further``: states of other sizes, which other layers keep in caches of their own.
    """

    layers: tuple[int, ...] = ()
    conv_tail: int = 0
    conv_dim: int = 0
    heads: int = 0
    head_dim: int = 0
    state: int = 0
    further: tuple[States, ...] = ()

    @property
    def nbytes(self) -> int:
        """Of all layers but the further ones."""
        return 4 * len(self.layers) * (self.conv_tail * self.conv_dim + self.heads * self.head_dim * self.state)


def state_caches(
    states: States, slots: int | None, causal: Sequence[CausalCache | RecurrentCache], device: Device | str | None
) -> list[RecurrentCache]:
    """The caches of ``states``, each with ``slots`` of them; none without such layers. ``causal``: those of the others.

    ``slots`` None: 64, and one more for each 16 cells where states are so small that points stand that close. Raises
    ``kv.errors.ArgumentError`` for slots that nothing would lie in.
    """
    kinds = [each for each in (states, *states.further) if each.layers]
    if not kinds:
        if slots is not None:
            raise ArgumentError(f"[models] slots: got {slots}, allowed None: no layer of this model keeps states")
        return []
    if slots is None:
        slots = SLOTS
        if not any(each.heads for each in kinds) and is_small(sum(each.nbytes for each in kinds), causal):
            slots += min(cache.capacity for cache in causal) // NARROW
    return [RecurrentCache(list(each.layers), *each[1:6], slots, dtype="float32", device=device) for each in kinds]
