"""Experts in a configuration: how many there are, how wide, in which layers; and what a GGUF file says about them.

Qwen's keys are read here, which families of others share. Sizes are numbers of experts, or elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from .common_settings import CHOSEN, SIZE
from .config import ModelConfig
from .reader import Raw, Reader
from .settings import Settings, read

if TYPE_CHECKING:
    from .gguf.metadata import Description

_MOST = 2**31 - 1
MOST_EXPERTS = 2**20

# Parts of tensors' names in files of Mixtral's form, and what they are here.
BLOCK_SPARSE = (
    (".block_sparse_moe.", ".mlp."),
    (".w1.weight", ".gate_proj.weight"),
    (".w2.weight", ".down_proj.weight"),
    (".w3.weight", ".up_proj.weight"),
)


@dataclass(frozen=True)
class ExpertsConfig(ModelConfig):
    """``expert_layers``: those with experts instead of one MLP. ``norm_topk_prob``: whether an expert's share is of
    those chosen, or of all. ``shared_expert_intermediate_size``: 0 where no expert is shared."""

    expert_layers: tuple[int, ...] = ()
    num_experts: int = 0
    num_experts_per_tok: int = 0
    norm_topk_prob: bool = True
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0


Fields = dict[str, Any]  # of a configuration, by name

# The treatment of the keys that :func:`sparse_fields` reads.
SPARSE: Settings = {
    **dict.fromkeys(("num_experts", "moe_intermediate_size"), SIZE),
    "num_experts_per_tok": CHOSEN,
    "norm_topk_prob": read("whether an expert's share is of those chosen, or of all"),
    "decoder_sparse_step": read("each n-th layer has experts"),
    "mlp_only_layers": read("layers without experts"),
}


def sparse_fields(reader: Reader, count: int, defaults: Mapping[str, int], norm: bool) -> Fields:
    """Of a family that says by ``decoder_sparse_step`` and ``mlp_only_layers`` which layers have ``count`` experts.

    ``defaults``: sizes where the file has none, of ``num_experts_per_tok``, ``moe_intermediate_size`` and, if there is
    one, of the shared expert. {} where ``count`` is 0.
    """
    if count == 0:
        return {}
    every = reader.within("decoder_sparse_step", 1, _MOST, 1)
    dense = reader.integers("mlp_only_layers", 0, _MOST) or ()
    shared = "shared_expert_intermediate_size"
    return {
        "num_experts": count,
        "num_experts_per_tok": reader.within("num_experts_per_tok", 1, count, defaults["num_experts_per_tok"]),
        "moe_intermediate_size": reader.within("moe_intermediate_size", 1, _MOST, defaults["moe_intermediate_size"]),
        "shared_expert_intermediate_size": reader.within(shared, 1, _MOST, defaults[shared])
        if shared in defaults
        else 0,
        "norm_topk_prob": reader.flag("norm_topk_prob", norm),
        "expert_layers": tuple(i for i in range(reader.layers()) if i not in dense and (i + 1) % every == 0),
    }


def in_every_layer(raw: Raw, reader: Reader, count: int, per_token: int) -> Fields:
    """Of a family with ``num_local_experts`` in every layer, as wide as ``intermediate_size``; the numbers are those of
    a file that has none."""
    experts = count_of(raw, reader, "num_local_experts", "num_experts", 1, count)
    return {
        "num_experts": experts,
        "num_experts_per_tok": reader.within("num_experts_per_tok", 1, experts, per_token),
        "moe_intermediate_size": reader.integer("intermediate_size"),
        "expert_layers": tuple(range(reader.layers())),
    }


def count_of(
    raw: Raw, reader: Reader, field: str, other: str, least: int, default: int | None, most: int = MOST_EXPERTS
) -> int:
    """A number of experts, which a file may say under two names.

    ``field``: of transformers' configuration class; ``other``: its name for the same, which holds before it, and which
    transformers 5 writes for some families.
    """
    name = field if raw.get(other) is None else other
    return reader.within(name, least, most, default)


# Below ``blk.N.`` in a GGUF file.
LEAVES = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}


def sparse_layers(d: Description) -> tuple[list[int], int]:
    """The layers with a dense MLP, which are those that have the tensors of one, and how many experts others have."""
    dense = [layer for layer in range(d.layers) if d.has(f"blk.{layer}.ffn_gate.weight")]
    sparse = sorted(set(range(d.layers)) - set(dense))
    count = d.rows_of(f"blk.{sparse[0]}.ffn_gate_inp.weight") if sparse else 0
    for layer in sparse:  # before any list is made that is as long as this number
        if _experts_of(d, layer, count) != count:
            raise d.keys.error(".expert_count", count, f"the experts of blk.{layer}.ffn_down_exps.weight")
    return dense, count


def _experts_of(d: Description, layer: int, most: int) -> int:
    """How many a layer has: in one tensor for all, or one for each, of which no more than ``most`` are counted."""
    if not d.has(f"blk.{layer}.ffn_down.0.weight"):
        return d.rows_of(f"blk.{layer}.ffn_down_exps.weight")
    return sum(d.has(f"blk.{layer}.ffn_down.{index}.weight") for index in range(min(most, len(d.file.tensors))))


def experts_from_gguf(d: Description, width: str = ".expert_feed_forward_length") -> dict[str, object]:
    """The keys of :func:`sparse_fields`, but for the shared expert's. ``width``: the key that has an expert's."""
    keys = d.keys
    dense, count = sparse_layers(d)
    some, missing = (1, None) if count else (0, 0)
    return {
        "intermediate_size": d.per_block(".feed_forward_length", default=1),  # absent where all layers have experts
        "mlp_only_layers": dense,
        "num_experts": keys.integer(".expert_count", count, count, missing),
        "num_experts_per_tok": d.per_block(".expert_used_count", some, count, missing),
        "moe_intermediate_size": d.per_block(width, some, default=missing),
    }


def leading_dense(d: Description) -> int:
    """How many layers have no experts, where these are the first. Raises ``kv.errors.FormatError`` for others."""
    dense, _ = sparse_layers(d)
    if dense != list(range(len(dense))):
        raise d.keys.error(".leading_dense_block_count", len(dense), f"layers {dense} without experts to be the first")
    return d.keys.integer(".leading_dense_block_count", len(dense), len(dense), len(dense))


def scored_from_gguf(d: Description, norm: bool | None = None) -> dict[str, object]:
    """Of experts that are chosen by their sigmoid and a bias, as GLM-4.5's ``config.json`` has it. ``norm``: whether an
    expert's sigmoid is divided by those of all that were chosen; None: the file says it."""
    keys, experts = d.keys, experts_from_gguf(d)
    scale = keys.number(".expert_weights_scale", 1.0)
    if scale < 0:
        raise keys.error(".expert_weights_scale", scale, "0 or more")
    return {
        "intermediate_size": experts["intermediate_size"],
        "n_routed_experts": experts["num_experts"],
        "num_experts_per_tok": experts["num_experts_per_tok"],
        "moe_intermediate_size": experts["moe_intermediate_size"],
        "n_shared_experts": keys.integer(".expert_shared_count", 1, 2**10),
        "routed_scaling_factor": scale or 1.0,
        "norm_topk_prob": keys.flag(".expert_weights_norm", False) if norm is None else norm,
        **groups_from_gguf(d, cast(int, experts["num_experts"]), cast(int, experts["num_experts_per_tok"])),
        "first_k_dense_replace": leading_dense(d),
    }


def groups_from_gguf(d: Description, count: int, used: int) -> dict[str, object]:
    """How many groups ``count`` experts are in, and of how many of them ``used`` are chosen; 0 and absent: one."""
    keys = d.keys
    groups, kept = (keys.integer(f".expert_group_{key}", 0, default=0) or 1 for key in ("count", "used_count"))
    size = count // groups
    if count % groups or (groups > 1 and size < 2):
        raise keys.error(".expert_group_count", groups, f"0, 1 or groups of two or more of {count} experts")
    if not used <= kept * size <= count:
        least = -(-used // max(size, 1))
        raise keys.error(
            ".expert_group_used_count", kept, f"{least} to {groups}, for {used} experts in groups of {size}"
        )
    return {"n_group": groups, "topk_group": kept}


# Below ``blk.N.``, of families that call the shared expert so.
SHARED_LEAVES = {key.replace("shared_expert.", "shared_experts."): value for key, value in LEAVES.items()}


def shared_from_gguf(d: Description) -> dict[str, object]:
    _, count = sparse_layers(d)
    some, missing = (1, None) if count else (0, 0)
    key = ".expert_shared_feed_forward_length"
    return {"shared_expert_intermediate_size": d.keys.integer(key, some, default=missing)}
