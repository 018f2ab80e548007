"""Families as data: which layers see a window, which rotate, what is multiplied by what.

Concept. Such a family differs from others in a few choices: biases, norms and where they stand, the share of a head
that rotates, windows, experts, multipliers. Each choice is a part here or in attention.py, decoder.py or moe.py; a
family (families/) names those that it has. What a configuration says about them is a :class:`CausalConfig`.

Threads: as base.py has it. Units: sizes in elements, windows and lengths in tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from .. import ops
from .._core import Tensor
from ..errors import FormatError
from .attention import AttentionPlan
from .attention_group import AttentionGroup
from .base import Model
from .config import (
    DEFAULTS,
    ModelConfig,
    check,
    common_fields,
    layer_kinds,
    refuse_activation,
    refuse_quantised,
    text_part,
)
from .decoder import BEFORE, LayerPlan, MixerPlan, MlpPart, MlpPlan, NormNames
from .experts_config import ExpertsConfig, Fields
from .moe import ExpertsPlan
from .mtp import MtpPlan
from .reader import Raw, Reader
from .rope_arguments import RopeArguments, Scaling
from .rope_config import FULL, SLIDING, Defaults, RopeFields, read_rope, whole_heads
from .weight_table import WeightTable
from .weights import Array, WeightSource

_MOST = 2**31 - 1


@dataclass(frozen=True)
class CausalConfig(ExpertsConfig):
    """``layer_types``: FULL or SLIDING of each layer that attends, and other kinds in families that have some
    (recurrent.py). ``sliding_window``: keys that a sliding layer sees, its own
    among them; 0: no layer slides. ``rotary_dims``: rotated numbers of each head. ``still_layers``: those that do not
    rotate. ``sliding_theta`` and ``sliding_scaling``: RoPE of sliding layers.

    ``attention_multiplier``: of scores; None: 1 / sqrt(head_dim). Other multipliers are of embeddings, of what mixers
    and MLPs add, and of logits. ``growth``: how much q grows with the position, see ``attention.Temperature``.
    Of ``expert_groups`` ``kept_groups`` are looked at; ``routed_scale`` multiplies what routed experts give;
    ``routed_bias``: whether they are chosen with a bias, in families that may have it either way.
    ``head_norms``: whether heads of q and k are normed, in families that may have it either way.
    """

    layer_types: tuple[str, ...] = ()
    sliding_window: int = 0
    rotary_dims: int = 0
    still_layers: tuple[int, ...] = ()
    sliding_theta: float = 0.0
    sliding_scaling: Scaling | None = None
    attention_multiplier: float | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_multiplier: float = 1.0
    growth: float = 0.0
    attention_out_bias: bool = False
    expert_groups: int = 1
    kept_groups: int = 1
    routed_scale: float = 1.0
    routed_bias: bool = True
    head_norms: bool = True


class CausalModel(Model):
    """A family as data. ``defaults``: what holds where its file says nothing; ``fixed``: fields that it does not read.

    ``theta`` and ``partial``: RoPE's base, and the share of a head that rotates, where the file says nothing;
    ``whole``: whether heads rotate whole in any case. ``interleaved``: neighbouring numbers of a head rotate against
    each other, else its halves.
    """

    defaults: ClassVar[Mapping[str, object]] = DEFAULTS
    fixed: ClassVar[Mapping[str, object]] = {"mlp_bias": False}
    theta: ClassVar[float] = 10_000.0
    partial: ClassVar[float | None] = None
    whole: ClassVar[bool] = True
    interleaved: ClassVar[bool] = False
    norms: ClassVar[NormNames] = BEFORE
    shared: ClassVar[str] = "shared_expert"  # the tensors of an expert that every row goes through
    activation: ClassVar[tuple[str, tuple[str, ...]]] = ("hidden_act", ("silu", "swish"))  # its key, and what it may be
    renamed: ClassVar[tuple[tuple[str, str], ...]] = ()  # parts of tensors' names in files, and what they are here
    kind_of_config: ClassVar[type[CausalConfig]] = CausalConfig
    brings_head: ClassVar[bool] = False  # whether checkpoints bring a prediction head, of a layer like the last

    config: CausalConfig

    @classmethod
    def parse_config(cls, raw: Raw, generation: Raw | None = None, where: str = "config") -> CausalConfig:
        raw = cls.in_common_keys(text_part(raw, where), where)
        refuse_quantised(raw, where, cls.packed)
        refuse_activation(raw, where, *cls.activation)
        absent = {key: each for key, each in cls.defaults.items() if key != "head_dim" or key not in raw}
        reader = Reader(raw, where, absent)  # a head_dim of null is hidden_size / num_attention_heads
        ropes = cls.read_ropes(raw, where)
        fields = common_fields(
            reader, raw, ropes[FULL], cls.family, generation=generation, where=where, fixed=cls.fixed
        )
        own = cls.own_fields(raw, reader, where)
        kinds: Fields = {"layer_types": (FULL,) * fields["num_hidden_layers"], **own}
        merged = _merged(ropes, min(fields["head_dim"], _MOST))
        config = cls.kind_of_config(**{**fields, **kinds, **merged})
        check(config, where)
        _check_rotation(config, where)
        return config

    @classmethod
    def in_common_keys(cls, raw: Raw, where: str) -> Raw:  # noqa: ARG003 (families look at it)
        """The file's object with common settings under the keys that other families have for them."""
        return raw

    @classmethod
    def read_ropes(cls, raw: Raw, where: str) -> dict[str, RopeFields]:
        """By kind of layer."""
        most = cast(int, cls.defaults["max_position_embeddings"])
        rope = read_rope(raw, where, Defaults(cls.theta, most, cls.partial))
        return dict.fromkeys((FULL, SLIDING), whole_heads(rope, where) if cls.whole else rope)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        """The fields that the family reads beyond the common ones."""
        return no_windows(raw, reader, where)

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:
        raise NotImplementedError

    @classmethod
    def mixer(cls, config: CausalConfig, index: int) -> MixerPlan:
        return cls.attention(config, index)

    @classmethod
    def experts(cls, config: CausalConfig) -> ExpertsPlan:
        """Of each layer in ``config.expert_layers``."""
        c = config
        scores, shared = "normed" if c.norm_topk_prob else "softmax", c.shared_expert_intermediate_size
        return ExpertsPlan(
            c.num_experts, c.num_experts_per_tok, c.moe_intermediate_size, scores, shared, shared=cls.shared
        )

    @classmethod
    def mlp(cls, config: CausalConfig) -> MlpPart:
        """Of the other layers."""
        return MlpPlan(config.intermediate_size, bias=config.mlp_bias)

    @classmethod
    def layer_plan(cls, config: ModelConfig, index: int) -> LayerPlan:
        assert isinstance(config, CausalConfig)
        mlp = cls.experts(config) if index in config.expert_layers else cls.mlp(config)
        return LayerPlan(cls.mixer(config, index), mlp, cls.norms, config.residual_multiplier)

    @classmethod
    def mtp_plan(cls, config: ModelConfig) -> MtpPlan | None:
        """A layer like the last one; REQUIRES, where there is one: all layers attend alike."""
        if not cls.brings_head:
            return None
        assert isinstance(config, CausalConfig)
        index = config.num_hidden_layers
        experts = cls.experts(config) if config.expert_layers else None
        layer = LayerPlan(cls.mixer(config, index), experts or cls.mlp(config), cls.norms, config.residual_multiplier)
        return MtpPlan(layer, cls.head_groups(config, index), experts)

    @classmethod
    def head_groups(cls, config: CausalConfig, index: int) -> tuple[AttentionGroup, ...]:
        """What the prediction head keeps, as layer ``index``."""
        (group,) = cls.attention_groups(config)
        return (group._replace(layers=(index,)),)

    @classmethod
    def attention_groups(cls, config: ModelConfig) -> list[AttentionGroup]:
        assert isinstance(config, CausalConfig)
        groups: dict[tuple[str, bool], list[int]] = {}
        for index, kind in enumerate(config.layer_types):
            if kind not in (FULL, SLIDING):
                continue
            groups.setdefault((kind, index not in config.still_layers), []).append(index)
        return [
            AttentionGroup(
                tuple(layers),
                cls._rope(config, kind) if rotates else None,
                {"window": config.sliding_window} if kind == SLIDING else {},
            )
            for (kind, rotates), layers in sorted(groups.items())
        ]

    @classmethod
    def _rope(cls, c: CausalConfig, kind: str) -> RopeArguments:
        theta, scaling = (c.rope_theta, c.rope_scaling) if kind == FULL else (c.sliding_theta, c.sliding_scaling)
        return {"base": theta, "dims": c.rotary_dims, "interleaved": cls.interleaved, "scaling": scaling}

    @classmethod
    def adapt(cls, config: ModelConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        assert isinstance(config, CausalConfig)
        found = {cls._name(name): source for name, source in super().adapt(config, sources).items()}
        return cls.separate_experts(config, found) if config.expert_layers else found

    @classmethod
    def separate_experts(cls, config: CausalConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        """``sources`` with one tensor for each expert, which may also be stored as one for all."""
        return cls.experts(config).separate(sources, config, config.expert_layers, transposed=False)

    @classmethod
    def _name(cls, name: str) -> str:
        for old, new in cls.renamed:
            name = name.replace(old, new)
        return name

    def build_rest(self, weights: WeightTable) -> None:
        c = self.config
        self._multipliers = tuple(
            None if factor == 1.0 else weights.constant(np.full(width, factor))
            for factor, width in ((c.embedding_multiplier, c.hidden_size), (c.logits_multiplier, c.vocab_size))
        )

    def embed(self, tokens: Array) -> Tensor:
        return _times(super().embed(tokens), self._multipliers[0])

    def finish(self, logits: Tensor) -> Tensor:
        return _times(logits, self._multipliers[1])


def softcap(logits: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap), as 2 cap * sigmoid(2 x / cap) - cap: off by up to 1e-7 of ``cap``."""
    return ops.clamp(ops.sigmoid(ops.clamp(logits, scale=2 / cap)), scale=2 * cap, shift=-cap)


def _times(x: Tensor, factors: Tensor | None) -> Tensor:
    return x if factors is None else ops.mul(x, factors)


def _merged(ropes: Mapping[str, RopeFields], head_dim: int) -> Fields:
    full, sliding = ropes[FULL], ropes[SLIDING]
    return {
        "rope_theta": full.theta,
        "rope_scaling": full.scaling,
        "rotary_dims": int(head_dim * full.partial),
        "sliding_theta": sliding.theta,
        "sliding_scaling": sliding.scaling,
    }


def _check_rotation(config: CausalConfig, where: str) -> None:
    if config.rotary_dims < 2 or config.rotary_dims % 2:
        raise FormatError(
            f"[models.config] {where}: partial_rotary_factor: got {config.rotary_dims} rotated of "
            f"{config.head_dim} numbers (head_dim), allowed an even number of at least 2"
        )


# ---- what layers see -------------------------------------------------------------------------------------------------


def no_windows(raw: Raw, reader: Reader, where: str) -> Fields:
    """Raises ``kv.errors.NotSupportedError`` where ``layer_types`` has another kind than FULL."""
    return {"layer_types": layer_kinds(raw, reader.layers(), (FULL,), [FULL] * reader.layers(), where)}


def one_window(raw: Raw, reader: Reader, where: str, default: int | None) -> Fields:
    """All layers see ``sliding_window`` tokens, or everything where that is null; ``default``: where it is absent."""
    layers = reader.layers()
    none = reader.null("sliding_window") or (default is None and raw.get("sliding_window") is None)
    kind = FULL if none else SLIDING
    return {
        "layer_types": layer_kinds(raw, layers, (kind,), [kind] * layers, where),
        "sliding_window": 0 if none else reader.within("sliding_window", 1, _MOST, default),
    }


def some_windows(raw: Raw, reader: Reader, where: str, default: Sequence[str], window: int) -> Fields:
    """``layer_types`` says which layers see ``sliding_window`` tokens; ``default`` and ``window``: where it is silent.

    Raises ``kv.errors.FormatError`` for a window of null beside a sliding layer.
    """
    kinds = layer_kinds(raw, reader.layers(), (FULL, SLIDING), default, where)
    if SLIDING not in kinds:
        return {"layer_types": kinds, "sliding_window": 0}
    if reader.null("sliding_window"):
        asks = f"allowed a number, as layer_types has {SLIDING}"
        raise FormatError(f"[models.config] {where}: sliding_window: got null, {asks}")
    return {"layer_types": kinds, "sliding_window": reader.within("sliding_window", 1, _MOST, window)}


def switched_windows(
    raw: Raw, reader: Reader, where: str, default: Callable[[], Sequence[str]], window: int | None = 4096
) -> Fields:
    """As :func:`some_windows`, where ``use_sliding_window`` switches them on and ``sliding_window`` is a number; else
    no layer may slide. ``window``: where it is absent."""
    none = reader.null("sliding_window") or (window is None and raw.get("sliding_window") is None)
    if none or not reader.flag("use_sliding_window", False):
        return no_windows(raw, reader, where)
    return some_windows(raw, reader, where, default(), window or 0)


def windows_behind(reader: Reader, most: int) -> list[str]:
    """The first ``max_window_layers`` see everything; ``most``: where that is absent."""
    first = reader.within("max_window_layers", 0, _MOST, most)
    return [FULL if index < first else SLIDING for index in range(reader.layers())]


def every_nth_full(layers: int, every: int) -> list[str]:
    return [SLIDING if (index + 1) % every else FULL for index in range(layers)]


def still_layers(reader: Reader, where: str, every: int) -> tuple[int, ...]:
    """Layers that do not rotate: those of 0 in ``no_rope_layers``; where that is absent, each n-th."""
    layers, step = reader.layers(), reader.within("no_rope_layer_interval", 1, _MOST, every)
    rotates = reader.integers("no_rope_layers", 0, 1)
    if rotates is None:
        rotates = tuple(int((index + 1) % step != 0) for index in range(layers))
    if len(rotates) < layers:
        raise FormatError(
            f"[models.config] {where}: no_rope_layers: got {len(rotates)} entries, allowed at least {layers} "
            "(num_hidden_layers)"
        )
    return tuple(index for index in range(layers) if not rotates[index])
