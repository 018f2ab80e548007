"""Matrices that a checkpoint stores as one, as the parts that they are: q, k and v, or gate and up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import FormatError
from .attention import AttentionPlan
from .config import ModelConfig
from .weights import WeightSource


def split_gate_up(sources: Mapping[str, WeightSource], config: ModelConfig) -> dict[str, WeightSource]:
    """``mlp.gate_up_proj`` of each layer as ``gate_proj`` and ``up_proj``, of ``intermediate_size`` rows each."""
    return split_matrices(sources, "mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj"), [config.intermediate_size] * 2)


def split_qkv(sources: Mapping[str, WeightSource], config: ModelConfig) -> dict[str, WeightSource]:
    """``self_attn.qkv_proj`` of each layer as ``q_proj``, ``k_proj`` and ``v_proj``."""
    names = tuple(f"self_attn.{name}_proj" for name in "qkv")
    return split_matrices(sources, "self_attn.qkv_proj", names, AttentionPlan.widths(config))


def split_matrices(
    sources: Mapping[str, WeightSource], fused: str, names: Sequence[str], sizes: Sequence[int]
) -> dict[str, WeightSource]:
    """The matrix ``fused`` of each layer as those of ``names``, of ``sizes`` rows.

    Raises ``kv.errors.FormatError`` for a matrix that has not as many rows as all of them.
    """
    found: dict[str, WeightSource] = {}
    for name, source in sources.items():
        if not name.endswith(f"{fused}.weight"):
            found[name] = source
            continue
        if len(source.shape) != 2 or source.shape[0] != sum(sizes):
            raise FormatError(
                f"[models] {source.origin}: {name}: got shape {list(source.shape)}, expected {sum(sizes)} rows"
            )
        begin = 0
        for part, size in zip(names, sizes):
            own = name.replace(fused, part)
            found[own] = source.part(own, begin, begin + size, (size, source.shape[1]), lambda values: values)
            begin += size
    return found
