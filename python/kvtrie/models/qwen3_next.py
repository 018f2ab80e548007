"""Qwen3-Next (Qwen3NextForCausalLM): gated delta layers, every fourth one gated attention; experts in the MLPs.

A gated delta layer keeps no keys: a short causal convolution over q, k and v and one matrix per value head carry what
came before. Norms multiply by (1 + weight), except the one behind the delta rule. Source: Yang et al. 2024 (arXiv
2412.06464), Qwen Team 2025 and the Hugging Face configuration.
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
from .moe import Experts, Mlp, Spread, mlp_shapes, softmax, top_k, unfuse
from .step_inputs import Rope, Rows
from .weights import Array, WeightSource

FULL, LINEAR = "full_attention", "linear_attention"
_L2_EPS = 1e-6  # of the norms of q and k before the delta rule
_MOST = 2**31 - 1


@dataclass(frozen=True)
class HybridConfig(ModelConfig):
    """``rotary_dims``: rotated numbers of each head. ``expert_layers``: those with experts instead of one MLP."""

    layer_types: tuple[str, ...] = ()
    rotary_dims: int = 0
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    expert_layers: tuple[int, ...] = ()
    num_experts: int = 0
    num_experts_per_tok: int = 0
    norm_topk_prob: bool = True
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0

    @property
    def key_width(self) -> int:
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_width(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: q, k and v of all heads."""
        return 2 * self.key_width + self.value_width

    def layers(self, kind: str) -> tuple[int, ...]:
        return tuple(index for index, found in enumerate(self.layer_types) if found == kind)


class GatedAttention:
    """Attention whose output is multiplied by the sigmoid of a gate; q, gate [rows, heads, head_dim]."""

    def __init__(self, config: HybridConfig, weights: WeightTable, rope: Rope, index: int) -> None:
        prefix = f"model.layers.{index}.self_attn"
        self.config = config
        self.index = index
        self.rope = rope
        heads = np.arange(2 * config.num_attention_heads * config.head_dim).reshape(-1, 2, config.head_dim)
        parts = [heads[:, 0].reshape(-1), heads[:, 1].reshape(-1)]
        self.q, self.gate = weights.linears(f"{prefix}.q_proj", parts, config.attention_bias)
        self.k = weights.linear(f"{prefix}.k_proj", config.attention_bias)
        self.v = weights.linear(f"{prefix}.v_proj", config.attention_bias)
        self.o = weights.linear(f"{prefix}.o_proj", config.attention_bias)
        self.q_norm = weights.vector(f"{prefix}.q_norm.weight")
        self.k_norm = weights.vector(f"{prefix}.k_norm.weight")

    def __call__(self, step: Any, h: Any, positions: Any, take: Rows | None) -> Any:
        c = self.config
        rows = h.shape[0]
        q = self.q(h).reshape(rows, c.num_attention_heads, c.head_dim)
        k = self.k(h).reshape(rows, c.num_key_value_heads, c.head_dim)
        v = self.v(h).reshape(rows, c.num_key_value_heads, c.head_dim)
        q = self.rope(kv.ops.rms_norm(q, self.q_norm, c.rms_norm_eps, 1.0), positions)
        k = self.rope(kv.ops.rms_norm(k, self.k_norm, c.rms_norm_eps, 1.0), positions)
        a = step.attend(self.index, q, k, v).reshape(rows, c.num_attention_heads * c.head_dim)
        if take is not None:
            a, h = take.take(a), take.take(h)
        return self.o(kv.ops.mul(a, kv.ops.sigmoid(self.gate(h))))


class GatedDelta:
    """The gated delta rule; q, k [rows, k_heads, k_dim], v and the output's gate z [rows, v_heads, v_dim]."""

    def __init__(self, config: HybridConfig, weights: WeightTable, index: int, fused: bool) -> None:
        prefix = f"model.layers.{index}.linear_attn"
        self.config = config
        self.index = index
        if fused:
            qkv, z, b, a = rows_by_part(config)
            self.qkv, self.z = weights.linears(f"{prefix}.in_proj_qkvz", [qkv, z])
            self.b, self.a = weights.linears(f"{prefix}.in_proj_ba", [b, a], quantise=False)
        else:
            self.qkv, self.z = weights.linear(f"{prefix}.in_proj_qkv"), weights.linear(f"{prefix}.in_proj_z")
            self.b, self.a = (weights.linear(f"{prefix}.in_proj_{name}", quantise=False) for name in ("b", "a"))
        self.conv = weights.vector(f"{prefix}.conv1d.weight", lambda weight: weight[:, 0, :])
        self.decay = weights.vector(f"{prefix}.A_log", lambda a_log: -np.exp(a_log))
        self.decay_bias = weights.vector(f"{prefix}.dt_bias")
        self.norm = weights.vector(f"{prefix}.norm.weight")
        self.out = weights.linear(f"{prefix}.out_proj")
        self.scale = weights.constant(np.full(config.linear_key_head_dim, config.linear_key_head_dim**-0.5))

    def __call__(self, step: Any, h: Any, positions: Any, take: Rows | None) -> Any:  # noqa: ARG002 (a Layer's own)
        c = self.config
        rows = h.shape[0]
        mixed = kv.ops.silu(step.conv(self.index, self.qkv(h), self.conv))
        q, k, v = kv.ops.split(mixed, [c.key_width, c.key_width, c.value_width])
        q, k = (self._unit(part.reshape(rows, c.linear_num_key_heads, c.linear_key_head_dim)) for part in (q, k))
        v = v.reshape(rows, c.linear_num_value_heads, c.linear_value_head_dim)
        g = kv.ops.mul(kv.ops.softplus(kv.ops.add(self.a(h), self.decay_bias)), self.decay)
        y = step.gated_delta(self.index, kv.ops.mul(q, self.scale), k, v, g, kv.ops.sigmoid(self.b(h)))
        y = y.reshape(rows, c.value_width)
        if take is not None:
            y, h = take.take(y), take.take(h)
        heads = (y.shape[0], c.linear_num_value_heads, c.linear_value_head_dim)
        y = kv.ops.rms_norm(y.reshape(*heads), self.norm, c.rms_norm_eps)
        return self.out(kv.ops.silu_mul(self.z(h).reshape(*heads), y).reshape(heads[0], c.value_width))

    @staticmethod
    def _unit(x: Any) -> Any:
        return kv.ops.l2_norm(x, _L2_EPS)


def rows_by_part(config: HybridConfig) -> tuple[Array, Array, Array, Array]:
    """Which rows of in_proj_qkvz are q, k and v (in that order) and which z; which of in_proj_ba are b and which a.

    Both are stored key head by key head: q, k, the head's values, their z; and its b, its a.
    """
    groups, size = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
    key, value = config.linear_key_head_dim, size * config.linear_value_head_dim
    wide = np.arange(groups * 2 * (key + value)).reshape(groups, -1)
    ends = np.cumsum([key, key, value])
    q, k, v, z = (part.reshape(-1) for part in np.split(wide, ends, axis=1))
    b, a = (part.reshape(-1) for part in np.split(np.arange(groups * 2 * size).reshape(groups, -1), 2, axis=1))
    return np.concatenate([q, k, v]), z, b, a


class SparseMlp:
    """Routed experts and one that every row goes through, weighted by the sigmoid of a gate."""

    def __init__(self, config: HybridConfig, weights: WeightTable, index: int) -> None:
        prefix = f"model.layers.{index}.mlp"
        self.config = config
        spread = Spread(weights, config.hidden_size)
        self.router = weights.linear(f"{prefix}.gate", quantise=False)
        self.experts = Experts(weights, f"{prefix}.experts", config.num_experts, spread, "out")
        self.shared = Mlp(weights, f"{prefix}.shared_expert")
        self.shared_gate = weights.linear(f"{prefix}.shared_expert_gate", quantise=False)
        self.spread = spread

    def __call__(self, x: Any) -> Any:
        shared = kv.ops.mul(self.shared(x), self.spread(kv.ops.sigmoid(self.shared_gate(x))))
        chosen, factors = top_k(softmax(np.asarray(self.router(x))), self.config.num_experts_per_tok)
        if self.config.norm_topk_prob:
            factors = factors / factors.sum(axis=1, keepdims=True)
        return kv.ops.add(self.experts(x, chosen, factors), shared)


class HybridLayer:
    """One block: a mixer of rows (attention or delta rule) and an MLP. Activations [rows, hidden]."""

    def __init__(self, config: HybridConfig, weights: WeightTable, index: int, mixer: Any) -> None:
        prefix = f"model.layers.{index}"
        self.eps = config.rms_norm_eps
        self.input_norm = weights.vector(f"{prefix}.input_layernorm.weight")
        self.mixer = mixer
        self.post_norm = weights.vector(f"{prefix}.post_attention_layernorm.weight")
        sparse = index in config.expert_layers
        self.mlp = SparseMlp(config, weights, index) if sparse else Mlp(weights, f"{prefix}.mlp")

    def __call__(self, step: Any, x: Any, positions: Any, take: Rows | None) -> Any:
        h = kv.ops.rms_norm(x, self.input_norm, self.eps, 1.0)
        mixed = self.mixer(step, h, positions, take)
        x = kv.ops.add(x if take is None else take.take(x), mixed)
        return kv.ops.add(x, self.mlp(kv.ops.rms_norm(x, self.post_norm, self.eps, 1.0)))


class Qwen3Next(Model):
    family = "qwen3_next"
    norm_offset = 1.0
    fused_projections = True  # in_proj_qkvz and in_proj_ba instead of four matrices

    config: HybridConfig

    @classmethod
    def parse_config(
        cls, raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None, where: str = "config"
    ) -> HybridConfig:
        raw = {"head_dim": 256, **{key: value for key, value in text_part(raw, where).items() if value is not None}}
        refuse_quantised(raw, where)
        refuse_activation(raw, where)
        reader = Reader(raw, where)
        moe = cls.expert_fields(raw, where)
        raw.setdefault("intermediate_size", moe.get("moe_intermediate_size"))
        rope = read_rope(flat_rope(raw, where), raw, where, partial=0.25)
        fields = common_fields(raw, rope, model_type=cls.family, generation=generation, where=where)
        fields["mlp_bias"] = False
        every = reader.within("full_attention_interval", 1, _MOST, 4)
        layers = fields["num_hidden_layers"]
        default = [LINEAR if (index + 1) % every else FULL for index in range(layers)]
        kinds = layer_kinds(raw, layers, (FULL, LINEAR), default, where)
        dims = int(fields["head_dim"] * rope.partial)
        config = HybridConfig(**{**fields, **_linear_fields(reader), **moe}, layer_types=kinds, rotary_dims=dims)
        check(config, where)
        _check(config, where)
        return config

    @classmethod
    def expert_fields(cls, raw: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The fields of :class:`HybridConfig` about experts; {} for a model without."""
        reader = Reader(raw, where)
        count = reader.within("num_experts", 0, 2**20, 512)
        if count == 0:
            return {}
        layers, every = reader.layers(), reader.within("decoder_sparse_step", 1, _MOST, 1)
        dense = reader.integers("mlp_only_layers", 0, _MOST) or ()
        return {
            **expert_sizes(reader, count, 10),
            "norm_topk_prob": reader.flag("norm_topk_prob", True),
            "expert_layers": tuple(i for i in range(layers) if i not in dense and (i + 1) % every == 0),
        }

    @classmethod
    def layers_shapes(cls, config: ModelConfig) -> list[dict[str, tuple[int, ...]]]:
        assert isinstance(config, HybridConfig)
        return [cls._shapes(config, index) for index in range(config.num_hidden_layers)]

    @classmethod
    def _shapes(cls, c: HybridConfig, index: int) -> dict[str, tuple[int, ...]]:
        norms = ("input_layernorm", "post_attention_layernorm")
        shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (c.hidden_size,) for name in norms}
        full = c.layer_types[index] == FULL
        shapes.update(_attention_shapes(c) if full else _delta_shapes(c, cls.fused_projections))
        if index not in c.expert_layers:
            return {**shapes, **mlp_shapes("mlp", c.hidden_size, c.intermediate_size)}
        shapes["mlp.gate.weight"] = (c.num_experts, c.hidden_size)
        shapes["mlp.shared_expert_gate.weight"] = (1, c.hidden_size)
        shapes.update(mlp_shapes("mlp.shared_expert", c.hidden_size, c.shared_expert_intermediate_size))
        shapes.update(_routed_shapes(c, "mlp.experts"))
        return shapes

    @classmethod
    def adapt(cls, config: ModelConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        """Experts may also be stored as one tensor for all."""
        assert isinstance(config, HybridConfig)
        found = super().adapt(config, sources)
        for index in config.expert_layers:
            prefix = f"model.layers.{index}.mlp.experts"
            separate = unfuse(found, prefix, _routed_shapes(config, prefix), transposed=False)
            if separate:
                del found[f"{prefix}.gate_up_proj"], found[f"{prefix}.down_proj"]
                found.update(separate)
        return found

    @staticmethod
    def ignores(config: ModelConfig) -> Any:
        """Also the layers that predict further tokens (``mtp.``)."""
        common = Model.ignores(config)
        return lambda name: name.startswith("mtp.") or common(name)

    @classmethod
    def build_layer(cls, config: ModelConfig, weights: WeightTable, rope: Rope | None, index: int) -> HybridLayer:
        assert isinstance(config, HybridConfig)
        if rope is None:
            return HybridLayer(config, weights, index, GatedDelta(config, weights, index, cls.fused_projections))
        return HybridLayer(config, weights, index, GatedAttention(config, weights, rope, index))

    @classmethod
    def attention_groups(cls, config: ModelConfig) -> list[AttentionGroup]:
        assert isinstance(config, HybridConfig)
        scaling = None if config.rope_scaling is None else dict(config.rope_scaling)
        rope = {"base": config.rope_theta, "dims": config.rotary_dims, "scaling": scaling}
        layers = config.layers(FULL)
        return [AttentionGroup(layers, rope, {})] if layers else []

    def caches(self, capacity: int = 8192, dtype: str = "float16", *, slots: int = 64, **options: Any) -> list[Any]:
        """As :meth:`Model.caches`, and one cache of recurrent states (float32) with ``slots`` of them.

        A session holds one slot, and so does each point in the tree that a later prompt may go on from.
        """
        caches = super().caches(capacity, dtype, **options)
        c = self.config
        layers = c.layers(LINEAR)
        if layers:
            conv = (c.linear_conv_kernel_dim - 1, c.conv_width)
            delta = (c.linear_num_value_heads, c.linear_value_head_dim, c.linear_key_head_dim)
            device = options.get("device", self.device)
            caches.append(kv.RecurrentCache(list(layers), *conv, *delta, slots, dtype="float32", device=device))
        return caches


def _linear_fields(reader: Reader) -> dict[str, int]:
    defaults = {
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
    }
    return {key: reader.within(key, 1, 2**20, default) for key, default in defaults.items()}


def expert_sizes(reader: Reader, count: int, default: int) -> dict[str, int]:
    return {
        "num_experts": count,
        "num_experts_per_tok": reader.within("num_experts_per_tok", 1, count, default),
        "moe_intermediate_size": reader.within("moe_intermediate_size", 1, _MOST, 512),
        "shared_expert_intermediate_size": reader.within("shared_expert_intermediate_size", 1, _MOST, 512),
    }


def _check(config: HybridConfig, where: str) -> None:
    if config.linear_num_value_heads % config.linear_num_key_heads:
        raise kv.FormatError(
            f"[models.config] {where}: linear_num_value_heads: got {config.linear_num_value_heads}, "
            f"allowed a multiple of linear_num_key_heads ({config.linear_num_key_heads})"
        )
    if config.rotary_dims < 2 or config.rotary_dims % 2:
        raise kv.FormatError(
            f"[models.config] {where}: partial_rotary_factor: got {config.rotary_dims} rotated of "
            f"{config.head_dim} numbers, allowed an even number of at least 2"
        )


def _attention_shapes(c: HybridConfig) -> dict[str, tuple[int, ...]]:
    q, kv_width = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (2 * q, c.hidden_size),
        "self_attn.k_proj.weight": (kv_width, c.hidden_size),
        "self_attn.v_proj.weight": (kv_width, c.hidden_size),
        "self_attn.o_proj.weight": (c.hidden_size, q),
        "self_attn.q_norm.weight": (c.head_dim,),
        "self_attn.k_norm.weight": (c.head_dim,),
    }
    for name in ("q_proj", "k_proj", "v_proj", "o_proj") if c.attention_bias else ():
        shapes[f"self_attn.{name}.bias"] = shapes[f"self_attn.{name}.weight"][:1]
    return shapes


def _delta_shapes(c: HybridConfig, fused: bool) -> dict[str, tuple[int, ...]]:
    hidden, heads = c.hidden_size, c.linear_num_value_heads
    outputs = (
        {"qkvz": c.conv_width + c.value_width, "ba": 2 * heads}
        if fused
        else {"qkv": c.conv_width, "z": c.value_width, "b": heads, "a": heads}
    )
    return {
        **{f"linear_attn.in_proj_{name}.weight": (out, hidden) for name, out in outputs.items()},
        "linear_attn.conv1d.weight": (c.conv_width, 1, c.linear_conv_kernel_dim),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (c.linear_value_head_dim,),
        "linear_attn.out_proj.weight": (hidden, c.value_width),
    }


def _routed_shapes(c: HybridConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for index in range(c.num_experts):
        shapes.update(mlp_shapes(f"{prefix}.{index}", c.hidden_size, c.moe_intermediate_size))
    return shapes
