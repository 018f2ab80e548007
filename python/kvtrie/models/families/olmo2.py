"""OLMo 2 and 3 (Olmo2ForCausalLM, Olmo3ForCausalLM): norms behind attention and MLP, and over all heads of q and of k.

In OLMo 3 layers see a window, each fourth everything; the two kinds may rotate with different RoPE parameters. Source:
OLMo Team 2024 (arXiv 2501.00656), Ai2 2025, and the Hugging Face configurations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

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

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_LEAVES = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
_THETA = 500_000.0
_OLMO3: Settings = {
    **COMMON,
    **NO_CHUNKS,
    **not_read("mlp_bias", "use_sliding_window", "max_window_layers"),
    "sliding_window": read("tokens that a sliding layer sees, its own among them"),
    "original_max_position_embeddings": refused("each kind of layers has its own, in rope_parameters"),
}
_PATTERN = 4  # each n-th layer sees everything
_WINDOWED: Settings = {
    **gguf_settings.DENSE,
    **{key: gguf_settings.WINDOWED[key] for key in gguf_settings.SLIDING_SIZES},
    ".attention.sliding_window": read("keys that a sliding layer sees; 0: every layer sees everything"),
    ".attention.sliding_window_pattern": read("each n-th layer sees everything; 4 if absent. Or a list, one by one"),
    ".rope.freq_base_swa": read("theta of layers that slide; rope.freq_base if absent"),
}


def _windowed(d: Description) -> dict[str, object]:
    """Layers that slide rotate without any scaling."""
    d.check_sliding_sizes()
    common, theta = d.dense(), d.keys.positive(".rope.freq_base", 10_000.0)
    scaling = common.pop("rope_scaling", None)
    full = {"rope_type": "default", **(scaling if isinstance(scaling, dict) else {}), "rope_theta": theta}
    local = d.keys.positive(".rope.freq_base_swa", theta)
    return {
        **common,
        "rope_parameters": {FULL: full, SLIDING: {"rope_type": "default", "rope_theta": local}},
        "layer_types": [SLIDING if slides else FULL for slides in d.slides(_PATTERN)],
        "sliding_window": d.keys.integer(".attention.sliding_window", 1),
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
    gguf = {"olmo2/windows": GgufForm(_windowed, _LEAVES, _WINDOWED)}  # noqa: RUF012 (a ClassVar of Model's)

    @classmethod
    def read_ropes(cls, raw: Raw, where: str) -> dict[str, RopeFields]:
        return ropes_of_kinds(raw, where, dict.fromkeys((FULL, SLIDING), _THETA), 2048, local=None)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        return some_windows(raw, reader, where, every_nth_full(reader.layers(), _PATTERN), 4096)
