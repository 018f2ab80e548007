"""Qwen3 dense (Qwen3ForCausalLM): Llama's block with an RMS norm over each head of q and k before RoPE.

Source: Yang et al. 2025 (arXiv 2505.09388) and the Hugging Face configuration; its default head_dim is 128, not
hidden / heads.
"""

from __future__ import annotations

from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, switched_windows, windows_behind
from ..common_settings import COMMON, SWITCHED_WINDOWS, not_read
from ..experts_config import Fields
from ..gguf_form import GgufForm
from ..reader import Raw, Reader


class Qwen3(CausalModel):
    family = "qwen3"
    architectures = ("Qwen3ForCausalLM",)
    gguf = {"qwen3": GgufForm(lambda d: d.dense(), settings=gguf_settings.DENSE)}  # noqa: RUF012 (a ClassVar of Model's)
    settings = {**COMMON, **SWITCHED_WINDOWS, **not_read("mlp_bias")}  # noqa: RUF012 (the same)
    defaults = {"head_dim": 128, "max_position_embeddings": 32_768, "num_key_value_heads": 32}  # noqa: RUF012 (the same)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        return switched_windows(raw, reader, where, lambda: windows_behind(reader, 28))

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(config.attention_bias, config.attention_bias, norms=True)
