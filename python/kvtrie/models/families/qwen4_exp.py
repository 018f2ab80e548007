"""Qwen4-Exp text (Qwen4ExpForCausalLM, and the text model of Qwen4ExpForConditionalGeneration).

Gated delta layers, every fourth one gated attention whose rows choose blocks of keys (chosen_blocks.py); every MLP has
experts and a shared one. Several residual streams go through all of it (hyper.py), and some delta layers add to them
what n-grams say (ngram_layer.py). Norms multiply by (1 + weight), except the one behind the delta rule. Text has one
position for each token, so multimodal RoPE is plain RoPE. Source: Qwen Team 2026 and the Hugging Face configuration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ... import ops
from ..._core import Tensor
from ...errors import FormatError
from ..attention import AttentionPlan
from ..attention_group import AttentionGroup
from ..chosen_blocks import BlockPlan, BlockSizes
from ..common_settings import SIZE, not_read
from ..config import ModelConfig, text_part
from ..decoder import LayerPlan, MixerPlan, NormNames, Shapes
from ..delta import DeltaPlan, HybridConfig
from ..experts_config import Fields
from ..hyper import Hyper, HyperPlan
from ..ngram_layer import NO_NGRAMS, TABLE, NgramLayer, NgramPlan
from ..ngrams import Ngrams, with_context
from ..reader import Raw, Reader, changed
from ..settings import neutral, read
from ..states import States
from ..step_inputs import Positions, Rows, StepLike
from ..stored import FURTHER, IMAGES
from ..stored_ngrams import compare_hashes, join_tables
from ..weight_table import WeightTable
from ..weights import Array, WeightSource
from .qwen3_5 import Qwen35Moe
from .qwen3_next import FULL, LINEAR, expert_sizes, experts_plan

_MOST = 2**31 - 1
_INDEXED = "indexed_attention"
_ATTENTION, _MLP, _LAST = "attn_hyper_connection", "mlp_hyper_connection", "model.hyper_connection_mixer"
_HYPER = HyperPlan(4, 320)
_NO_NORMS = NormNames(None, None, None, None)
_INDEX_KEYS = ("indexer_n_heads", "indexer_kv_heads", "indexer_head_dim", "indexer_budget", "indexer_compress_ratio")


@dataclass(frozen=True)
class Qwen4ExpConfig(HybridConfig):
    """``index``: None for attention to all keys. ``sigmoid``: the gate of delta layers, else silu."""

    hyper: HyperPlan = _HYPER
    ngrams: NgramPlan = NO_NGRAMS
    index: BlockSizes | None = None
    sigmoid: bool = False


class Qwen4Exp(Qwen35Moe):
    family = "qwen4_exp_text"
    architectures = ("Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration")
    gguf = {}  # noqa: RUF012 (a ClassVar of Model's)
    last_norm = False
    brings_head = False  # none is published
    partial = 1.0
    ignored = {  # noqa: RUF012 (the same)
        **FURTHER,
        **IMAGES,
        "layers.*.ple.ple_embedding.layer_multipliers": "follow from the configuration, and are compared with it",
        "layers.*.ple.ple_embedding.ngram_heads_*": "follow from the configuration, and are compared with it",
    }
    settings = {  # noqa: RUF012 (the same)
        **Qwen35Moe.settings,
        "norm_topk_prob": read("whether an expert's share is of those chosen, or of all"),
        "layer_types": read("the kind of each layer: linear_attention or indexed_attention, also full_attention"),
        "number_of_conv_states": neutral("follows from ple_layer_ids"),
        "hc_count": read("residual streams"),
        "hc_lowrank": SIZE,
        "ple_layer_ids": read("layers that look up n-grams, counted from 1"),
        "ple_embed_dim": SIZE,
        "ple_conv_kernel_size": SIZE,
        "ngram_size": read("tokens of the largest n-gram"),
        "heads_per_ngram": read("rows that a token looks up for each length of n-grams"),
        "ngram_vocab_size_base": read("rows of each head: the next primes"),
        "make_ngram_vocab_size_divisible_by": read("the rows of all heads are filled up to a multiple of it"),
        "seed": read("of the multipliers of n-grams"),
        "split_ngram_parts": neutral("parts of a table in files, which are read in any number"),
        "indexer_n_heads": read("heads of the index; null, as all of indexer_*: attention is to all keys"),
        "indexer_kv_heads": read("has to be 1"),
        "indexer_head_dim": SIZE,
        "indexer_budget": read("tokens of complete blocks that a row attends to"),
        "indexer_compress_ratio": read("tokens of a block"),
        "output_gate_type": read("what the gate of delta layers goes through: silu or sigmoid; null: hidden_act"),
        **not_read("attn_output_gate", "mamba_ssm_dtype"),
    }

    config: Qwen4ExpConfig

    @classmethod
    def parse_config(cls, raw: Raw, generation: Raw | None = None, where: str = "config") -> Qwen4ExpConfig:
        raw = text_part(raw, where)
        kinds = raw.get("layer_types")
        if isinstance(kinds, list):
            raw = changed(raw, {"layer_types": [FULL if kind == _INDEXED else kind for kind in kinds]})
        plain = super().parse_config(raw, generation, where)
        reader = Reader(raw, where, cls.defaults)
        fields = {each.name: getattr(plain, each.name) for each in dataclasses.fields(plain)}
        return Qwen4ExpConfig(
            **fields,
            hyper=HyperPlan(reader.within("hc_count", 2, 2**10, 4), reader.within("hc_lowrank", 1, _MOST, 320)),
            ngrams=_ngrams(raw, reader, plain, where),
            index=_index(raw, reader, plain, where),
            sigmoid=_sigmoid(raw, where),
        )

    @classmethod
    def expert_fields(cls, raw: Raw, where: str) -> Fields:
        reader = Reader(raw, where)
        sizes = expert_sizes(reader, reader.within("num_experts", 1, 2**20, 512), 10)
        norm = reader.flag("norm_topk_prob", True)
        return {**sizes, "norm_topk_prob": norm, "expert_layers": tuple(range(reader.layers()))}

    # ---- parts -------------------------------------------------------------------------------------------------------

    @classmethod
    def layer_plan(cls, config: ModelConfig, index: int) -> LayerPlan:
        assert isinstance(config, Qwen4ExpConfig)
        return LayerPlan(cls._mixer(config, index), experts_plan(config), _NO_NORMS)

    @classmethod
    def _mixer(cls, config: Qwen4ExpConfig, index: int) -> MixerPlan:
        if config.layer_types[index] == LINEAR:
            return DeltaPlan(config, fused=False, sigmoid=config.sigmoid)
        plan = AttentionPlan(config.attention_bias, config.attention_bias, norms=True, gated=True)
        if config.index is None:
            return plan
        return BlockPlan(plan, config.index, cls._rope(config), config.num_hidden_layers)

    @classmethod
    def layers_shapes(cls, config: ModelConfig) -> list[Shapes]:
        assert isinstance(config, Qwen4ExpConfig)
        found = super().layers_shapes(config)
        for index, own in enumerate(found):
            for name in (_ATTENTION, _MLP):
                own.update(config.hyper.shapes(config, name))
            if index in config.ngrams.ngrams.layers:
                table = config.ngrams.ngrams.table(index, config.vocab_size)
                own.update(config.ngrams.shapes(config, config.hyper.streams, table))
        return found

    @classmethod
    def tensor_shapes(cls, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        assert isinstance(config, Qwen4ExpConfig)
        return {**super().tensor_shapes(config), **config.hyper.shapes(config, _LAST, injects=False)}

    @classmethod
    def adapt(cls, config: ModelConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        """Tables of n-grams may be stored in parts; stored hashes have to be those of the configuration."""
        assert isinstance(config, Qwen4ExpConfig)
        found = super().adapt(config, sources)
        for layer in config.ngrams.ngrams.layers:
            table = config.ngrams.ngrams.table(layer, config.vocab_size)
            compare_hashes(found, f"model.layers.{layer}.ple.ple_embedding", table)
            found = join_tables(found, f"model.layers.{layer}.{TABLE}")
        return found

    @classmethod
    def attention_groups(cls, config: ModelConfig) -> list[AttentionGroup]:
        """Of keys and values, and of index keys: those of layer n are kept for layer num_hidden_layers + n."""
        assert isinstance(config, Qwen4ExpConfig)
        groups = super().attention_groups(config)
        if config.index is None or not groups:
            return groups
        layers = tuple(config.num_hidden_layers + layer for layer in config.layers(FULL))
        return [*groups, AttentionGroup(layers, None, {}, heads=(1, config.index.dim), keys_only=True)]

    @classmethod
    def states(cls, config: ModelConfig) -> States:
        assert isinstance(config, Qwen4ExpConfig)
        return super().states(config)._replace(further=(config.ngrams.states(config, config.hyper.streams),))

    # ---- steps -------------------------------------------------------------------------------------------------------

    def build_rest(self, weights: WeightTable) -> None:
        c, prefixes = self.config, [f"model.layers.{index}" for index in range(self.config.num_hidden_layers)]
        self._around = [
            (Hyper(c.hyper, weights, f"{each}.{_ATTENTION}", c), Hyper(c.hyper, weights, f"{each}.{_MLP}", c))
            for each in prefixes
        ]
        self._last = Hyper(c.hyper, weights, _LAST, c, injects=False)
        self._lookups = {
            layer: NgramLayer(c.ngrams, c.hyper, c.ngrams.ngrams.table(layer, c.vocab_size), layer, weights, c)
            for layer in c.ngrams.ngrams.layers
        }

    def further_inputs(self, step: StepLike, tokens: Array) -> list[Array]:
        """Of each layer with n-grams, the rows that its tokens look up."""
        if not self._lookups:
            return []
        own = self.config.ngrams.ngrams
        context = with_context(step, tokens, own.size, own.end)
        return [layer.ids(context) for layer in self._lookups.values()]

    def through(self, layers: Sequence[int], step: StepLike, tokens: Array, rows: Rows | None) -> Tensor:
        """See ``Model.through``; the streams are mixed into one row at the end."""
        positions, last = Positions(step, self.device), len(self._layers) - 1
        x = ops.concat([self.embed(tokens)] * self.config.hyper.streams, axis=1)
        ids = dict(zip(self._lookups, self.further_inputs(step, tokens)))
        for index in layers:
            if index in self._lookups:
                x = self._lookups[index](step, x, ids[index])
            x = self._layer(index, step, x, positions, rows if index == last else None)
        return self._last.mixed(x)[0]

    def _layer(self, index: int, step: StepLike, x: Tensor, positions: Positions, take: Rows | None) -> Tensor:
        layer, (around_mixer, around_mlp) = self._layers[index], self._around[index]
        assert layer.mixer is not None and layer.mlp is not None
        h, normed = around_mixer.mixed(x)
        x = around_mixer.added(x, layer.mixer(step, h, positions, take, None), normed, take)
        h, normed = around_mlp.mixed(x)
        return around_mlp.added(x, layer.mlp(h), normed)


# ---- configuration ---------------------------------------------------------------------------------------------------


def _ngrams(raw: Raw, reader: Reader, plain: HybridConfig, where: str) -> NgramPlan:
    ids = reader.integers("ple_layer_ids", 1, plain.num_hidden_layers) or ()
    if not ids:
        return NO_NGRAMS
    layers = tuple(sorted({each - 1 for each in ids}))
    others = [each + 1 for each in layers if plain.layer_types[each] != LINEAR]
    if others:
        raise FormatError(
            f"[models.config] {where}: ple_layer_ids: got {others}, allowed layers of {LINEAR} (layer_types, or "
            "full_attention_interval)"
        )
    ngrams = Ngrams(
        layers,
        reader.within("ngram_size", 2, 2**10, 3),
        reader.within("heads_per_ngram", 1, 2**10, 8),
        reader.within("ngram_vocab_size_base", 1, _MOST, 20_000_000),
        reader.within("make_ngram_vocab_size_divisible_by", 1, _MOST, 128),
        reader.within("seed", 0, 2**63 - 1, 1234),
        _end(raw, plain, where),
    )
    width = (
        plain.hidden_size
        if reader.null("ple_embed_dim")
        else reader.within("ple_embed_dim", 1, _MOST, plain.hidden_size)
    )
    if width % ngrams.all_heads:
        raise FormatError(
            f"[models.config] {where}: ple_embed_dim: got {width}, allowed a multiple of {ngrams.all_heads}, "
            "heads_per_ngram for each length of n-grams"
        )
    return NgramPlan(ngrams, width, reader.within("ple_conv_kernel_size", 2, 2**10, 4))


def _end(raw: Raw, plain: HybridConfig, where: str) -> int:
    """The first of ``eos_token_id``, in the file of the model itself."""
    given = raw.get("eos_token_id")
    first = given[0] if isinstance(given, (list, tuple)) and given else given
    if not isinstance(first, int) or isinstance(first, bool) or not 0 <= first < plain.vocab_size:
        raise FormatError(
            f"[models.config] {where}: eos_token_id: got {given!r}, allowed a token, or a list of some: n-grams "
            "(ple_layer_ids) end at it"
        )
    return first


def _index(raw: Raw, reader: Reader, plain: HybridConfig, where: str) -> BlockSizes | None:
    if all(raw.get(key) is None for key in _INDEX_KEYS):
        return None
    missing = [key for key in _INDEX_KEYS if raw.get(key) is None]
    if missing:
        raise FormatError(
            f"[models.config] {where}: {missing[0]}: got null, allowed a number beside others of indexer_*"
        )
    heads, _, dim = (reader.within(key, 1, most) for key, most in zip(_INDEX_KEYS, (_MOST, 1, _MOST)))
    budget, ratio = reader.within("indexer_budget", 1, _MOST), reader.within("indexer_compress_ratio", 1, _MOST)
    if budget % ratio:
        raise FormatError(
            f"[models.config] {where}: indexer_budget: got {budget}, allowed a multiple of "
            f"indexer_compress_ratio ({ratio})"
        )
    if dim < plain.rotary_dims:
        raise FormatError(
            f"[models.config] {where}: indexer_head_dim: got {dim}, allowed {plain.rotary_dims} or more: what "
            "rotates of a head (head_dim, partial_rotary_factor)"
        )
    return BlockSizes(heads, dim, budget, ratio)


def _sigmoid(raw: Raw, where: str) -> bool:
    kind = raw.get("output_gate_type") or "silu"
    if kind not in ("silu", "sigmoid"):
        raise FormatError(f"[models.config] {where}: output_gate_type: got {kind!r}, allowed silu or sigmoid")
    return kind == "sigmoid"
