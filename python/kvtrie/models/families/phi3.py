"""Phi-3 and Phi-4 (Phi3ForCausalLM): Llama's block; q, k and v are one tensor, gate and up another.

Layers may see a window, and a part of each head rotate. RoPE is plain or LongRoPE ("su" in older files). Source: Abdin
et al. 2024 (arXiv 2404.14219) and the Hugging Face configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...errors import NotSupportedError
from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, one_window
from ..common_settings import COMMON, WINDOW, not_read
from ..config import ModelConfig
from ..experts_config import Fields
from ..fused import split_gate_up, split_qkv
from ..gguf_form import GgufForm
from ..reader import Raw, Reader, changed
from ..rope_config import LONG_FACTORS, ORIGINAL, RopeFields, rope_type_of
from ..settings import Settings, neutral, read
from ..weights import WeightSource

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_LONG = "longrope"
_ORIGINAL_LENGTH = 4096
_GGUF: Settings = {
    **gguf_settings.DENSE,
    ".attention.sliding_window": read("keys that every layer sees; 0: it sees everything"),
    ".rope.dimension_count": read("rotated numbers of each head"),
    ".rope.scaling.type": read("none, linear by a factor of 1, or longrope beside rope_factors_long.weight"),
    ".rope.scaling.attn_factor": read("multiplies cosine and sine, with longrope"),
    **dict.fromkeys((".rope.scaling.yarn_beta_fast", ".rope.scaling.yarn_beta_slow"), neutral("of yarn")),
    ".rope.scaling.original_context_length": read("up to which rope_factors_short.weight divides frequencies"),
}


def _from_gguf(d: Description) -> dict[str, object]:
    d.keys.integer(".nextn_predict_layers", 0, 0, 0)
    return {
        **d.still(),
        **d.long(),
        "intermediate_size": d.per_block(".feed_forward_length"),
        "sliding_window": d.keys.integer(".attention.sliding_window", 0, default=0) or None,
    }


class Phi3(CausalModel):
    family = "phi3"
    architectures = ("Phi3ForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **COMMON,
        **WINDOW,
        **not_read("mlp_bias", "attention_bias"),
        **dict.fromkeys(("full_attn_mod", "interpolate_factor"), neutral("read by code of the publisher's only")),
        "lm_head_bias": neutral("the head has no bias", False),
    }
    gguf = {"phi3": GgufForm(_from_gguf, settings=_GGUF, apart=lambda _: LONG_FACTORS)}  # noqa: RUF012 (the same)
    defaults = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}  # noqa: RUF012 (the same)
    fixed = {"mlp_bias": False, "attention_bias": False}  # noqa: RUF012 (the same)
    whole = False

    @classmethod
    def rope_type(cls, parameters: Raw) -> object:
        kind = rope_type_of(parameters)
        return _LONG if kind in ("su", "yarn") else kind

    @classmethod
    def read_ropes(cls, raw: Raw, where: str) -> dict[str, RopeFields]:
        changes: dict[str, object] = {} if ORIGINAL in raw else {ORIGINAL: _ORIGINAL_LENGTH}
        for key in ("rope_scaling", "rope_parameters"):
            value = raw.get(key)
            if not isinstance(value, Mapping) or not value:
                continue
            kind = cls.rope_type(value)
            if kind not in ("default", _LONG):
                raise NotSupportedError(
                    f"[models.config] {where}: {key}: got rope_type {kind!r}, allowed default, {_LONG}"
                )
            changes[key] = {**value, "rope_type": kind}
        return super().read_ropes(changed(raw, changes), where)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        return one_window(raw, reader, where, None)

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan()

    @classmethod
    def adapt(cls, config: ModelConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        return split_qkv(split_gate_up(super().adapt(config, sources), config), config)
