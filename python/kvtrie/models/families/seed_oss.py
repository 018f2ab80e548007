"""Seed-OSS (SeedOssForCausalLM): Llama's block; biases of q, k and v apart from that of what comes out.

Source: ByteDance Seed 2025 and the Hugging Face configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, no_windows
from ..common_settings import COMMON, WINDOWLESS
from ..experts_config import Fields
from ..gguf_form import GgufForm
from ..reader import Raw, Reader
from ..settings import read

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_LEAVES = {"post_attention_layernorm": "post_attention_norm"}


def _from_gguf(d: Description) -> dict[str, object]:
    biases = {"attention_bias": "attn_q.bias", "attention_out_bias": "attn_output.bias"}
    return {**d.dense(), **{key: d.in_any_layer(tensor) for key, tensor in biases.items()}}


class SeedOss(CausalModel):
    family = "seed_oss"
    architectures = ("SeedOssForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **COMMON,
        **WINDOWLESS,
        "mlp_bias": read("whether the MLPs have biases"),
        "attention_out_bias": read("whether attention's last projection has a bias"),
    }
    gguf = {"seed_oss": GgufForm(_from_gguf, _LEAVES, gguf_settings.DENSE)}  # noqa: RUF012 (the same)
    defaults = {  # noqa: RUF012 (the same)
        "max_position_embeddings": 524_288,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_bias": True,
    }
    fixed = {}  # noqa: RUF012 (the same)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        no_windows(raw, reader, where)
        return {"attention_out_bias": reader.flag("attention_out_bias")}

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(config.attention_bias, config.attention_out_bias)
