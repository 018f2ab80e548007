"""EXAONE 4 (Exaone4ForCausalLM): norms behind attention and MLP, and over each head of q and k.

Layers see a window, each fourth everything; where there are windows, those that see everything do not rotate. Source:
LG AI Research 2025 (arXiv 2507.11407) and the Hugging Face configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, every_nth_full, some_windows
from ..common_settings import COMMON, NO_CHUNKS, not_read
from ..decoder import BEHIND
from ..experts_config import Fields
from ..gguf_form import GgufForm
from ..reader import Raw, Reader
from ..rope_config import FULL, SLIDING
from ..settings import Settings, read

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_WINDOW = 4096
_PATTERN = 4  # each n-th layer sees everything
_WINDOWED_LAYERS = 64  # only this size has windows in GGUF files
_LEAVES = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
_GGUF: Settings = {
    **gguf_settings.DENSE,
    ".attention.sliding_window": read("keys that sliding layers see, of files with 64 layers; no other has any"),
    ".attention.sliding_window_pattern": read(
        "of files with 64 layers: each n-th sees everything, 4 if absent; or a list"
    ),
    ".rope.freq_base_swa": read("allowed if it is rope.freq_base, of files with 64 layers"),
    **{key: gguf_settings.WINDOWED[key] for key in gguf_settings.SLIDING_SIZES},
}


def _from_gguf(d: Description) -> dict[str, object]:
    d.check_sliding_sizes()
    keys, window = d.keys, d.keys.integer(".attention.sliding_window", 1, default=_WINDOW)
    slides, theta = d.slides(_PATTERN), keys.positive(".rope.freq_base", 10_000.0)
    local = keys.positive(".rope.freq_base_swa", theta)
    if d.layers != _WINDOWED_LAYERS:
        return {**d.dense(), "layer_types": [FULL] * d.layers, "sliding_window": None}
    if local != theta:
        raise keys.error(".rope.freq_base_swa", local, f"{theta:g}, as rope.freq_base says")
    return {**d.dense(), "layer_types": [SLIDING if each else FULL for each in slides], "sliding_window": window}


class Exaone4(CausalModel):
    family = "exaone4"
    architectures = ("Exaone4ForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **COMMON,
        **NO_CHUNKS,
        **not_read("mlp_bias", "attention_bias", "use_sliding_window", "max_window_layers"),
        "sliding_window": read("tokens that a sliding layer sees; null: none slides, and all rotate"),
        "sliding_window_pattern": read("where layer_types is absent, each n-th layer sees everything"),
    }
    gguf = {"exaone4": GgufForm(_from_gguf, _LEAVES, _GGUF, divided=True)}  # noqa: RUF012 (the same)
    defaults = {"max_position_embeddings": 2048, "num_key_value_heads": 32, "rms_norm_eps": 1e-5}  # noqa: RUF012 (the same)
    fixed = {"mlp_bias": False, "attention_bias": False}  # noqa: RUF012 (the same)
    norms = BEHIND

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        layers, none = reader.layers(), reader.null("sliding_window")
        default = [FULL] * layers
        if raw.get("layer_types") is None and not none:
            default = every_nth_full(layers, reader.within("sliding_window_pattern", 1, 2**31 - 1, _PATTERN))
        found = some_windows(raw, reader, where, default, _WINDOW)
        still = () if none else tuple(i for i, kind in enumerate(found["layer_types"]) if kind == FULL)
        return {**found, "still_layers": still}

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(norms=True)
