"""N-grams that add to the residual streams of a layer (Qwen4-Exp's per-layer embeddings).

    e = table rows of the token's n-grams, side by side                                    ngrams.py
    g[stream] = norm(key(e))[stream] . norm(x)[stream] / sqrt(hidden)
    v[stream] = sigmoid(sign(g) sqrt(max(|g|, 1e-6)))[stream] * value(e)
    x += v + silu(conv(norm(v)))             depthwise, taps as far apart as the largest n-gram is long

The convolution's state is the last (taps - 1) * size rows: it has a cache of its own, of layers behind the model's. Its
taps are stored with zeros between them, which the kernels of other convolutions take.

Threads: read-only once built. Sizes in elements. Source: the Hugging Face model of Qwen4-Exp.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import ops
from .._core import Tensor
from .config import ModelConfig
from .decoder import Shapes
from .hyper import HyperPlan, StreamNorm
from .linear import Linear, Matrix, Weight
from .ngrams import Ngrams, NgramTable
from .states import States
from .step_inputs import StepLike
from .weight_table import WeightTable
from .weights import Array

TABLE = "ple.ple_embedding.ngram_embedding.weight"


@dataclass(frozen=True)
class NgramPlan:
    """``width``: of a token's n-grams side by side; ``taps``: of the convolution."""

    ngrams: Ngrams
    width: int
    taps: int

    @property
    def reach(self) -> int:
        """Rows that the convolution sees, the present one among them."""
        return (self.taps - 1) * self.ngrams.size + 1

    def shapes(self, config: ModelConfig, streams: int, table: NgramTable) -> Shapes:
        """Of a layer, below ``model.layers.N.``."""
        hidden, whole = config.hidden_size, streams * config.hidden_size
        return {
            TABLE: (table.rows, self.width // self.ngrams.all_heads),
            "ple.key_proj.weight": (whole, self.width),
            "ple.value_proj.weight": (hidden, self.width),
            **dict.fromkeys((f"ple.norm_{name}.weight" for name in ("key", "query", "conv")), (whole,)),
            "ple.conv1d.weight": (whole, 1, self.taps),
        }

    def states(self, config: ModelConfig, streams: int) -> States:
        layers = tuple(config.num_hidden_layers + layer for layer in self.ngrams.layers)
        return States(layers, self.reach - 1, streams * config.hidden_size)


NO_NGRAMS = NgramPlan(Ngrams(), 0, 4)


class NgramLayer:
    """An :class:`NgramPlan` in layer ``index``."""

    def __init__(
        self,
        plan: NgramPlan,
        hyper: HyperPlan,
        table: NgramTable,
        index: int,
        weights: WeightTable,
        config: ModelConfig,
    ) -> None:
        own, hidden = f"model.layers.{index}.ple", config.hidden_size
        self._ngrams, self._streams, self._hidden = table, hyper.streams, hidden
        self._state: int = config.num_hidden_layers + index
        self._table: Weight = weights.table(f"model.layers.{index}.{TABLE}")
        self._key: Linear = weights.linear(f"{own}.key_proj")
        self._value: Linear = weights.linear(f"{own}.value_proj")
        self._norms = {
            name: StreamNorm(hyper, weights, f"{own}.norm_{name}.weight", config) for name in ("key", "query", "conv")
        }
        self._taps: Tensor = weights.vector(f"{own}.conv1d.weight", lambda taps: _apart(taps[:, 0, :], plan))
        self._sum: Matrix = weights.pack(weights.constant(np.ones((1, hidden))))

    def ids(self, context: Array) -> Array:
        """Rows of its table, int32 [rows * heads]; ``context``: as ``ngrams.with_context`` has it."""
        return self._ngrams.ids(context).reshape(-1)

    def __call__(self, step: StepLike, x: Tensor, ids: Array) -> Tensor:
        """x [rows, streams * hidden] with what its n-grams add; ``ids``: those of :meth:`ids`."""
        rows = x.shape[0]
        e = ops.embedding(self._table, ids).reshape(rows, -1)
        products = ops.mul(self._norms["key"](self._key(e)), self._norms["query"](x))
        dots = ops.matmul(products.reshape(rows * self._streams, self._hidden), self._sum)
        gates = ops.sigmoid(ops.signed_root(ops.clamp(dots, scale=self._hidden**-0.5))).reshape(rows, self._streams)
        gated = ops.scale_rows(self._value(e), gates).reshape(*x.shape)
        around = step.conv(self._state, self._norms["conv"](gated), self._taps)
        return ops.add(x, ops.add(gated, ops.silu(around)))


def _apart(taps: Array, plan: NgramPlan) -> Array:
    """[channels, taps] -> [channels, reach], zeros between."""
    found = np.zeros((taps.shape[0], plan.reach), np.float32)
    found[:, :: plan.ngrams.size] = taps
    return found
