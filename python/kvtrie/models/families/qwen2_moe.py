"""Qwen2 with experts (Qwen2MoeForCausalLM): Qwen2's attention; a shared expert, weighted by a gate, beside the others.

Source: Yang et al. 2024 (arXiv 2407.10671) and the Hugging Face configuration.
"""

from __future__ import annotations

import dataclasses

from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, no_windows, some_windows
from ..common_settings import COMMON, SIZE, SWITCHED_WINDOWS, not_read
from ..experts_config import LEAVES, MOST_EXPERTS, SPARSE, Fields, experts_from_gguf, shared_from_gguf, sparse_fields
from ..gguf_form import GgufForm
from ..moe import ExpertsPlan
from ..reader import Raw, Reader
from ..rope_config import FULL, SLIDING
from ..settings import read

_EXPERTS = {"num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632}


class Qwen2Moe(CausalModel):
    family = "qwen2_moe"
    architectures = ("Qwen2MoeForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **COMMON,
        **SWITCHED_WINDOWS,
        **not_read("mlp_bias", "attention_bias"),
        **SPARSE,
        "shared_expert_intermediate_size": SIZE,
        "qkv_bias": read("whether q, k and v have biases"),
        "use_sliding_window": read("whether layers see windows"),
        "max_window_layers": read("where layer_types is absent, every second of the first layers slides"),
    }
    gguf = {  # noqa: RUF012 (the same)
        "qwen2moe": GgufForm(
            lambda d: {
                **d.attending(),
                **experts_from_gguf(d),
                **shared_from_gguf(d),
                "norm_topk_prob": False,
                "qkv_bias": d.in_any_layer("attn_q.bias"),
            },
            LEAVES,
            {**gguf_settings.EXPERTS, **gguf_settings.NOT_NORMED},
        )
    }
    defaults = {"max_position_embeddings": 32_768, "num_key_value_heads": 16, "intermediate_size": 5632}  # noqa: RUF012 (the same)
    fixed = {"mlp_bias": False, "attention_bias": False}  # noqa: RUF012 (the same)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        count = reader.within("num_experts", 0, MOST_EXPERTS, 60)
        return {
            "attention_bias": reader.flag("qkv_bias", True),
            **sparse_fields(reader, count, _EXPERTS, norm=False),
            **_windows(raw, reader, where),
        }

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(config.attention_bias)

    @classmethod
    def experts(cls, config: CausalConfig) -> ExpertsPlan:
        return dataclasses.replace(super().experts(config), shared_gate=True)


def _windows(raw: Raw, reader: Reader, where: str) -> Fields:
    """Of every second one of the first ``max_window_layers`` layers, where ``use_sliding_window`` switches them on."""
    if not reader.flag("use_sliding_window", False):
        return no_windows(raw, reader, where)
    most = reader.within("max_window_layers", 0, 2**31 - 1, 28)
    kinds = [FULL if index % 2 or index >= most else SLIDING for index in range(reader.layers())]
    return some_windows(raw, reader, where, kinds, 4096)
