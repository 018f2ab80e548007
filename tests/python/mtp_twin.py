"""A prediction head in numpy, float64 and without caches, and heads with random weights for the goldens' models.

From DeepSeek-AI 2024 (arXiv 2412.19437, section 2.2), the configuration's names, and which norm is where in vLLM.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LAYER = "mtp.layers.0"


def sigmoid(x: Floats) -> Floats:
    made: Floats = 1 / (1 + np.exp(-x))
    return made


def head_weights(raw: dict[str, Any], seed: int = 7) -> dict[str, Any]:
    """Random weights of a head by their names in a checkpoint; ``raw``: config.json."""
    hidden, size = raw["hidden_size"], raw["head_dim"]
    q, k = raw["num_attention_heads"] * size, raw["num_key_value_heads"] * size
    shapes: dict[str, tuple[int, ...]] = {
        "mtp.fc.weight": (hidden, 2 * hidden),
        "mtp.pre_fc_norm_embedding.weight": (hidden,),
        "mtp.pre_fc_norm_hidden.weight": (hidden,),
        "mtp.norm.weight": (hidden,),
        f"{LAYER}.input_layernorm.weight": (hidden,),
        f"{LAYER}.post_attention_layernorm.weight": (hidden,),
        f"{LAYER}.self_attn.q_proj.weight": (2 * q, hidden),
        f"{LAYER}.self_attn.k_proj.weight": (k, hidden),
        f"{LAYER}.self_attn.v_proj.weight": (k, hidden),
        f"{LAYER}.self_attn.o_proj.weight": (hidden, q),
        f"{LAYER}.self_attn.q_norm.weight": (size,),
        f"{LAYER}.self_attn.k_norm.weight": (size,),
    }
    if raw.get("attention_bias"):
        shapes |= {
            f"{LAYER}.self_attn.{name}_proj.bias": (width,)
            for name, width in (("q", 2 * q), ("k", k), ("v", k), ("o", hidden))
        }
    if raw.get("num_experts"):
        shapes |= {f"{LAYER}.mlp.gate.weight": (raw["num_experts"], hidden)}
        shapes |= {f"{LAYER}.mlp.shared_expert_gate.weight": (1, hidden)}
        shapes |= mlp(f"{LAYER}.mlp.shared_expert", hidden, raw["shared_expert_intermediate_size"])
        for each in range(raw["num_experts"]):
            shapes |= mlp(f"{LAYER}.mlp.experts.{each}", hidden, raw["moe_intermediate_size"])
    else:
        shapes |= mlp(f"{LAYER}.mlp", hidden, raw["intermediate_size"])
    return random_weights(shapes, seed)


def random_weights(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        name: (random.standard_normal(shape) * (0.2 if len(shape) == 1 else shape[-1] ** -0.5)).astype(np.float32)
        for name, shape in shapes.items()
    }


def mlp(prefix: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    up, down = (inner, hidden), (hidden, inner)
    return {f"{prefix}.gate_proj.weight": up, f"{prefix}.up_proj.weight": up, f"{prefix}.down_proj.weight": down}


class Twin:
    """``weights``: of the whole checkpoint, by name; ``config``: as it was parsed."""

    layer = LAYER
    fc, embedding_norm, hidden_norm, norm = (
        f"mtp.{name}" for name in ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    )
    offset = 1.0  # norms multiply by (offset + weight)

    def __init__(self, config: Any, weights: dict[str, Any]) -> None:
        self.config = config
        self.eps = config.rms_norm_eps
        self.weights = {name: np.asarray(value, np.float64) for name, value in weights.items()}
        self.embedding = self.weights["model.embed_tokens.weight"]
        self.head = self.weights.get("lm_head.weight", self.embedding)

    def __call__(self, hidden: Floats, tokens: list[int]) -> tuple[Floats, Floats]:
        """Logits [n, vocab] and states [n, hidden] of ``hidden`` [n, hidden] and the ``tokens`` behind each of them."""
        embedded = self._norm(self.embedding[tokens], self.embedding_norm)
        both = np.concatenate([embedded, self._norm(np.asarray(hidden, np.float64), self.hidden_norm)], 1)
        x = both @ self.weights[f"{self.fc}.weight"].T
        x = x + self._attention(self._norm(x, f"{self.layer}.input_layernorm"))
        x = x + self._mlp(self._norm(x, f"{self.layer}.post_attention_layernorm"))
        states = self._norm(x, self.norm)
        return states @ self.head.T, states

    def drafts(self, hidden: Floats, tokens: list[int], most: int) -> tuple[list[int], float]:
        """What follows ``tokens`` [n], by the hidden states [n - 1] of all but the last; and the smallest lead that a
        likeliest token has over the next one."""
        hidden, text, found, lead = np.asarray(hidden, np.float64), list(tokens[1:]), [], np.inf
        for _ in range(most):
            logits, states = self(hidden, text)
            order = np.argsort(logits[-1])
            lead = min(lead, float(logits[-1][order[-1]] - logits[-1][order[-2]]))
            found.append(int(order[-1]))
            text.append(found[-1])
            hidden = np.concatenate([hidden, states[-1:]])
        return found, lead

    def _norm(self, x: Floats, name: str, eps: float | None = None) -> Floats:
        mean = np.mean(x * x, axis=-1, keepdims=True)
        made: Floats = x / np.sqrt(mean + (eps or self.eps)) * (self.offset + self.weights[f"{name}.weight"])
        return made

    def _linear(self, x: Floats, name: str) -> Floats:
        made: Floats = x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)
        return made

    def _attention(self, x: Floats) -> Floats:
        c, rows, prefix = self.config, len(x), f"{LAYER}.self_attn"
        q, gate = np.split(self._linear(x, f"{prefix}.q_proj").reshape(rows, c.num_attention_heads, -1), 2, axis=2)
        k = self._linear(x, f"{prefix}.k_proj").reshape(rows, c.num_key_value_heads, -1)
        v = self._linear(x, f"{prefix}.v_proj").reshape(rows, c.num_key_value_heads, -1)
        q, k = self._turned(self._norm(q, f"{prefix}.q_norm")), self._turned(self._norm(k, f"{prefix}.k_norm"))
        out = np.empty_like(q)
        for head in range(c.num_attention_heads):
            other = head * c.num_key_value_heads // c.num_attention_heads
            scores = q[:, head] @ k[:, other].T / np.sqrt(c.head_dim)
            scores[np.triu_indices(rows, 1)] = -np.inf
            shares = np.exp(scores - scores.max(1, keepdims=True))
            out[:, head] = shares / shares.sum(1, keepdims=True) @ v[:, other]
        return self._linear((out * sigmoid(gate)).reshape(rows, -1), f"{prefix}.o_proj")

    def _turned(self, x: Floats) -> Floats:
        """The first ``rotary_dims`` numbers of each head, in halves; row i stands at position i."""
        dims = self.config.rotary_dims
        angles = np.arange(len(x))[:, None] * self.config.rope_theta ** (-np.arange(0, dims, 2) / dims)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = x[..., : dims // 2], x[..., dims // 2 : dims]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., dims:]], axis=-1)

    def _gated(self, x: Floats, prefix: str) -> Floats:
        gate = self._linear(x, f"{prefix}.gate_proj")
        return self._linear(gate * sigmoid(gate) * self._linear(x, f"{prefix}.up_proj"), f"{prefix}.down_proj")

    def _mlp(self, x: Floats) -> Floats:
        prefix = f"{LAYER}.mlp"
        if f"{prefix}.gate.weight" not in self.weights:
            return self._gated(x, prefix)
        logits = self._linear(x, f"{prefix}.gate")
        shares = np.exp(logits - logits.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        made = sigmoid(self._linear(x, f"{prefix}.shared_expert_gate")) * self._gated(x, f"{prefix}.shared_expert")
        for row in range(len(x)):
            chosen = np.argsort(-shares[row])[: self.config.num_experts_per_tok]
            whole = shares[row, chosen].sum() if self.config.norm_topk_prob else 1.0
            for each in chosen:
                made[row] += shares[row, each] / whole * self._gated(x[row : row + 1], f"{prefix}.experts.{each}")[0]
        return made
