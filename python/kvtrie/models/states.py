"""The states of recurrent layers: how large a state is, and the cache of all layers that have one.

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
    """

    layers: tuple[int, ...] = ()
    conv_tail: int = 0
    conv_dim: int = 0
    heads: int = 0
    head_dim: int = 0
    state: int = 0

    @property
    def nbytes(self) -> int:
        """Of all layers."""
        return 4 * len(self.layers) * (self.conv_tail * self.conv_dim + self.heads * self.head_dim * self.state)


def state_caches(
    states: States, slots: int | None, causal: Sequence[CausalCache | RecurrentCache], device: Device | str | None
) -> list[RecurrentCache]:
    """The cache of ``states``, with ``slots`` of them; none without such layers. ``causal``: the caches of the others.

    ``slots`` None: 64, and one more for each 16 cells where states are so small that points stand that close. Raises
    ``kv.errors.ArgumentError`` for slots that nothing would lie in.
    """
    if not states.layers:
        if slots is not None:
            raise ArgumentError(f"[models] slots: got {slots}, allowed None: no layer of this model keeps states")
        return []
    if slots is None:
        slots = SLOTS
        if states.heads == 0 and is_small(states.nbytes, causal):
            slots += min(cache.capacity for cache in causal) // NARROW
    return [RecurrentCache(list(states.layers), *states[1:], slots, dtype="float32", device=device)]
