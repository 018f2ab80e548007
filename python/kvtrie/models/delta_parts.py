"""Delta rules whose projections are stored one by one: OLMo Hybrid's and Kimi Linear's.

                     decay(h)            gate(h)                 activation    beta
    OLMo Hybrid      one for each head   one matrix              silu          1, or 2 (negative eigenvalues)
    Kimi Linear      for each channel    two, through a waist    sigmoid       1

Source: Grazzi et al. 2024 (arXiv 2411.12537) for beta up to 2, Kimi Team 2025
(arXiv 2510.26692), and the Hugging Face configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .config import ModelConfig
from .decoder import Mixer, Shapes, Site
from .delta_rule import DeltaRule, DeltaSizes, RuleForm, RuleMaps
from .linear import Linear
from .weight_table import WeightTable
from .weights import WeightSource, concatenated

_CONVS = ("q_conv1d", "k_conv1d", "v_conv1d")


NO_DELTA = DeltaSizes(1, 1, 1, 1, 2)


@dataclass(frozen=True)
class DeltaPartsPlan:
    """``by_channel``: decays are for each channel of k, else for each head, and come, like the gate, through a waist of
    one head's width. ``eps``: of the norm behind the rule. ``beta``: what the sigmoid is multiplied by."""

    sizes: DeltaSizes
    prefix: str
    by_channel: bool
    eps: float
    beta: float = 1.0

    @property
    def decay(self) -> tuple[str, ...]:
        return ("f_a_proj", "f_b_proj") if self.by_channel else ("a_proj",)

    @property
    def gate(self) -> tuple[str, ...]:
        return ("g_a_proj", "g_b_proj") if self.by_channel else ("g_proj",)

    def shapes(self, config: ModelConfig) -> Shapes:
        s, hidden = self.sizes, config.hidden_size
        decays = s.value_heads * s.key_dim if self.by_channel else s.value_heads
        named = {
            **{f"{name}.weight": (width, hidden) for name, width in zip(("q_proj", "k_proj", "v_proj"), s.widths)},
            "conv1d.weight": (s.conv_width, 1, s.taps),
            **_through(self.decay, hidden, s.key_dim, decays),
            **_through(self.gate, hidden, s.value_dim, s.value_width),
            "A_log": (1, 1, s.value_heads, 1) if self.by_channel else (s.value_heads,),
            "dt_bias": (decays,),
            "b_proj.weight": (s.value_heads, hidden),
            "o_norm.weight": (s.value_dim,),
            "o_proj.weight": (hidden, s.value_width),
        }
        return {f"{self.prefix}.{name}": shape for name, shape in named.items()}

    def build(self, site: Site) -> Mixer:
        prefix, weights = f"{site.prefix}.{self.prefix}", site.weights
        maps = RuleMaps(
            weights.joined([f"{prefix}.{name}" for name in ("q_proj", "k_proj", "v_proj")]),
            _maps(weights, prefix, self.decay, quantise=False),
            weights.linear(f"{prefix}.b_proj", quantise=False),
            _maps(weights, prefix, self.gate, quantise=not self.by_channel),
        )
        form = RuleForm(self.prefix, "o_norm", "o_proj", self.eps, self.by_channel, self.beta, self.by_channel)
        return DeltaRule(self.sizes, form, maps, site)


def _through(names: tuple[str, ...], given: int, waist: int, out: int) -> Shapes:
    """The matrices of a map from ``given`` to ``out`` numbers, through ``waist`` where there are two."""
    widths = [given, out] if len(names) == 1 else [given, waist, out]
    return {f"{name}.weight": (widths[i + 1], widths[i]) for i, name in enumerate(names)}


def _maps(weights: WeightTable, prefix: str, names: tuple[str, ...], *, quantise: bool) -> list[Linear]:
    return [weights.linear(f"{prefix}.{name}", quantise=quantise) for name in names]


def join_convs(sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
    """``sources`` with one ``conv1d`` where a file has the convolutions of q, k and v one by one.

    However they are cut: transformers writes three parts of one size.
    """
    found, first = dict(sources), f".{_CONVS[0]}.weight"
    for prefix in [name.removesuffix(first) for name in sources if name.endswith(first)]:
        names = [f"{prefix}.{each}.weight" for each in _CONVS]
        if all(name in sources for name in names):
            parts = [found.pop(name) for name in names]
            found[f"{prefix}.conv1d.weight"] = concatenated(f"{prefix}.conv1d.weight", parts)
    return found
