"""Families that keep a state beside keys and values: convolutions, the scan of Mamba-2.

Concept. A layer of such a family keeps what a convolution needs of the rows before, a matrix for each head, or both;
all its layers that do are one ``kv.caches.RecurrentCache``. A layer may attend as well: its state then has another
number, behind those of all layers, since a number is in one cache.

Threads: as base.py has it. Units: sizes in elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .causal import CausalConfig, CausalModel


@dataclass(frozen=True)
class RecurrentConfig(CausalConfig):
    """``conv_width``: taps of the convolution, the present row's among them. ``conv_bias``: whether it has biases, and
    in short convolutions the projections around it, too.

    Of Mamba-2: its heads, their size, the groups that share B and C, and the width of their states.
    ``mamba_bias`` and ``mamba_out_bias``: of the projections. ``step_least``: the least that dt is.
    """

    conv_width: int = 4
    conv_bias: bool = False
    mamba_heads: int = 0
    mamba_head_dim: int = 0
    mamba_groups: int = 1
    mamba_state: int = 0
    mamba_bias: bool = False
    mamba_out_bias: bool = False
    step_least: float = 0.0

    @property
    def mamba_inner(self) -> int:
        return self.mamba_heads * self.mamba_head_dim

    @property
    def mamba_width(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.mamba_inner + 2 * self.mamba_groups * self.mamba_state


class RecurrentModel(CausalModel):
    """A :class:`CausalModel` some of whose layers keep states."""

    kind_of_config: ClassVar[type[CausalConfig]] = RecurrentConfig

    config: RecurrentConfig
