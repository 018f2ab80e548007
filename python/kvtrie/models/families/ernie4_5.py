"""ERNIE 4.5 (Ernie4_5ForCausalLM): Llama's block; heads rotate in neighbouring pairs.

All projections have biases, or none has. Source: Baidu 2025 and the Hugging Face configuration.
"""

from __future__ import annotations

from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, no_windows
from ..common_settings import COMMON, WINDOWLESS, not_read
from ..experts_config import Fields
from ..gguf_form import GgufForm
from ..reader import Raw, Reader
from ..settings import read


class Ernie45(CausalModel):
    family = "ernie4_5"
    architectures = ("Ernie4_5ForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **COMMON,
        **WINDOWLESS,
        **not_read("mlp_bias", "attention_bias"),
        "use_bias": read("whether attention's projections and the MLPs have biases"),
    }
    gguf = {  # noqa: RUF012 (the same)
        "ernie4_5": GgufForm(
            lambda d: {**d.dense(), "use_bias": d.in_any_layer("attn_q.bias")}, settings=gguf_settings.DENSE
        )
    }
    defaults = {  # noqa: RUF012 (the same)
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    fixed = {"mlp_bias": False, "attention_bias": False}  # noqa: RUF012 (the same)
    theta = 500_000.0
    interleaved = True

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        no_windows(raw, reader, where)
        return dict.fromkeys(("attention_bias", "mlp_bias"), reader.flag("use_bias"))

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(config.attention_bias, config.attention_bias)
