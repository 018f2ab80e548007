"""Qwen2 and Qwen2.5 (Qwen2ForCausalLM): Llama's block with biases on q, k and v and none on o.

Source: Yang et al. 2024 (arXiv 2407.10671) and the Hugging Face configuration.
"""

from __future__ import annotations

from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, switched_windows, windows_behind
from ..common_settings import COMMON, SWITCHED_WINDOWS, not_read
from ..experts_config import Fields
from ..gguf_form import GgufForm
from ..reader import Raw, Reader


class Qwen2(CausalModel):
    family = "qwen2"
    architectures = ("Qwen2ForCausalLM",)
    gguf = {"qwen2": GgufForm(lambda d: d.dense(), settings=gguf_settings.DENSE)}  # noqa: RUF012 (a ClassVar of Model's)
    settings = {**COMMON, **SWITCHED_WINDOWS, **not_read("attention_bias", "mlp_bias")}  # noqa: RUF012 (the same)
    defaults = {"max_position_embeddings": 32_768, "num_key_value_heads": 32}  # noqa: RUF012 (the same)
    fixed = {"attention_bias": True, "mlp_bias": False}  # noqa: RUF012 (the same)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        return switched_windows(raw, reader, where, lambda: windows_behind(reader, 28))

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(bias=True)
