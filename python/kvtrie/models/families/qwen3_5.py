"""Qwen3.5 text (Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, and the text model of their ForConditionalGeneration).

Qwen3-Next's layers with four input projections instead of two fused ones; every MLP dense, or every one with experts.
Text has one position for each token, so the three axes of its multimodal RoPE are equal and it is plain RoPE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..common_settings import not_read
from ..gguf_form import GgufForm
from ..reader import Raw, Reader
from ..stored import FURTHER, IMAGES
from .qwen3_next import EXPERTS, GGUF_LEAVES, HYBRID, Qwen3Next, expert_sizes, experts_from_gguf, hybrid_from_gguf

if TYPE_CHECKING:
    from ..gguf.metadata import Description


def _dense_from_gguf(d: Description) -> dict[str, object]:
    return {**hybrid_from_gguf(d), "intermediate_size": d.keys.integer(".feed_forward_length")}


class Qwen35(Qwen3Next):
    family = "qwen3_5_text"
    architectures = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
    gguf = {"qwen35": GgufForm(_dense_from_gguf, GGUF_LEAVES, offset_norms=True, round_robin=True)}  # noqa: RUF012
    settings = HYBRID
    defaults = {**Qwen3Next.defaults, "intermediate_size": 12_288, "num_key_value_heads": 4}  # noqa: RUF012 (the same)
    ignored = {**FURTHER, **IMAGES}  # noqa: RUF012 (the same)
    fused_projections = False

    @classmethod
    def expert_fields(cls, raw: Raw, where: str) -> dict[str, Any]:  # noqa: ARG003 (it has none)
        return {}


class Qwen35Moe(Qwen3Next):
    family = "qwen3_5_moe_text"
    architectures = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
    gguf = {"qwen35moe": GgufForm(experts_from_gguf, GGUF_LEAVES, offset_norms=True, round_robin=True)}  # noqa: RUF012
    settings = {**HYBRID, **EXPERTS, **not_read("intermediate_size")}  # noqa: RUF012 (the same)
    ignored = {**FURTHER, **IMAGES}  # noqa: RUF012 (the same)
    fixed = {"mlp_bias": False, "intermediate_size": 1}  # noqa: RUF012 (the same): every layer has experts
    fused_projections = False

    @classmethod
    def expert_fields(cls, raw: Raw, where: str) -> dict[str, Any]:
        reader = Reader(raw, where)
        sizes = expert_sizes(reader, reader.within("num_experts", 1, 2**20, 256), 8)
        return {**sizes, "norm_topk_prob": True, "expert_layers": tuple(range(reader.layers()))}
