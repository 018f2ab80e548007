"""Mixture of experts: each row goes through the few experts its router chose, and the results are added up.

The router's numbers [rows, experts] are read back, because which expert gets how many rows decides what is launched:
one host wait a layer. Everything wide stays on the device; rows are gathered expert after expert, so that each expert
multiplies its rows at once:

    rows of the step     0 1 2 3            two experts each
    gathered             2 | 0 1 3 | 0 2 | 1 3
                         e0    e1     e4    e7

A row's result does not depend on the other rows of the step.

In a q8_0 model experts are q8_0 like other matrices; routers and the gate of a shared expert are float16: a small error
there sends rows to other experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .. import ops
from .._core import Tensor
from ..errors import FormatError
from .config import ModelConfig
from .decoder import GatedMlp, MlpLayer, Shapes, Site, mlp_shapes
from .linear import Linear
from .weight_table import WeightTable
from .weights import Array, WeightSource


@dataclass(frozen=True)
class ExpertsPlan:
    """Routed experts, ``k`` of them for each row, and one that every row goes through.

    ``inner`` and ``shared_inner``: their widths. ``scores``: "sigmoid", an expert's input is multiplied by that of its
    score; "softmax", its output is by its share of all; "normed", by its share among the k. ``shared_gate``: whether
    the shared expert is weighted by the sigmoid of a gate. ``router``: the name of its tensor.
    """

    experts: int
    k: int
    inner: int
    shared_inner: int
    scores: str
    shared_gate: bool
    router: str
    prefix: str = "mlp"

    def shapes(self, config: ModelConfig) -> Shapes:
        hidden, prefix = config.hidden_size, self.prefix
        shapes: Shapes = {f"{prefix}.{self.router}.weight": (self.experts, hidden)}
        if self.shared_gate:
            shapes[f"{prefix}.shared_expert_gate.weight"] = (1, hidden)
        shapes.update(mlp_shapes(f"{prefix}.shared_expert", hidden, self.shared_inner))
        return {**shapes, **self.routed_shapes(config, f"{prefix}.experts")}

    def routed_shapes(self, config: ModelConfig, prefix: str) -> Shapes:
        """The routed experts' matrices, below ``prefix``."""
        shapes: Shapes = {}
        for index in range(self.experts):
            shapes.update(mlp_shapes(f"{prefix}.{index}", config.hidden_size, self.inner))
        return shapes

    def separate(
        self, sources: Mapping[str, WeightSource], config: ModelConfig, layers: Sequence[int], *, transposed: bool
    ) -> dict[str, WeightSource]:
        """``sources`` with one tensor for each expert of ``layers`` where they have two for all; see :func:`unfuse`."""
        found = dict(sources)
        for index in layers:
            prefix = f"model.layers.{index}.{self.prefix}.experts"
            separate = unfuse(found, prefix, self.routed_shapes(config, prefix), transposed)
            if separate:
                del found[f"{prefix}.gate_up_proj"], found[f"{prefix}.down_proj"]
                found.update(separate)
        return found

    def build(self, site: Site) -> MlpLayer:
        return SparseMlp(self, site)


class SparseMlp:
    """An :class:`ExpertsPlan` on the device: h, x [rows, hidden] -> [rows, hidden]."""

    def __init__(self, plan: ExpertsPlan, site: Site) -> None:
        prefix, weights = f"{site.prefix}.{plan.prefix}", site.weights
        self.plan = plan
        self.broadcast = Broadcast(weights, site.config.hidden_size)
        self.router = weights.linear(f"{prefix}.{plan.router}", quantise=False)
        scaled = "in" if plan.scores == "sigmoid" else "out"
        self.experts = Experts(weights, f"{prefix}.experts", plan.experts, self.broadcast, scaled)
        self.shared = GatedMlp(weights, f"{prefix}.shared_expert")
        gate = f"{prefix}.shared_expert_gate"
        self.shared_gate = weights.linear(gate, quantise=False) if plan.shared_gate else None

    def __call__(self, h: Tensor, x: Tensor | None = None) -> Tensor:
        shared = self.shared(h)
        if self.shared_gate is not None:
            shared = ops.mul(shared, self.broadcast(ops.sigmoid(self.shared_gate(h))))
        y = ops.add(self.experts(h, *self._route(np.asarray(self.router(h)))), shared)
        return y if x is None else ops.add(x, y)

    def _route(self, scores: Array) -> tuple[Array, Array]:
        """scores [rows, experts] -> which experts [rows, k], and their factors."""
        if self.plan.scores == "sigmoid":
            chosen, best = top_k(scores, self.plan.k)
            return chosen, np.asarray(ops.sigmoid(best))
        chosen, factors = top_k(softmax(scores), self.plan.k)
        if self.plan.scores == "normed":
            factors = factors / factors.sum(axis=1, keepdims=True)
        return chosen, factors


class Broadcast:
    """[rows, 1] -> [rows, width]: each row's one number, as often as it is wide. Exact."""

    def __init__(self, weights: WeightTable, width: int) -> None:
        self._ones = Linear(weights.pack(weights.constant(np.ones((width, 1)))))

    def __call__(self, numbers: Tensor | Array) -> Tensor:
        return self._ones(numbers)


class Experts:
    """The experts of one layer. ``scaled``: factors multiply what goes "in" or what comes "out"."""

    def __init__(self, weights: WeightTable, prefix: str, count: int, broadcast: Broadcast, scaled: str) -> None:
        self._experts = [GatedMlp(weights, f"{prefix}.{index}") for index in range(count)]
        self._broadcast = broadcast
        self._scaled = scaled

    def __call__(self, x: Tensor, chosen: Array, factors: Array) -> Tensor:
        """x [rows, hidden] with the experts ``chosen`` [rows, k] and their ``factors`` [rows, k] -> [rows, hidden]."""
        rows, k = chosen.shape
        order = np.argsort(chosen, axis=None, kind="stable")
        scale = self._broadcast(np.ascontiguousarray(factors.reshape(-1, 1)[order], np.float32))
        h = ops.embedding(x, (order // k).astype(np.int32))
        h = self._run(ops.mul(h, scale) if self._scaled == "in" else h, chosen.reshape(-1)[order])
        h = ops.mul(h, scale) if self._scaled == "out" else h
        place = np.empty(rows * k, np.int32)
        place[order] = np.arange(rows * k, dtype=np.int32)
        return _sum_of_rows(h, place.reshape(rows, k))

    def _run(self, h: Tensor, experts: Array) -> Tensor:
        """h [n, hidden] through ``experts`` [n], ascending."""
        used, begins = np.unique(experts, return_index=True)
        ends = [*begins[1:], len(experts)]
        parts = [self._experts[e](h[int(begin) : int(end)]) for e, begin, end in zip(used, begins, ends)]
        return parts[0] if len(parts) == 1 else ops.concat(parts, axis=0)


def _sum_of_rows(h: Tensor, place: Array) -> Tensor:
    """For each row of ``place`` [rows, k] the sum of those rows of h -> [rows, hidden]."""
    total = ops.embedding(h, np.ascontiguousarray(place[:, 0]))
    for column in range(1, place.shape[1]):
        total = ops.add(total, ops.embedding(h, np.ascontiguousarray(place[:, column])))
    return total


def top_k(scores: Array, k: int) -> tuple[Array, Array]:
    """(indices, values) of the ``k`` largest in each row, largest first; the lower index wins a tie."""
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return chosen, np.take_along_axis(scores, chosen, axis=1)


def softmax(scores: Array) -> Array:
    powers: Array = np.exp(scores - scores.max(axis=1, keepdims=True))
    result: Array = powers / powers.sum(axis=1, keepdims=True)
    return result


def unfuse(
    sources: Mapping[str, WeightSource], prefix: str, shapes: Mapping[str, tuple[int, ...]], transposed: bool
) -> dict[str, WeightSource]:
    """Experts stored as two tensors for all of them, as one tensor each; nothing if they are not stored so.

    ``shapes``: of the separate experts, by name. Fused they are ``prefix``.gate_up_proj [experts, 2 inner, hidden] and
    .down_proj [experts, hidden, inner]; ``transposed``: both with their last two axes swapped.
    """
    gate_up, down = sources.get(f"{prefix}.gate_up_proj"), sources.get(f"{prefix}.down_proj")
    if gate_up is None or down is None:
        return {}
    count, (inner, hidden) = len(shapes) // 3, shapes[f"{prefix}.0.gate_proj.weight"]
    for name, source, out, width in (("gate_up_proj", gate_up, 2 * inner, hidden), ("down_proj", down, hidden, inner)):
        expected = (count, width, out) if transposed else (count, out, width)
        if source.shape != expected:
            raise FormatError(
                f"[models] {source.origin}: {prefix}.{name}: got shape {list(source.shape)}, expected {list(expected)}"
            )
    separate: dict[str, WeightSource] = {}
    for name, shape in shapes.items():
        index, kind = name[len(prefix) + 1 :].split(".")[:2]
        whole = down if kind == "down_proj" else gate_up
        first = inner if kind == "up_proj" else 0
        separate[name] = whole.part(name, int(index), int(index) + 1, shape, _cut(first, shape[0], transposed))
    return separate


def _cut(first: int, count: int, transposed: bool) -> Callable[[Array], Array]:
    """[1, out, in] (or [1, in, out]) -> the outputs from ``first`` on [count, in]."""

    def cut(slab: Array) -> Array:
        matrix = slab[0].T if transposed else slab[0]
        part: Array = matrix[first : first + count]
        return part

    return cut
