"""Bamba (BambaForCausalLM): Llama's block whose mixer is Mamba-2 in most layers, and attention in the others.

Half of each head rotates. Source: IBM, Princeton, CMU and UIUC 2024 and the Hugging Face configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig
from ..common_settings import COMMON, WINDOWLESS, not_read
from ..config import ModelConfig
from ..decoder import MixerPlan
from ..experts_config import Fields
from ..gguf_form import GgufForm
from ..mamba2 import Mamba2Plan, mamba2_states
from ..mamba_config import LINEAR, MAMBA, MAMBA_KEYS, MAMBA_LEAVES, mamba_fields, mamba_from_gguf
from ..reader import Raw, Reader, changed
from ..recurrent import RecurrentConfig, RecurrentModel
from ..rope_config import FULL, PARTIAL, RopeFields
from ..settings import Settings, neutral, read, refused
from ..states import States
from .granite import ROTATES

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_MOST = 2**31 - 1

_GGUF: Settings = {
    **gguf_settings.DENSE,
    **MAMBA_KEYS,
    ".attention.head_count_kv": read("heads of k and v of each layer; 0: it is recurrent"),
    ".rope.dimension_count": read("rotated numbers of each head"),
    **ROTATES,
}


def _from_gguf(d: Description) -> dict[str, object]:
    """Of a file of Granite 4's architecture that rotates a part of each head, as no Granite does."""
    partly, mamba = d.partly(), mamba_from_gguf(d)
    rotated = {"partial_rotary_factor": partly.pop("partial_rotary_factor"), "rope_theta": partly.pop("rope_theta")}
    scaling, inner, hidden = partly.pop("rope_scaling", None), d.keys.integer(".ssm.inner_size"), partly["hidden_size"]
    assert isinstance(hidden, int)
    if inner % hidden:
        raise d.keys.error(".ssm.inner_size", inner, f"a multiple of {hidden}")
    return {
        **partly,
        **mamba,
        "mamba_expand": inner // hidden,
        "rope_parameters": {"rope_type": "default", **(scaling if isinstance(scaling, dict) else {}), **rotated},
        "mlp_bias": d.in_any_layer("ffn_gate.bias"),
        "attn_layer_indices": [layer for layer, attends in enumerate(d.attends()) if attends],
    }


class Bamba(RecurrentModel):
    family = "bamba"
    architectures = ("BambaForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **COMMON,
        **WINDOWLESS,
        **MAMBA,
        "mlp_bias": read("whether the MLPs have biases"),
        "attn_layer_indices": read("the layers that attend; others are recurrent"),
        "layer_types": refused("attn_layer_indices says it"),
        "layers_block_type": refused("attn_layer_indices says it"),
        "partial_rotary_factor": neutral("half of each head rotates, unless rope_parameters say otherwise"),
        "num_logits_to_keep": neutral("what transformers' models return beside logits"),
        "z_loss_coefficient": neutral("seen in training only"),
        **not_read("attn_rotary_emb", "mamba_bias"),
    }
    gguf = {"granitehybrid/partly": GgufForm(_from_gguf, MAMBA_LEAVES, _GGUF, pairs=True)}  # noqa: RUF012 (the same)
    defaults = {  # noqa: RUF012 (the same)
        "max_position_embeddings": 262_144,
        "num_key_value_heads": 8,
        "intermediate_size": 14_336,
        "rms_norm_eps": 1e-5,
    }
    fixed = {}  # noqa: RUF012 (the same)
    partial = 0.5
    whole = False
    renamed: ClassVar[tuple[tuple[str, str], ...]] = (
        (".feed_forward.", ".mlp."),
        (".pre_ff_layernorm.", ".post_attention_layernorm."),
        ("model.final_layernorm.", "model.norm."),
    )

    @classmethod
    def read_ropes(cls, raw: Raw, where: str) -> dict[str, RopeFields]:
        return super().read_ropes(changed(raw, {PARTIAL: cls.partial}), where)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        attending = reader.integers("attn_layer_indices", -_MOST, _MOST) or ()
        kinds = tuple(FULL if index in attending else LINEAR for index in range(reader.layers()))
        return {**mamba_fields(raw, reader, where), "layer_types": kinds}

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(config.attention_bias, config.attention_bias, scale=config.attention_multiplier)

    @classmethod
    def mixer(cls, config: CausalConfig, index: int) -> MixerPlan:
        assert isinstance(config, RecurrentConfig)
        return cls.attention(config, index) if config.layer_types[index] == FULL else Mamba2Plan(config)

    @classmethod
    def states(cls, config: ModelConfig) -> States:
        assert isinstance(config, RecurrentConfig)
        layers = tuple(index for index, kind in enumerate(config.layer_types) if kind == LINEAR)
        return mamba2_states(layers, config)
