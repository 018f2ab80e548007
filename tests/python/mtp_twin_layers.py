"""The prediction heads of GLM and DeepSeek in numpy, float64 and without caches, and models with random weights.

They stand as one layer more behind the last: ``eh_proj`` reads the norms of the embedding and of the hidden state, then
comes a decoder layer with experts, and ``shared_head`` has a norm, and a head. From Zhipu AI 2025 (arXiv 2508.06471),
DeepSeek-AI 2024 (arXiv 2412.19437, sections 2.1 and 2.2) and 2025 (DeepSeek-V3.2-Exp, section 2.1), and the names in
published files. Nothing here uses what kvtrie thinks of a setting: ``raw`` is ``config.json``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kvtrie as kv
from mtp_twin import Floats, Twin, mlp, random_weights, sigmoid

_SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 2,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "rope_interleave": True,
}
_INDEX: dict[str, Any] = {"index_topk": 7, "index_n_heads": 6, "index_head_dim": 12}  # fewer keys than texts have
RAWS: dict[str, dict[str, Any]] = {
    "glm4-moe": {
        **_SIZES,
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "num_key_value_heads": 2,
        "head_dim": 16,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
        "use_qk_norm": True,
    },
    "deepseek-v3": {**_SIZES, **_LATENT, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"},
    "glm4-moe-lite": {
        **{key: value for key, value in _SIZES.items() if key != "first_k_dense_replace"},
        **_LATENT,
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "model_type": "glm4_moe_lite",
        "q_lora_rank": None,
        "rope_interleave": False,
        "n_group": 1,
    },
    "deepseek-v32": {
        **_SIZES,
        **_LATENT,
        **_INDEX,
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
    },
    "glm-moe-dsa": {
        **_SIZES,
        **_LATENT,
        **_INDEX,
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "indexer_types": ["full", "shared"],
        "indexer_rope_interleave": True,
    },
}


def weights_behind(name: str, seed: int = 7) -> dict[str, Any]:
    """Random weights of a model, and of its head by the names in published files.

    The heads of GLM-4.5 and GLM-5 have tables of their own; DeepSeek's have copies of the model's, as published;
    GLM-4.7-Flash's has none.
    """
    raw = RAWS[name]
    family = kv.models._family(raw, name)
    weights = random_weights({**family.tensor_shapes(family.parse_config(raw)), **_head_shapes(raw)}, seed)
    for key, values in weights.items():
        if key.endswith("norm.weight"):
            weights[key] = 1 + values
    layer = f"model.layers.{raw['num_hidden_layers']}"
    tables = {f"{layer}.embed_tokens.weight": "model.embed_tokens.weight"}
    tables[f"{layer}.shared_head.head.weight"] = "lm_head.weight"
    if name in ("glm4-moe", "glm-moe-dsa"):
        own = random_weights({key: weights[other].shape for key, other in tables.items()}, seed + 1)
        weights |= {key: 2 * value for key, value in own.items()}
    elif name.startswith("deepseek"):
        weights |= {key: weights[other].copy() for key, other in tables.items()}
    return weights


def _head_shapes(raw: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads, layer = raw["hidden_size"], raw["num_attention_heads"], f"model.layers.{raw['num_hidden_layers']}"
    shapes: dict[str, tuple[int, ...]] = {
        f"{layer}.eh_proj.weight": (hidden, 2 * hidden),
        **{
            f"{layer}.{name}.weight": (hidden,)
            for name in ("enorm", "hnorm", "shared_head.norm", "input_layernorm", "post_attention_layernorm")
        },
        f"{layer}.mlp.gate.weight": (raw["n_routed_experts"], hidden),
        f"{layer}.mlp.gate.e_score_correction_bias": (raw["n_routed_experts"],),
        **mlp(f"{layer}.mlp.shared_experts", hidden, raw["n_shared_experts"] * raw["moe_intermediate_size"]),
    }
    for each in range(raw["n_routed_experts"]):
        shapes |= mlp(f"{layer}.mlp.experts.{each}", hidden, raw["moe_intermediate_size"])
    attention = f"{layer}.self_attn"
    if "kv_lora_rank" in raw:
        rank, value = raw["kv_lora_rank"], raw["v_head_dim"]
        nope, rope = raw["qk_nope_head_dim"], raw["qk_rope_head_dim"]
        queries, q_rank = heads * (nope + rope), raw["q_lora_rank"]
        shapes |= {
            f"{attention}.kv_a_proj_with_mqa.weight": (rank + rope, hidden),
            f"{attention}.kv_a_layernorm.weight": (rank,),
            f"{attention}.kv_b_proj.weight": (heads * (nope + value), rank),
            f"{attention}.o_proj.weight": (hidden, heads * value),
            **_index_shapes(raw, f"{attention}.indexer"),
        }
        if q_rank is None:
            return {**shapes, f"{attention}.q_proj.weight": (queries, hidden)}
        return {
            **shapes,
            f"{attention}.q_a_proj.weight": (q_rank, hidden),
            f"{attention}.q_a_layernorm.weight": (q_rank,),
            f"{attention}.q_b_proj.weight": (queries, q_rank),
        }
    size, q, k = raw["head_dim"], heads * raw["head_dim"], raw["num_key_value_heads"] * raw["head_dim"]
    return {
        **shapes,
        **{f"{attention}.{name}_proj.weight": (width, hidden) for name, width in (("q", q), ("k", k), ("v", k))},
        **{f"{attention}.{name}_proj.bias": (width,) for name, width in (("q", q), ("k", k), ("v", k))},
        f"{attention}.o_proj.weight": (hidden, q),
        f"{attention}.q_norm.weight": (size,),
        f"{attention}.k_norm.weight": (size,),
    }


def _index_shapes(raw: dict[str, Any], prefix: str) -> dict[str, tuple[int, ...]]:
    if "index_topk" not in raw:
        return {}
    heads, size, hidden = raw["index_n_heads"], raw["index_head_dim"], raw["hidden_size"]
    return {
        f"{prefix}.wq_b.weight": (heads * size, raw["q_lora_rank"]),
        f"{prefix}.wk.weight": (size, hidden),
        f"{prefix}.k_norm.weight": (size,),
        f"{prefix}.k_norm.bias": (size,),
        f"{prefix}.weights_proj.weight": (heads, hidden),
    }


class LayerTwin(Twin):
    """``weights``: of the whole checkpoint, by name."""

    offset = 0.0

    def __init__(self, raw: dict[str, Any], weights: dict[str, Any]) -> None:
        self.raw = raw
        self.eps = raw["rms_norm_eps"]
        self.layer = f"model.layers.{raw['num_hidden_layers']}"
        self.fc, self.embedding_norm, self.hidden_norm, self.norm = (
            f"{self.layer}.{name}" for name in ("eh_proj", "enorm", "hnorm", "shared_head.norm")
        )
        self.weights = {name: np.asarray(value, np.float64) for name, value in weights.items()}
        known = self.weights
        self.embedding = known.get(f"{self.layer}.embed_tokens.weight", known["model.embed_tokens.weight"])
        self.head = known.get(f"{self.layer}.shared_head.head.weight", known["lm_head.weight"])

    def _attention(self, x: Floats) -> Floats:
        return self._latent(x) if "kv_lora_rank" in self.raw else self._heads(x)

    def _heads(self, x: Floats) -> Floats:
        raw, prefix = self.raw, f"{self.layer}.self_attn"
        q, k, v = (
            self._linear(x, f"{prefix}.{name}_proj").reshape(len(x), -1, raw["head_dim"]) for name in ("q", "k", "v")
        )
        q, k = self._norm(q, f"{prefix}.q_norm"), self._norm(k, f"{prefix}.k_norm")
        dims = int(raw["head_dim"] * raw["partial_rotary_factor"])
        q, k = (np.concatenate([self._halves(each[..., :dims]), each[..., dims:]], -1) for each in (q, k))
        shared = raw["num_attention_heads"] // raw["num_key_value_heads"]
        out = self._attended(q, k.repeat(shared, 1), v.repeat(shared, 1), raw["head_dim"])
        return self._linear(out, f"{prefix}.o_proj")

    def _latent(self, x: Floats) -> Floats:
        """With keys and values of each head made, as the papers write it."""
        raw, prefix, rows, heads = self.raw, f"{self.layer}.self_attn", len(x), self.raw["num_attention_heads"]
        nope, rope, hidden_keys = raw["qk_nope_head_dim"], raw["qk_rope_head_dim"], None
        if raw["q_lora_rank"] is None:
            q = self._linear(x, f"{prefix}.q_proj")
        else:
            latent = self._norm(self._linear(x, f"{prefix}.q_a_proj"), f"{prefix}.q_a_layernorm", 1e-6)
            q = self._linear(latent, f"{prefix}.q_b_proj")
            hidden_keys = self._not_chosen(x, latent) if "index_topk" in raw else None
        q = q.reshape(rows, heads, nope + rope)
        packed = self._linear(x, f"{prefix}.kv_a_proj_with_mqa")
        latent = self._norm(packed[:, : raw["kv_lora_rank"]], f"{prefix}.kv_a_layernorm", 1e-6)
        key = packed[:, None, raw["kv_lora_rank"] :]
        made = self._linear(latent, f"{prefix}.kv_b_proj").reshape(rows, heads, nope + raw["v_head_dim"])
        turned = self._pairs if raw["rope_interleave"] else self._halves
        q = np.concatenate([q[..., :nope], turned(q[..., nope:])], -1)
        k = np.concatenate([made[..., :nope], turned(key).repeat(heads, 1)], -1)
        return self._linear(self._attended(q, k, made[..., nope:], nope + rope, hidden_keys), f"{prefix}.o_proj")

    def _not_chosen(self, x: Floats, latent: Floats) -> Floats:
        """[rows, rows]: -inf for the keys that a row does not attend to."""
        raw, prefix, rows, heads = self.raw, f"{self.layer}.self_attn.indexer", len(x), self.raw["index_n_heads"]
        rope, turned = raw["qk_rope_head_dim"], self._pairs if "indexer_rope_interleave" in raw else self._halves
        q, k = self._linear(latent, f"{prefix}.wq_b").reshape(rows, heads, -1), self._linear(x, f"{prefix}.wk")
        k = (k - k.mean(1, keepdims=True)) / np.sqrt(k.var(1, keepdims=True) + 1e-6)
        k = (k * self.weights[f"{prefix}.k_norm.weight"] + self.weights[f"{prefix}.k_norm.bias"])[:, None]
        q, k = (np.concatenate([turned(each[..., :rope]), each[..., rope:]], -1) for each in (q, k))
        products = np.maximum(np.einsum("ihd,jd->ihj", q, k[:, 0]), 0)
        scores = np.einsum("ih,ihj->ij", self._linear(x, f"{prefix}.weights_proj"), products)
        found = np.full((rows, rows), -np.inf)
        for row in range(rows):
            found[row, np.argsort(-scores[row, : row + 1], kind="stable")[: raw["index_topk"]]] = 0
        return found

    @staticmethod
    def _attended(q: Floats, k: Floats, v: Floats, width: int, hidden_keys: Floats | None = None) -> Floats:
        rows = len(q)
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(width)
        scores += np.triu(np.full((rows, rows), -np.inf), 1) if hidden_keys is None else hidden_keys
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        made: Floats = np.einsum("hij,jhd->ihd", shares / shares.sum(-1, keepdims=True), v).reshape(rows, -1)
        return made

    def _angles(self, x: Floats) -> Floats:
        dims = x.shape[-1]
        made: Floats = np.arange(len(x))[:, None, None] * self.raw["rope_theta"] ** (-np.arange(0, dims, 2) / dims)
        return made

    def _halves(self, x: Floats) -> Floats:
        angles, (a, b) = self._angles(x), np.split(x, 2, axis=-1)
        return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)

    def _pairs(self, x: Floats) -> Floats:
        turned = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * self._angles(x))
        return np.stack([turned.real, turned.imag], -1).reshape(x.shape)

    def _mlp(self, x: Floats) -> Floats:
        raw, prefix, made = self.raw, f"{self.layer}.mlp", self._gated(x, f"{self.layer}.mlp.shared_experts")
        scores = sigmoid(self._linear(x, f"{prefix}.gate"))
        biased = scores + self.weights[f"{prefix}.gate.e_score_correction_bias"]
        for row in range(len(x)):
            groups = biased[row].reshape(raw["n_group"], -1)
            best = np.argsort(-np.sort(groups, 1)[:, -2:].sum(1))[: raw["topk_group"]]
            allowed = np.full_like(groups, -np.inf)
            allowed[best] = groups[best]
            chosen = np.argsort(-allowed.reshape(-1))[: raw["num_experts_per_tok"]]
            whole = scores[row, chosen].sum() if raw["norm_topk_prob"] else 1.0
            for each in chosen:
                share = raw["routed_scaling_factor"] * scores[row, each] / whole
                made[row] += share * self._gated(x[row : row + 1], f"{prefix}.experts.{each}")[0]
        return made
