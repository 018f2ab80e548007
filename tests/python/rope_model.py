"""A model of attention layers only whose keys are rotated: what it sees is compared with numpy.

Every token has random K, V and q before the rotation; what a row should see is the session's tokens at the positions
0, 1, 2, ..., whatever happened to them in between.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bounds import ATTENTION, close

Floats = npt.NDArray[np.float32]


def rotate(x: Floats, positions: Any, dims: int, base: float, interleaved: bool) -> Floats:
    """RoPE of x [n, heads, dim] in float64, from its definition."""
    angles = np.asarray(positions, np.float64)[:, None] * base ** (-np.arange(0, dims, 2) / dims)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    out = x.astype(np.float64)
    first = np.s_[..., 0:dims:2] if interleaved else np.s_[..., : dims // 2]
    second = np.s_[..., 1:dims:2] if interleaved else np.s_[..., dims // 2 : dims]
    a, b = out[first].copy(), out[second].copy()
    out[first], out[second] = a * cos - b * sin, a * sin + b * cos
    return out.astype(np.float32)


def attention(q: Floats, k: Floats, v: Floats) -> Floats:
    """One query [heads, dim] over all keys [n, kv_heads, dim], in float64."""
    group = q.shape[0] // k.shape[1]
    out = np.empty((q.shape[0], v.shape[2]))
    for head in range(q.shape[0]):
        scores = k[:, head // group].astype(np.float64) @ q[head] / np.sqrt(q.shape[1])
        powers = np.exp(scores - scores.max())
        out[head] = powers / powers.sum() @ v[:, head // group]
    return out.astype(np.float32)


class RopeModel:
    """Random keys that are rotated before they are stored; knows what every token's plain key and value were.

    ``latent``: the last so many numbers of a key are its value, which no rotation may touch; ``v_dim`` is 0 then.
    """

    def __init__(
        self, layers: int, dim: int, v_dim: int, ropes: list[dict[str, Any]], window: int = 0, latent: int = 0
    ) -> None:
        random = np.random.default_rng(5)
        self.k = random.standard_normal((97, layers, 2, dim)).astype(np.float32)
        self.v = random.standard_normal((97, layers, 2, v_dim)).astype(np.float32)
        self.q = random.standard_normal((97, layers, 4, dim)).astype(np.float32)
        self.values = self.k[..., dim - latent :] if latent else self.v
        self.layers, self.ropes = layers, ropes
        self.window = window  # of all layers but the first

    def rotated(self, x: Floats, positions: Any, layer: int) -> Floats:
        rope = self.ropes[layer if len(self.ropes) > 1 else 0]
        return rotate(x, positions, rope.get("dims", x.shape[2]), rope["base"], rope.get("interleaved", False))

    def __call__(self, step: Any) -> None:
        tokens, positions = np.asarray(step.tokens), np.asarray(step.positions)
        texts = [session.tokens for session in step.sessions]
        for layer in range(self.layers):
            k, q = (self.rotated(x[tokens, layer], positions, layer) for x in (self.k, self.q))
            out = np.asarray(step.attend(layer, q, k, self.v[tokens, layer]))
            for row in step.last_rows:
                text = texts[step.sequences[row]][: positions[row] + 1]
                keys = self.rotated(self.k[text, layer], np.arange(len(text)), layer)
                seen = slice(-self.window if layer > 0 else 0, None)
                wanted = attention(q[row], keys[seen], self.values[text, layer][seen])
                close(out[row], wanted, ATTENTION, each=True)
