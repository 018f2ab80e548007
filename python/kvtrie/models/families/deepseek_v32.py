"""DeepSeek-V3.2 and its experimental forerunner (DeepseekV32ForCausalLM): DeepSeek-V3 whose rows choose their keys.

Every layer attends to the ``index_topk`` keys that its index finds best (indexed.py); the rest is DeepSeek-V3. Source:
DeepSeek-AI 2025 (DeepSeek-V3.2-Exp) and the Hugging Face configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import FormatError, NotSupportedError
from .. import gguf_settings
from ..attention_group import AttentionGroup
from ..causal import CausalConfig
from ..common_settings import SIZE, not_read
from ..config import ModelConfig, layer_kinds
from ..decoder import MixerPlan
from ..experts_config import Fields, scored_from_gguf
from ..gguf_form import GgufForm
from ..indexed import NO_INDEX, IndexedPlan, IndexSizes
from ..latent_config import LatentConfig
from ..latent_gguf import INDEXED_LEAVES, index_from_gguf, latent_from_gguf
from ..reader import Raw, Reader, changed
from ..rope_arguments import RopeArguments
from ..rope_config import FULL
from ..settings import Settings, neutral, read
from ..stored import FURTHER
from .deepseek import DeepseekV3
from .glm4_moe_lite import Glm4MoeLite

if TYPE_CHECKING:
    from ..gguf.metadata import Description

GGUF_SETTINGS: Settings = {**gguf_settings.SCORED, **gguf_settings.LATENT, **gguf_settings.INDEXED}

_INDEXED, _SPARSE = "indexed_attention", "deepseek_sparse_attention"
_MOST = 2**20


@dataclass(frozen=True)
class IndexedConfig(LatentConfig):
    """``index``: of each layer that has one. ``choosing``: which those are; the others take the choice of the last
    before them."""

    index: IndexSizes = NO_INDEX
    choosing: tuple[int, ...] = ()


def sizes_from_gguf(d: Description) -> dict[str, object]:
    """Of latents, experts and the index."""
    return {**latent_from_gguf(d), **scored_from_gguf(d), **index_from_gguf(d)}


class DeepseekV32(DeepseekV3):
    """``index_interleaved``: whether neighbouring numbers of index queries and keys rotate against each other."""

    family = "deepseek_v32"
    architectures: ClassVar[tuple[str, ...]] = ("DeepseekV32ForCausalLM",)
    also: ClassVar[tuple[str, ...]] = ()
    outer = ""
    ignored: ClassVar[Mapping[str, str]] = FURTHER
    kind_of_config: ClassVar[type[CausalConfig]] = IndexedConfig
    turns: ClassVar[bool] = False
    index_interleaved: ClassVar[bool] = False
    gguf: ClassVar[Mapping[str, GgufForm]] = {"deepseek32": GgufForm(sizes_from_gguf, INDEXED_LEAVES, GGUF_SETTINGS)}
    settings: ClassVar[Settings] = {
        **DeepseekV3.settings,
        **not_read("mlp_bias"),
        **dict.fromkeys(("index_n_heads", "index_head_dim"), SIZE),
        "index_topk": read("keys that a row attends to"),
        "layer_types": read("has to be indexed_attention, or deepseek_sparse_attention, for each layer"),
        "mlp_layer_types": read("which layers have experts: dense or sparse; before first_k_dense_replace"),
        "q_lora_rank": read("the rank of queries; null is refused: the index needs their latent"),
        "rope_interleave": neutral("neighbouring numbers of what rotates are pairs", True),
        "indexer_rope_interleave": neutral("halves of what rotates in the index are pairs", False),
    }
    defaults: ClassVar[Mapping[str, object]] = {
        **DeepseekV3.defaults,
        "max_position_embeddings": 163_840,
        "index_n_heads": 64,
    }

    @classmethod
    def in_common_keys(cls, raw: Raw, where: str) -> Raw:
        raw = super().in_common_keys(raw, where)
        layers = Reader(raw, where, cls.defaults).layers()
        layer_kinds(raw, layers, (_INDEXED, _SPARSE), [_INDEXED] * layers, where)
        return changed(raw, {"layer_types": [FULL] * layers})

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        fields = super().own_fields(raw, reader, where)
        if fields["latent"].q_rank == 0:
            raise NotSupportedError(
                f"[models.config] {where}: q_lora_rank: got null, allowed a rank: the index makes queries of its latent"
            )
        heads, dim = reader.within("index_n_heads", 1, _MOST), reader.within("index_head_dim", 2, _MOST, 128)
        if dim < fields["latent"].rope:
            raise FormatError(
                f"[models.config] {where}: index_head_dim: got {dim}, allowed qk_rope_head_dim, "
                f"{fields['latent'].rope}, or more"
            )
        index = IndexSizes(heads, dim, reader.within("index_topk", 1, 2**31 - 1, 2048))
        return {**fields, "index": index, "choosing": cls.choosing_layers(raw, reader, where)}

    @classmethod
    def choosing_layers(cls, raw: Raw, reader: Reader, where: str) -> tuple[int, ...]:  # noqa: ARG003 (families read it)
        """The layers that have an index, the first among them."""
        return tuple(range(reader.layers()))

    @classmethod
    def sparse_layers(cls, raw: Raw, reader: Reader, where: str) -> tuple[int, ...]:
        if raw.get("mlp_layer_types") is None:
            return super().sparse_layers(raw, reader, where)
        return Glm4MoeLite.sparse_layers(raw, reader, where)

    @classmethod
    def mixer(cls, config: CausalConfig, index: int) -> MixerPlan:
        assert isinstance(config, IndexedConfig) and config.attention_multiplier is not None
        return IndexedPlan(
            config.latent,
            config.attention_multiplier,
            config.attention_bias,
            index=config.index,
            rope=cls._index_rope(config),
            first=config.num_hidden_layers,
            chooses=index in config.choosing or index >= config.num_hidden_layers,  # the prediction head has an index
        )

    @classmethod
    def attention_groups(cls, config: ModelConfig) -> list[AttentionGroup]:
        """Of the latents, and of the index keys: those of layer n are kept for layer num_hidden_layers + n."""
        assert isinstance(config, IndexedConfig)
        count, dim = config.num_hidden_layers, config.index.dim
        layers = tuple(count + layer for layer in config.choosing)
        index = AttentionGroup(layers, cls._index_rope(config), {}, heads=(1, dim), keys_only=True)
        return [*super().attention_groups(config), index]

    @classmethod
    def head_groups(cls, config: CausalConfig, index: int) -> tuple[AttentionGroup, ...]:
        latents, keys = cls.attention_groups(config)
        return latents._replace(layers=(index,)), keys._replace(layers=(config.num_hidden_layers + index,))

    @classmethod
    def _index_rope(cls, config: LatentConfig) -> RopeArguments:
        return {**cls._rope(config, FULL), "interleaved": cls.index_interleaved}
