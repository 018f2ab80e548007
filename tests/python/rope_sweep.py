"""RoPE settings drawn at random from all the places that have held them, and transformers' frequencies for them."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

import kvtrie as kv

FULL, SLIDING = "full_attention", "sliding_attention"
KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
_SUB: dict[str, list[Any]] = {  # values of each key; the first is drawn for the types that need it
    "factor": [4.0, 2, 8.0, 1.0, None],
    "attention_factor": [1.3, 0.5, None],
    "original_max_position_embeddings": [16, 32, 128, None],
    "low_freq_factor": [1.0, 2.0],
    "high_freq_factor": [4.0, 8.0],
    "beta_fast": [16, 8.0, 0, None],
    "beta_slow": [2, 0.5, None],
    "mscale": [0.7, 0, None],
    "mscale_all_dim": [0.4, 0.0, None],
    "truncate": [False, True, None],
    "rope_theta": [90.0, 12345.0, None],
    "partial_rotary_factor": [0.5, 1.0],
    "mrope_section": [[2, 1, 1]],
}
_NEEDED = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


def parameters(random: np.random.Generator, pairs: int = 4) -> dict[str, Any]:
    """One dictionary: a type, what it needs (nearly always), and any of the others."""
    kind = KINDS[random.integers(len(KINDS))]
    found: dict[str, Any] = {}
    for key, values in _SUB.items():
        chance = 0.95 if key in _NEEDED[kind] else 0.02 if key == "partial_rotary_factor" else 0.25
        if random.random() < chance:
            found[key] = values[random.integers(len(values))] if random.random() < 0.7 else values[0]
    if kind == "longrope":
        found["short_factor"] = np.round(random.uniform(1, 2, pairs), 2).tolist()
        found["long_factor"] = np.round(random.uniform(2, 8, pairs), 2).tolist()
    spelled = ("rope_type", "type", "both")[random.choice(3, p=[0.7, 0.2, 0.1])]
    if spelled != "type":
        found["rope_type"] = kind
    if spelled != "rope_type":
        found["type"] = kind if spelled == "type" else KINDS[random.integers(len(KINDS))]
    return found


def ropes(random: np.random.Generator, count: int, by_kind: bool, absent: object) -> list[dict[str, Any]]:
    """``count`` changes of a configuration; ``absent``: in place of a value that is left out."""
    return [_by_kind(random, absent) if by_kind else _flat(random, absent) for _ in range(count)]


def _top(random: np.random.Generator, keys: dict[str, list[Any]]) -> dict[str, Any]:
    return {key: values[random.integers(len(values))] for key, values in keys.items() if random.random() < 0.3}


def _flat(random: np.random.Generator, absent: object) -> dict[str, Any]:
    form = random.choice(["parameters", "scaling", "both"], p=[0.4, 0.4, 0.2])
    changes: dict[str, Any] = {"rope_parameters": absent}
    if form != "scaling":
        changes["rope_parameters"] = parameters(random)
    if form != "parameters":
        changes["rope_scaling"] = parameters(random) if random.random() < 0.9 else {}
    tops: dict[str, list[Any]] = {
        "rope_theta": [90.0, 7000.0],
        "original_max_position_embeddings": [16, 48],
        "max_position_embeddings": [64, 128],
    }
    return {**changes, **_top(random, tops)}


def _by_kind(random: np.random.Generator, absent: object) -> dict[str, Any]:
    form = random.choice(["parameters", "scaling", "both"], p=[0.5, 0.3, 0.2])
    changes: dict[str, Any] = {"rope_parameters": absent}
    if form != "scaling":
        kinds = [kind for kind in (FULL, SLIDING) if random.random() < 0.8]
        changes["rope_parameters"] = {kind: parameters(random) for kind in kinds}
    if form != "parameters":
        changes["rope_scaling"] = parameters(random)
    tops: dict[str, list[Any]] = {
        "rope_theta": [90.0, 7000.0],
        "rope_local_base_freq": [50.0, 300.0],
        "max_position_embeddings": [64, 128],
    }
    return {**changes, **_top(random, tops)}


# ---- both tables -----------------------------------------------------------------------------------------------------

# By family: transformers' module of it, and its rotary embedding.
_MODULES = {
    "llama": ("llama", "LlamaRotaryEmbedding"),
    "qwen3_next": ("qwen3_next", "Qwen3NextRotaryEmbedding"),
    "gemma3_text": ("gemma3", "Gemma3RotaryEmbedding"),
}


def wanted_tables(family: str, config: Any) -> list[tuple[Any, float]]:
    """Frequencies and attention factor by transformers: of each kind of layers that there is, sorted."""
    module, name = _MODULES[family]
    path = f"transformers.models.{module}.modeling_{module}"
    rotary = getattr(importlib.import_module(path), name)(config)
    if family != "gemma3_text":
        return [(rotary.inv_freq.numpy(), float(rotary.attention_scaling))]
    return [
        (getattr(rotary, f"{kind}_inv_freq").numpy(), float(getattr(rotary, f"{kind}_attention_scaling")))
        for kind in sorted(set(config.layer_types))
    ]


def got_tables(family: Any, config: Any) -> list[tuple[Any, float]]:
    """The same by kvtrie: what a rotation by one position makes of (1, 0)."""
    tables = []
    for group in family.attention_groups(config):  # of full layers first
        dims = group.rope.get("dims", config.head_dim)
        x = np.zeros((1, 1, config.head_dim), np.float32)
        x[..., : dims // 2] = 1
        turned = np.asarray(kv.ops.rope(x, np.ones(1, np.int32), table=kv.ops.RopeTable(config.head_dim, **group.rope)))
        cosine, sine = turned[0, 0, : dims // 2], turned[0, 0, dims // 2 : dims]
        tables.append((np.arctan2(sine, cosine), float(np.hypot(cosine, sine).mean())))
    return tables
