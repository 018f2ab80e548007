"""Gemma 4 text (Gemma4ForCausalLM, and the text model of Gemma4ForConditionalGeneration).

Layers that see everything have larger heads than those with a window, and rotate a part of each head's frequencies.
The last layers may read cells of earlier ones (shared_cells.py), each layer may have inputs of its own (per_layer.py),
and experts stand beside the MLP in some sizes. Norms multiply by their weights. Source: Google DeepMind 2026 and the
Hugging Face configuration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from ... import ops
from ..._core import Device, Tensor
from ...errors import FormatError, NotSupportedError
from ..attention_group import AttentionGroup
from ..causal import CausalConfig, CausalModel, softcap, some_windows
from ..common_settings import CHOSEN, COMMON, NO_CHUNKS, SIZE, not_read
from ..config import ModelConfig, layer_kinds
from ..decoder import SANDWICH, LayerPlan, MlpPlan, Shapes
from ..experts_config import MOST_EXPERTS, Fields
from ..gemma_gguf import LEAVES_4, SETTINGS_4, gemma4_from_gguf, tensors_apart_4
from ..gemma_moe import WITH_EXPERTS, BesideMlp
from ..gguf_form import GgufForm
from ..moe import ExpertsPlan
from ..per_layer import PerLayer, PerLayerGate, PerLayerInputs
from ..reader import Raw, Reader, changed
from ..rope_arguments import RopeArguments
from ..rope_config import FULL, PARTIAL, SLIDING, RopeFields, rope_of_kind, rope_type_of
from ..settings import neutral, read, refused
from ..shared_cells import SharedCellsPlan, sources_of
from ..step_inputs import Positions, Rope, Rows, StepLike
from ..stored import IMAGES
from ..weight_table import WeightTable
from ..weights import Array, WeightSource

_MOST = 2**31 - 1
_PATTERN = 6  # each n-th layer sees everything
_PROPORTIONAL = "proportional"
_ROPES: Mapping[str, Mapping[str, object]] = {  # where a file has none
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": _PROPORTIONAL, PARTIAL: 0.25, "rope_theta": 1_000_000.0},
}
_UNROTATED = 1e30  # what frequencies are divided by that do not rotate
_OWN_ROPES = refused("each kind of layers has its own, in rope_parameters")
_LAYER_NORM = "post_per_layer_input_norm"
_UNUSED = ("k_proj", "v_proj", "k_norm", "v_norm")  # of layers that read others' cells, in files that have them


@dataclass(frozen=True)
class Gemma4Config(CausalConfig):
    """``global_heads``: heads of k and v, and numbers of each, of layers that see everything. ``sources``: whose cells
    a layer reads; None: its own. ``wide_readers``: whether those that read others' have MLPs of twice the width.

    ``per_layer``: of per_layer.py; None: layers have no inputs of their own. ``cap``: where logits level off.
    """

    global_heads: tuple[int, int] = (1, 2)
    sources: tuple[int | None, ...] = ()
    wide_readers: bool = False
    keys_as_values: bool = False
    per_layer: PerLayer | None = None
    cap: float | None = None

    def heads_of(self, index: int) -> tuple[int, int]:
        full = self.layer_types[index] == FULL
        return self.global_heads if full else (self.num_key_value_heads, self.head_dim)


def _apart(config: ModelConfig) -> list[str]:
    assert isinstance(config, Gemma4Config)
    return tensors_apart_4(config.sources)


class Gemma4(CausalModel):
    family = "gemma4_text"
    architectures = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
    ropes_by_kind = True
    gguf = {"gemma4": GgufForm(gemma4_from_gguf, LEAVES_4, SETTINGS_4, apart=_apart)}  # noqa: RUF012 (a ClassVar of Model's)
    own_rope = {"factor": read("positions are divided by it")}  # noqa: RUF012 (a ClassVar of Model's)
    ignored = {  # noqa: RUF012 (the same)
        **IMAGES,
        "audio_tower.*": "hears, which is not computed",
        "embed_vision.*": "brings images among the tokens; images are not computed",
        "embed_audio.*": "brings sounds among the tokens; sounds are not computed",
    }
    settings = {  # noqa: RUF012 (the same)
        **COMMON,
        **NO_CHUNKS,
        **not_read("mlp_bias", "hidden_act", "use_sliding_window", "max_window_layers"),
        "hidden_activation": read("gelu_pytorch_tanh; others are refused"),
        "sliding_window": read("tokens that a sliding layer sees, its own among them"),
        "final_logit_softcapping": read("where logits level off"),
        "global_head_dim": read("numbers of a head in layers that see everything"),
        "num_global_key_value_heads": read("their heads of keys and values, with attention_k_eq_v; null: as others"),
        "attention_k_eq_v": read("whether keys are values, too, in layers that see everything"),
        "num_kv_shared_layers": read("last layers, which read cells of earlier ones"),
        "use_double_wide_mlp": read("whether their MLPs are twice as wide"),
        "hidden_size_per_layer_input": read("numbers of each layer's own inputs; 0: there are none"),
        "vocab_size_per_layer_input": read("rows of the table of these inputs; at least vocab_size"),
        "enable_moe_block": read("whether experts stand beside the MLPs"),
        "num_experts": SIZE,
        "moe_intermediate_size": SIZE,
        "top_k_experts": CHOSEN,
        "per_layer_config": read("allowed if it says what global_head_dim and num_global_key_value_heads do"),
        "serialize_explicit_per_layer_config": neutral("how transformers writes a configuration"),
        "use_bidirectional_attention": neutral("a token of a text sees no later one", False, "vision"),
        **dict.fromkeys(("rope_theta", "rope_scaling", PARTIAL, "original_max_position_embeddings"), _OWN_ROPES),
    }
    defaults = {  # noqa: RUF012 (the same)
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "tie_word_embeddings": True,
    }
    activation = ("hidden_activation", ("gelu_pytorch_tanh",))
    renamed = ((".experts.", ".mlp.experts."), (".router.", ".mlp.router."))

    kind_of_config = Gemma4Config

    config: Gemma4Config

    @classmethod
    def layer_plan(cls, config: ModelConfig, index: int) -> LayerPlan:
        assert isinstance(config, Gemma4Config)
        source, (kv_heads, head_dim) = config.sources[index], config.heads_of(index)
        keys = config.keys_as_values and config.layer_types[index] == FULL
        mixer = SharedCellsPlan(kv_heads, head_dim, source, keys, config.attention_bias)
        wide = 2 if config.wide_readers and source is not None else 1
        mlp = MlpPlan(config.intermediate_size * wide, "gelu")
        if not config.expert_layers:
            return LayerPlan(mixer, mlp, SANDWICH)
        return LayerPlan(mixer, BesideMlp(mlp, cls.experts(config)), WITH_EXPERTS)

    @classmethod
    def experts(cls, config: CausalConfig) -> ExpertsPlan:
        sizes = (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size)
        return ExpertsPlan(*sizes, "normed", router="router.proj", activation="gelu")

    # ---- config.json -------------------------------------------------------------------------------------------------

    @classmethod
    def read_ropes(cls, raw: Raw, where: str) -> dict[str, RopeFields]:
        given = raw.get("rope_parameters")
        if given is not None and not isinstance(given, Mapping):
            raise FormatError(f"[models.config] {where}: rope_parameters: got {given!r}, allowed an object")
        reader = Reader(raw, where, cls.defaults)
        sizes = {
            FULL: _global_heads(raw, reader, _kinds(raw, reader, where), where)[1],
            SLIDING: reader.integer("head_dim"),
        }
        most = reader.integer("max_position_embeddings")
        return {
            kind: _rope(_ROPES if given is None else given, kind, size, most, where) for kind, size in sizes.items()
        }

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        kinds = _kinds(raw, reader, where)
        window = some_windows(changed(raw, {"layer_types": kinds}), reader, where, kinds, 512)
        return {
            **window,
            **_experts(raw, reader, where),
            "embedding_multiplier": math.sqrt(reader.integer("hidden_size")),
            "global_heads": _global_heads(raw, reader, kinds, where),
            "sources": read_sources(reader, kinds, 0, where),
            "wide_readers": reader.flag("use_double_wide_mlp"),
            "keys_as_values": reader.flag("attention_k_eq_v"),
            "per_layer": _per_layer(reader, where),
            "cap": None if raw.get("final_logit_softcapping") is None else reader.positive("final_logit_softcapping"),
        }

    # ---- tensors -----------------------------------------------------------------------------------------------------

    @classmethod
    def tensor_shapes(cls, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        assert isinstance(config, Gemma4Config)
        beside = {} if config.per_layer is None else config.per_layer.shapes(config)
        return {**super().tensor_shapes(config), **beside}

    @classmethod
    def layers_shapes(cls, config: ModelConfig) -> list[Shapes]:
        assert isinstance(config, Gemma4Config)
        return [{**shapes, **cls.own_layer_shapes(config)} for shapes in super().layers_shapes(config)]

    @classmethod
    def own_layer_shapes(cls, config: Gemma4Config) -> Shapes:
        """Of each layer, beside its mixer, MLP and norms."""
        own: Shapes = {"layer_scalar": (1,)}
        if config.per_layer is not None:
            own.update(config.per_layer.layer_shapes(config, _LAYER_NORM))
        return own

    @classmethod
    def adapt(cls, config: ModelConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        assert isinstance(config, Gemma4Config)
        readers = [index for index, source in enumerate(config.sources) if source is not None]
        unused = tuple(f"model.layers.{index}.self_attn.{name}." for index in readers for name in _UNUSED)
        found = super().adapt(config, sources)
        return {name: source for name, source in found.items() if not name.startswith(unused)}

    # ---- the model ---------------------------------------------------------------------------------------------------

    @classmethod
    def attention_groups(cls, config: ModelConfig) -> list[AttentionGroup]:
        assert isinstance(config, Gemma4Config)
        ropes: dict[str, RopeArguments] = {
            FULL: {"base": config.rope_theta, "scaling": config.rope_scaling},
            SLIDING: {"base": config.sliding_theta, "scaling": config.sliding_scaling},
        }
        groups = []
        sees: dict[str, dict[str, int]] = {FULL: {}, SLIDING: {"window": config.sliding_window}}
        for kind in (FULL, SLIDING):
            layers = tuple(i for i, own in enumerate(config.layer_types) if own == kind and config.sources[i] is None)
            if layers:
                groups.append(AttentionGroup(layers, ropes[kind], sees[kind], config.heads_of(layers[0])))
        return groups

    @classmethod
    def _ropes(cls, config: ModelConfig, device: Device) -> dict[int, Rope]:
        """Layers that read others' cells rotate q as those do."""
        assert isinstance(config, Gemma4Config)
        ropes = super()._ropes(config, device)
        readers = {index: source for index, source in enumerate(config.sources) if source is not None}
        return {**ropes, **{index: ropes[source] for index, source in readers.items()}}

    def build_rest(self, weights: WeightTable) -> None:
        super().build_rest(weights)
        c, prefixes = self.config, [f"model.layers.{index}" for index in range(self.config.num_hidden_layers)]
        scalars = "layer_scalar" in self.own_layer_shapes(c)
        self._scalars = [weights.number(f"{prefix}.layer_scalar") for prefix in prefixes if scalars]
        self._inputs: PerLayerInputs | None = None
        self._gates: list[PerLayerGate] = []
        if c.per_layer is not None:
            self._inputs = PerLayerInputs(c.per_layer, c, weights)
            self._gates = [PerLayerGate(weights, prefix, _LAYER_NORM, c.rms_norm_eps) for prefix in prefixes]

    def through(self, layers: Sequence[int], step: StepLike, tokens: Array, rows: Rows | None) -> Tensor:
        x, positions, last = self.embed(tokens), Positions(step, self.device), len(self._layers) - 1
        inputs = [] if self._inputs is None else self._inputs(tokens, x)
        for index in layers:
            take = rows if index == last else None
            x = self._layers[index](step, x, positions, take)
            if inputs:
                own = inputs[index] if take is None else take.take(inputs[index])
                x = ops.add(x, self._gates[index](x, own))
            if self._scalars[index] != 1.0:
                x = ops.clamp(x, scale=self._scalars[index])
        return x

    def finish(self, logits: Tensor) -> Tensor:
        return logits if self.config.cap is None else softcap(logits, self.config.cap)


def _kinds(raw: Raw, reader: Reader, where: str) -> list[str]:
    """The last layer sees everything, whatever ``layer_types`` has for it."""
    layers = reader.layers()
    default = [SLIDING if (index + 1) % _PATTERN else FULL for index in range(layers)]
    return [*layer_kinds(raw, layers, (FULL, SLIDING), default, where)[:-1], FULL]


def _rope(ropes: Mapping[str, object], kind: str, head_dim: int, most: int, where: str) -> RopeFields:
    """Of one kind of layers; of ``proportional`` with a factor for each frequency of a head."""
    inside = f"{where}: rope_parameters: {kind}"
    own = ropes.get(kind)
    if not isinstance(own, Mapping):
        raise FormatError(f"[models.config] {inside}: got {own!r}, allowed an object")
    if rope_type_of(own) != _PROPORTIONAL:
        return rope_of_kind(own, inside, most)
    reader = Reader(own, inside)
    pairs, share = head_dim // 2, reader.number(PARTIAL, 1.0)
    if not 0 <= share <= 1:
        raise FormatError(f"[models.config] {inside}: {PARTIAL}: got {share}, allowed 0.0 to 1.0")
    rotated = int(share * head_dim // 2)
    factors = [reader.positive("factor", 1.0)] * rotated + [_UNROTATED] * (pairs - rotated)
    scaling = {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "attention_factor": 1.0,
        "original_max_position_embeddings": most,
        "max_position_embeddings": most,
    }
    return RopeFields(reader.positive("rope_theta", 10_000.0), scaling)


def read_sources(reader: Reader, kinds: Sequence[str], default: int, where: str) -> tuple[int | None, ...]:
    """Whose cells each layer reads, see ``sources_of``; ``default``: how many read, where the file says nothing."""
    shared = reader.within("num_kv_shared_layers", 0, reader.layers() - 1, default)
    try:
        return tuple(sources_of(kinds, shared))
    except ValueError as kind:
        raise FormatError(
            f"[models.config] {where}: num_kv_shared_layers: got {shared}, allowed so many that one of the "
            f"layer_types of {kind} keeps cells of its own"
        ) from None


def _global_heads(raw: Raw, reader: Reader, kinds: Sequence[str], where: str) -> tuple[int, int]:
    """Heads of k and v, and numbers of each, of layers that see everything."""
    heads = reader.integer("num_attention_heads")
    kv_heads = heads if reader.null("num_key_value_heads") else reader.integer("num_key_value_heads")
    size, own = reader.within("global_head_dim", 2, _MOST, 512), raw.get("num_global_key_value_heads")
    if reader.null("global_head_dim"):
        raise FormatError(f"[models.config] {where}: global_head_dim: got null, allowed 2 or more")
    if own is not None and reader.flag("attention_k_eq_v"):
        kv_heads = reader.within("num_global_key_value_heads", 1, _MOST)
    if raw.get("per_layer_config") is not None:
        kv_heads, size = _by_layer(raw, reader, kinds, where)
    if size % 2:
        raise FormatError(f"[models.config] {where}: global_head_dim: got {size}, allowed an even number")
    if heads % kv_heads:
        raise FormatError(
            f"[models.config] {where}: num_global_key_value_heads: got {kv_heads}, allowed a divisor of "
            f"num_attention_heads ({heads})"
        )
    return kv_heads, size


def _by_layer(raw: Raw, reader: Reader, kinds: Sequence[str], where: str) -> tuple[int, int]:
    """The entries of ``per_layer_config``, as transformers writes it, of layers that see everything."""
    given = raw["per_layer_config"]
    usual = {"num_key_value_heads": reader.integer("num_key_value_heads"), "head_dim": reader.integer("head_dim")}
    found = [{**usual, **_of_layer(given, index)} for index in range(len(kinds))]
    full = [each for each, kind in zip(found, kinds) if kind == FULL]
    sliding = [each for each, kind in zip(found, kinds) if kind == SLIDING]
    sizes = [value for each in found for value in each.values()]
    whole = all(isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= _MOST for size in sizes)
    alike = all(each == full[0] for each in full) and all(each == usual for each in sliding)
    if not whole or not alike or any(each.keys() != usual.keys() for each in found):
        raise NotSupportedError(
            f"[models.config] {where}: per_layer_config: got {given!r}, allowed one head_dim and one "
            "num_key_value_heads for all layers that see everything"
        )
    return cast(int, full[0]["num_key_value_heads"]), cast(int, full[0]["head_dim"])


def _of_layer(given: object, index: int) -> Mapping[str, object]:
    own = given.get(str(index)) if isinstance(given, Mapping) else None
    return own if isinstance(own, Mapping) else {} if own is None else {"": own}


def _per_layer(reader: Reader, where: str) -> PerLayer | None:
    key, rows_key = "hidden_size_per_layer_input", "vocab_size_per_layer_input"
    width = 0 if reader.null(key) else reader.within(key, 0, _MOST, 256)
    rows, vocab = reader.within(rows_key, 0, _MOST, 262_144), reader.integer("vocab_size")
    if width and rows < vocab:
        raise FormatError(f"[models.config] {where}: {rows_key}: got {rows}, allowed at least vocab_size ({vocab})")
    return PerLayer(rows, width) if width else None


def _experts(raw: Raw, reader: Reader, where: str) -> Fields:
    if not reader.flag("enable_moe_block"):
        return {}
    missing = [key for key in ("num_experts", "top_k_experts", "moe_intermediate_size") if raw.get(key) is None]
    if missing:
        raise FormatError(f"[models.config] {where}: enable_moe_block: got true, allowed false without {missing[0]}")
    count = reader.within("num_experts", 1, MOST_EXPERTS)
    return {
        "num_experts": count,
        "num_experts_per_tok": reader.within("top_k_experts", 1, count),
        "moe_intermediate_size": reader.within("moe_intermediate_size", 1, _MOST),
        "expert_layers": tuple(range(reader.layers())),
    }
