"""Granite 4 (GraniteMoeHybridForCausalLM): Granite's multipliers; most mixers are Mamba-2, others attend.

MLPs have experts beside one that every row goes through, or that one alone. Layers that attend rotate or do not, all of
them alike. Source: Granite Team 2025 and the Hugging Face configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...errors import NotSupportedError
from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig
from ..common_settings import CHOSEN, COMMON, SIZE, WINDOWLESS, not_read
from ..config import ModelConfig, layer_kinds
from ..decoder import MixerPlan, MlpPart, MlpPlan
from ..experts_config import LEAVES, MOST_EXPERTS, Fields, sparse_layers
from ..fused import split_matrices
from ..gguf_form import GgufForm
from ..mamba2 import Mamba2Plan, mamba2_states
from ..mamba_config import LINEAR, MAMBA, MAMBA_KEYS, MAMBA_LEAVES, kinds_by_name, mamba_fields, mamba_from_gguf
from ..reader import Raw, Reader, changed
from ..recurrent import RecurrentConfig, RecurrentModel
from ..rope_config import FULL
from ..settings import read
from ..states import States
from ..weights import WeightSource
from .granite import MULTIPLIERS, SCALES_OF_GGUF, Granite, multipliers, scales_from_gguf

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_MOST = 2**31 - 1
_SHARED = "mlp.shared_expert"


def _described(d: Description) -> dict[str, object]:
    mamba, scales = mamba_from_gguf(d), scales_from_gguf(d)
    hidden = d.keys.integer(".embedding_length")
    if d.keys.integer(".ssm.inner_size") % hidden:
        raise d.keys.error(".ssm.inner_size", d.keys.integer(".ssm.inner_size"), f"a multiple of {hidden}")
    return {
        **d.attending(scales["attention_multiplier"] ** -2),
        **mamba,
        **scales,
        "mamba_expand": d.keys.integer(".ssm.inner_size") // hidden,
        "layer_types": [FULL if each else LINEAR for each in d.attends()],
        "position_embedding_type": "rope" if d.keys.flag(".rope.scaling.finetuned", True) else None,
        **(_experts(d) if d.has("blk.0.ffn_gate_inp.weight") else _one(d)),
    }


def _experts(d: Description) -> dict[str, object]:
    _, count = sparse_layers(d)
    return {
        "intermediate_size": d.per_block(".feed_forward_length"),
        "num_local_experts": d.keys.integer(".expert_count", count, count),
        "num_experts_per_tok": d.per_block(".expert_used_count", 1, count),
        "shared_intermediate_size": d.keys.integer(".expert_shared_feed_forward_length"),
    }


def _one(d: Description) -> dict[str, object]:
    for key in (".expert_count", ".expert_used_count"):
        d.keys.integer(key, 0, 0, 0)
    d.keys.integer(".expert_shared_feed_forward_length", 0, default=0)  # converters write it here, too
    width = d.per_block(".feed_forward_length")
    return {"intermediate_size": width, "num_local_experts": 0, "shared_intermediate_size": width}


_FORM = GgufForm(
    _described,
    {**LEAVES, **MAMBA_LEAVES},
    {
        **gguf_settings.EXPERTS,
        ".expert_feed_forward_length": gguf_settings.ROUTED_WITHOUT_WIDTH[".expert_feed_forward_length"],
        **SCALES_OF_GGUF,
        **MAMBA_KEYS,
        ".attention.head_count_kv": read("heads of k and v of each layer; 0: it is recurrent"),
        ".rope.scaling.finetuned": read("whether layers that attend rotate; they do if absent"),
    },
    pairs=True,
)


class GraniteMoeHybrid(RecurrentModel):
    family = "granitemoehybrid"
    architectures = ("GraniteMoeHybridForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **COMMON,
        **WINDOWLESS,
        **MAMBA,
        **MULTIPLIERS,
        **not_read("mlp_bias"),
        **dict.fromkeys(("num_local_experts", "shared_intermediate_size"), SIZE),
        "num_experts_per_tok": CHOSEN,
        "layers_block_type": read("as layer_types, and before it"),
        "position_embedding_type": read("rope: layers that attend rotate; null: they do not"),
    }
    gguf = {"granitehybrid": _FORM}  # noqa: RUF012 (the same)
    renamed = (
        *(
            (f".block_sparse_moe.{old}", f".mlp.{new}")
            for old, new in (
                ("input_linear.weight", "experts.gate_up_proj"),
                ("output_linear.weight", "experts.down_proj"),
                ("router.layer.", "gate."),
                ("router.", "gate."),
                ("", ""),
            )
        ),
        (".shared_mlp.input_linear.", f".{_SHARED}.gate_up_proj."),
        (".shared_mlp.output_linear.", f".{_SHARED}.down_proj."),
    )

    @classmethod
    def in_common_keys(cls, raw: Raw, where: str) -> Raw:  # noqa: ARG003 (it is right in any file)
        kinds = raw.get("layers_block_type")
        return changed(raw, {"layer_types": kinds_by_name(raw.get("layer_types") if kinds is None else kinds)})

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        layers, count = reader.layers(), reader.within("num_local_experts", 0, MOST_EXPERTS, 8)
        position = raw.get("position_embedding_type")
        if position not in (None, "rope"):
            raise NotSupportedError(
                f"[models.config] {where}: position_embedding_type: got {position!r}, allowed 'rope' or null"
            )
        return {
            **mamba_fields(raw, reader, where),
            **multipliers(reader),
            "layer_types": layer_kinds(raw, layers, (FULL, LINEAR), [LINEAR] * layers, where),
            "still_layers": () if position == "rope" else tuple(range(layers)),
            "num_experts": count,
            "num_experts_per_tok": reader.within("num_experts_per_tok", 1, max(count, 2), 2),
            "moe_intermediate_size": reader.integer("intermediate_size"),
            "shared_expert_intermediate_size": reader.within("shared_intermediate_size", 1, _MOST, 1024),
            "expert_layers": tuple(range(layers)) if count else (),
        }

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:
        return Granite.attention(config, index)

    @classmethod
    def mixer(cls, config: CausalConfig, index: int) -> MixerPlan:
        assert isinstance(config, RecurrentConfig)
        return cls.attention(config, index) if config.layer_types[index] == FULL else Mamba2Plan(config)

    @classmethod
    def mlp(cls, config: CausalConfig) -> MlpPart:
        return MlpPlan(config.shared_expert_intermediate_size)

    @classmethod
    def states(cls, config: ModelConfig) -> States:
        assert isinstance(config, RecurrentConfig)
        layers = tuple(index for index, kind in enumerate(config.layer_types) if kind == LINEAR)
        return mamba2_states(layers, config)

    @classmethod
    def adapt(cls, config: ModelConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        """The shared MLP may also be stored as one tensor for gate and up."""
        assert isinstance(config, CausalConfig)
        names = (f"{_SHARED}.gate_proj", f"{_SHARED}.up_proj")
        found = super().adapt(config, sources)
        found = split_matrices(found, f"{_SHARED}.gate_up_proj", names, [config.shared_expert_intermediate_size] * 2)
        if config.expert_layers:
            return found
        return {name.replace(f".{_SHARED}.", ".mlp."): source for name, source in found.items()}
