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
    found, keys = {**d.dense(), "sliding_window": None}, d.keys
    key, other = ".rope.scaling.yarn_log_multiplier", ".rope.scaling.yarn_attn_factor"
    all_dim, scaling = keys.number(key, 0.0), found.get("rope_scaling")
    if all_dim < 0:
        raise keys.error(key, all_dim, "0 or more")
    if not all_dim or not isinstance(scaling, dict) or scaling["rope_type"] != "yarn":
        return found
    if keys.has(other):  # what replaces the factor of attention
        raise keys.error(other, keys.number(other, 1.0), f"none beside {key[1:]}")
    return {**found, "rope_scaling": {**scaling, "mscale": 1.0, "mscale_all_dim": all_dim}}


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
