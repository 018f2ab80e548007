"""ERNIE 4.5 with experts (Ernie4_5_MoeForCausalLM): chosen by their share of all and a bias; some are shared.

Attention is that of ERNIE 4.5. Source: Baidu 2025 and the Hugging Face configuration.
"""

from __future__ import annotations

from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, no_windows
from ..common_settings import CHOSEN, COMMON, SIZE, WINDOWLESS, not_read
from ..experts_config import Fields, count_of
from ..moe import ExpertsPlan, Ranking
from ..reader import Raw, Reader
from ..settings import neutral, read

_MOST = 2**31 - 1


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
