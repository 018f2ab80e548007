"""Kimi Linear (KimiLinearForCausalLM): delta layers with a decay for each channel, every fourth one latent attention.

No layer rotates: positions are in the recurrent layers. Experts are DeepSeek-V3's. Source: Kimi Team 2025 (arXiv
2510.26692) and the Hugging Face configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import FormatError, NotSupportedError
from .. import gguf_settings
from ..causal import CausalConfig
from ..common_settings import COMMON, SIZE, WINDOWLESS, not_read
from ..config import ModelConfig, layer_kinds
from ..decoder import MixerPlan
from ..delta_parts import NO_DELTA, DeltaPartsPlan, join_convs
from ..delta_rule import DeltaSizes
from ..experts_config import Fields, scored_from_gguf
from ..gguf_form import GgufForm
from ..latent_config import LATENT, LatentConfig
from ..latent_gguf import LATENT_LEAVES, latent_sizes
from ..reader import Raw, Reader, changed
from ..rope_config import FULL, RopeFields
from ..settings import Settings, neutral, read, refused
from ..states import States
from ..stored import FURTHER
from ..weights import WeightSource
from .deepseek import DeepseekV3
from .glm4_moe import EXPERTS
from .glm4_moe_lite import Glm4MoeLite

if TYPE_CHECKING:
    from ..gguf.metadata import Description

LINEAR = "linear_attention"
_MOST = 2**20
_LISTS = {"full_attn_layers": FULL, "kda_layers": LINEAR}
_SIZES = {"head_dim": "linear_head_dim", "num_heads": "linear_num_heads"}
_SIZES |= {"short_conv_kernel_size": "linear_conv_kernel_dim"}
_NAMES = {  # other families' names, and those of this one
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "num_local_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}
_COUNTS = {"model_max_length": 1, "num_expert_group": 1, "num_experts": 1, "num_experts_per_token": 1}
_COUNTS |= {"num_shared_experts": 0}
_UNROTATED = neutral("no layer rotates")
_SETTINGS: Settings = {
    **COMMON,
    **EXPERTS,
    **WINDOWLESS,
    **LATENT,
    **{own: read(f"{other} by another name") for other, own in _NAMES.items()},
    **not_read("mlp_bias", "head_dim"),
    **dict.fromkeys(("rope_theta", "rope_scaling", "rope_parameters", "rope_interleave"), _UNROTATED),
    "partial_rotary_factor": _UNROTATED,
    "original_max_position_embeddings": _UNROTATED,
    "n_routed_experts": refused("this family says num_experts"),
    "mla_use_nope": neutral("no layer rotates", True),
    "moe_router_activation_func": neutral("experts are scored by their sigmoid", "sigmoid"),
    "use_grouped_topk": neutral("experts are chosen by groups; one group is none", True),
    "moe_layer_freq": neutral("every layer behind the first ones has experts", 1),
    "num_mtp_layers": COMMON["mtp_*"],
    "layer_types": read("full_attention or linear_attention, for each layer"),
    "mlp_layer_types": read("which layers have experts: dense or sparse"),
    "linear_attn_config": read("which layers are of which kind, where layer_types is absent, and sizes of linear ones"),
    **dict.fromkeys(_SIZES.values(), SIZE),
    "number_of_conv_states": neutral("recurrent layers have one convolution", 1),
}
_LEAVES = {
    **LATENT_LEAVES,
    "self_attn.f_a_proj": "ssm_f_a",
    "self_attn.f_b_proj": "ssm_f_b",
    "self_attn.g_a_proj": "ssm_g_a",
    "self_attn.g_b_proj": "ssm_g_b",
    "self_attn.b_proj": "ssm_beta",
    "self_attn.A_log": "ssm_a",
    "self_attn.dt_bias": "ssm_dt.bias",
    "self_attn.o_norm": "ssm_norm",
}
_GGUF: Settings = {
    **gguf_settings.SCORED,
    **gguf_settings.LATENT,
    **{key: neutral("no layer rotates") for key in gguf_settings.ARCHITECTURE if key.startswith(".rope.")},
    ".rope.dimension_count": read("numbers of a key that all heads share; none rotates"),
    ".attention.head_count_kv": read("1 of layers that attend, 0 of recurrent ones"),
    ".attention.key_length": read("allowed if it is what a cell keeps"),
    ".attention.value_length": neutral("value_length_mla says it"),
    ".expert_gating_func": neutral("sigmoid", 2),
    ".expert_weights_norm": neutral("an expert's sigmoid is divided by those of all that were chosen", True),
    ".ssm.conv_kernel": read("tokens that a convolution sees"),
    ".kda.head_dim": read("size of a recurrent layer's heads, of which there are attention.head_count"),
}


def _from_gguf(d: Description) -> dict[str, object]:
    keys, key = d.keys, ".attention.head_count_kv"
    counts, sizes, experts = d.each(key, 0, 1), latent_sizes(d, newer=True), scored_from_gguf(d, norm=True)
    linear = {
        "head_dim": keys.integer(".kda.head_dim", 1, _MOST),
        "num_heads": d.heads,
        "short_conv_kernel_size": keys.integer(".ssm.conv_kernel", 2, _MOST),
    }
    return {
        **sizes,
        **{name: each for name, each in experts.items() if name != "n_routed_experts"},
        "num_local_experts": experts["n_routed_experts"],
        "layer_types": [FULL if count else LINEAR for count in counts],
        "linear_attn_config": linear,
    }


@dataclass(frozen=True)
class KimiLinearConfig(LatentConfig):
    """``delta``: sizes of the recurrent layers."""

    delta: DeltaSizes = NO_DELTA


class KimiLinear(DeepseekV3):
    family = "kimi_linear"
    architectures = ("KimiLinearForCausalLM",)
    also = ()
    outer = ""
    ignored: ClassVar[Mapping[str, str]] = FURTHER
    brings_head = False
    settings: ClassVar[Settings] = _SETTINGS
    gguf: ClassVar[Mapping[str, GgufForm]] = {"kimi-linear": GgufForm(_from_gguf, _LEAVES, _GGUF)}
    defaults: ClassVar[Mapping[str, object]] = {
        **{key: value for key, value in DeepseekV3.defaults.items() if key != "q_lora_rank"},
        "max_position_embeddings": 1_048_576,
        "intermediate_size": 9216,
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 32,
        "moe_intermediate_size": 1024,
        "routed_scaling_factor": 2.446,
        "n_group": 1,
        "topk_group": 1,
    }
    kind_of_config: ClassVar[type[CausalConfig]] = KimiLinearConfig
    turns = False
    renamed: ClassVar[tuple[tuple[str, str], ...]] = (
        (".forget_gate.", "."),
        (".block_sparse_moe.", ".mlp."),
        (".w1.", ".gate_proj."),
        (".w2.", ".down_proj."),
        (".w3.", ".up_proj."),
    )
    dense_where_silent = 1

    @classmethod
    def in_common_keys(cls, raw: Raw, where: str) -> Raw:
        raw = changed(raw, dict.fromkeys(("head_dim", "rope_theta", "rope_scaling", "rope_parameters")))
        for other, own in _NAMES.items():
            raw = _by_one_name(raw, other, own, where)
        if raw.get("q_lora_rank") is None:
            raw = changed(raw, {"q_lora_rank": None})
        return super().in_common_keys(raw, where)

    @classmethod
    def read_ropes(cls, raw: Raw, where: str) -> dict[str, RopeFields]:  # noqa: ARG003 (nothing rotates)
        return super().read_ropes({}, where)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        layers = reader.layers()
        inner = raw.get("linear_attn_config")
        own: Mapping[str, object] = inner if isinstance(inner, Mapping) else {}
        _refuse_unknown(own, where)
        for name, least in _COUNTS.items():  # errors below have the names that other families use
            if raw.get(name) is not None:
                reader.within(name, least, _MOST)
        kinds = layer_kinds(raw, layers, (FULL, LINEAR), _default_kinds(own, layers, where), where)
        plain = changed(raw, {"layer_types": None})
        return {
            **super().own_fields(plain, Reader(plain, where, cls.defaults), where),
            "layer_types": kinds,
            "still_layers": tuple(range(layers)),
            "delta": _sizes(raw, own, where),
        }

    @classmethod
    def sparse_layers(cls, raw: Raw, reader: Reader, where: str) -> tuple[int, ...]:
        behind = super().sparse_layers(raw, reader, where)
        return behind if raw.get("mlp_layer_types") is None else Glm4MoeLite.sparse_layers(raw, reader, where)

    @classmethod
    def mixer(cls, config: CausalConfig, index: int) -> MixerPlan:
        assert isinstance(config, KimiLinearConfig)
        if config.layer_types[index] == FULL:
            return super().mixer(config, index)
        return DeltaPartsPlan(config.delta, "self_attn", by_channel=True, eps=config.rms_norm_eps)

    @classmethod
    def adapt(cls, config: ModelConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        return join_convs(super().adapt(config, sources))

    @classmethod
    def states(cls, config: ModelConfig) -> States:
        assert isinstance(config, KimiLinearConfig)
        return config.delta.states(tuple(i for i, kind in enumerate(config.layer_types) if kind == LINEAR))


def _by_one_name(raw: Raw, other: str, own: str, where: str) -> Raw:
    """``raw`` with what either name says under ``other``."""
    values = [raw[key] for key in (own, other) if raw.get(key) is not None]
    if len(values) == 2 and values[0] != values[1]:
        raise FormatError(f"[models.config] {where}: {own}: got {values[0]!r}, allowed {values[1]!r} ({other})")
    if own not in raw:
        return raw
    return changed(raw, {other: values[0] if values else None})


def _refuse_unknown(own: Mapping[str, object], where: str) -> None:
    for key in own:
        if key not in _LISTS and key not in _SIZES:
            allowed = ", ".join((*_LISTS, *_SIZES))
            raise NotSupportedError(f"[models.config] {where}: linear_attn_config: got {key!r}, allowed {allowed}")


def _default_kinds(own: Mapping[str, object], layers: int, where: str) -> list[str]:
    """Of a file without ``layer_types``: its two lists, which number layers from 1."""
    if not all(key in own for key in _LISTS):
        return [FULL if index and index % 4 == 0 else LINEAR for index in range(layers)]
    reader = Reader(own, f"{where}: linear_attn_config")
    kinds: dict[int, str] = {}
    for key, kind in _LISTS.items():
        kinds.update(dict.fromkeys(reader.integers(key, 1, layers) or (), kind))
    if len(kinds) < layers:
        missing = min({*range(1, layers + 1)} - {*kinds})
        raise FormatError(
            f"[models.config] {where}: linear_attn_config: got neither full_attn_layers nor kda_layers with "
            f"{missing}, allowed one of them for each of {layers} layers (num_hidden_layers)"
        )
    return [kinds[index] for index in range(1, layers + 1)]


def _sizes(raw: Raw, own: Mapping[str, object], where: str) -> DeltaSizes:
    """What ``linear_attn_config`` says, before the keys beside it."""
    merged = {name: own.get(key, raw.get(name)) for key, name in _SIZES.items()}
    reader = Reader(merged, where)
    dim, heads = reader.within("linear_head_dim", 1, _MOST, 128), reader.within("linear_num_heads", 1, _MOST, 32)
    return DeltaSizes(heads, heads, dim, dim, reader.within("linear_conv_kernel_dim", 2, _MOST, 4))
