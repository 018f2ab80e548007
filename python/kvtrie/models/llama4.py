"""Llama 4 text (Llama4ForCausalLM, and the text model of Llama4ForConditionalGeneration).

Most layers rotate q and k in adjacent pairs and see only their own chunk of the text; each fourth one sees everything,
rotates nothing and sharpens its attention with the position. Experts get their input times the sigmoid of the router's
score, and one shared expert gets every row. Source: Meta 2025 and the Hugging Face configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import kvtrie as kv

from .base import AttentionGroup, Model, WeightTable
from .config import (
    ModelConfig,
    Reader,
    check,
    common_fields,
    flat_rope,
    layer_kinds,
    read_rope,
    refuse_activation,
    refuse_quantised,
    text_part,
)
from .moe import Experts, Mlp, Spread, mlp_shapes, top_k, unfuse
from .step_inputs import Rope, Rows
from .weights import WeightSource

FULL, CHUNKED = "full_attention", "chunked_attention"
_MOST = 2**31 - 1

# What checkpoints leave out because it is the default of Hugging Face's configuration.
_DEFAULTS: dict[str, Any] = {"head_dim": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 131_072}


@dataclass(frozen=True)
class Llama4Config(ModelConfig):
    """``intermediate_size`` is that of experts, ``intermediate_size_mlp`` that of layers without.

    ``rope_layers``: those that rotate. ``temperature``: (attn_scale, floor_scale in tokens) of the others, or None.
    """

    layer_types: tuple[str, ...] = ()
    attention_chunk_size: int = 0
    rope_layers: tuple[int, ...] = ()
    use_qk_norm: bool = True
    temperature: tuple[float, float] | None = None
    expert_layers: tuple[int, ...] = ()
    num_local_experts: int = 0
    num_experts_per_tok: int = 0
    intermediate_size_mlp: int = 0


class Llama4Mlp:
    """Routed experts and one that every row goes through."""

    def __init__(self, config: Llama4Config, weights: WeightTable, prefix: str) -> None:
        self.k = config.num_experts_per_tok
        spread = Spread(weights, config.hidden_size)
        self.router = weights.linear(f"{prefix}.router", quantise=False)
        self.experts = Experts(weights, f"{prefix}.experts", config.num_local_experts, spread, "in")
        self.shared = Mlp(weights, f"{prefix}.shared_expert")

    def __call__(self, x: Any) -> Any:
        chosen, scores = top_k(np.asarray(self.router(x)), self.k)
        return kv.ops.add(self.shared(x), self.experts(x, chosen, np.asarray(kv.ops.sigmoid(scores))))


class Llama4Layer:
    """One block; activations [rows, hidden], q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim]."""

    def __init__(self, config: Llama4Config, weights: WeightTable, rope: Rope | None, index: int) -> None:
        prefix = f"model.layers.{index}"
        self.config = config
        self.index = index
        self.rope = rope
        self.input_norm = weights.vector(f"{prefix}.input_layernorm.weight")
        self.q = weights.linear(f"{prefix}.self_attn.q_proj", config.attention_bias)
        self.k = weights.linear(f"{prefix}.self_attn.k_proj", config.attention_bias)
        self.v = weights.linear(f"{prefix}.self_attn.v_proj", config.attention_bias)
        self.o = weights.linear(f"{prefix}.self_attn.o_proj", config.attention_bias)
        self.post_norm = weights.vector(f"{prefix}.post_attention_layernorm.weight")
        sparse = index in config.expert_layers
        mlp = f"{prefix}.feed_forward"
        self.mlp = Llama4Mlp(config, weights, mlp) if sparse else Mlp(weights, mlp)
        self.ones = weights.constant(np.ones(config.head_dim)) if rope is not None and config.use_qk_norm else None
        tuned = rope is None and config.temperature is not None
        self.spread = Spread(weights, config.num_attention_heads * config.head_dim) if tuned else None

    def __call__(self, step: Any, x: Any, positions: Any, take: Rows | None) -> Any:
        c = self.config
        rows = x.shape[0]
        h = kv.ops.rms_norm(x, self.input_norm, c.rms_norm_eps)
        q = self._tuned(self.q(h), step).reshape(rows, c.num_attention_heads, c.head_dim)
        k = self.k(h).reshape(rows, c.num_key_value_heads, c.head_dim)
        v = self.v(h).reshape(rows, c.num_key_value_heads, c.head_dim)
        q, k = self._placed(q, positions), self._placed(k, positions)
        a = step.attend(self.index, q, k, v).reshape(rows, c.num_attention_heads * c.head_dim)
        if take is not None:
            x, a = take.take(x), take.take(a)
        x = kv.ops.add(x, self.o(a))
        return kv.ops.add(x, self.mlp(kv.ops.rms_norm(x, self.post_norm, c.rms_norm_eps)))

    def _placed(self, x: Any, positions: Any) -> Any:
        """Rotated, then brought to mean square 1; a rotation keeps that, so a shift may rotate what is stored."""
        if self.rope is not None:
            x = self.rope(x, positions)
        return x if self.ones is None else kv.ops.rms_norm(x, self.ones, self.config.rms_norm_eps)

    def _tuned(self, q: Any, step: Any) -> Any:
        """q [rows, heads * head_dim] times 1 + attn_scale * log(1 + floor((position + 1) / floor_scale))."""
        if self.spread is None or self.config.temperature is None:
            return q
        attn_scale, floor_scale = self.config.temperature
        places = np.asarray(step.positions, np.float64) + 1
        factors = 1 + attn_scale * np.log1p(np.floor(places / floor_scale))
        return kv.ops.mul(q, self.spread(factors.astype(np.float32)[:, None]))


class Llama4(Model):
    family = "llama4_text"

    config: Llama4Config

    @classmethod
    def parse_config(
        cls, raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None, where: str = "config"
    ) -> Llama4Config:
        raw = {**_DEFAULTS, **{key: value for key, value in text_part(raw, where).items() if value is not None}}
        refuse_quantised(raw, where)
        refuse_activation(raw, where)
        reader = Reader(raw, where)
        rope = read_rope(flat_rope(raw, where), raw, where, theta=reader.number("rope_theta", 500_000.0))
        if rope.partial != 1.0:
            raise kv.NotSupported(f"[models.config] {where}: partial_rotary_factor: got {rope.partial}, allowed 1.0")
        fields = common_fields(raw, rope, model_type=cls.family, generation=generation, where=where)
        fields["mlp_bias"] = False
        config = Llama4Config(**{**fields, **_own_fields(raw, where)})
        check(config, where)
        return config

    @classmethod
    def layers_shapes(cls, config: ModelConfig) -> list[dict[str, tuple[int, ...]]]:
        assert isinstance(config, Llama4Config)
        return [_shapes(config, index) for index in range(config.num_hidden_layers)]

    @classmethod
    def adapt(cls, config: ModelConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        """Experts are stored as one tensor for all, input times output."""
        assert isinstance(config, Llama4Config)
        found = super().adapt(config, sources)
        for index in config.expert_layers:
            prefix = f"model.layers.{index}.feed_forward.experts"
            for name in ("gate_up_proj", "down_proj"):
                if f"{prefix}.{name}" not in found and f"{prefix}.0.gate_proj.weight" not in found:
                    raise kv.FormatError(f"[models] {_origin(found)}: tensor '{prefix}.{name}' is missing")
            separate = unfuse(found, prefix, _routed_shapes(config, prefix), transposed=True)
            if separate:
                del found[f"{prefix}.gate_up_proj"], found[f"{prefix}.down_proj"]
                found.update(separate)
        return found

    @classmethod
    def build_layer(cls, config: ModelConfig, weights: WeightTable, rope: Rope | None, index: int) -> Llama4Layer:
        assert isinstance(config, Llama4Config)
        return Llama4Layer(config, weights, rope, index)

    @classmethod
    def attention_groups(cls, config: ModelConfig) -> list[AttentionGroup]:
        assert isinstance(config, Llama4Config)
        scaling = None if config.rope_scaling is None else dict(config.rope_scaling)
        rope = {"base": config.rope_theta, "interleaved": True, "scaling": scaling}
        groups: dict[tuple[str, bool], list[int]] = {}
        for index, kind in enumerate(config.layer_types):
            groups.setdefault((kind, index in config.rope_layers), []).append(index)
        return [
            AttentionGroup(
                tuple(layers),
                rope if rotates else None,
                {"chunk": config.attention_chunk_size} if kind == CHUNKED else {},
            )
            for (kind, rotates), layers in sorted(groups.items(), reverse=True)
        ]


def _own_fields(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    reader = Reader(raw, where)
    layers = reader.layers()
    every = reader.within("no_rope_layer_interval", 1, _MOST, 4)
    rotates = reader.integers("no_rope_layers", 0, 1) or tuple(int((i + 1) % every != 0) for i in range(layers))
    if len(rotates) < layers:
        raise kv.FormatError(
            f"[models.config] {where}: no_rope_layers: got {len(rotates)} entries, allowed at least {layers}"
        )
    kinds = layer_kinds(raw, layers, (FULL, CHUNKED), [CHUNKED if flag else FULL for flag in rotates[:layers]], where)
    experts = reader.within("num_local_experts", 1, 2**20, 16)
    step = reader.within("interleave_moe_layer_step", 1, _MOST, 1)
    sparse = reader.integers("moe_layers", 0, layers - 1)
    tuned = reader.flag("attn_temperature_tuning", True)
    return {
        "layer_types": kinds,
        "attention_chunk_size": reader.within("attention_chunk_size", 1, _MOST, 8192) if CHUNKED in kinds else 0,
        "rope_layers": tuple(i for i in range(layers) if rotates[i]),
        "use_qk_norm": reader.flag("use_qk_norm", True),
        "temperature": (reader.number("attn_scale", 0.1), reader.positive("floor_scale", 8192)) if tuned else None,
        "expert_layers": tuple(range(step - 1, layers, step)) if sparse is None else sparse,
        "num_local_experts": experts,
        "num_experts_per_tok": reader.within("num_experts_per_tok", 1, experts, 1),
        "intermediate_size_mlp": reader.within("intermediate_size_mlp", 1, _MOST, 16384),
    }


def _shapes(c: Llama4Config, index: int) -> dict[str, tuple[int, ...]]:
    hidden, q, kv_width = c.hidden_size, c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv_width, hidden),
        "self_attn.v_proj.weight": (kv_width, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "post_attention_layernorm.weight": (hidden,),
    }
    for name in ("q_proj", "k_proj", "v_proj", "o_proj") if c.attention_bias else ():
        shapes[f"self_attn.{name}.bias"] = shapes[f"self_attn.{name}.weight"][:1]
    if index not in c.expert_layers:
        return {**shapes, **mlp_shapes("feed_forward", hidden, c.intermediate_size_mlp)}
    shapes["feed_forward.router.weight"] = (c.num_local_experts, hidden)
    shapes.update(mlp_shapes("feed_forward.shared_expert", hidden, c.intermediate_size))
    shapes.update(_routed_shapes(c, "feed_forward.experts"))
    return shapes


def _routed_shapes(c: Llama4Config, prefix: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for index in range(c.num_local_experts):
        shapes.update(mlp_shapes(f"{prefix}.{index}", c.hidden_size, c.intermediate_size))
    return shapes


def _origin(sources: Mapping[str, WeightSource]) -> str:
    return next((source.origin for source in sources.values()), "weights")
