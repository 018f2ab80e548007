"""Granite (GraniteForCausalLM, GraniteMoeForCausalLM): Llama's block, with multipliers.

They are of embeddings, scores, residuals and logits. Its second form has experts in every layer. Source: Granite Team
2024 and the Hugging Face configurations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, no_windows
from ..common_settings import CHOSEN, COMMON, SIZE, WINDOWLESS, not_read
from ..experts_config import LEAVES, MOST_EXPERTS, Fields, sparse_layers
from ..gguf_form import GgufForm
from ..reader import Raw, Reader
from ..settings import Settings, neutral, read

if TYPE_CHECKING:
    from ..gguf.metadata import Description

MULTIPLIERS: Settings = {
    "embedding_multiplier": read("embeddings are multiplied by it"),
    "attention_multiplier": read("scores are multiplied by it; null: by 1 / sqrt(head_dim)"),
    "residual_multiplier": read("what attention and MLPs add is multiplied by it"),
    "logits_scaling": read("logits are divided by it"),
}
SCALES_OF_GGUF: Settings = {
    ".embedding_scale": read("embeddings are multiplied by it; 0: they are not"),
    ".attention.scale": read("scores are multiplied by it; 0: by 1 / sqrt of a head's size"),
    ".residual_scale": read("what attention and MLPs add is multiplied by it; 0: it is not"),
    ".logit_scale": read("logits are divided by it; 0: they are not"),
}


ROTATES: Settings = {".rope.scaling.finetuned": neutral("layers that attend rotate", True)}


def scales_from_gguf(d: Description) -> Fields:
    def scale(key: str, otherwise: float) -> float:
        value = d.keys.number(key, 0.0)
        if value < 0:
            raise d.keys.error(key, value, "0 or more")
        return value or otherwise

    return {
        "embedding_multiplier": scale(".embedding_scale", 1.0),
        "attention_multiplier": scale(".attention.scale", d.head_dim() ** -0.5),
        "residual_multiplier": scale(".residual_scale", 1.0),
        "logits_scaling": scale(".logit_scale", 1.0),
    }


def _dense(d: Description) -> dict[str, object]:
    scales = scales_from_gguf(d)
    return {**d.dense(scales["attention_multiplier"] ** -2), **scales}


def _sparse(d: Description) -> dict[str, object]:
    scales, (_, count) = scales_from_gguf(d), sparse_layers(d)
    return {
        **d.attending(scales["attention_multiplier"] ** -2),
        **scales,
        "intermediate_size": d.per_block(".feed_forward_length"),
        "num_local_experts": d.keys.integer(".expert_count", count, count),
        "num_experts_per_tok": d.per_block(".expert_used_count", 1, count),
    }


def _form(reads: Callable[[Description], dict[str, object]], settings: Settings) -> GgufForm:
    return GgufForm(reads, LEAVES, {**settings, **SCALES_OF_GGUF, **ROTATES}, pairs=True)


def multipliers(reader: Reader) -> Fields:
    return {
        "embedding_multiplier": reader.number("embedding_multiplier", 1.0),
        "attention_multiplier": None
        if reader.null("attention_multiplier")
        else reader.number("attention_multiplier", 1.0),
        "residual_multiplier": reader.number("residual_multiplier", 1.0),
        "logits_multiplier": 1.0 / reader.positive("logits_scaling", 1.0),
    }


class Granite(CausalModel):
    family = "granite"
    architectures = ("GraniteForCausalLM",)
    settings = {**COMMON, **WINDOWLESS, **MULTIPLIERS, "mlp_bias": read("whether the MLPs have biases")}  # noqa: RUF012 (a ClassVar of Model's)
    gguf = {"granite": _form(_dense, gguf_settings.DENSE)}  # noqa: RUF012 (the same)
    fixed = {}  # noqa: RUF012 (the same)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        no_windows(raw, reader, where)
        return multipliers(reader)

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(config.attention_bias, config.attention_bias, scale=config.attention_multiplier)


class GraniteMoe(Granite):
    family = "granitemoe"
    architectures = ("GraniteMoeForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **COMMON,
        **WINDOWLESS,
        **MULTIPLIERS,
        **not_read("mlp_bias"),
        "num_local_experts": SIZE,
        "num_experts_per_tok": CHOSEN,
    }
    gguf = {"granitemoe": _form(_sparse, gguf_settings.ROUTED_WITHOUT_WIDTH)}  # noqa: RUF012 (the same)
    fixed = {"mlp_bias": False}  # noqa: RUF012 (the same)
    renamed = (
        (".block_sparse_moe.input_linear.weight", ".mlp.experts.gate_up_proj"),
        (".block_sparse_moe.output_linear.weight", ".mlp.experts.down_proj"),
        (".block_sparse_moe.router.layer.", ".mlp.gate."),
        (".block_sparse_moe.router.", ".mlp.gate."),
        (".block_sparse_moe.", ".mlp."),
    )

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        count = reader.within("num_local_experts", 1, MOST_EXPERTS, 8)
        return {
            **super().own_fields(raw, reader, where),
            "num_experts": count,
            "num_experts_per_tok": reader.within("num_experts_per_tok", 1, count, 2),
            "moe_intermediate_size": reader.integer("intermediate_size"),
            "expert_layers": tuple(range(reader.layers())),
        }
