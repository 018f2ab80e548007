"""The arguments of ``kv.ops.RopeTable``, and of a cache that shifts: what rotates, and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional, TypedDict

# A configuration's rope_scaling: "rope_type", numbers, and of longrope a factor for each frequency; kv.ops.RopeTable
# checks each by its type.
Scaling = Mapping[str, object]


class RopeArguments(TypedDict, total=False):
    """``base``: theta; ``dims``: rotated numbers of each head; ``interleaved``: neighbouring ones are pairs."""

    base: float
    dims: int
    scaling: Optional[Scaling]
    interleaved: bool
