"""Latent attention in GGUF files of llama.cpp's ``deepseek2``, as a ``config.json``: DeepSeek, Kimi K2, GLM-4.7-Flash.

``deepseek32`` and ``glm-dsa`` say the same, and what their index has (``index_from_gguf``).

Files say the sizes in one of two ways. Newer ones describe what attention computes, queries of many heads on one head
of keys, and have the sizes of the model's heads under keys of their own:

    newer     head_count_kv 1       key_length rank + rope    key_length_mla nope + rope    value_length_mla value
    older     head_count_kv heads   key_length nope + rope    value_length value

Neighbouring numbers of what rotates are pairs. Of yarn llama.cpp takes mscale and mscale_all_dim for one number, and
does not scale cosines and sines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .experts_config import SHARED_LEAVES

if TYPE_CHECKING:
    from .gguf.keys import Keys
    from .gguf.metadata import Description
    from .gguf.reader import GgufFile

LATENT_LEAVES = {
    **SHARED_LEAVES,
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
}

INDEXED_LEAVES = {
    **LATENT_LEAVES,
    "self_attn.indexer.wq_b": "indexer.attn_q_b",
    "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj",
}


@dataclass
class _Rotated:
    """A description with the fields that rope.py reads."""

    file: GgufFile
    keys: Keys
    divided: bool
    size: int

    def has(self, tensor: str) -> bool:
        return tensor in self.file.tensors

    def rotated(self) -> int:
        return self.size


def latent_from_gguf(d: Description) -> dict[str, object]:
    """But for experts. Raises ``kv.errors.FormatError`` naming the key."""
    keys = d.keys
    newer, theta = keys.has(".attention.key_length_mla"), keys.positive(".rope.freq_base", 10000.0)
    d.per_block(".attention.head_count_kv", *((1, 1) if newer else (d.heads, d.heads)))
    sizes = latent_sizes(d, newer=newer)
    if newer:
        rank = keys.integer(".attention.kv_lora_rank")
        keys.integer(".attention.value_length", rank, rank, rank)
    return {
        **sizes,
        "rope_theta": theta,
        **_scaling(d, theta, keys.integer(".rope.dimension_count", 2)),
    }


def latent_sizes(d: Description, *, newer: bool) -> dict[str, object]:
    """But for rotation and the heads of keys, of a file that has the sizes in the newer way or the older."""
    keys, heads = d.keys, d.heads
    rows = d.rows_of("token_embd.weight")
    rank, rope = keys.integer(".attention.kv_lora_rank", 1), keys.integer(".rope.dimension_count", 2)
    if newer:
        keys.integer(".attention.key_length", rank + rope, rank + rope, rank + rope)
        key, value = keys.integer(".attention.key_length_mla", rope + 1), keys.integer(".attention.value_length_mla", 1)
    else:
        key, value = keys.integer(".attention.key_length", rope + 1), keys.integer(".attention.value_length", 1)
    d.check_attention(key)
    return {
        "vocab_size": keys.integer(".vocab_size", rows, rows, rows),
        "hidden_size": d.hidden(),
        "num_hidden_layers": d.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": keys.integer(".context_length"),
        "rms_norm_eps": keys.positive(".attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": not d.has("output.weight"),
        "attention_bias": d.in_any_layer("attn_output.bias"),
        "kv_lora_rank": rank,
        "q_lora_rank": keys.integer(".attention.q_lora_rank", 0, default=0) or None,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": key - rope,
        "v_head_dim": value,
    }


def index_from_gguf(d: Description) -> dict[str, object]:
    """Sizes of the index, and how many keys it chooses."""
    named = {"index_n_heads": ("head_count", 1), "index_head_dim": ("key_length", 2), "index_topk": ("top_k", 1)}
    return {name: d.keys.integer(f".attention.indexer.{key}", least) for name, (key, least) in named.items()}


def _scaling(d: Description, theta: float, rope: int) -> dict[str, object]:
    from .gguf.rope import rope_scaling  # with the package that reads files

    scaling = rope_scaling(_Rotated(d.file, d.keys, d.divided, rope), theta)
    key = ".rope.scaling.yarn_log_multiplier"
    share = d.keys.number(key, 0.0)
    if scaling is None:
        return {}
    if scaling["rope_type"] == "yarn":
        mscale = round(10 * share, 6)  # of a float32
        both = {"mscale": mscale, "mscale_all_dim": mscale}
        scaling = {**scaling, **(both if mscale else {"attention_factor": 1.0})}
    elif share:
        raise d.keys.error(key, share, f"0 with {scaling['rope_type']} scaling")
    return {"rope_scaling": scaling}
