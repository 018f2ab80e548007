"""Mixture of experts: each row goes through the few experts its router chose, and the results are added up.

With a few rows each (row, expert) is a product of its own, whose weights are chosen on the device: nothing is read
back, and the step can be replayed (docs/own_model.md). That takes the experts of a layer in two buffers, one for each
half of their MLPs. With more rows, so that many share an expert (:func:`routed_rows`), and where such a buffer would be
too large, the choice is read back, one host wait a layer, and rows are gathered expert after expert, so that each
expert multiplies its rows at once:

    rows of the step     0 1 2 3            two experts each
    gathered             2 | 0 1 3 | 0 2 | 1 3
                         e0    e1     e4    e7

The bits are the same: a row's result does not depend on the other rows of the step.

In a q8_0 model experts are q8_0 like other matrices; routers and the gate of a shared expert are float16: a small error
there sends rows to other experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .. import ops
from .._core import Tensor
from ..errors import FormatError
from .config import ModelConfig
from .decoder import GatedMlp, MlpLayer, PlainMlp, PlainMlpPlan, Shapes, Site, biases, mlp_shapes
from .expert_sets import ExpertSets, routed_rows
from .linear import Activation, Linear
from .weight_table import WeightTable
from .weights import Array, WeightSource


class Ranking(NamedTuple):
    """The best are those whose share and bias add up to most, see ``kv.ops.route``. ``bias``: the name of its tensor,
    of ``shape``; None: it is zero. Of ``groups`` of experts ``kept`` are looked at, by their ``summed`` best.
    ``scale``: factors are multiplied by it.
    """

    bias: str | None
    shape: tuple[int, ...]
    groups: int = 1
    kept: int = 1
    scale: float = 1.0
    summed: int = 2


@dataclass(frozen=True)
class ExpertsPlan:
    """Routed experts, ``k`` of them for each row, and maybe one that every row goes through.

    ``inner`` and ``shared_inner``: their widths; 0: no expert is shared. ``scores``: "sigmoid", an expert's input is
    multiplied by that of its score, with a ``ranking`` its output; "softmax", its output is by its share of all;
    "normed", by its share among the k; "sigmoid_normed", by its sigmoid's share of theirs. ``shared_gate``: whether the
    shared expert is weighted by the sigmoid of a gate. ``router`` and ``shared``: the names of their tensors.
    ``ranking``: how the k are chosen, if not by their scores alone. ``gated``: False for MLPs without gates, of which
    the shared one may have biases (``shared_bias``). ``bias``: of the router and of each expert's three matrices.
    ``activation``: of routed experts.
    """

    experts: int
    k: int
    inner: int
    scores: str
    shared_inner: int = 0
    shared_gate: bool = False
    router: str = "gate"
    shared: str = "shared_expert"
    prefix: str = "mlp"
    ranking: Ranking | None = None
    gated: bool = True
    shared_bias: bool = False
    bias: bool = False
    activation: Activation = "silu"

    @property
    def scales_input(self) -> bool:
        """Whether factors multiply what goes into experts, not what comes out."""
        return self.scores == "sigmoid" and self.ranking is None

    def shapes(self, config: ModelConfig) -> Shapes:
        hidden, prefix = config.hidden_size, self.prefix
        shapes: Shapes = {f"{prefix}.{self.router}.weight": (self.experts, hidden)}
        shapes.update(biases(shapes, (f"{prefix}.{self.router}",), self.bias))
        if self.ranking is not None and self.ranking.bias is not None:
            shapes[f"{prefix}.{self.ranking.bias}"] = self.ranking.shape
        if self.shared_gate:
            shapes[f"{prefix}.{self.shared}_gate.weight"] = (1, hidden)
        if self.shared_inner and self.gated:
            shapes.update(mlp_shapes(f"{prefix}.{self.shared}", hidden, self.shared_inner))
        elif self.shared_inner:
            shapes.update(self.plain_shared.shapes(config))
        return {**shapes, **self.routed_shapes(config, f"{prefix}.experts")}

    def routed_shapes(self, config: ModelConfig, prefix: str) -> Shapes:
        """The routed experts' matrices, below ``prefix``."""
        shapes: Shapes = {}
        for index in range(self.experts):
            name = f"{prefix}.{index}"
            gated = mlp_shapes(name, config.hidden_size, self.inner, self.bias)
            shapes.update(gated if self.gated else PlainMlpPlan(self.inner, prefix=name).shapes(config))
        return shapes

    @property
    def plain_shared(self) -> PlainMlpPlan:
        """The shared expert, where MLPs have no gates."""
        return PlainMlpPlan(self.shared_inner, self.shared_bias, f"{self.prefix}.{self.shared}")

    def separate(
        self, sources: Mapping[str, WeightSource], config: ModelConfig, layers: Sequence[int], *, transposed: bool
    ) -> dict[str, WeightSource]:
        """``sources`` with one tensor for each expert of ``layers`` where they have two for all; see :func:`unfuse`."""
        found = dict(sources)
        for index in layers:
            found = self.separate_below(found, config, f"model.layers.{index}.{self.prefix}.experts", transposed)
        return found

    def separate_below(
        self, sources: Mapping[str, WeightSource], config: ModelConfig, prefix: str, transposed: bool = False
    ) -> dict[str, WeightSource]:
        """The same for the experts of one layer, whose tensors' names begin with ``prefix``."""
        found = dict(sources)
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
        self.router: Linear = weights.linear(f"{prefix}.{plan.router}", plan.bias, quantise=False)
        kind = Experts if plan.gated else PlainExperts
        self.experts: Experts = kind(weights, f"{prefix}.experts", plan)
        self.bias: Tensor | None = None
        self.scale: Tensor | None = None
        if plan.ranking is not None:
            self.bias = (
                weights.constant(np.zeros(plan.experts))
                if plan.ranking.bias is None
                else weights.vector(f"{prefix}.{plan.ranking.bias}", lambda values: values.reshape(-1))
            )
            if plan.ranking.scale != 1.0:
                self.scale = weights.constant(np.full(plan.k, plan.ranking.scale))
        shared = f"{prefix}.{plan.shared}"
        self.shared: MlpLayer | None = None
        if plan.shared_inner:
            self.shared = GatedMlp(weights, shared) if plan.gated else plan.plain_shared.build(site)
        gate = f"{shared}_gate"
        self.shared_gate: Linear | None = weights.linear(gate, quantise=False) if plan.shared_gate else None

    def __call__(self, h: Tensor, x: Tensor | None = None) -> Tensor:
        shared = self._shared(h)
        chosen, factors = self._routes(h)
        y = self.experts(h, chosen, factors)
        if shared is not None:
            y = ops.add(y, shared)
        return y if x is None else ops.add(x, y)

    def _routes(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """(chosen int32, factors float32), [rows, k] each."""
        plan, scores = self.plan, self.router(h)
        if plan.ranking is None:
            return ops.route(scores, plan.k, plan.scores)
        _, _, groups, kept, _, summed = plan.ranking
        chosen, factors = ops.route(scores, plan.k, plan.scores, self.bias, groups, kept, summed)
        return chosen, factors if self.scale is None else ops.mul(factors, self.scale)

    def _shared(self, h: Tensor) -> Tensor | None:
        """The output of the shared experts, which every row gets; None where no expert is shared."""
        if self.shared is None:
            return None
        y = self.shared(h)
        if self.shared_gate is None:
            return y
        return ops.scale_rows(y, ops.sigmoid(self.shared_gate(h))).reshape(*y.shape)


class Experts:
    """The experts of one layer."""

    def __init__(self, weights: WeightTable, prefix: str, plan: ExpertsPlan) -> None:
        self._scales_input = plan.scales_input
        self._sets: ExpertSets | None = None
        self._experts: list[MlpLayer] = []
        self._count = plan.experts
        self._take(weights, prefix, plan)

    def _take(self, weights: WeightTable, prefix: str, plan: ExpertsPlan) -> None:
        for index in range(plan.experts):
            expert = GatedMlp(weights, f"{prefix}.{index}", plan.activation, plan.bias)
            if index == 0:
                self._sets = ExpertSets.like(expert, self._count, weights.device)
            if self._sets is not None and not self._sets.put(index, expert):
                self._sets = None
            self._experts.append(expert)
        if self._sets is not None:
            self._sets.complete([each for each in self._experts if isinstance(each, GatedMlp)])

    def __call__(self, h: Tensor, chosen: Tensor, factors: Tensor) -> Tensor:
        """h [rows, hidden] with the experts ``chosen`` [rows, k] and their ``factors`` [rows, k] -> [rows, hidden]."""
        (rows, k), width = chosen.shape, h.shape[1]
        if self._scales_input:
            h = ops.scale_rows(h, factors)
        weights = None if self._scales_input else factors
        if self._sets is not None and rows <= routed_rows(self._count, k):
            return ops.weighted_sum(self._sets(h, chosen), weights)
        experts = np.asarray(chosen).reshape(-1)
        order = np.argsort(experts, kind="stable").astype(np.int32)
        rows_in_order = (h.reshape(rows * k, width), order) if self._scales_input else (h, order // k)
        place = np.empty(rows * k, np.int32)
        place[order] = np.arange(rows * k, dtype=np.int32)
        h = ops.embedding(self._run(ops.embedding(*rows_in_order), experts[order]), place)
        return ops.weighted_sum(h.reshape(rows, k, width), weights)

    def _run(self, h: Tensor, experts: Array) -> Tensor:
        """h [n, hidden] through ``experts`` [n], ascending."""
        used, begins = np.unique(experts, return_index=True)
        ends = [*begins[1:], len(experts)]
        parts = [self._experts[e](h[int(begin) : int(end)]) for e, begin, end in zip(used, begins, ends)]
        return parts[0] if len(parts) == 1 else ops.concat(parts, axis=0)


class PlainExperts(Experts):
    """Experts that are MLPs without gates: the choice is read back however few rows there are."""

    def _take(self, weights: WeightTable, prefix: str, plan: ExpertsPlan) -> None:
        self._experts = [PlainMlp(weights, f"{prefix}.{index}") for index in range(plan.experts)]


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
