"""Qwen3 with experts (Qwen3MoeForCausalLM): Qwen3's attention, experts without a shared one.

Source: Yang et al. 2025 (arXiv 2505.09388) and the Hugging Face configuration. Qwen3-Coder is the same.
"""

from __future__ import annotations

from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, no_windows, one_window
from ..common_settings import COMMON, NO_CHUNKS, SIZE, SWITCHED_WINDOWS, not_read
from ..experts_config import LEAVES, SPARSE, Fields, count_of, experts_from_gguf, sparse_fields
from ..gguf_form import GgufForm
from ..reader import Raw, Reader

_EXPERTS = {"num_experts_per_tok": 8, "moe_intermediate_size": 768}


class Qwen3Moe(CausalModel):
    family = "qwen3_moe"
    architectures = ("Qwen3MoeForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **COMMON,
        **SWITCHED_WINDOWS,
        **NO_CHUNKS,
        **not_read("mlp_bias", "max_window_layers"),
        **SPARSE,
        "num_local_experts": SIZE,
    }
    gguf = {  # noqa: RUF012 (the same)
        "qwen3moe": GgufForm(
            lambda d: {**d.attending(), **experts_from_gguf(d), "norm_topk_prob": True},
            LEAVES,
            gguf_settings.ROUTED,
        )
    }
    defaults = {"max_position_embeddings": 32_768, "num_key_value_heads": 4, "intermediate_size": 6144}  # noqa: RUF012 (the same)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        count = count_of(raw, reader, "num_experts", "num_local_experts", 0, 128)
        return {**sparse_fields(reader, count, _EXPERTS, norm=False), **_windows(raw, reader, where)}

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(config.attention_bias, config.attention_bias, norms=True)


def _windows(raw: Raw, reader: Reader, where: str) -> Fields:
    """Of all layers, or of none."""
    if reader.flag("use_sliding_window", False):
        return one_window(raw, reader, where, 4096)
    return no_windows(raw, reader, where)
