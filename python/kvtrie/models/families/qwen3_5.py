"""Qwen3.5 text (Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, and the text model of their ForConditionalGeneration).

Qwen3-Next's layers with four input projections instead of two fused ones; every MLP dense, or every one with experts.
Text has one position for each token, so the three axes of its multimodal RoPE are equal and it is plain RoPE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import gguf_settings
from ..common_settings import not_read
from ..experts_config import Fields
from ..gguf_form import GgufForm
from ..reader import Raw, Reader
from ..settings import Settings
from ..stored import FURTHER, IMAGES
from .qwen3_next import EXPERTS, GGUF_LEAVES, HYBRID, Qwen3Next, expert_sizes, hybrid_from_gguf, sparse_from_gguf

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_AXES = 3  # of multimodal positions: time, height, width


def _dense_from_gguf(d: Description) -> dict[str, object]:
    _check_sections(d)
    return {**hybrid_from_gguf(d), "intermediate_size": d.per_block(".feed_forward_length")}


def _experts_from_gguf(d: Description) -> dict[str, object]:
    _check_sections(d)
    return sparse_from_gguf(d)


def _check_sections(d: Description) -> None:
    """Pairs belong to the axes in turn, each axis to as many pairs as its section says. A pair that is left goes to a
    fourth axis, which no text has: llama.cpp does not rotate it."""
    key = ".rope.dimension_sections"
    if not d.keys.has(key):
        return
    sections = [int(each) for each in d.keys.numbers(key, _AXES + 1)]
    whole = max(sum(sections), 1)
    for pair in range(d.rotated() // 2):
        sector = pair % whole
        if min(sections) < 0 or sector >= _AXES * sections[sector % _AXES]:
            raise d.keys.error(key, str(sections), f"{_AXES} axes that share {d.rotated() // 2} pairs, and 0")


def _form(reads: Callable[[Description], dict[str, object]], settings: Settings) -> GgufForm:
    own = {**settings, **gguf_settings.HYBRID, **gguf_settings.SECTIONS}
    return GgufForm(reads, GGUF_LEAVES, own, offset_norms=True, round_robin=True)


class Qwen35(Qwen3Next):
    family = "qwen3_5_text"
    architectures = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
    gguf = {"qwen35": _form(_dense_from_gguf, gguf_settings.DENSE)}  # noqa: RUF012
    settings = HYBRID
    defaults = {**Qwen3Next.defaults, "intermediate_size": 12_288, "num_key_value_heads": 4}  # noqa: RUF012 (the same)
    ignored = {**FURTHER, **IMAGES}  # noqa: RUF012 (the same)
    fused_projections = False

    @classmethod
    def expert_fields(cls, raw: Raw, where: str) -> Fields:  # noqa: ARG003 (it has none)
        return {}


class Qwen35Moe(Qwen3Next):
    family = "qwen3_5_moe_text"
    architectures = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
    gguf = {"qwen35moe": _form(_experts_from_gguf, gguf_settings.EXPERTS)}  # noqa: RUF012
    settings = {**HYBRID, **EXPERTS, **not_read("intermediate_size")}  # noqa: RUF012 (the same)
    ignored = {**FURTHER, **IMAGES}  # noqa: RUF012 (the same)
    fixed = {"mlp_bias": False, "intermediate_size": 1}  # noqa: RUF012 (the same): every layer has experts
    fused_projections = False

    @classmethod
    def expert_fields(cls, raw: Raw, where: str) -> Fields:
        reader = Reader(raw, where)
        sizes = expert_sizes(reader, reader.within("num_experts", 1, 2**20, 256), 8)
        return {**sizes, "norm_topk_prob": True, "expert_layers": tuple(range(reader.layers()))}
