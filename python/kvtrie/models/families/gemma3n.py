"""Gemma 3n text (Gemma3nForCausalLM, and the text model of Gemma3nForConditionalGeneration).

Layers work on one of several residual streams (altup.py); the last ones read cells of earlier ones (shared_cells.py),
and each has inputs of its own (per_layer.py). Norms multiply by their weights. Source: Google DeepMind 2025 and the
Hugging Face configuration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ... import ops
from ..._core import Tensor
from ...errors import FormatError
from ..altup import AltUp, AltUpPlan, SparseMlpPlan, Streams
from ..causal import some_windows
from ..common_settings import COMMON, NO_CHUNKS, not_read
from ..config import ModelConfig
from ..decoder import SANDWICH, LayerPlan, MlpPlan, Shapes
from ..experts_config import Fields
from ..gemma_gguf import LEAVES_3N, SETTINGS_3N, gemma3n_from_gguf, unread_cells
from ..gguf_form import GgufForm
from ..per_layer import TABLE, PerLayer
from ..reader import Raw, Reader, changed
from ..rope_config import FULL, SLIDING, RopeFields, ropes_of_kinds
from ..settings import neutral, read, refused
from ..shared_cells import SharedCellsPlan
from ..step_inputs import Positions, Rows, StepLike
from ..weight_table import WeightTable
from ..weights import Array, WeightSource
from .gemma4 import Gemma4, Gemma4Config, read_sources

_MOST = 2**31 - 1
_PATTERN = 5  # each n-th layer sees everything
_SPARSE_LAYERS, _SPARSITY = 10, 0.95  # of models with more layers, where a file has no pattern
_ONE_STREAM = AltUpPlan(streams=1, active=0, scaled=False, rank=1)
_LAYER_NORM = "post_per_layer_input_norm"


@dataclass(frozen=True)
class Gemma3nConfig(Gemma4Config):
    """``inner``: width of each layer's MLP; ``sparsity``: the share of its gates that are zero."""

    inner: tuple[int, ...] = ()
    sparsity: tuple[float, ...] = ()
    altup: AltUpPlan = _ONE_STREAM


def _unread(config: ModelConfig) -> list[str]:
    assert isinstance(config, Gemma3nConfig)
    return unread_cells(config.sources)


class Gemma3n(Gemma4):
    family = "gemma3n_text"
    architectures = ("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration")
    own_rope = {}  # noqa: RUF012 (a ClassVar of Model's)
    gguf = {"gemma3n": GgufForm(gemma3n_from_gguf, LEAVES_3N, SETTINGS_3N, apart=_unread)}  # noqa: RUF012 (the same)
    settings = {  # noqa: RUF012 (the same)
        **COMMON,
        **NO_CHUNKS,
        **not_read("mlp_bias", "hidden_act", "use_sliding_window", "max_window_layers"),
        "intermediate_size": read("width of the MLPs: of all, or of each layer"),
        "hidden_activation": read("gelu_pytorch_tanh; others are refused"),
        "sliding_window": read("tokens that a sliding layer sees, its own among them"),
        "final_logit_softcapping": read("where logits level off"),
        "num_kv_shared_layers": read("last layers, which read cells of earlier ones"),
        "hidden_size_per_layer_input": read("numbers of each layer's own inputs"),
        "vocab_size_per_layer_input": read("rows of the table of these inputs; other tokens have that of token 0"),
        "altup_num_inputs": read("residual streams"),
        "altup_active_idx": read("which of them layers compute"),
        "altup_correct_scale": read("whether the layers' own inputs see it scaled"),
        "altup_coef_clip": neutral("seen in training only"),
        "laurel_rank": read("numbers between the two matrices of a layer's shortcut"),
        "activation_sparsity_pattern": read("the share of each layer's gates that are zero"),
        "original_max_position_embeddings": refused("each kind of layers has its own, in rope_parameters"),
        "rope_local_base_freq": read("RoPE: the base of sliding layers"),
    }
    defaults = {  # noqa: RUF012 (the same)
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "tie_word_embeddings": True,
    }
    kind_of_config = Gemma3nConfig

    config: Gemma3nConfig

    @classmethod
    def parse_config(cls, raw: Raw, generation: Raw | None = None, where: str = "config") -> Gemma3nConfig:
        inner = raw.get("intermediate_size")
        if isinstance(inner, (list, tuple)) and inner:
            layers = Reader(raw, where).layers()
            sizes = Reader(raw, where).integers("intermediate_size", 1, _MOST) or ()
            if len(sizes) != layers:
                raise FormatError(
                    f"[models.config] {where}: intermediate_size: got {len(sizes)} entries, allowed one number or "
                    f"{layers} (num_hidden_layers)"
                )
            raw = changed(raw, {"intermediate_size": sizes[0]})
            return replace(cls._parsed(raw, generation, where), inner=sizes)
        return cls._parsed(raw, generation, where)

    @classmethod
    def _parsed(cls, raw: Raw, generation: Raw | None, where: str) -> Gemma3nConfig:
        config = super().parse_config(raw, generation, where)
        assert isinstance(config, Gemma3nConfig)
        return replace(config, inner=(config.intermediate_size,) * config.num_hidden_layers)

    @classmethod
    def read_ropes(cls, raw: Raw, where: str) -> dict[str, RopeFields]:
        return ropes_of_kinds(raw, where, {FULL: 1_000_000.0, SLIDING: 10_000.0}, 32_768)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        layers = reader.layers()
        default = [SLIDING if (index + 1) % _PATTERN else FULL for index in range(layers)]
        windows = some_windows(raw, reader, where, default, 512)
        width = reader.within("hidden_size_per_layer_input", 1, _MOST, 256)
        rows = reader.within("vocab_size_per_layer_input", 1, _MOST, 262_144)
        streams = reader.within("altup_num_inputs", 1, 2**10, 4)
        active, scaled = reader.within("altup_active_idx", 0, streams - 1, 0), reader.flag("altup_correct_scale", True)
        rank = reader.within("laurel_rank", 1, _MOST, 64)
        kv_heads = reader.integer("num_attention_heads") if reader.null("num_key_value_heads") else None
        return {
            **windows,
            "embedding_multiplier": math.sqrt(reader.integer("hidden_size")),
            "global_heads": (kv_heads or reader.integer("num_key_value_heads"), reader.integer("head_dim")),
            "sources": read_sources(reader, windows["layer_types"], 15, where),
            "per_layer": PerLayer(max(rows, reader.integer("vocab_size")), width),
            "cap": None if reader.null("final_logit_softcapping") else reader.positive("final_logit_softcapping", 30.0),
            "sparsity": _sparsity(raw, layers, where),
            "altup": AltUpPlan(streams, active, scaled, rank),
        }

    @classmethod
    def layer_plan(cls, config: ModelConfig, index: int) -> LayerPlan:
        assert isinstance(config, Gemma3nConfig)
        mixer = SharedCellsPlan(*config.heads_of(index), config.sources[index], bias=config.attention_bias)
        inner, sparsity = config.inner[index], config.sparsity[index]
        mlp = SparseMlpPlan(inner, sparsity) if sparsity > 0 else MlpPlan(inner, "gelu")
        return LayerPlan(mixer, mlp, SANDWICH)

    @classmethod
    def tensor_shapes(cls, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        assert isinstance(config, Gemma3nConfig)
        return {**super().tensor_shapes(config), **config.altup.shapes(config)}

    @classmethod
    def own_layer_shapes(cls, config: Gemma4Config) -> Shapes:
        assert isinstance(config, Gemma3nConfig) and config.per_layer is not None
        return {**config.per_layer.layer_shapes(config, _LAYER_NORM), **config.altup.layer_shapes(config)}

    @classmethod
    def adapt(cls, config: ModelConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        """Tokens that the table of per-layer inputs does not have look up its first row."""
        assert isinstance(config, Gemma3nConfig) and config.per_layer is not None
        found = super().adapt(config, sources)
        table = found.get(TABLE)
        if table is not None and len(table.shape) == 2 and table.shape[0] < config.per_layer.vocab:
            found[TABLE] = _extended(table, config.per_layer.vocab)
        return found

    def build_rest(self, weights: WeightTable) -> None:
        super().build_rest(weights)
        c, prefixes = self.config, [f"model.layers.{index}" for index in range(self.config.num_hidden_layers)]
        self._altups = [AltUp(c.altup, weights, prefix, c) for prefix in prefixes]
        self._streams = Streams(c.altup, weights, c)

    def through(self, layers: Sequence[int], step: StepLike, tokens: Array, rows: Rows | None) -> Tensor:
        x, positions, last = self.embed(tokens), Positions(step, self.device), len(self._layers) - 1
        assert self._inputs is not None
        inputs, streams = self._inputs(tokens, x), self._streams.apart(x)
        for index in layers:
            streams = self._layer(index, step, positions, streams, inputs[index], rows if index == last else None)
        return self._streams.together(streams)

    def _layer(
        self,
        index: int,
        step: StepLike,
        positions: Positions,
        streams: Sequence[Tensor],
        own: Tensor,
        take: Rows | None,
    ) -> list[Tensor]:
        layer, altup = self._layers[index], self._altups[index]
        predicted = altup.predicted(streams)
        assert layer.input_norm and layer.mixed_norm and layer.mlp_norm and layer.out_norm and layer.mixer and layer.mlp
        h = layer.input_norm(predicted[altup.plan.active])
        mixed, shortcut = layer.mixer(step, h, positions, take, None), altup.shortcut(h)
        if take is not None:
            predicted, shortcut, own = [take.take(each) for each in predicted], take.take(shortcut), take.take(own)
        attended = ops.add(predicted[altup.plan.active], layer.mixed_norm(mixed))
        x = ops.clamp(ops.add(attended, shortcut), scale=0.5**0.5)
        x = ops.add(x, layer.out_norm(layer.mlp(layer.mlp_norm(x))))
        corrected = altup.corrected(predicted, x)
        added = self._gates[index](altup.shown(corrected), own)
        return [corrected[0], *(ops.add(each, added) for each in corrected[1:])]


def _sparsity(raw: Raw, layers: int, where: str) -> tuple[float, ...]:
    given = raw.get("activation_sparsity_pattern")
    if given is None:
        sparse = _SPARSE_LAYERS if layers > _SPARSE_LAYERS else 0
        return (_SPARSITY,) * sparse + (0.0,) * (layers - sparse)
    values = given if isinstance(given, (list, tuple)) else [given]
    numbers = [each for each in values if isinstance(each, (int, float)) and not isinstance(each, bool)]
    if len(values) != layers or len(numbers) != layers or not all(0 <= each < 1 for each in numbers):
        raise FormatError(
            f"[models.config] {where}: activation_sparsity_pattern: got {given!r}, allowed a list of {layers} numbers "
            "(num_hidden_layers) from 0 to below 1"
        )
    return tuple(float(each) for each in numbers)


def _extended(table: WeightSource, rows: int) -> WeightSource:
    """``table`` [fewer, width] with its first row again and again, up to ``rows``."""
    count = table.shape[0]

    def read(begin: int, end: int) -> Array:
        parts = [table.rows(min(begin, count), min(end, count))]
        if end > count:
            parts.append(np.repeat(table.rows(0, 1), end - max(begin, count), axis=0))
        return np.concatenate(parts)

    nbytes = table.nbytes // max(count, 1) * rows
    return replace(table, shape=(rows, table.shape[1]), nbytes=nbytes, rows=read, blocks=None)
