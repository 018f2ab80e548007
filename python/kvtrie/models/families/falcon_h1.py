"""Falcon-H1 (FalconH1ForCausalLM): each layer attends and goes through Mamba-2, and adds both up; many multipliers.

A layer's state has the number of the layer plus that of all layers, since a number is in one cache. Source: Falcon LLM
Team 2025 (arXiv 2507.22448) and the Hugging Face configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ... import ops
from ..._core import Tensor
from ...errors import FormatError
from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig
from ..common_settings import COMMON, SIZE, WINDOWLESS
from ..config import ModelConfig
from ..decoder import Mixer, MixerPlan, MlpLayer, MlpPart, Shapes, Site, biases, mlp_shapes
from ..experts_config import Fields
from ..gguf_form import GgufForm
from ..linear import Linear
from ..mamba2 import BEFORE, BEHIND, NONE, Mamba2Plan, mamba2_states
from ..mamba_config import MAMBA, MAMBA_KEYS, MAMBA_LEAVES, mamba_fields, mamba_from_gguf
from ..reader import Raw, Reader
from ..recurrent import RecurrentConfig, RecurrentModel
from ..settings import Settings, neutral, read, refused
from ..states import States
from ..step_inputs import Positions, Rows, StepLike
from ..weight_table import WeightTable

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_MOST = 2**20
_FACTORS: Settings = {
    "embedding_multiplier": read("embeddings are multiplied by it"),
    "lm_head_multiplier": read("logits are multiplied by it"),
    "key_multiplier": read("keys are multiplied by it"),
    "attention_in_multiplier": read("what goes into attention is multiplied by it"),
    "attention_out_multiplier": read("what comes out of attention is multiplied by it"),
    "ssm_in_multiplier": read("what goes into Mamba-2 is multiplied by it"),
    "ssm_out_multiplier": read("what comes out of Mamba-2 is multiplied by it"),
    "ssm_multipliers": read("what its projection gives is multiplied by them: gate, x, B, C and dt"),
    "mlp_multipliers": read("the MLPs' gates and outputs are multiplied by them"),
}


@dataclass(frozen=True)
class FalconH1Config(RecurrentConfig):
    """``norm``: where Mamba-2's is. Multipliers are named as in ``config.json``."""

    norm: str = NONE
    attention_in: float = 1.0
    attention_out: float = 1.0
    ssm_in: float = 1.0
    ssm_out: float = 1.0
    ssm_parts: tuple[float, ...] = (1.0,) * 5
    mlp_parts: tuple[float, ...] = (1.0,) * 2


_LEAVES = {**MAMBA_LEAVES, "post_attention_layernorm.weight": "ffn_norm"}  # so llama.cpp and its converters call it


def _described(d: Description) -> dict[str, object]:
    """Converters multiplied the tensors by all multipliers; llama.cpp has the norm behind the gate."""
    return {
        **d.dense(),
        **mamba_from_gguf(d),
        "projectors_bias": d.in_any_layer("ssm_out.bias"),
        "mamba_rms_norm": d.in_any_layer("ssm_norm.weight"),
        "mamba_norm_before_gate": False,
    }


class FalconH1(RecurrentModel):
    family = "falcon_h1"
    architectures = ("FalconH1ForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **COMMON,
        **WINDOWLESS,
        **MAMBA,
        **_FACTORS,
        "mlp_bias": read("whether the MLPs have biases"),
        "layer_types": refused("all layers are alike"),
        "layers_block_type": refused("all layers are alike"),
        "mamba_d_ssm": SIZE,
        "mamba_rms_norm": read("whether Mamba-2 has a norm"),
        "mamba_norm_before_gate": read("whether that is before the gate"),
        "projectors_bias": read("whether Mamba-2's last projection has biases"),
        "num_logits_to_keep": neutral("what transformers' models return beside logits"),
    }
    defaults: ClassVar[dict[str, object]] = {
        "max_position_embeddings": 8192,
        "num_key_value_heads": 8,
        "intermediate_size": 14_336,
        "rms_norm_eps": 1e-5,
    }
    fixed: ClassVar[dict[str, object]] = {}
    kind_of_config: ClassVar[type[CausalConfig]] = FalconH1Config
    gguf: ClassVar[dict[str, GgufForm]] = {
        "falcon-h1": GgufForm(_described, _LEAVES, {**gguf_settings.DENSE, **MAMBA_KEYS})
    }
    renamed: ClassVar[tuple[tuple[str, str], ...]] = (
        (".feed_forward.", ".mlp."),
        (".pre_ff_layernorm.", ".post_attention_layernorm."),
        ("model.final_layernorm.", "model.norm."),
    )

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        inner = None if reader.null("mamba_d_ssm") else reader.within("mamba_d_ssm", 1, _MOST, 1024)
        before = reader.flag("mamba_norm_before_gate", True)
        normed = reader.flag("mamba_rms_norm")
        key = reader.number("key_multiplier", 1.0)
        heads = reader.integer("num_attention_heads")
        head_dim = reader.integer("head_dim", reader.integer("hidden_size") // max(heads, 1))
        return {
            **mamba_fields(raw, reader, where, inner),
            "mamba_out_bias": reader.flag("projectors_bias"),
            "norm": NONE if not normed else BEFORE if before else BEHIND,
            "attention_multiplier": key / max(head_dim, 1) ** 0.5,
            "embedding_multiplier": reader.number("embedding_multiplier", 1.0),
            "logits_multiplier": reader.number("lm_head_multiplier", 1.0),
            "attention_in": reader.number("attention_in_multiplier", 1.0),
            "attention_out": reader.number("attention_out_multiplier", 1.0),
            "ssm_in": reader.number("ssm_in_multiplier", 1.0),
            "ssm_out": reader.number("ssm_out_multiplier", 1.0),
            "ssm_parts": _numbers(raw, "ssm_multipliers", 5, where),
            "mlp_parts": _numbers(raw, "mlp_multipliers", 2, where),
        }

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(config.attention_bias, config.attention_bias, scale=config.attention_multiplier)

    @classmethod
    def mixer(cls, config: CausalConfig, index: int) -> MixerPlan:
        assert isinstance(config, FalconH1Config)
        number = config.num_hidden_layers + index
        mamba = Mamba2Plan(config, config.norm, number=number, scale=config.ssm_in, parts=config.ssm_parts)
        return _BothPlan(config, cls.attention(config, index), mamba)

    @classmethod
    def mlp(cls, config: CausalConfig) -> MlpPart:
        assert isinstance(config, FalconH1Config)
        return _MlpPlan(config.intermediate_size, config.mlp_bias, config.mlp_parts)

    @classmethod
    def states(cls, config: ModelConfig) -> States:
        assert isinstance(config, RecurrentConfig)
        layers = config.num_hidden_layers
        return mamba2_states(tuple(range(layers, 2 * layers)), config)


def _numbers(raw: Raw, key: str, count: int, where: str) -> tuple[float, ...]:
    """The multipliers under ``key``; ones where the file has none."""
    values = raw.get(key)
    if values is None:
        return (1.0,) * count
    if not isinstance(values, (list, tuple)) or len(values) != count:
        raise FormatError(f"[models.config] {where}: {key}: got {values!r}, allowed a list of {count} numbers")
    return tuple(Reader({key: value}, where).number(key) for value in values)


@dataclass(frozen=True)
class _BothPlan:
    """Attention beside Mamba-2."""

    config: FalconH1Config
    attention: AttentionPlan
    mamba: Mamba2Plan

    def shapes(self, config: ModelConfig) -> Shapes:
        return {**self.attention.shapes(config), **self.mamba.shapes(config)}

    def build(self, site: Site) -> Mixer:
        return _Both(self, site)


class _Both:
    """h, x [rows, hidden] -> [wanted rows, hidden]."""

    def __init__(self, plan: _BothPlan, site: Site) -> None:
        c = plan.config
        self.attention: Mixer = plan.attention.build(site)
        self.mamba: Mixer = plan.mamba.build(site)
        self.before = _factor(site.weights, c.hidden_size, c.attention_in)
        self.behind = [_factor(site.weights, c.hidden_size, factor) for factor in (c.attention_out, c.ssm_out)]

    def __call__(self, step: StepLike, h: Tensor, positions: Positions, take: Rows | None, x: Tensor | None) -> Tensor:
        attended = self.attention(step, _times(h, self.before), positions, take, None)
        scanned = self.mamba(step, h, positions, take, None)
        y = ops.add(_times(scanned, self.behind[1]), _times(attended, self.behind[0]))
        if x is None:
            return y
        return ops.add(x if take is None else take.take(x), y)


@dataclass(frozen=True)
class _MlpPlan:
    """A gated MLP whose gate and output are multiplied by ``parts``."""

    inner: int
    bias: bool
    parts: tuple[float, ...]

    def shapes(self, config: ModelConfig) -> Shapes:
        shapes = mlp_shapes("mlp", config.hidden_size, self.inner)
        return {**shapes, **biases(shapes, ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"), self.bias)}

    def build(self, site: Site) -> MlpLayer:
        return _Mlp(self, site)


class _Mlp:
    """h, x [rows, hidden] -> [rows, hidden]."""

    def __init__(self, plan: _MlpPlan, site: Site) -> None:
        weights, prefix = site.weights, f"{site.prefix}.mlp"
        self.gate: Linear = weights.linear(f"{prefix}.gate_proj", plan.bias)
        self.up: Linear = weights.linear(f"{prefix}.up_proj", plan.bias)
        self.down: Linear = weights.linear(f"{prefix}.down_proj", plan.bias)
        self.before = _factor(weights, plan.inner, plan.parts[0])
        self.behind = _factor(weights, site.config.hidden_size, plan.parts[1])

    def __call__(self, h: Tensor, x: Tensor | None = None) -> Tensor:
        y = self.down(ops.silu_mul(_times(self.gate(h), self.before), self.up(h)))
        y = _times(y, self.behind)
        return y if x is None else ops.add(x, y)


def _factor(weights: WeightTable, width: int, factor: float) -> Tensor | None:
    return None if factor == 1.0 else weights.constant(np.full(width, factor))


def _times(x: Tensor, factors: Tensor | None) -> Tensor:
    return x if factors is None else ops.mul(x, factors)
