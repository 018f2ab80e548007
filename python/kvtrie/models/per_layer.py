"""Embeddings of which each layer has its own: what a token adds to the residual stream behind every layer.

A second table holds, for each token, a row of numbers for every layer; a projection of the embedding is added to it:

    inputs[layer] = (norm(project(x)) + table[token]) / sqrt(2)          [rows, width] of each layer
    x += norm(up(gelu(gate(x)) * inputs[layer]))                         behind the layer

Threads: read-only once built. Sizes in elements. Source: Gemma 3n and Gemma 4 (Google DeepMind 2025 and 2026).
"""

from __future__ import annotations

from typing import NamedTuple

from .. import ops
from .._core import Tensor
from .config import ModelConfig
from .decoder import Shapes
from .linear import Linear, Weight, joined
from .weight_table import WeightTable
from .weights import Array

TABLE, PROJECTION = "model.embed_tokens_per_layer.weight", "model.per_layer_model_projection"
NORM = "model.per_layer_projection_norm.weight"


class PerLayer(NamedTuple):
    """``vocab``: rows of the table; ``width``: numbers of each layer."""

    vocab: int
    width: int

    def shapes(self, config: ModelConfig) -> Shapes:
        """Beside the layers."""
        whole = config.num_hidden_layers * self.width
        return {
            TABLE: (self.vocab, whole),
            f"{PROJECTION}.weight": (whole, config.hidden_size),
            NORM: (self.width,),
        }

    def layer_shapes(self, config: ModelConfig, norm: str) -> Shapes:
        """Of a layer. ``norm``: the name of the last one."""
        return {
            "per_layer_input_gate.weight": (self.width, config.hidden_size),
            "per_layer_projection.weight": (config.hidden_size, self.width),
            f"{norm}.weight": (config.hidden_size,),
        }


class PerLayerInputs:
    """The inputs that layers add, of the tokens of a step."""

    def __init__(self, plan: PerLayer, config: ModelConfig, weights: WeightTable) -> None:
        self._config = config
        self._width = plan.width
        self._table: Weight = weights.table(TABLE)
        self._projection: Linear = weights.linear(PROJECTION)
        self._norm: Tensor = weights.vector(NORM)

    def __call__(self, tokens: Array, x: Tensor) -> list[Tensor]:
        """tokens [rows], their embeddings x [rows, hidden] -> [rows, width] of each layer."""
        c, width, rows = self._config, self._width, x.shape[0]
        projected = ops.clamp(self._projection(x), scale=c.hidden_size**-0.5)
        normed = ops.rms_norm(projected.reshape(rows, c.num_hidden_layers, width), self._norm, c.rms_norm_eps)
        stored = ops.clamp(ops.embedding(self._table, tokens), scale=width**0.5)
        both = ops.clamp(ops.add(normed.reshape(rows, -1), stored), scale=0.5**0.5)
        return ops.split(both, [width] * c.num_hidden_layers, axis=1)


class PerLayerGate:
    """How one layer adds its inputs. ``prefix``: of its tensors; ``norm``: the name of the last norm."""

    def __init__(self, weights: WeightTable, prefix: str, norm: str, eps: float) -> None:
        self._gate: Linear = weights.linear(f"{prefix}.per_layer_input_gate")
        self._up: Linear = weights.linear(f"{prefix}.per_layer_projection")
        self._norm: Tensor = weights.vector(f"{prefix}.{norm}.weight")
        self._eps = eps

    def __call__(self, x: Tensor, inputs: Tensor) -> Tensor:
        """x [rows, hidden], inputs [rows, width] -> what is added to x."""
        return ops.rms_norm(self._up(joined("gelu", self._gate(x), inputs)), self._norm, self._eps)
