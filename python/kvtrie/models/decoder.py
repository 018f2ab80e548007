"""The decoder layer of every family: norms, a mixer of rows (attention, or a recurrent rule) and an MLP.

A family says what its layers have as data, a :class:`LayerPlan` for each; from the plan follow the names and shapes of
the tensors that a checkpoint must have (:meth:`LayerPlan.shapes`) and the layer itself (:class:`DecoderLayer`). A
family whose layers have a part of another kind brings a plan of its own for it: :class:`MixerPlan`, :class:`MlpPart`.

Threads: plans and layers are read-only once built. Activations are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from .. import ops
from .._core import Tensor
from .config import ModelConfig
from .linear import Activation, Gated, GatedParts, Linear, Norm
from .step_inputs import Positions, Rope, Rows, StepLike
from .weight_table import WeightTable

Shapes = dict[str, tuple[int, ...]]  # tensors below ``model.layers.N.``


@dataclass(frozen=True)
class Site:
    """Where a part of a layer is built. ``rope``: of the layer's attention group; None: it has none, or no rotation.

    ``norm_offset``: norms multiply by (offset + weight).
    """

    config: ModelConfig
    weights: WeightTable
    rope: Rope | None
    index: int
    norm_offset: float

    @property
    def prefix(self) -> str:
        return f"model.layers.{self.index}"


class Mixer(Protocol):
    """h [rows, hidden], what was normed; x, the residual stream or None, is added to what comes out.

    ``take`` set means: keep only its rows from the end of the mixer on, of x too.
    """

    def __call__(
        self, step: StepLike, h: Tensor, positions: Positions, take: Rows | None, x: Tensor | None
    ) -> Tensor: ...


@runtime_checkable
class NormingMixer(Protocol):
    """A mixer whose first product can norm what comes in: ``normed(step, x, norm, ..)`` is the mixer of norm(x)."""

    def normed(
        self, step: StepLike, x: Tensor, norm: Norm, positions: Positions, take: Rows | None, residual: Tensor | None
    ) -> Tensor: ...


class MixerPlan(Protocol):
    """A mixer as data."""

    def shapes(self, config: ModelConfig) -> Shapes: ...

    def build(self, site: Site) -> Mixer: ...


class MlpLayer(Protocol):
    """h [rows, hidden]; x, the residual stream or None, is added to what comes out."""

    def __call__(self, h: Tensor, x: Tensor | None = None) -> Tensor: ...


@runtime_checkable
class NormingMlp(Protocol):
    """An MLP whose first product can norm what comes in: ``normed(x, norm, residual)`` is the MLP of norm(x)."""

    def normed(self, x: Tensor, norm: Norm, residual: Tensor | None) -> Tensor: ...


class MlpPart(Protocol):
    """An MLP as data."""

    def shapes(self, config: ModelConfig) -> Shapes: ...

    def build(self, site: Site) -> MlpLayer: ...


class NormNames(NamedTuple):
    """The norms of a layer by their tensors' names: before the mixer, on what it gives, the same of the MLP. None:
    there is none in that place."""

    mixer_in: str | None
    mixer_out: str | None
    mlp_in: str | None
    mlp_out: str | None


BEFORE = NormNames("input_layernorm", None, "post_attention_layernorm", None)
BEHIND = NormNames(None, "post_attention_layernorm", None, "post_feedforward_layernorm")
SANDWICH = NormNames(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)


@dataclass(frozen=True)
class LayerPlan:
    """The parts of one layer; None: not that. ``residual``: what mixer and MLP give is multiplied by it before it is
    added."""

    mixer: MixerPlan | None
    mlp: MlpPart | None
    norms: NormNames = BEFORE
    residual: float = 1.0

    def shapes(self, config: ModelConfig) -> Shapes:
        """Every tensor of the layer, named below ``model.layers.N.``."""
        norms = {f"{name}.weight": (config.hidden_size,) for name in self.norms if name is not None}
        parts = [part.shapes(config) for part in (self.mixer, self.mlp) if part is not None]
        return {**norms, **{name: shape for part in parts for name, shape in part.items()}}


class DecoderLayer:
    """One layer; activations [rows, hidden]."""

    def __init__(self, plan: LayerPlan, site: Site) -> None:
        def norm(name: str | None) -> Norm | None:
            if name is None:
                return None
            weight = site.weights.vector(f"{site.prefix}.{name}.weight")
            return Norm(weight, site.config.rms_norm_eps, site.norm_offset)

        self.input_norm: Norm | None = norm(plan.norms.mixer_in)
        self.mixer: Mixer | None = None if plan.mixer is None else plan.mixer.build(site)
        self._mixer_norms = isinstance(self.mixer, NormingMixer)
        self.mixed_norm: Norm | None = norm(plan.norms.mixer_out)
        self.mlp_norm: Norm | None = norm(plan.norms.mlp_in)
        self.mlp: MlpLayer | None = None if plan.mlp is None else plan.mlp.build(site)
        self._mlp_norms = isinstance(self.mlp, NormingMlp)
        self.out_norm: Norm | None = norm(plan.norms.mlp_out)
        width = site.config.hidden_size
        self.residual: Tensor | None = (
            None if plan.residual == 1.0 else site.weights.constant(np.full(width, plan.residual))
        )

    def __call__(self, step: StepLike, x: Tensor, positions: Positions, take: Rows | None) -> Tensor:
        x = self._mixed(step, x, positions, take)
        if self.mlp is None:
            return x
        if self.out_norm is None and self.residual is None:
            return self._through_mlp(self.mlp, x, x)
        return self._added(x, self._through_mlp(self.mlp, x, None), self.out_norm)

    def _through_mlp(self, mlp: MlpLayer, x: Tensor, residual: Tensor | None) -> Tensor:
        norm = self.mlp_norm
        if norm is not None and self._mlp_norms:
            return cast(NormingMlp, mlp).normed(x, norm, residual)
        return mlp(x if norm is None else norm(x), residual)

    def _mixed(self, step: StepLike, x: Tensor, positions: Positions, take: Rows | None) -> Tensor:
        if self.mixer is None:
            return x if take is None else take.take(x)
        if self.mixed_norm is None and self.residual is None:
            return self._through_mixer(self.mixer, step, x, positions, take, x)
        mixed = self._through_mixer(self.mixer, step, x, positions, take, None)
        return self._added(x if take is None else take.take(x), mixed, self.mixed_norm)

    def _through_mixer(
        self, mixer: Mixer, step: StepLike, x: Tensor, positions: Positions, take: Rows | None, residual: Tensor | None
    ) -> Tensor:
        norm = self.input_norm
        if norm is not None and self._mixer_norms:
            return cast(NormingMixer, mixer).normed(step, x, norm, positions, take, residual)
        return mixer(step, x if norm is None else norm(x), positions, take, residual)

    def _added(self, x: Tensor, part: Tensor, norm: Norm | None) -> Tensor:
        part = part if norm is None else norm(part)
        return ops.add(x, part if self.residual is None else ops.mul(part, self.residual))


@dataclass(frozen=True)
class PlainMlpPlan:
    """An MLP without a gate: ReLU squared between two matrices. ``inner``: its width."""

    inner: int
    bias: bool = False
    prefix: str = "mlp"

    def shapes(self, config: ModelConfig) -> Shapes:
        shapes: Shapes = {
            f"{self.prefix}.up_proj.weight": (self.inner, config.hidden_size),
            f"{self.prefix}.down_proj.weight": (config.hidden_size, self.inner),
        }
        return {**shapes, **biases(shapes, tuple(f"{self.prefix}.{name}_proj" for name in ("up", "down")), self.bias)}

    def build(self, site: Site) -> MlpLayer:
        return PlainMlp(site.weights, f"{site.prefix}.{self.prefix}", self.bias)


class PlainMlp:
    """down(max(up(h), 0)^2), with the residual x added. h, x [rows, hidden]. ``prefix``: of the tensors' names."""

    def __init__(self, weights: WeightTable, prefix: str, bias: bool = False) -> None:
        self.up: Linear = weights.linear(f"{prefix}.up_proj", bias)
        self.down: Linear = weights.linear(f"{prefix}.down_proj", bias)

    def __call__(self, h: Tensor, x: Tensor | None = None) -> Tensor:
        return self.down(ops.relu_squared(self.up(h)), x)


def biases(shapes: Shapes, names: tuple[str, ...], present: bool = True) -> Shapes:
    """The biases of the matrices ``names`` among ``shapes``."""
    return {f"{name}.bias": shapes[f"{name}.weight"][:1] for name in names} if present else {}


def mlp_shapes(prefix: str, hidden: int, inner: int, bias: bool = False) -> Shapes:
    """The three matrices of a gated MLP, and their biases."""
    shapes: Shapes = {
        f"{prefix}.gate_proj.weight": (inner, hidden),
        f"{prefix}.up_proj.weight": (inner, hidden),
        f"{prefix}.down_proj.weight": (hidden, inner),
    }
    return {**shapes, **biases(shapes, tuple(f"{prefix}.{name}_proj" for name in ("gate", "up", "down")), bias)}


@dataclass(frozen=True)
class MlpPlan:
    """A dense gated MLP. ``inner``: its width."""

    inner: int
    activation: Activation = "silu"
    bias: bool = False
    prefix: str = "mlp"

    def shapes(self, config: ModelConfig) -> Shapes:
        return mlp_shapes(self.prefix, config.hidden_size, self.inner, self.bias)

    def build(self, site: Site) -> MlpLayer:
        return GatedMlp(site.weights, f"{site.prefix}.{self.prefix}", self.activation, self.bias)


class GatedMlp:
    """down(activation(gate(h)) * up(h)), with the residual x added. h, x [rows, hidden].

    ``prefix``: the tensors' names up to ``gate_proj`` and so on. Its bits are those of the separate operations.
    """

    def __init__(self, weights: WeightTable, prefix: str, activation: Activation = "silu", bias: bool = False) -> None:
        self.inner: Gated | GatedParts = weights.gated(f"{prefix}.gate_proj", f"{prefix}.up_proj", activation, bias)
        self.down: Linear = weights.linear(f"{prefix}.down_proj", bias)

    def __call__(self, h: Tensor, x: Tensor | None = None) -> Tensor:
        """``x``: the residual, added to what comes out; None: nothing is added."""
        return self.down(self.inner(h), x)

    def normed(self, x: Tensor, norm: Norm, residual: Tensor | None) -> Tensor:
        """That of norm(x), with the same bits."""
        return self.down(self.inner(x, norm), residual)
