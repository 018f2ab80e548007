"""The matrix products of a model: one weight, or the two of a gated MLP's first half.

Threads: read-only once built. Activations are float32.
"""

from __future__ import annotations

from typing import Any

from .. import ops


class Linear:
    """``x @ weight.T + bias``: x [rows, in] -> [rows, out]; ``residual`` [rows, out] is added where it is given."""

    def __init__(self, weight: Any, bias: Any | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Any, residual: Any | None = None) -> Any:
        if self.bias is None:
            return ops.matmul(x, self.weight, add=residual)
        y = ops.matmul(x, self.weight, add=self.bias)
        return y if residual is None else ops.add(residual, y)


class Gated:
    """``activation(gate(x)) * up(x)``: x [rows, in] -> [rows, out], in one launch."""

    def __init__(self, pair: Any, activation: str) -> None:
        self.pair = pair
        self.activation = activation

    def __call__(self, x: Any) -> Any:
        return ops.matmul_gated(x, self.pair, self.activation)


class GatedParts:
    """The same where a device's matmul takes plain weights, or where there are biases: two products and a gate."""

    def __init__(self, gate: Linear, up: Linear, activation: str) -> None:
        self.gate = gate
        self.up = up
        self._join = ops.silu_mul if activation == "silu" else ops.gelu_mul

    def __call__(self, x: Any) -> Any:
        return self._join(self.gate(x), self.up(x))
