"""Qwen3-Next (Qwen3NextForCausalLM): gated delta layers, every fourth one gated attention; experts in the MLPs.

Norms multiply by (1 + weight), except the one behind the delta rule (delta.py). Source: Qwen Team 2025 and the Hugging
Face configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ...errors import FormatError
from .. import gguf_settings
from ..attention import AttentionPlan
from ..attention_group import AttentionGroup
from ..base import Model
from ..common_settings import CHOSEN, COMMON, NO_WINDOWS_TO_SWITCH, SIZE, not_read
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
from ..delta import DeltaPlan, HybridConfig
from ..experts_config import (
    LEAVES,
    MOST_EXPERTS,
    SPARSE,
    Fields,
    experts_from_gguf,
    shared_from_gguf,
    sparse_fields,
)
from ..gguf_form import GgufForm
from ..moe import ExpertsPlan
from ..mtp import MtpPlan
from ..reader import Raw, Reader
from ..rope_arguments import RopeArguments
from ..rope_config import read_rope
from ..settings import Settings, neutral, read
from ..states import States
from ..stored import FURTHER
from ..weights import WeightSource

if TYPE_CHECKING:
    from ..gguf.metadata import Description

FULL, LINEAR = "full_attention", "linear_attention"
_MOST = 2**31 - 1
_PATTERN = 4  # each n-th layer sees everything
_DEFAULTS: dict[str, object] = {
    "head_dim": 256,
    "intermediate_size": 5632,
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 2,
}
_EXPERT_DEFAULTS = {
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
_LINEAR_DEFAULTS = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
HYBRID: Settings = {
    **COMMON,
    **NO_WINDOWS_TO_SWITCH,
    **not_read("mlp_bias", "attention_chunk_size"),
    "full_attention_interval": read("where layer_types is absent, each n-th layer sees everything"),
    **dict.fromkeys(_LINEAR_DEFAULTS, SIZE),
    "attn_output_gate": neutral("attention has a gate", True),
    "mamba_ssm_dtype": neutral("recurrent states are float32"),
    "number_of_conv_states": neutral("recurrent layers have one convolution", 1),
    "norm_topk_prob": neutral("an expert's share is of those chosen", True),
    "decoder_sparse_step": neutral("layers are all alike: with experts, or without", 1),
    "mlp_only_layers": neutral("layers are all alike: with experts, or without", []),
}
EXPERTS: Settings = {
    **dict.fromkeys(("num_experts", "moe_intermediate_size", "shared_expert_intermediate_size"), SIZE),
    "num_experts_per_tok": CHOSEN,
}
_SETTINGS: Settings = {**HYBRID, **SPARSE, "shared_expert_intermediate_size": SIZE}


GGUF_LEAVES = {
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    **LEAVES,
}


def hybrid_from_gguf(d: Description) -> dict[str, object]:
    keys = d.keys
    values = keys.integer(".ssm.time_step_rank", 1, 2**20)
    inner = keys.integer(".ssm.inner_size")
    groups = keys.integer(".ssm.group_count", 1, 2**20)
    if values % groups:
        raise keys.error(".ssm.time_step_rank", values, f"a multiple of ssm.group_count ({groups})")
    if inner % values:
        raise keys.error(".ssm.inner_size", inner, f"a multiple of ssm.time_step_rank ({values})")
    return {
        **d.common(),
        "intermediate_size": d.per_block(".feed_forward_length", default=1),  # absent where all layers have experts
        "partial_rotary_factor": d.rotated() / d.head_dim(),
        "linear_conv_kernel_dim": keys.integer(".ssm.conv_kernel", 1, 2**20),
        "linear_key_head_dim": keys.integer(".ssm.state_size", 1, 2**20),
        "linear_value_head_dim": inner // values,
        "linear_num_key_heads": groups,
        "linear_num_value_heads": values,
        "layer_types": _hybrid_kinds(d),
    }


def _hybrid_kinds(d: Description) -> list[str]:
    interval = d.keys.integer(".full_attention_interval", default=_PATTERN)
    if d.keys.has(".attention.recurrent_layers"):
        total = d.keys.integer(".block_count")
        recurrent = d.keys.flags(".attention.recurrent_layers", total, "block")
        return [LINEAR if each else FULL for each in recurrent[: d.layers]]
    return [LINEAR if (layer + 1) % interval else FULL for layer in range(d.layers)]


def sparse_from_gguf(d: Description) -> dict[str, object]:
    return {**hybrid_from_gguf(d), **experts_from_gguf(d), **shared_from_gguf(d)}


_GGUF = GgufForm(sparse_from_gguf, GGUF_LEAVES, {**gguf_settings.HYBRID, **gguf_settings.EXPERTS}, offset_norms=True)


class Qwen3Next(Model):
    family = "qwen3_next"
    architectures: ClassVar[tuple[str, ...]] = ("Qwen3NextForCausalLM",)
    gguf = {"qwen3next": _GGUF}  # noqa: RUF012
    settings = _SETTINGS
    ignored = FURTHER
    norm_offset = 1.0
    brings_head: ClassVar[bool] = True  # whether checkpoints bring a prediction head
    defaults: ClassVar[Mapping[str, object]] = _DEFAULTS  # what holds where the file says nothing
    fixed: ClassVar[Mapping[str, object]] = {"mlp_bias": False}  # fields that the family does not read
    partial: ClassVar[float] = 0.25  # the share of a head that rotates, where the file says nothing
    fused_projections = True  # in_proj_qkvz and in_proj_ba instead of four matrices

    config: HybridConfig

    @classmethod
    def parse_config(cls, raw: Raw, generation: Raw | None = None, where: str = "config") -> HybridConfig:
        raw = text_part(raw, where)
        refuse_quantised(raw, where)
        refuse_activation(raw, where)
        reader = Reader(raw, where, cls.defaults)
        moe = cls.expert_fields(raw, where)
        rope = read_rope(raw, where, rope_defaults(cls.defaults, partial=cls.partial))
        fields = common_fields(reader, raw, rope, cls.family, generation=generation, where=where, fixed=cls.fixed)
        every = reader.within("full_attention_interval", 1, _MOST, _PATTERN)
        layers = fields["num_hidden_layers"]
        default = [LINEAR if (index + 1) % every else FULL for index in range(layers)]
        kinds = layer_kinds(raw, layers, (FULL, LINEAR), default, where)
        dims = int(min(fields["head_dim"], _MOST) * rope.partial)  # beyond it `check` refuses
        config = HybridConfig(**{**fields, **_linear_fields(reader), **moe}, layer_types=kinds, rotary_dims=dims)
        check(config, where)
        _check(config, where)
        return config

    @classmethod
    def expert_fields(cls, raw: Raw, where: str) -> Fields:
        """The fields of :class:`HybridConfig` about experts; {} for a model without."""
        reader = Reader(raw, where)
        return sparse_fields(reader, reader.within("num_experts", 0, MOST_EXPERTS, 512), _EXPERT_DEFAULTS, norm=True)

    @classmethod
    def layer_plan(cls, config: ModelConfig, index: int) -> LayerPlan:
        assert isinstance(config, HybridConfig)
        bias = config.attention_bias
        full = config.layer_types[index] == FULL
        mixer = AttentionPlan(bias, bias, norms=True, gated=True) if full else DeltaPlan(config, cls.fused_projections)
        sparse = index in config.expert_layers
        return LayerPlan(mixer, experts_plan(config) if sparse else MlpPlan(config.intermediate_size))

    @classmethod
    def mtp_plan(cls, config: ModelConfig) -> MtpPlan | None:
        """A layer of gated attention; with experts where others have them."""
        if not cls.brings_head:
            return None
        assert isinstance(config, HybridConfig)
        bias = config.attention_bias
        experts = experts_plan(config) if config.expert_layers else None
        layer = LayerPlan(
            AttentionPlan(bias, bias, norms=True, gated=True), experts or MlpPlan(config.intermediate_size)
        )
        return MtpPlan(layer, (AttentionGroup((config.num_hidden_layers,), cls._rope(config), {}),), experts)

    @classmethod
    def adapt(cls, config: ModelConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        """Experts may also be stored as one tensor for all."""
        assert isinstance(config, HybridConfig)
        found = super().adapt(config, sources)
        return experts_plan(config).separate(found, config, config.expert_layers, transposed=False)

    @classmethod
    def attention_groups(cls, config: ModelConfig) -> list[AttentionGroup]:
        assert isinstance(config, HybridConfig)
        layers = config.layers(FULL)
        return [AttentionGroup(layers, cls._rope(config), {})] if layers else []

    @staticmethod
    def _rope(config: HybridConfig) -> RopeArguments:
        return {"base": config.rope_theta, "dims": config.rotary_dims, "scaling": config.rope_scaling}

    @classmethod
    def states(cls, config: ModelConfig) -> States:
        assert isinstance(config, HybridConfig)
        return config.sizes.states(config.layers(LINEAR))


def experts_plan(c: HybridConfig) -> ExpertsPlan:
    return ExpertsPlan(
        c.num_experts,
        c.num_experts_per_tok,
        c.moe_intermediate_size,
        scores="normed" if c.norm_topk_prob else "softmax",
        shared_inner=c.shared_expert_intermediate_size,
        shared_gate=True,
    )


def _linear_fields(reader: Reader) -> dict[str, int]:
    return {key: reader.within(key, 1, 2**20, default) for key, default in _LINEAR_DEFAULTS.items()}


def expert_sizes(reader: Reader, count: int, default: int) -> Fields:
    return {
        "num_experts": count,
        "num_experts_per_tok": reader.within("num_experts_per_tok", 1, count, default),
        "moe_intermediate_size": reader.within("moe_intermediate_size", 1, _MOST, 512),
        "shared_expert_intermediate_size": reader.within("shared_expert_intermediate_size", 1, _MOST, 512),
    }


def _check(config: HybridConfig, where: str) -> None:
    if config.linear_num_value_heads % config.linear_num_key_heads:
        raise FormatError(
            f"[models.config] {where}: linear_num_value_heads: got {config.linear_num_value_heads}, "
            f"allowed a multiple of linear_num_key_heads ({config.linear_num_key_heads})"
        )
    if config.rotary_dims < 2 or config.rotary_dims % 2:
        raise FormatError(
            f"[models.config] {where}: partial_rotary_factor: got {config.rotary_dims} rotated of "
            f"{config.head_dim} numbers (head_dim), allowed an even number of at least 2"
        )
