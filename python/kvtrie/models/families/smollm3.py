"""SmolLM3 (SmolLM3ForCausalLM): Llama's block; each fourth layer does not rotate.

Where windows are switched on, the layers that do not rotate have them, unless ``layer_types`` says it. Layers that it
lets slide without the switch are refused: transformers masks them, or not, by its kind of attention. Source: Hugging
Face 2025 and its configuration.
"""

from __future__ import annotations

from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, still_layers, switched_windows
from ..common_settings import COMMON, SWITCHED_WINDOWS, not_read
from ..experts_config import Fields
from ..gguf_form import GgufForm
from ..reader import Raw, Reader
from ..rope_config import FULL, SLIDING
from ..settings import read

_PATTERN = 4  # each n-th layer does not rotate; GGUF files say no other


class SmolLM3(CausalModel):
    family = "smollm3"
    architectures = ("SmolLM3ForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **COMMON,
        **SWITCHED_WINDOWS,
        **not_read("max_window_layers"),
        "mlp_bias": read("whether the MLPs have biases"),
        "no_rope_layers": read("1 for layers that rotate, 0 for others"),
        "no_rope_layer_interval": read("where no_rope_layers is absent, each n-th layer does not rotate"),
    }
    gguf = {"smollm3": GgufForm(lambda d: d.dense(), settings=gguf_settings.DENSE, pairs=True)}  # noqa: RUF012 (the same)
    defaults = {"max_position_embeddings": 32_768, "num_key_value_heads": 4, "tie_word_embeddings": True}  # noqa: RUF012 (the same)
    fixed = {}  # noqa: RUF012 (the same)
    theta = 2e6

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        still, layers = still_layers(reader, where, _PATTERN), range(reader.layers())
        kinds = [SLIDING if index in still else FULL for index in layers]
        return {"still_layers": still, **switched_windows(raw, reader, where, lambda: kinds, None)}

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(config.attention_bias, config.attention_bias)
