"""gpt-oss (GptOssForCausalLM): attention with sinks, every second layer with a window; experts with a clamped SwiGLU.

All projections, the router and the experts have biases. Experts' weights are MXFP4 in the files that OpenAI published,
and stay blocks (mxfp4.py). Source: OpenAI 2025 (arXiv 2508.10925) and the Hugging Face configuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import FormatError
from .. import gguf_settings, mxfp4
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, some_windows
from ..common_settings import CHOSEN, COMMON, NO_CHUNKS, SIZE, not_read
from ..config import text_part
from ..experts_config import LEAVES, Fields, experts_from_gguf, in_every_layer
from ..gguf_form import GgufForm
from ..linear import ClampedSwiGlu
from ..moe import ExpertsPlan
from ..reader import Raw, Reader
from ..rope_config import FULL, SLIDING
from ..settings import Settings, neutral, read
from ..weights import Array, WeightSource

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_SWIGLU = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}  # no key of a GGUF file says others
_PATTERN = 2  # each n-th layer sees everything
_ROPE = {  # where a file has none
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_LEAVES = {
    **LEAVES,
    "mlp.router": "ffn_gate_inp",
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.sinks": "attn_sinks.weight",
}
_GGUF: Settings = {
    **gguf_settings.ROUTED,
    ".attention.sliding_window": read("keys that every second layer sees, its own among them"),
    ".attention.sliding_window_pattern": neutral("every second layer has a window", 2),
    ".rope.freq_base_swa": read("allowed if it is rope.freq_base"),
    **{key: gguf_settings.WINDOWED[key] for key in gguf_settings.SLIDING_SIZES},
}
_FUSED = re.compile(r"(.*\.experts)\.(gate_up|down)_proj(_bias|_blocks|_scales)?")


@dataclass(frozen=True)
class GptOssConfig(CausalConfig):
    """``swiglu_alpha`` and ``swiglu_limit``: of experts, see ``linear.ClampedSwiGlu``."""

    swiglu_alpha: float = _SWIGLU["swiglu_alpha"]
    swiglu_limit: float = _SWIGLU["swiglu_limit"]


def _from_gguf(d: Description) -> dict[str, object]:
    experts, common, keys = experts_from_gguf(d), d.attending(), d.keys
    theta = keys.positive(".rope.freq_base", 10_000.0)
    if keys.positive(".rope.freq_base_swa", theta) != theta:
        raise keys.error(".rope.freq_base_swa", keys.positive(".rope.freq_base_swa"), f"{theta:g}")
    d.check_sliding_sizes()
    unscaled = {} if "rope_scaling" in common else {"rope_parameters": {"rope_type": "default"}}
    return {
        **common,
        **unscaled,
        "num_local_experts": experts["num_experts"],
        "num_experts_per_tok": experts["num_experts_per_tok"],
        "intermediate_size": experts["moe_intermediate_size"],
        "layer_types": _kinds(d.layers),
        "sliding_window": keys.integer(".attention.sliding_window", 1),
    }


def _kinds(layers: int) -> list[str]:
    return [SLIDING if index % _PATTERN == 0 else FULL for index in range(layers)]


class GptOss(CausalModel):
    family = "gpt_oss"
    architectures = ("GptOssForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **COMMON,
        **NO_CHUNKS,
        **not_read("mlp_bias", "use_sliding_window", "max_window_layers"),
        **not_read("experts_per_token", "initial_context_length"),
        "num_local_experts": SIZE,
        "num_experts": SIZE,
        "num_experts_per_tok": CHOSEN,
        "sliding_window": read("tokens that a sliding layer sees, its own among them"),
        "swiglu_alpha": read("the gate of experts is multiplied by it inside its sigmoid"),
        "swiglu_limit": read("what the two halves of experts are held below"),
        "quantization_config": read("mxfp4: experts are blocks of MXFP4; other methods are refused"),
    }
    gguf = {"gpt-oss": GgufForm(_from_gguf, _LEAVES, _GGUF)}  # noqa: RUF012 (the same)
    defaults = {  # noqa: RUF012 (the same)
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "attention_bias": True,
    }
    theta = 150_000.0
    packed = ("mxfp4",)
    kind_of_config = GptOssConfig

    config: GptOssConfig

    @classmethod
    def parse_config(cls, raw: Raw, generation: Raw | None = None, where: str = "config") -> CausalConfig:
        raw = text_part(raw, where)
        if raw.get("rope_parameters") is None and not raw.get("rope_scaling"):
            raw = {**raw, "rope_parameters": _ROPE}
        return super().parse_config(raw, generation, where)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        windows = some_windows(raw, reader, where, _kinds(reader.layers()), 128)
        swiglu = {key: reader.positive(key, value) for key, value in _SWIGLU.items()}
        return {**in_every_layer(raw, reader, count=128, per_token=4), **windows, **swiglu}

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(config.attention_bias, config.attention_bias, sinks=True)

    @classmethod
    def experts(cls, config: CausalConfig) -> ExpertsPlan:
        assert isinstance(config, GptOssConfig)
        sizes = (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size)
        activation = ClampedSwiGlu(config.swiglu_alpha, config.swiglu_limit)
        return ExpertsPlan(*sizes, "normed", router="router", bias=True, activation=activation)

    @classmethod
    def separate_experts(cls, config: CausalConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        """They are one tensor for all, in which outputs of gate and up take turns."""
        found: dict[str, WeightSource] = {}
        for name, source in sources.items():
            match = _FUSED.fullmatch(name)
            if match is None:
                found[name] = source
            elif match[3] == "_blocks":
                found.update(_blocks(config, source, _scales_of(source, sources, name), match[1], match[2]))
            elif match[3] != "_scales":
                found.update(_separate(config, source, match[1], match[2], bias=match[3] is not None))
        return found


# ---- tensors of all experts ------------------------------------------------------------------------------------------


def _parts(config: CausalConfig, kind: str) -> dict[str, tuple[slice, int]]:
    """The maps in a fused tensor: which of its outputs are theirs, and how many."""
    if kind == "down":
        return {"down_proj": (slice(None), config.hidden_size)}
    inner = config.moe_intermediate_size
    return {"gate_proj": (slice(0, None, 2), inner), "up_proj": (slice(1, None, 2), inner)}


def _check_shape(source: WeightSource, expected: tuple[int, ...]) -> None:
    if source.shape != expected:
        raise FormatError(
            f"[models] {source.origin}: {source.name}: got shape {list(source.shape)}, expected {list(expected)}"
        )


def _separate(config: CausalConfig, whole: WeightSource, prefix: str, kind: str, bias: bool) -> dict[str, WeightSource]:
    """A tensor [experts, in, outputs], or biases [experts, outputs], as one of each expert's map."""
    parts = _parts(config, kind)
    inputs = config.hidden_size if kind == "gate_up" else config.moe_intermediate_size
    outputs, middle = sum(count for _, count in parts.values()), () if bias else (inputs,)
    _check_shape(whole, (config.num_experts, *middle, outputs))
    found = {}
    for expert in range(config.num_experts):
        for part, (rows, count) in parts.items():
            name = f"{prefix}.{expert}.{part}.{'bias' if bias else 'weight'}"
            found[name] = whole.part(name, expert, expert + 1, (count, *middle), _taking(rows))
    return found


def _taking(rows: slice) -> Callable[[Array], Array]:
    return lambda slab: slab[0].T[rows]


def _scales_of(blocks: WeightSource, sources: Mapping[str, WeightSource], name: str) -> WeightSource:
    wanted = name.removesuffix("_blocks") + "_scales"
    if wanted not in sources:
        raise FormatError(f"[models] {blocks.origin}: tensor {wanted!r} is missing beside {name}")
    return sources[wanted]


def _blocks(
    config: CausalConfig, blocks: WeightSource, scales: WeightSource, prefix: str, kind: str
) -> dict[str, WeightSource]:
    """The same of MXFP4's two tensors, [experts, outputs, in]: blocks stay blocks."""
    whole, parts = mxfp4.stacked(blocks, scales, f"{prefix}.{kind}_proj"), _parts(config, kind)
    inputs = config.hidden_size if kind == "gate_up" else config.moe_intermediate_size
    _check_shape(whole, (config.num_experts, sum(count for _, count in parts.values()), inputs))
    return {
        (name := f"{prefix}.{expert}.{part}.weight"): mxfp4.matrix(whole, name, expert, rows)
        for expert in range(config.num_experts)
        for part, (rows, _) in parts.items()
    }
