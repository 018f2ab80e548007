"""The two halves that most families' blocks are made of, in the fewest launches: attention and the gated MLP.

Both take what was normed and give the residual stream back, so that the addition leaves the last product's kernel.
Their bits are those of the separate operations, so a family may use either.
"""

from __future__ import annotations

from typing import Any

import kvtrie as kv

from .base import WeightTable
from .config import ModelConfig
from .step_inputs import Rope, Rows


class Attention:
    """Grouped-query attention with RoPE. h, x [rows, hidden] -> [wanted rows, hidden].

    ``norms``: an RMS norm over each head of q and k; ``bias``: of the three projections; ``out_bias``: of the last one.
    ``prefix``: the tensors' names up to ``q_proj`` and so on. ``scale``: None for 1 / sqrt(head_dim).
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightTable,
        rope: Rope | None,
        index: int,
        prefix: str,
        *,
        bias: bool = False,
        out_bias: bool = False,
        norms: bool = False,
        norm_offset: float = 0.0,
        scale: float | None = None,
    ) -> None:
        self.index = index
        self.qkv = weights.joined([f"{prefix}.{name}_proj" for name in ("q", "k", "v")], bias)
        self.o = weights.linear(f"{prefix}.o_proj", out_bias)
        self.q_norm = weights.optional_vector(f"{prefix}.q_norm.weight", norms)
        self.k_norm = weights.optional_vector(f"{prefix}.k_norm.weight", norms)
        self._rest = (config.rms_norm_eps, norm_offset, scale)
        self._table = None if rope is None else rope.table

    def __call__(self, step: Any, h: Any, take: Rows | None, x: Any = None) -> Any:
        """``x``: the residual, added to what comes out; None: nothing is added. ``take``: as for a layer, of both."""
        a = step.attend_qkv(self.index, self.qkv(h), self._table, self.q_norm, self.k_norm, *self._rest)
        if take is not None:
            a = take.take(a)
            x = None if x is None else take.take(x)
        return self.o(a, x)


class GatedMlp:
    """down(activation(gate(h)) * up(h)), with the residual x added. h, x [rows, hidden].

    ``activation``: "silu" or "gelu" (tanh form); ``prefix``: the tensors' names up to ``gate_proj`` and so on.
    """

    def __init__(self, weights: WeightTable, prefix: str, activation: str = "silu", bias: bool = False) -> None:
        self.inner = weights.gated(f"{prefix}.gate_proj", f"{prefix}.up_proj", activation, bias)
        self.down = weights.linear(f"{prefix}.down_proj", bias)

    def __call__(self, h: Any, x: Any = None) -> Any:
        """``x``: the residual, added to what comes out; None: nothing is added."""
        return self.down(self.inner(h), x)


class Norm:
    """RMS norm of rows of ``weight``'s length."""

    def __init__(self, weight: Any, eps: float, offset: float = 0.0) -> None:
        self._arguments = (weight, eps, offset)

    def __call__(self, x: Any) -> Any:
        return kv.ops.rms_norm(x, *self._arguments)


__all__ = ["Attention", "GatedMlp", "Norm"]
