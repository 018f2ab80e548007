"""Bamba (BambaForCausalLM): Llama's block whose mixer is Mamba-2 in most layers, and attention in the others.

Half of each head rotates. Source: IBM, Princeton, CMU and UIUC 2024 and the Hugging Face configuration.
"""

from __future__ import annotations

from typing import ClassVar

from ..attention import AttentionPlan
from ..causal import CausalConfig
from ..common_settings import COMMON, WINDOWLESS, not_read
from ..config import ModelConfig
from ..decoder import MixerPlan
from ..experts_config import Fields
from ..mamba2 import Mamba2Plan, mamba2_states
from ..mamba_config import LINEAR, MAMBA, mamba_fields
from ..reader import Raw, Reader, changed
from ..recurrent import RecurrentConfig, RecurrentModel
from ..rope_config import FULL, PARTIAL, RopeFields
from ..settings import neutral, read, refused
from ..states import States

_MOST = 2**31 - 1


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
