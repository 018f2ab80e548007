"""The matrix products of a model: one weight, or the two of a gated MLP's first half.

Threads: read-only once built. Activations are float32.
"""

from __future__ import annotations

from typing import NamedTuple, Union

from .. import ops
from .._core import Tensor
from .weights import Array

Matrix = Union[Tensor, ops.PackedWeight]
Weight = Union[Matrix, tuple[Matrix, ...]]  # parts: their outputs one after the other
Packed = Union[ops.PackedWeight, tuple[ops.PackedWeight, ...]]


class ClampedSwiGlu(NamedTuple):
    """gate * sigmoid(alpha * gate) * (up + 1), with gate held below ``limit`` and up within it. Both are above 0."""

    alpha: float
    limit: float

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(alpha * gate) * (up + 1) / alpha."""
        alpha, limit = self
        gate = ops.clamp(gate, high=alpha * limit, scale=alpha)
        return ops.silu_mul(gate, ops.clamp(up, -limit / alpha, limit / alpha, 1 / alpha, 1 / alpha))


Activation = Union[str, ClampedSwiGlu]  # "silu" or "gelu" (tanh form) of the gate, times what goes up


class Norm:
    """RMS norm of rows of ``weight``'s length. ``arguments``: as ``ops.rms_norm`` takes them behind x, and products."""

    def __init__(self, weight: Tensor, eps: float, offset: float = 0.0) -> None:
        self.arguments: tuple[Tensor, float, float] = (weight, eps, offset)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, *self.arguments)


class Linear:
    """``x @ weight.T + bias``: x [rows, in] -> [rows, out]; ``residual`` [rows, out] is added where it is given.

    ``norm``: what is multiplied is norm(x), with the same bits. Some devices need no launch of its own for it.
    """

    def __init__(self, weight: Weight, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    @property
    def packed(self) -> Packed | None:
        """The weight, where all of it is packed."""
        if isinstance(self.weight, ops.PackedWeight):
            return self.weight
        parts = tuple(each for each in as_parts(self.weight) if isinstance(each, ops.PackedWeight))
        return parts if len(parts) == len(as_parts(self.weight)) else None

    def __call__(self, x: Tensor | Array, residual: Tensor | None = None, norm: Norm | None = None) -> Tensor:
        normed = None if norm is None else norm.arguments
        if self.bias is None:
            return ops.matmul(x, self.weight, add=residual, norm=normed)
        y = ops.matmul(x, self.weight, add=self.bias, norm=normed)
        return y if residual is None else ops.add(residual, y)


def beside(first: Linear, second: Linear) -> Linear:
    """Two maps of one input as one: their outputs one after the other. Both have a bias, or neither has."""
    bias = None
    if first.bias is not None and second.bias is not None:
        bias = ops.concat([first.bias, second.bias], axis=0)
    return Linear((*as_parts(first.weight), *as_parts(second.weight)), bias)


def as_parts(weight: Weight) -> tuple[Matrix, ...]:
    """The parts of what fits into no single buffer; of everything else the one part that it is."""
    return weight if isinstance(weight, tuple) else (weight,)


class Gated:
    """``activation(gate(x)) * up(x)``: x [rows, in] -> [rows, out], in one launch. ``norm``: as of ``Linear``."""

    def __init__(self, pair: ops.PackedPair, activation: str) -> None:
        self.pair = pair
        self.activation = activation

    def __call__(self, x: Tensor, norm: Norm | None = None) -> Tensor:
        return ops.matmul_gated(x, self.pair, self.activation, None if norm is None else norm.arguments)


class GatedParts:
    """The same where a device's matmul takes plain weights, or where there are biases: two products and a gate."""

    def __init__(self, gate: Linear, up: Linear, activation: Activation) -> None:
        self.gate = gate
        self.up = up
        self.activation = activation

    def __call__(self, x: Tensor, norm: Norm | None = None) -> Tensor:
        h = x if norm is None else norm(x)
        return joined(self.activation, self.gate(h), self.up(h))


def joined(activation: Activation, gate: Tensor, up: Tensor) -> Tensor:
    """The two halves of a gated MLP, of one shape, as one."""
    if not isinstance(activation, str):
        return activation(gate, up)
    return ops.silu_mul(gate, up) if activation == "silu" else ops.gelu_mul(gate, up)
