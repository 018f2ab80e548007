"""OLMo 2 and 3 (Olmo2ForCausalLM, Olmo3ForCausalLM): norms behind attention and MLP, and over all heads of q and of k.

In OLMo 3 layers see a window, each fourth everything; the two kinds may rotate with different RoPE parameters. Source:
OLMo Team 2024 (arXiv 2501.00656), Ai2 2025, and the Hugging Face configurations.
"""

from __future__ import annotations

from typing import ClassVar

from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, every_nth_full, no_windows, some_windows
from ..common_settings import COMMON, NO_CHUNKS, WINDOWLESS, not_read
from ..decoder import BEHIND
from ..experts_config import Fields
from ..gguf_form import GgufForm
from ..reader import Raw, Reader
from ..rope_config import FULL, SLIDING, RopeFields, ropes_of_kinds
from ..settings import Settings, read, refused

_LEAVES = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
_THETA = 500_000.0
_OLMO3: Settings = {
    **COMMON,
    **NO_CHUNKS,
    **not_read("mlp_bias", "use_sliding_window", "max_window_layers"),
    "sliding_window": read("tokens that a sliding layer sees, its own among them"),
    "original_max_position_embeddings": refused("each kind of layers has its own, in rope_parameters"),
}


class Olmo2(CausalModel):
    family = "olmo2"
    architectures = ("Olmo2ForCausalLM",)
    settings: ClassVar[Settings] = {**COMMON, **WINDOWLESS, **not_read("mlp_bias")}
    gguf = {"olmo2": GgufForm(lambda d: d.dense(), _LEAVES, gguf_settings.DENSE)}  # noqa: RUF012 (the same)
    defaults = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}  # noqa: RUF012 (the same)
    norms = BEHIND

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        no_windows(raw, reader, where)
        return {}

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(config.attention_bias, config.attention_bias, norms=True, wide=True)


class Olmo3(Olmo2):
    family = "olmo3"
    architectures = ("Olmo3ForCausalLM",)
    settings = _OLMO3
    ropes_by_kind = True
    gguf = {}  # noqa: RUF012 (a ClassVar of Model's)

    @classmethod
    def read_ropes(cls, raw: Raw, where: str) -> dict[str, RopeFields]:
        return ropes_of_kinds(raw, where, dict.fromkeys((FULL, SLIDING), _THETA), 2048, local=None)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        return some_windows(raw, reader, where, every_nth_full(reader.layers(), 4), 4096)
