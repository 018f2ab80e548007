"""ERNIE 4.5 with experts (Ernie4_5_MoeForCausalLM): chosen by their share of all and a bias; some are shared.

Attention is that of ERNIE 4.5. Source: Baidu 2025 and the Hugging Face configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, no_windows
from ..common_settings import CHOSEN, COMMON, SIZE, WINDOWLESS, not_read
from ..experts_config import SHARED_LEAVES, Fields, count_of, experts_from_gguf, leading_dense
from ..gguf_form import GgufForm
from ..moe import ExpertsPlan, Ranking
from ..reader import Raw, Reader
from ..settings import Settings, neutral, read

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_GGUF: Settings = {
    **gguf_settings.ROUTED,
    ".expert_shared_feed_forward_length": read("width of the shared expert: so many times that of the others"),
    ".expert_shared_count": neutral("its width says it"),
    ".leading_dense_block_count": gguf_settings.SCORED[".leading_dense_block_count"],
}

_MOST = 2**31 - 1


def _from_gguf(d: Description) -> dict[str, object]:
    experts = experts_from_gguf(d)
    inner = d.per_block(".expert_feed_forward_length")
    shared = d.keys.integer(".expert_shared_feed_forward_length", 0, default=0)
    if shared % inner:
        raise d.keys.error(".expert_shared_feed_forward_length", shared, f"a multiple of an expert's width ({inner})")
    return {
        **d.attending(),
        "intermediate_size": experts["intermediate_size"],
        "moe_num_experts": experts["num_experts"],
        "moe_k": experts["num_experts_per_tok"],
        "moe_intermediate_size": inner,
        "moe_num_shared_experts": shared // inner,
        "moe_layer_start_index": leading_dense(d),
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
        "use_bias": False,
    }


class Ernie45Moe(CausalModel):
    family = "ernie4_5_moe"
    architectures = ("Ernie4_5_MoeForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **COMMON,
        **WINDOWLESS,
        **not_read("mlp_bias", "attention_bias"),
        **dict.fromkeys(("moe_num_experts", "num_experts", "moe_num_shared_experts", "moe_intermediate_size"), SIZE),
        **dict.fromkeys(("moe_k", "num_experts_per_tok"), CHOSEN),
        "moe_layer_start_index": read("the first layer with experts"),
        "moe_layer_end_index": read("the last layer with experts; -1: the last of all"),
        "moe_layer_interval": read("each n-th layer has experts"),
        "moe_norm_min": neutral("the least that shares of the experts chosen are divided by", 1e-12),
        "use_bias": neutral("no projection has a bias", False),
    }
    gguf = {"ernie4_5-moe": GgufForm(_from_gguf, SHARED_LEAVES, _GGUF)}  # noqa: RUF012 (the same)
    defaults = {  # noqa: RUF012 (the same)
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "intermediate_size": 12_288,
    }
    fixed = {"mlp_bias": False, "attention_bias": False}  # noqa: RUF012 (the same)
    theta = 500_000.0
    interleaved = True
    shared = "shared_experts"
    renamed = ((".mlp.gate.moe_statics.", ".mlp.moe_statics."),)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        no_windows(raw, reader, where)
        count = count_of(raw, reader, "moe_num_experts", "num_experts", 1, 64)
        inner, layers = reader.within("moe_intermediate_size", 1, _MOST, 1536), reader.layers()
        begin = reader.within("moe_layer_start_index", 0, _MOST, 1)
        end = reader.within("moe_layer_end_index", -1, _MOST, -1)
        every = reader.within("moe_layer_interval", 1, _MOST, 1)
        last = layers - 1 if end == -1 else end
        return {
            "num_experts": count,
            "num_experts_per_tok": count_of(raw, reader, "moe_k", "num_experts_per_tok", 1, 6, most=count),
            "moe_intermediate_size": inner,
            "shared_expert_intermediate_size": inner * reader.within("moe_num_shared_experts", 0, 2**10, 2),
            "expert_layers": tuple(i for i in range(begin, min(last + 1, layers)) if (i + 1) % every == 0),
        }

    @classmethod
    def experts(cls, config: CausalConfig) -> ExpertsPlan:
        c = config
        ranking = Ranking("moe_statics.e_score_correction_bias", (1, c.num_experts))
        sizes = (c.num_experts, c.num_experts_per_tok, c.moe_intermediate_size)
        return ExpertsPlan(*sizes, "normed", c.shared_expert_intermediate_size, shared=cls.shared, ranking=ranking)

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan()
