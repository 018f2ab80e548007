"""Configurations of families with multi-head latent attention (latent.py), and the model that they share.

Sizes in elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..errors import FormatError
from .attention_group import AttentionGroup
from .causal import CausalConfig, CausalModel, no_windows
from .common_settings import SIZE
from .config import ModelConfig
from .decoder import MixerPlan
from .experts_config import Fields
from .latent import LatentPlan, LatentSizes
from .mtp import named_as_head
from .reader import Raw, Reader, changed
from .rope_arguments import RopeArguments
from .rope_config import rope_type_of
from .settings import Settings, read
from .stored import FURTHER
from .weights import WeightSource

_MOST = 2**20
SIZES = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
LATENT: Settings = {
    **dict.fromkeys(SIZES, SIZE),
    "q_lora_rank": read("the rank of queries; null: they are made of the layer's input itself"),
    "head_dim": read("has to be qk_rope_head_dim, what rotates"),
    "num_key_value_heads": read("has to be num_attention_heads: all share one latent"),
    "attention_bias": read("whether projections of a layer's input, and the last one, have biases"),
    "qk_head_dim": read("has to be qk_nope_head_dim and qk_rope_head_dim together"),
}
INTERLEAVE = read("whether neighbouring numbers of what rotates are pairs, else its halves")
OWN_ROPE: Settings = {
    "mscale_all_dim": read("multiplies scores, with any type but default; of yarn the attention factor, too")
}


_NONE = LatentSizes(0, 0, 0, 0)


@dataclass(frozen=True)
class LatentConfig(CausalConfig):
    """``latent``: the sizes of attention. ``interleaved``: whether neighbouring numbers rotate against each other."""

    latent: LatentSizes = _NONE
    interleaved: bool = True


class LatentModel(CausalModel):
    """A family with latent attention in every layer. ``turns``: whether a file says how pairs lie."""

    kind_of_config: ClassVar[type[CausalConfig]] = LatentConfig
    own_rope: ClassVar[Settings] = OWN_ROPE
    turns: ClassVar[bool] = True
    ignored: ClassVar[Mapping[str, str]] = FURTHER

    @classmethod
    def in_common_keys(cls, raw: Raw, where: str) -> Raw:
        reader = Reader(raw, where, cls.defaults)
        heads, rope = reader.integer("num_attention_heads"), reader.within("qk_rope_head_dim", 2, _MOST)
        _require(reader, "head_dim", rope, "qk_rope_head_dim", where)
        _require(reader, "num_key_value_heads", heads, "num_attention_heads", where)
        _require(reader, "qk_head_dim", rope + reader.within("qk_nope_head_dim", 1, _MOST), "its two parts", where)
        return changed(raw, {"head_dim": rope, "num_key_value_heads": heads})

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        rank, nope, rope, value = (reader.within(key, 1, _MOST) for key in (SIZES[0], *SIZES[2:]))
        q_rank = 0 if reader.null("q_lora_rank") else reader.within("q_lora_rank", 1, _MOST)
        return {
            **super().own_fields(raw, reader, where),
            "latent": LatentSizes(rank, nope, rope, value, q_rank),
            "attention_multiplier": _scale(raw, where, nope + rope),
            "interleaved": not cls.turns or _interleaved(reader),
        }

    @classmethod
    def windows(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        """None, also of families whose experts are those of one that has them."""
        return no_windows(raw, reader, where)

    @classmethod
    def mixer(cls, config: CausalConfig, index: int) -> MixerPlan:  # noqa: ARG003 (all are alike)
        assert isinstance(config, LatentConfig) and config.attention_multiplier is not None
        return LatentPlan(config.latent, config.attention_multiplier, config.attention_bias)

    @classmethod
    def attention_groups(cls, config: ModelConfig) -> list[AttentionGroup]:
        assert isinstance(config, LatentConfig)
        sizes = config.latent
        return [
            group._replace(heads=(1, sizes.cell), latent_dim=sizes.rank) for group in super().attention_groups(config)
        ]

    @classmethod
    def _rope(cls, c: CausalConfig, kind: str) -> RopeArguments:
        assert isinstance(c, LatentConfig)
        return {**super()._rope(c, kind), "interleaved": c.interleaved}

    @classmethod
    def adapt(cls, config: ModelConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        return named_as_head(config, super().adapt(config, sources))


def _interleaved(reader: Reader) -> bool:
    """Null is false, as in transformers."""
    return not reader.null("rope_interleave") and reader.flag("rope_interleave", True)


def _require(reader: Reader, key: str, value: int, what: str, where: str) -> None:
    got = reader.integer(key, value)
    if got != value:
        raise FormatError(f"[models.config] {where}: {key}: got {got}, allowed {value} ({what})")


def _scale(raw: Raw, where: str, width: int) -> float:
    """Of scores: 1 / sqrt(width), and of scaled RoPE with ``mscale_all_dim`` its temperature squared."""
    key = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    chosen = raw.get(key)
    parameters = chosen if isinstance(chosen, Mapping) else {}
    reader = Reader(parameters, f"{where}: {key}")
    all_dim = reader.number("mscale_all_dim", 0.0)
    scale: float = width**-0.5
    if rope_type_of(parameters) == "default" or all_dim == 0:
        return scale
    factor = reader.positive("factor")
    temperature = 1.0 if factor <= 1 else 0.1 * all_dim * math.log(factor) + 1
    return scale * temperature * temperature
