"""Gemma 3 text (Gemma3ForCausalLM, and the text model of Gemma3ForConditionalGeneration).

Four norms a block, each multiplying by (1 + weight), norms over the heads of q and k, GeGLU, embeddings times
sqrt(hidden). Most layers see a sliding window, each sixth one everything; the two kinds rotate with different RoPE
parameters. Source: Gemma Team 2025 (arXiv 2503.19786) and the Hugging Face configuration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ... import ops
from ..._core import Tensor
from .. import gguf_settings
from ..attention import AttentionPlan
from ..attention_group import AttentionGroup
from ..base import Model
from ..causal import softcap
from ..common_settings import COMMON, not_read
from ..config import ModelConfig, check, common_fields, layer_kinds, refuse_activation, refuse_quantised, text_part
from ..decoder import SANDWICH, LayerPlan, MlpPlan
from ..gemma_gguf import SANDWICH_LEAVES
from ..gguf_form import GgufForm
from ..reader import Raw, Reader
from ..rope_arguments import RopeArguments, Scaling
from ..rope_config import FULL, SLIDING, ropes_of_kinds
from ..settings import Settings, neutral, read, refused
from ..stored import IMAGES
from ..weight_table import WeightTable
from ..weights import Array

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_MAX_POSITIONS = 131_072
# Values that checkpoints leave out because they are the defaults of Hugging Face's configuration.
_DEFAULTS: dict[str, object] = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": _MAX_POSITIONS,
    "tie_word_embeddings": True,
}
_THETA = {FULL: 1_000_000.0, SLIDING: 10_000.0}
_FIXED = {"mlp_bias": False}
_SETTINGS: Settings = {
    **COMMON,
    **not_read(*_FIXED, "hidden_act"),
    "hidden_activation": read("gelu_pytorch_tanh; others are refused"),
    "sliding_window": read("tokens that a sliding layer sees, its own among them"),
    "sliding_window_pattern": read("where layer_types is absent, each n-th layer sees everything"),
    "_sliding_window_pattern": neutral("transformers writes it and reads layer_types"),
    "query_pre_attn_scalar": read("scores are divided by its square root"),
    "final_logit_softcapping": read("where logits level off"),
    "attn_logit_softcapping": refused("transformers has the key and does not apply it: it means one of two models"),
    "attention_chunk_size": refused("layers see a window, or everything"),
    "original_max_position_embeddings": refused("each kind of layers has its own, in rope_parameters"),
    "rope_local_base_freq": read("RoPE: the base of sliding layers"),
}


@dataclass(frozen=True)
class Gemma3Config(ModelConfig):
    """``rope_theta`` and ``rope_scaling`` are those of the full layers.

    ``sliding_window``: keys that a sliding layer sees, the current one among them.
    """

    layer_types: tuple[str, ...] = ()
    sliding_window: int = 0
    rope_local_theta: float = 10_000.0
    rope_local_scaling: Scaling | None = None
    query_pre_attn_scalar: float = 256.0
    final_logit_softcapping: float | None = None


_GEMMA_27B_LAYERS = 62  # only this size scales attention by hidden / heads; no key of a GGUF file says so
_PATTERN = 6  # each n-th layer sees everything


def _from_gguf(d: Description) -> dict[str, object]:
    keys, scalar = d.keys, d.head_dim()
    if d.layers == _GEMMA_27B_LAYERS:
        scalar = keys.integer(".embedding_length") // d.heads
    d.check_sliding_sizes()
    window = keys.integer(".attention.sliding_window", 0, default=0)
    kinds = [SLIDING if slides else FULL for slides in d.slides(_PATTERN)]
    cap = keys.number(".final_logit_softcapping", 0.0)
    if cap < 0:
        raise keys.error(".final_logit_softcapping", cap, "0 or more")
    return {
        **d.dense(scalar, keys.positive_of(".rope.freq_base", ".rope.global.freq_base", 10_000.0)),
        "rope_local_base_freq": keys.positive_of(".rope.freq_base_swa", ".rope.local.freq_base", 10_000.0),
        "query_pre_attn_scalar": scalar,
        "layer_types": kinds if window else [FULL] * d.layers,
        "sliding_window": window or None,
        **({"final_logit_softcapping": cap} if cap else {}),
    }


_GGUF = GgufForm(
    _from_gguf,
    SANDWICH_LEAVES,
    settings={**gguf_settings.DENSE, **gguf_settings.WINDOWED},
    offset_norms=True,
)


class Gemma3(Model):
    family = "gemma3_text"
    architectures = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
    settings = _SETTINGS
    ropes_by_kind = True
    ignored = IMAGES
    gguf = {"gemma3": _GGUF}  # noqa: RUF012 (a ClassVar of Model's)
    norm_offset = 1.0

    config: Gemma3Config

    @classmethod
    def parse_config(cls, raw: Raw, generation: Raw | None = None, where: str = "config") -> Gemma3Config:
        raw = text_part(raw, where)
        refuse_quantised(raw, where)
        refuse_activation(raw, where, "hidden_activation", ("gelu_pytorch_tanh",))
        reader = Reader(raw, where, _DEFAULTS)
        kinds = _kinds(raw, reader.layers(), where)
        ropes = ropes_of_kinds(raw, where, _THETA, _MAX_POSITIONS)
        fields = common_fields(reader, raw, ropes[FULL], cls.family, generation=generation, where=where, fixed=_FIXED)
        config = Gemma3Config(
            **fields,
            layer_types=kinds,
            sliding_window=_window(reader) if SLIDING in kinds else 0,
            rope_local_theta=ropes[SLIDING].theta,
            rope_local_scaling=ropes[SLIDING].scaling,
            query_pre_attn_scalar=reader.positive("query_pre_attn_scalar", 256.0),
            final_logit_softcapping=_softcap(reader, raw),
        )
        check(config, where)
        return config

    @classmethod
    def layer_plan(cls, config: ModelConfig, index: int) -> LayerPlan:  # noqa: ARG003 (all are alike but for rotation)
        assert isinstance(config, Gemma3Config)
        bias, scale = config.attention_bias, config.query_pre_attn_scalar**-0.5
        mixer = AttentionPlan(bias, bias, norms=True, scale=scale)
        return LayerPlan(mixer, MlpPlan(config.intermediate_size, "gelu"), norms=SANDWICH)

    def build_rest(self, weights: WeightTable) -> None:
        width = self.config.hidden_size
        self._embedding_scale = weights.constant(np.full(width, math.sqrt(width)))

    @classmethod
    def attention_groups(cls, config: ModelConfig) -> list[AttentionGroup]:
        assert isinstance(config, Gemma3Config)
        ropes: dict[str, RopeArguments] = {
            FULL: {"base": config.rope_theta, "scaling": config.rope_scaling},
            SLIDING: {"base": config.rope_local_theta, "scaling": config.rope_local_scaling},
        }
        sees: dict[str, dict[str, int]] = {FULL: {}, SLIDING: {"window": config.sliding_window}}
        groups = []
        for kind in (FULL, SLIDING):
            layers = tuple(index for index, found in enumerate(config.layer_types) if found == kind)
            if layers:
                groups.append(AttentionGroup(layers, ropes[kind], sees[kind]))
        return groups

    def embed(self, tokens: Array) -> Tensor:
        return ops.mul(super().embed(tokens), self._embedding_scale)

    def finish(self, logits: Tensor) -> Tensor:
        cap = self.config.final_logit_softcapping
        return logits if cap is None else softcap(logits, cap)


def _window(reader: Reader) -> int:
    """Raises ``kv.errors.FormatError`` for null, of which transformers makes no mask."""
    return reader.within("sliding_window", 1, 2**31 - 1, None if reader.null("sliding_window") else 4096)


def _softcap(reader: Reader, raw: Raw) -> float | None:
    return None if raw.get("final_logit_softcapping") is None else reader.positive("final_logit_softcapping")


def _kinds(raw: Raw, layers: int, where: str) -> tuple[str, ...]:
    """``layer_types``; files of 2025 have ``sliding_window_pattern`` instead: every n-th layer is full."""
    every = Reader(raw, where).within("sliding_window_pattern", 1, 2**31 - 1, _PATTERN)
    default = [SLIDING if (index + 1) % every else FULL for index in range(layers)]
    return layer_kinds(raw, layers, (FULL, SLIDING), default, where)
