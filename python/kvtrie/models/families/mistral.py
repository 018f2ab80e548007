"""Mistral and Ministral (MistralForCausalLM, MinistralForCausalLM): Llama's block; layers may see a window.

Of Mistral all layers see it or none, of Ministral ``layer_types`` says which. Mistral3ForConditionalGeneration has the
first, or Ministral 3 (ministral3.py), as its text model. Source: Jiang et al. 2023 (arXiv 2310.06825) and the Hugging
Face configurations. GGUF files have them as ``llama``.
"""

from __future__ import annotations

from typing import ClassVar

from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, one_window, some_windows
from ..common_settings import COMMON, WINDOW, not_read
from ..experts_config import Fields
from ..reader import Raw, Reader
from ..rope_config import FULL, SLIDING
from ..stored import IMAGES

_WINDOW = 4096


class Mistral(CausalModel):
    family = "mistral"
    architectures: ClassVar[tuple[str, ...]] = ("MistralForCausalLM", "Mistral3ForConditionalGeneration")
    outer = "mistral3"
    settings = {**COMMON, **WINDOW, **not_read("mlp_bias", "attention_bias")}  # noqa: RUF012 (a ClassVar of Model's)
    ignored = IMAGES
    defaults = {"max_position_embeddings": 131_072, "num_key_value_heads": 8, "intermediate_size": 14_336}  # noqa: RUF012 (the same)
    fixed = {"mlp_bias": False, "attention_bias": False}  # noqa: RUF012 (the same)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        return one_window(raw, reader, where, _WINDOW)

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan()


class Ministral(Mistral):
    family = "ministral"
    architectures = ("MinistralForCausalLM",)
    outer = ""

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        kind = FULL if reader.null("sliding_window") else SLIDING
        return some_windows(raw, reader, where, [kind] * reader.layers(), _WINDOW)
