"""Gemma 4's experts, which stand beside an MLP: both see the residual stream, each behind a norm of its own.

    y = norm_1(mlp(norm(x))) + norm_2(experts(norm_2'(x)))

The router has a norm without weights and two scales: of what goes into it, and of each expert's factor. Sizes in
elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import ops
from .._core import Tensor
from .config import ModelConfig
from .decoder import MlpLayer, MlpPlan, NormNames, Shapes, Site
from .linear import Linear, Norm
from .moe import Experts, ExpertsPlan

if TYPE_CHECKING:
    from .weights import Array

# Of a layer, those inside of MLP and experts left out.
WITH_EXPERTS = NormNames("input_layernorm", "post_attention_layernorm", None, "post_feedforward_layernorm")
_NORMS = (
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm_1",
    "pre_feedforward_layernorm_2",
    "post_feedforward_layernorm_2",
)


@dataclass(frozen=True)
class BesideMlp:
    """``experts``: its router is ``router.proj``."""

    mlp: MlpPlan
    experts: ExpertsPlan

    def shapes(self, config: ModelConfig) -> Shapes:
        hidden, router = config.hidden_size, f"{self.experts.prefix}.router"
        return {
            **self.mlp.shapes(config),
            **self.experts.shapes(config),
            f"{router}.scale": (hidden,),
            f"{router}.per_expert_scale": (self.experts.experts,),
            **{f"{name}.weight": (hidden,) for name in _NORMS},
        }

    def build(self, site: Site) -> MlpLayer:
        return MlpAndExperts(self, site)


class MlpAndExperts:
    """A :class:`BesideMlp` on the device: x [rows, hidden] -> [rows, hidden]."""

    def __init__(self, plan: BesideMlp, site: Site) -> None:
        weights, config = site.weights, site.config
        prefix = f"{site.prefix}.{plan.experts.prefix}"
        vectors = (weights.vector(f"{site.prefix}.{name}.weight") for name in _NORMS)
        self.norms: list[Norm] = [Norm(vector, config.rms_norm_eps) for vector in vectors]
        self.mlp: MlpLayer = plan.mlp.build(site)
        self.experts: Experts = Experts(weights, f"{prefix}.experts", plan.experts)
        self.router: Linear = weights.linear(f"{prefix}.router.proj", quantise=False)
        self._k: int = plan.experts.k

        def scaled(values: Array) -> Array:
            found: Array = values * config.hidden_size**-0.5
            return found

        self._router_norm = Norm(weights.vector(f"{prefix}.router.scale", scaled), config.rms_norm_eps)
        self._scales: Tensor = weights.vector(f"{prefix}.router.per_expert_scale", lambda values: values[:, None])

    def __call__(self, h: Tensor, x: Tensor | None = None) -> Tensor:
        """``h``: the residual stream, before any norm."""
        before, behind, before_experts, behind_experts = self.norms
        chosen, factors = ops.route(self.router(self._router_norm(h)), self._k, "normed")
        rows, k = chosen.shape
        scales = ops.embedding(self._scales, chosen.reshape(rows * k)).reshape(rows, k)
        routed = behind_experts(self.experts(before_experts(h), chosen, ops.mul(factors, scales)))
        y = ops.add(behind(self.mlp(before(h))), routed)
        return y if x is None else ops.add(x, y)
