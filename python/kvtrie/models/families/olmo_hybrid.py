"""OLMo Hybrid (OlmoHybridForCausalLM): gated delta layers, every fourth one attends; norms behind attention only.

The delta rule may have negative eigenvalues. Published models do not rotate: their ``rope_theta`` is null. Source:
Ai2 2026 and the Hugging Face configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from ...errors import FormatError
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel
from ..common_settings import COMMON, SIZE, WINDOWLESS, not_read
from ..config import ModelConfig, layer_kinds
from ..decoder import BEFORE, BEHIND, LayerPlan, MixerPlan
from ..delta_parts import NO_DELTA, DeltaPartsPlan, join_convs
from ..delta_rule import DeltaSizes
from ..experts_config import Fields
from ..reader import Raw, Reader, changed
from ..rope_config import FULL
from ..settings import Settings, neutral, read
from ..states import States
from ..weights import WeightSource

LINEAR = "linear_attention"
_MOST = 2**20
_EPS = 1e-5  # of the norm behind the delta rule, whatever rms_norm_eps is
_SETTINGS: Settings = {
    **COMMON,
    **WINDOWLESS,
    **not_read("mlp_bias"),
    "layer_types": read("full_attention or linear_attention, for each layer"),
    "linear_allow_neg_eigval": read("whether the delta rule's beta is twice a sigmoid"),
    "linear_conv_kernel_dim": SIZE,
    "linear_key_head_dim": SIZE,
    "linear_value_head_dim": SIZE,
    "linear_num_key_heads": SIZE,
    "linear_num_value_heads": SIZE,
    **{
        f"linear_{name}": neutral("how weights began")
        for name in ("a_log_min", "a_log_max", "dt_min", "dt_max", "dt_init_floor")
    },
    "number_of_conv_states": neutral("recurrent layers have one convolution", 1),
}


@dataclass(frozen=True)
class OlmoHybridConfig(CausalConfig):
    """``delta``: sizes of the recurrent layers. ``beta``: what the sigmoid of the delta rule is multiplied by."""

    delta: DeltaSizes = NO_DELTA
    beta: float = 2.0


class OlmoHybrid(CausalModel):
    family = "olmo_hybrid"
    architectures = ("OlmoHybridForCausalLM",)
    settings: ClassVar[Settings] = _SETTINGS
    defaults: ClassVar[Mapping[str, object]] = {"max_position_embeddings": 65_536, "rms_norm_eps": 1e-6}
    fixed: ClassVar[Mapping[str, object]] = {"mlp_bias": False}
    kind_of_config: ClassVar[type[CausalConfig]] = OlmoHybridConfig
    renamed: ClassVar[tuple[tuple[str, str], ...]] = (
        (".attention_layer_norm.", ".input_layernorm."),
        (".feedforward_layer_norm.", ".post_attention_layernorm."),
    )

    config: OlmoHybridConfig

    @classmethod
    def in_common_keys(cls, raw: Raw, where: str) -> Raw:  # noqa: ARG003 (nothing is refused)
        return changed(raw, {"rope_theta": None, "rope_parameters": None}) if _is_still(raw) else raw

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        layers = reader.layers()
        default = [FULL if index % 4 == 3 else LINEAR for index in range(layers)]
        if FULL not in default:
            default[-1] = FULL
        kinds = layer_kinds(raw, layers, (FULL, LINEAR), default, where)
        sizes = _sizes(reader)
        if sizes.value_heads % sizes.key_heads:
            raise FormatError(
                f"[models.config] {where}: linear_num_value_heads: got {sizes.value_heads}, "
                f"allowed a multiple of linear_num_key_heads ({sizes.key_heads})"
            )
        return {
            "layer_types": kinds,
            "still_layers": tuple(range(layers)) if _is_still(raw) else (),
            "delta": sizes,
            "beta": 2.0 if reader.flag("linear_allow_neg_eigval", True) else 1.0,
        }

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(config.attention_bias, config.attention_bias, norms=True, wide=True)

    @classmethod
    def mixer(cls, config: CausalConfig, index: int) -> MixerPlan:
        assert isinstance(config, OlmoHybridConfig)
        if config.layer_types[index] == FULL:
            return cls.attention(config, index)
        return DeltaPartsPlan(config.delta, "linear_attn", by_channel=False, eps=_EPS, beta=config.beta)

    @classmethod
    def layer_plan(cls, config: ModelConfig, index: int) -> LayerPlan:
        assert isinstance(config, OlmoHybridConfig)
        norms = BEHIND if config.layer_types[index] == FULL else BEFORE
        return replace(super().layer_plan(config, index), norms=norms)

    @classmethod
    def adapt(cls, config: ModelConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        return join_convs(super().adapt(config, sources))

    @classmethod
    def states(cls, config: ModelConfig) -> States:
        assert isinstance(config, OlmoHybridConfig)
        return config.delta.states(tuple(i for i, kind in enumerate(config.layer_types) if kind == LINEAR))


def _is_still(raw: Raw) -> bool:
    """Whether no layer rotates: a base of null, which is not the same as none."""
    chosen = raw.get("rope_scaling") or raw.get("rope_parameters")
    given = chosen if isinstance(chosen, Mapping) and "rope_theta" in chosen else raw
    return "rope_theta" in given and given["rope_theta"] is None


def _sizes(reader: Reader) -> DeltaSizes:
    """Where the file is silent, of the attending layers' heads and the model's width."""
    heads = reader.within("num_attention_heads", 1, _MOST)
    keys = reader.within("linear_num_key_heads", 1, _MOST, heads)
    key_dim = reader.within("linear_key_head_dim", 1, _MOST, int(0.75 * reader.integer("hidden_size") / keys))
    return DeltaSizes(
        keys,
        reader.within("linear_num_value_heads", 1, _MOST, heads),
        key_dim,
        reader.within("linear_value_head_dim", 1, _MOST, 2 * key_dim),
        reader.within("linear_conv_kernel_dim", 2, _MOST, 4),
    )
