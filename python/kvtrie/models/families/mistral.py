"""Mistral and Ministral (MistralForCausalLM, MinistralForCausalLM): Llama's block; layers may see a window.

Of Mistral all layers see it or none, of Ministral ``layer_types`` says which. Mistral3ForConditionalGeneration has the
first, or Ministral 3 (ministral3.py), as its text model. Source: Jiang et al. 2023 (arXiv 2310.06825) and the Hugging
Face configurations. GGUF files have them as ``llama``, what was inside of Mistral3ForConditionalGeneration as
``mistral3``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, one_window, some_windows
from ..common_settings import COMMON, WINDOW, not_read
from ..experts_config import Fields
from ..gguf_form import GgufForm
from ..reader import Raw, Reader
from ..rope_config import FULL, SLIDING
from ..settings import Settings, read
from ..stored import IMAGES

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_WINDOW = 4096
GGUF_SETTINGS: Settings = {
    **gguf_settings.DENSE,
    ".rope.scaling.yarn_log_multiplier": read("mscale_all_dim of yarn beside an mscale of 1; 0: there is neither"),
}


def mistral3_from_gguf(d: Description) -> dict[str, object]:
    """Of files with the architecture ``mistral3``, which have no windows."""
    found = d.dense()
    all_dim = round(d.keys.number(".rope.scaling.yarn_log_multiplier", 0.0), 6)  # of a float32
    scaling = found.get("rope_scaling")
    if all_dim and isinstance(scaling, dict) and scaling["rope_type"] == "yarn":
        found["rope_scaling"] = {**scaling, "mscale": 1.0, "mscale_all_dim": all_dim}
    return {**found, "sliding_window": None}


class Mistral(CausalModel):
    family = "mistral"
    architectures: ClassVar[tuple[str, ...]] = ("MistralForCausalLM", "Mistral3ForConditionalGeneration")
    outer = "mistral3"
    settings = {**COMMON, **WINDOW, **not_read("mlp_bias", "attention_bias")}  # noqa: RUF012 (a ClassVar of Model's)
    gguf: ClassVar[Mapping[str, GgufForm]] = {
        "mistral3": GgufForm(mistral3_from_gguf, settings=GGUF_SETTINGS, pairs=True, divided=True)
    }
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
    gguf: ClassVar[Mapping[str, GgufForm]] = {}

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        kind = FULL if reader.null("sliding_window") else SLIDING
        return some_windows(raw, reader, where, [kind] * reader.layers(), _WINDOW)
