"""Mixtral (MixtralForCausalLM): Mistral's attention, every MLP a mixture of experts.

Source: Jiang et al. 2024 (arXiv 2401.04088) and the Hugging Face configuration. GGUF files call it ``llama``, too.
"""

from __future__ import annotations

from .. import gguf_settings
from ..causal import one_window
from ..common_settings import CHOSEN, COMMON, SIZE, WINDOW, not_read
from ..experts_config import BLOCK_SPARSE, LEAVES, Fields, experts_from_gguf, in_every_layer
from ..gguf_form import GgufForm
from ..reader import Raw, Reader
from .mistral import Mistral


class Mixtral(Mistral):
    family = "mixtral"
    architectures = ("MixtralForCausalLM",)
    outer = ""
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **COMMON,
        **WINDOW,
        **not_read("mlp_bias", "attention_bias"),
        "num_local_experts": SIZE,
        "num_experts": SIZE,
        "num_experts_per_tok": CHOSEN,
    }
    ignored = {}  # noqa: RUF012 (the same)
    gguf = {  # noqa: RUF012 (the same)
        "llama/experts": GgufForm(
            lambda d: {**d.attending(), **_from_gguf(experts_from_gguf(d, ".feed_forward_length"))},
            LEAVES,
            gguf_settings.ROUTED_WITHOUT_WIDTH,
            pairs=True,
            divided=True,
        )
    }
    defaults = {**Mistral.defaults, "rms_norm_eps": 1e-5}  # noqa: RUF012 (the same)
    theta = 1e6
    renamed = BLOCK_SPARSE

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        return {**in_every_layer(raw, reader, count=8, per_token=2), **one_window(raw, reader, where, None)}


def _from_gguf(experts: Fields) -> Fields:
    return {
        "num_local_experts": experts["num_experts"],
        "num_experts_per_tok": experts["num_experts_per_tok"],
        "intermediate_size": experts["moe_intermediate_size"],
        "sliding_window": None,
    }
