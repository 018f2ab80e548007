"""Llama 4 text (Llama4ForCausalLM, and the text model of Llama4ForConditionalGeneration).

Most layers rotate q and k in adjacent pairs and see only their own chunk of the text; each fourth one sees everything,
rotates nothing and sharpens its attention with the position. Experts get their input times the sigmoid of the router's
score, and one shared expert gets every row. Source: Meta 2025 and the Hugging Face configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import FormatError
from ..attention import AttentionPlan, Temperature
from ..attention_group import AttentionGroup
from ..base import Model
from ..common_settings import CHOSEN, COMMON, SIZE, not_read
from ..config import (
    ModelConfig,
    check,
    common_fields,
    layer_kinds,
    refuse_activation,
    refuse_quantised,
    rope_defaults,
    text_part,
)
from ..decoder import LayerPlan, MlpPlan
from ..moe import ExpertsPlan
from ..reader import Raw, Reader
from ..rope_arguments import RopeArguments
from ..rope_config import read_rope, whole_heads
from ..settings import Settings, read, refused
from ..step_inputs import StepLike
from ..stored import IMAGES
from ..weights import Array, WeightSource

FULL, CHUNKED = "full_attention", "chunked_attention"
_MOST = 2**31 - 1

# Values that checkpoints leave out because they are the defaults of Hugging Face's configuration.
_DEFAULTS: dict[str, object] = {
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131_072,
    "num_key_value_heads": 8,
}
_FIXED = {"mlp_bias": False}
_SETTINGS: Settings = {
    **COMMON,
    **not_read(*_FIXED),
    "intermediate_size_mlp": SIZE,  # of the MLPs of layers without experts; intermediate_size is that of experts
    "num_local_experts": SIZE,
    "num_experts_per_tok": CHOSEN,
    "moe_layers": read("layers with experts"),
    "interleave_moe_layer_step": read("where moe_layers is absent, each n-th layer has experts"),
    "no_rope_layers": read("1 for layers that rotate, 0 for others"),
    "no_rope_layer_interval": read("where no_rope_layers is absent or empty, each n-th layer does not rotate"),
    "attention_chunk_size": read("tokens of a chunk; null: layers see everything"),
    "use_qk_norm": read("whether heads that were rotated are brought to mean square 1"),
    "attn_temperature_tuning": read("whether layers that do not rotate sharpen attention with the position"),
    **dict.fromkeys(("attn_scale", "floor_scale"), read("how much they do, and after how many tokens more")),
    "sliding_window": refused("layers see chunks, or everything"),
}


@dataclass(frozen=True)
class Llama4Config(ModelConfig):
    """``intermediate_size`` is that of experts, ``intermediate_size_mlp`` that of layers without.

    ``rope_layers``: those that rotate. ``temperature``: (attn_scale, floor_scale in tokens) of the others, or None.
    """

    layer_types: tuple[str, ...] = ()
    attention_chunk_size: int = 0
    rope_layers: tuple[int, ...] = ()
    use_qk_norm: bool = True
    temperature: tuple[float, float] | None = None
    expert_layers: tuple[int, ...] = ()
    num_local_experts: int = 0
    num_experts_per_tok: int = 0
    intermediate_size_mlp: int = 0

    @property
    def tuned(self) -> Temperature | None:
        """Of the layers that do not rotate."""
        return None if self.temperature is None else Temperature(*self.temperature)


class Llama4(Model):
    family = "llama4_text"
    architectures = ("Llama4ForCausalLM", "Llama4ForConditionalGeneration")

    settings = _SETTINGS
    ignored = IMAGES

    config: Llama4Config

    @classmethod
    def parse_config(cls, raw: Raw, generation: Raw | None = None, where: str = "config") -> Llama4Config:
        raw = text_part(raw, where)
        refuse_quantised(raw, where)
        refuse_activation(raw, where)
        rope = whole_heads(read_rope(raw, where, rope_defaults(_DEFAULTS, theta=500_000.0)), where)
        reader = Reader(raw, where, _DEFAULTS)
        fields = common_fields(reader, raw, rope, cls.family, generation=generation, where=where, fixed=_FIXED)
        config = Llama4Config(**{**fields, **_own_fields(raw, where)})
        check(config, where)
        return config

    @classmethod
    def layer_plan(cls, config: ModelConfig, index: int) -> LayerPlan:
        assert isinstance(config, Llama4Config)
        rotates, bias = index in config.rope_layers, config.attention_bias
        tuned = None if rotates else config.tuned
        mixer = AttentionPlan(bias, bias, unit=rotates and config.use_qk_norm, temperature=tuned)
        if index in config.expert_layers:
            return LayerPlan(mixer, _experts(config))
        return LayerPlan(mixer, MlpPlan(config.intermediate_size_mlp, prefix="feed_forward"))

    def further_inputs(self, step: StepLike, tokens: Array) -> list[Array]:  # noqa: ARG002 (others look at them)
        tuned = self.config.tuned if len(self.config.rope_layers) < self.config.num_hidden_layers else None
        return [] if tuned is None else [tuned.factors(np.asarray(step.positions))]

    @classmethod
    def adapt(cls, config: ModelConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        """Experts are stored as one tensor for all, input times output."""
        assert isinstance(config, Llama4Config)
        found = super().adapt(config, sources)
        for index in config.expert_layers:
            prefix = f"model.layers.{index}.feed_forward.experts"
            for name in ("gate_up_proj", "down_proj"):
                if f"{prefix}.{name}" not in found and f"{prefix}.0.gate_proj.weight" not in found:
                    raise FormatError(f"[models] {_origin(found)}: tensor '{prefix}.{name}' is missing")
        return _experts(config).separate(found, config, config.expert_layers, transposed=True)

    @classmethod
    def attention_groups(cls, config: ModelConfig) -> list[AttentionGroup]:
        assert isinstance(config, Llama4Config)
        rope: RopeArguments = {"base": config.rope_theta, "interleaved": True, "scaling": config.rope_scaling}
        groups: dict[tuple[str, bool], list[int]] = {}
        for index, kind in enumerate(config.layer_types):
            groups.setdefault((kind, index in config.rope_layers), []).append(index)
        return [
            AttentionGroup(
                tuple(layers),
                rope if rotates else None,
                {"chunk": config.attention_chunk_size} if kind == CHUNKED else {},
            )
            for (kind, rotates), layers in sorted(groups.items(), reverse=True)
        ]


def _own_fields(raw: Raw, where: str) -> dict[str, Any]:
    reader = Reader(raw, where)
    layers = reader.layers()
    every = reader.within("no_rope_layer_interval", 1, _MOST, 4)
    rotates = reader.integers("no_rope_layers", 0, 1) or tuple(int((i + 1) % every != 0) for i in range(layers))
    if len(rotates) < layers:
        raise FormatError(
            f"[models.config] {where}: no_rope_layers: got {len(rotates)} entries, allowed at least {layers} "
            "(num_hidden_layers)"
        )
    chunks = not reader.null("attention_chunk_size")
    default = [CHUNKED if flag and chunks else FULL for flag in rotates[:layers]]
    kinds = layer_kinds(raw, layers, (FULL, CHUNKED), default, where)
    experts = reader.within("num_local_experts", 1, 2**20, 16)
    step = reader.within("interleave_moe_layer_step", 1, _MOST, 1)
    sparse = reader.integers("moe_layers", 0, layers - 1, "num_hidden_layers - 1")
    tuned = raw.get("attn_temperature_tuning") == 4 or reader.flag("attn_temperature_tuning", True)  # 4: Scout's files
    return {
        "layer_types": kinds,
        "attention_chunk_size": _chunk(reader) if CHUNKED in kinds else 0,
        "rope_layers": tuple(i for i in range(layers) if rotates[i]),
        "use_qk_norm": reader.flag("use_qk_norm", True),
        "temperature": (reader.number("attn_scale", 0.1), reader.positive("floor_scale", 8192)) if tuned else None,
        "expert_layers": tuple(range(step - 1, layers, step)) if sparse is None else sparse,
        "num_local_experts": experts,
        "num_experts_per_tok": reader.within("num_experts_per_tok", 1, experts, 1),
        "intermediate_size_mlp": reader.within("intermediate_size_mlp", 1, _MOST, 16384),
    }


def _chunk(reader: Reader) -> int:
    """Raises ``kv.errors.FormatError`` for null, of which transformers makes no mask."""
    return reader.within("attention_chunk_size", 1, _MOST, None if reader.null("attention_chunk_size") else 8192)


def _experts(c: Llama4Config) -> ExpertsPlan:
    return ExpertsPlan(
        c.num_local_experts,
        c.num_experts_per_tok,
        c.intermediate_size,
        scores="sigmoid",
        shared_inner=c.intermediate_size,
        router="router",
        prefix="feed_forward",
    )


def _origin(sources: Mapping[str, WeightSource]) -> str:
    return next((source.origin for source in sources.values()), "weights")
