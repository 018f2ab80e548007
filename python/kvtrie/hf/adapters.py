"""Which adapters of peft a layer applies, told without importing peft.

peft puts a layer of its own in place of a linear layer, with the original as ``base_layer`` and, in dictionaries by the
name of the adapter, the matrices and factors of each that was loaded. ``forward`` looks only at those that are active,
at none while adapters are disabled, and at none once they are merged, as the base weights hold them then. So what a
LoRA layer computes depends on its base layer and the parts of those adapters, and not on what else was loaded: one that
is switched off computes what the bare layer does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

SWITCHES = ("_active_adapter", "_disable_adapters", "merged_adapters")
UNUSED = (*SWITCHES, "_caches", "kwargs")  # a layer's arguments, and what it keeps for a moment while merging


class Applied(NamedTuple):
    """Names of the adapters of one layer: all that it has, those whose parts count; and whether a pass will change it.

    ``merged``: whether they are in the base weights. peft takes merged adapters out again in the first pass in which
    they are disabled, so that pass itself writes to the weights: ``unmerges``.
    """

    known: frozenset[str]
    names: tuple[str, ...]
    merged: bool
    unmerges: bool


def applied_to(module: torch.nn.Module) -> Applied | None:
    """The weights that a LoRA layer of peft applies; None for any other module."""
    if not any(kind.__name__ == "LoraLayer" and kind.__module__.startswith("peft.") for kind in type(module).__mro__):
        return None
    values = vars(module)
    known = frozenset(_keys(values.get("scaling"))) | frozenset(_keys(values.get("r")))
    merged = tuple(values.get("merged_adapters") or ())
    disabled = bool(values.get("_disable_adapters"))
    if merged:
        return Applied(known, merged, True, disabled)
    active = values.get("_active_adapter") or ()
    names = (active,) if isinstance(active, str) else tuple(active)
    return Applied(known, () if disabled else tuple(name for name in names if name in known), False, False)


def of_adapters(holder: Mapping[str, object] | None, known: frozenset[str]) -> bool:
    """Whether it is a dictionary by names of adapters."""
    return bool(holder) and holder is not None and all(name in known for name in holder)


def _keys(value: object) -> list[str]:
    return [key for key in value if isinstance(key, str)] if isinstance(value, Mapping) else []
