"""The recurrent operations of kvtrie.ops in numpy, and random rows for them."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import numpy.typing as npt

import bounds
import kvtrie as kv

TAIL, CHANNELS, K_HEADS, V_HEADS, V_DIM, K_DIM = 3, 20, 2, 4, 6, 12
Doubles = npt.NDArray[np.float64]


def conv_reference(x: Any, weight: Any, state: Any) -> tuple[Doubles, Doubles]:
    """(y, the inputs before each row and after the last): one sequence, in float64."""
    inputs = np.concatenate([state, x]).astype(np.float64)
    width = weight.shape[1]
    rows = [np.einsum("jc,cj->c", inputs[t : t + width], weight.astype(np.float64)) for t in range(len(x))]
    return np.array(rows), np.array([inputs[t : t + width - 1] for t in range(len(x) + 1)])


def delta_reference(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any) -> tuple[Doubles, Doubles]:
    """(y, the state before each row and after the last): one sequence, in float64."""
    group = v.shape[1] // q.shape[1]
    q, k = (np.repeat(part.astype(np.float64), group, 1) for part in (q, k))
    states, rows = [state.astype(np.float64)], []
    for t in range(len(v)):
        decayed = np.exp(np.float64(g[t]))[:, None, None] * states[-1]
        u = beta[t][:, None] * (v[t] - np.einsum("hvk,hk->hv", decayed, k[t]))
        states.append(decayed + u[:, :, None] * k[t][:, None, :])
        rows.append(np.einsum("hvk,hk->hv", states[-1], q[t]))
    return np.array(rows), np.array(states)


def ssd_reference(
    x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, state: Any, least: float = 0.0, most: float = np.inf
) -> tuple[Doubles, Doubles]:
    """(y, the state before each row and after the last) of Mamba-2's scan: one sequence, in float64."""
    x, a, d = (np.asarray(part, np.float64) for part in (x, a, d))
    step = np.clip(np.asarray(dt, np.float64), least, most)
    b, c = (np.repeat(np.asarray(part, np.float64), x.shape[1] // part.shape[1], 1) for part in (b, c))
    states, rows = [np.asarray(state, np.float64)], []
    for t in range(len(x)):
        put = (step[t][:, None] * x[t])[:, :, None] * b[t][:, None, :]
        states.append(np.exp(step[t] * a)[:, None, None] * states[-1] + put)
        rows.append(np.einsum("hpn,hn->hp", states[-1], c[t]) + d[:, None] * x[t])
    return np.array(rows), np.array(states)


class Rows:
    """Random rows of one layer, and its weight; slices are rows again."""

    def __init__(self, count: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.weight = np.random.default_rng(7).standard_normal((CHANNELS, TAIL + 1)).astype(np.float32)
        self.x = random.standard_normal((count, CHANNELS)).astype(np.float32)
        self.q = (random.standard_normal((count, K_HEADS, K_DIM)) / np.sqrt(K_DIM)).astype(np.float32)
        self.k = (random.standard_normal((count, K_HEADS, K_DIM)) / np.sqrt(K_DIM)).astype(np.float32)
        self.v = random.standard_normal((count, V_HEADS, V_DIM)).astype(np.float32)
        self.g = -np.abs(random.standard_normal((count, V_HEADS))).astype(np.float32)
        self.beta = random.random((count, V_HEADS), np.float32)

    def __getitem__(self, rows: slice) -> Rows:
        part = Rows(0, 0)
        for name in ("x", "q", "k", "v", "g", "beta"):
            setattr(part, name, getattr(self, name)[rows])
        return part

    def __add__(self, other: Rows) -> Rows:
        both = Rows(0, 0)
        for name in ("x", "q", "k", "v", "g", "beta"):
            setattr(both, name, np.concatenate([getattr(self, name), getattr(other, name)]))
        return both

    def conv(self, states: Any = None, row_starts: Any = None, boundaries: Any = None) -> tuple[Any, Any]:
        y, out = kv.ops.causal_conv1d(self.x, self.weight, states, row_starts, boundaries)
        return np.asarray(y), np.asarray(out)

    def delta(self, states: Any = None, row_starts: Any = None, boundaries: Any = None) -> tuple[Any, Any]:
        y, out = kv.ops.gated_delta(self.q, self.k, self.v, self.g, self.beta, states, row_starts, boundaries)
        return np.asarray(y), np.asarray(out)

    def delta_reference(self, state: Optional[Any] = None) -> tuple[Doubles, Doubles]:
        start = np.zeros((V_HEADS, V_DIM, K_DIM)) if state is None else state
        return delta_reference(self.q, self.k, self.v, self.g, self.beta, start)

    def conv_reference(self, state: Optional[Any] = None) -> tuple[Doubles, Doubles]:
        return conv_reference(self.x, self.weight, np.zeros((TAIL, CHANNELS)) if state is None else state)


def close(got: Any, wanted: Any) -> None:
    bounds.close(got, wanted, bounds.STATES, each=True)
