"""MiniMax-M2 (MiniMaxM2ForCausalLM): experts in every layer, chosen by their sigmoid and a bias.

A part of each head rotates; norms go over all heads of q and of k. Source: MiniMax 2025 and the Hugging Face
configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, no_windows
from ..common_settings import CHOSEN, COMMON, SIZE, WINDOWLESS, not_read
from ..experts_config import BLOCK_SPARSE, LEAVES, Fields, experts_from_gguf, in_every_layer
from ..gguf_form import GgufForm
from ..moe import ExpertsPlan, Ranking
from ..reader import Raw, Reader, changed
from ..rope_config import PARTIAL, RopeFields
from ..settings import Settings, neutral, read

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_GGUF: Settings = {**gguf_settings.ROUTED, ".expert_gating_func": neutral("sigmoid", 2)}


def _from_gguf(d: Description) -> dict[str, object]:
    experts = experts_from_gguf(d)
    return {
        **d.partly(),
        "num_local_experts": experts["num_experts"],
        "num_experts_per_tok": experts["num_experts_per_tok"],
        "intermediate_size": experts["moe_intermediate_size"],
    }


class MiniMaxM2(CausalModel):
    family = "minimax_m2"
    architectures = ("MiniMaxM2ForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **COMMON,
        **WINDOWLESS,
        **not_read("mlp_bias", "attention_bias"),
        **dict.fromkeys(("num_local_experts", "num_experts"), SIZE),
        "num_experts_per_tok": CHOSEN,
        "rotary_dim": read("numbers of each head that rotate, where partial_rotary_factor is absent"),
    }
    gguf = {"minimax-m2": GgufForm(_from_gguf, LEAVES, _GGUF)}  # noqa: RUF012 (the same)
    defaults = {  # noqa: RUF012 (the same)
        "max_position_embeddings": 196_608,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 1536,
    }
    fixed = {"mlp_bias": False, "attention_bias": False}  # noqa: RUF012 (the same)
    theta = 5e6
    whole = False
    renamed = BLOCK_SPARSE

    @classmethod
    def read_ropes(cls, raw: Raw, where: str) -> dict[str, RopeFields]:
        if raw.get("rotary_dim") is None or PARTIAL in raw:
            return super().read_ropes(raw, where)
        reader = Reader(raw, where, cls.defaults)
        share = reader.within("rotary_dim", 1, 2**31 - 1) / max(reader.integer("head_dim"), 1)
        return super().read_ropes(changed(raw, {PARTIAL: share}), where)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        no_windows(raw, reader, where)
        return in_every_layer(raw, reader, count=256, per_token=8)

    @classmethod
    def experts(cls, config: CausalConfig) -> ExpertsPlan:
        ranking = Ranking("e_score_correction_bias", (config.num_experts,))
        sizes = (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size)
        return ExpertsPlan(*sizes, "sigmoid_normed", ranking=ranking)

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(norms=True, wide=True)
