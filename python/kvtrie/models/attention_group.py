"""Layers that attend alike, which share a ``CausalCache``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .config import ModelConfig
from .rope_arguments import RopeArguments

__all__ = ["NO_ROTATION", "AttentionGroup"]

# The ``rope`` of a cache whose keys are not rotated: every angle is so small that float32 keeps each key as it is.
NO_ROTATION: RopeArguments = {"scaling": {"rope_type": "linear", "factor": 1e30}}


class AttentionGroup(NamedTuple):
    """Layers whose keys are seen and rotated alike: one ``CausalCache``. ``rope``: its argument; None: no rotation.

    ``sees``: {"window": tokens}, {"chunk": tokens}, or {} for layers that see everything before them. ``heads``: those
    of k and v, and the numbers of each, where they are not the configuration's. ``latent_dim``: the last so many
    numbers of a key are its value, too (latent.py); None: values are kept by themselves. ``keys_only``: there are no
    values, and nothing attends to the keys (indexed.py).
    """

    layers: tuple[int, ...]
    rope: RopeArguments | None
    sees: Mapping[str, int]
    heads: tuple[int, int] | None = None
    latent_dim: int | None = None
    keys_only: bool = False

    def heads_of(self, config: ModelConfig) -> tuple[int, int]:
        return self.heads or (config.num_key_value_heads, config.head_dim)

    def values(self) -> dict[str, int | None]:
        """Arguments of a cache: where values are."""
        return {"v_head_dim": 0} if self.keys_only else {"latent_dim": self.latent_dim}

    def shift(self, config: ModelConfig) -> RopeArguments:
        """How kept keys are rotated to other positions."""
        rope = NO_ROTATION if self.rope is None else self.rope
        if self.latent_dim is None or self.rope is not None:
            return rope
        return {**rope, "dims": self.heads_of(config)[1] - self.latent_dim}

    def value_width(self, config: ModelConfig) -> int:
        """Numbers that attention gives for each query head."""
        return self.latent_dim or self.heads_of(config)[1]
