"""Steps without a cache, in plain numpy and float64: the whole history of each conversation is kept and gone through.

What a model asks of a step (attention with windows or chunks, the causal convolution, the gated delta rule) is written
down here from its definition, so a model can be checked without any cache of the package, and the package's steps
against these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

import kvtrie as kv
from recurrent_reference import ssd_reference

Float64 = npt.NDArray[np.float64]


class Sights(list[tuple[str, int]]):
    """What each layer sees: ("full", 0), ("window", w), ("chunk", c), ("linear", 0); and how its K and V are cut."""

    kv_heads = 0
    head_dim = 0


def sights_of(config: Mapping[str, Any]) -> Sights:
    """The sights of a Hugging Face configuration."""
    kinds = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    sights = {
        "full_attention": ("full", 0),
        "sliding_attention": ("window", config.get("sliding_window")),
        "chunked_attention": ("chunk", config.get("attention_chunk_size")),
        "linear_attention": ("linear", 0),
    }
    found = Sights(sights[kind] for kind in kinds)
    found.kv_heads, found.head_dim = config["num_key_value_heads"], config["head_dim"]
    return found


class FakeSession:
    """One conversation: what its layers were given so far."""

    def __init__(self, sights: Sequence[tuple[str, int]]) -> None:
        self.sights = sights
        self.length = 0
        self.keys: dict[int, Float64] = {}  # layer -> [length, kv_heads, dim]
        self.values: dict[int, Float64] = {}
        self.inputs: dict[int, Float64] = {}  # layer -> [length, conv_dim], of the convolution
        self.delta: dict[int, Float64] = {}  # layer -> [v_heads, v_dim, k_dim]

    def steps(self, tokens: Sequence[int], chunk: int) -> Iterator[FakeStep]:
        for begin in range(0, len(tokens), chunk):
            yield FakeStep([(self, tokens[begin : begin + chunk])])

    def conv_state(self, layer: int, tail: int) -> Float64:
        """The last ``tail`` inputs, oldest first, zeros before the beginning."""
        inputs = self.inputs[layer]
        return np.concatenate([np.zeros((tail, inputs.shape[1])), inputs])[-tail:]


class FakeStep:
    """One step of several conversations: (session, its next tokens), rows in this order."""

    def __init__(self, parts: Sequence[tuple[FakeSession, Sequence[int]]]) -> None:
        self.sessions = [session for session, _ in parts]
        self.tokens = np.concatenate([np.asarray(tokens, np.int32) for _, tokens in parts])
        self.sequences = np.repeat(np.arange(len(parts)), [len(tokens) for _, tokens in parts]).astype(np.int32)
        starts = [session.length + np.arange(len(tokens)) for session, tokens in parts]
        self.positions = np.concatenate(starts).astype(np.int32)
        for session, tokens in parts:
            session.length += len(tokens)

    def attend(
        self,
        layer: int,
        q: Any,
        k: Any,
        v: Any,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Any = None,
        precision: str = "auto",
    ) -> npt.NDArray[np.float32]:
        assert precision in kv.models.PRECISIONS
        q, k, v = (np.asarray(part, np.float64) for part in (q, k, v))
        out = np.empty((*q.shape[:2], v.shape[2]))
        for session, rows in self._parts():
            keys = session.keys[layer] = _longer(session.keys.get(layer), k[rows])
            values = session.values[layer] = _longer(session.values.get(layer), v[rows])
            seen = _seen(self.positions[rows], len(keys), *session.sights[layer])
            out[rows] = _attention(q[rows], keys, values, seen, scale or 1 / math.sqrt(q.shape[2]), softcap, sinks)
        return out.astype(np.float32)

    def attend_qkv(
        self,
        layer: int,
        qkv: Any,
        rope: Any = None,
        q_norm: Any = None,
        k_norm: Any = None,
        eps: float = 1e-6,
        offset: float = 0.0,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Any = None,
        weight: Any = None,
        bias: Any = None,
        norm: Any = None,
        precision: str = "auto",
    ) -> npt.NDArray[np.float32]:
        """The separate operations, one after the other; V's heads are as long as K's."""
        if weight is not None:
            qkv = kv.ops.matmul(qkv, weight, add=bias, norm=norm)
        sights = self.sessions[0].sights
        assert isinstance(sights, Sights)
        heads = np.asarray(qkv).reshape(len(self.tokens), -1, sights.head_dim)
        stored = sights.kv_heads
        q, k, v = heads[:, : -2 * stored], heads[:, -2 * stored : -stored], heads[:, -stored:]
        placed = []
        for part, weight in ((q, q_norm), (k, k_norm)):
            part = np.ascontiguousarray(part)
            part = part if weight is None else kv.ops.rms_norm(part, weight, eps, offset)
            placed.append(part if rope is None else kv.ops.rope(part, self.positions, table=rope))
        out = self.attend(layer, *placed, v, scale, softcap, sinks, precision)
        return out.reshape(len(out), -1)

    def conv(self, layer: int, x: Any, weight: Any) -> npt.NDArray[np.float32]:
        """x [rows, dim], weight [dim, width]: y[t] = sum over j of weight[:, j] * x[t - width + 1 + j]."""
        x, weight = np.asarray(x, np.float64), np.asarray(weight, np.float64)
        width = weight.shape[1]
        out = np.empty_like(x)
        for session, rows in self._parts():
            assert session.sights[layer][0] == "linear"
            inputs = session.inputs[layer] = _longer(session.inputs.get(layer), x[rows])
            padded = np.concatenate([np.zeros((width - 1, x.shape[1])), inputs])
            whole = sum(weight[:, j] * padded[j : j + len(inputs)] for j in range(width))
            out[rows] = whole[self.positions[rows]]
        return out.astype(np.float32)

    def gated_delta(self, layer: int, q: Any, k: Any, v: Any, g: Any, beta: Any) -> npt.NDArray[np.float32]:
        """As csrc/ops/recurrent.h defines it, one row after another."""
        q, k, v, g, beta = (np.asarray(part, np.float64) for part in (q, k, v, g, beta))
        heads, group = v.shape[1], v.shape[1] // k.shape[1]
        out = np.empty_like(v)
        for session, rows in self._parts():
            states = session.delta.setdefault(layer, np.zeros((heads, v.shape[2], k.shape[2])))
            for t in rows:
                for head in range(heads):
                    key, query = k[t, head // group], q[t, head // group]
                    state = np.exp(g[t, head]) * states[head]
                    states[head] = state + np.outer(beta[t, head] * (v[t, head] - state @ key), key)
                    out[t, head] = states[head] @ query
        return out.astype(np.float32)

    def ssd(
        self,
        layer: int,
        x: Any,
        dt: Any,
        a: Any,
        b: Any,
        c: Any,
        d: Any,
        dt_min: float = 0.0,
        dt_max: Optional[float] = None,
    ) -> npt.NDArray[np.float32]:
        """As csrc/ops/recurrent.h defines it, one row after another."""
        x, dt, a, b, c, d = (np.asarray(part, np.float64) for part in (x, dt, a, b, c, d))
        most = np.inf if dt_max is None else dt_max
        out = np.empty_like(x)
        for session, rows in self._parts():
            state = session.delta.setdefault(layer, np.zeros((*x.shape[1:], b.shape[2])))
            y, states = ssd_reference(x[rows], dt[rows], a, b[rows], c[rows], d, state, dt_min, most)
            out[rows], session.delta[layer] = y, states[-1]
        return out.astype(np.float32)

    def _parts(self) -> Iterator[tuple[FakeSession, npt.NDArray[np.int64]]]:
        for index, session in enumerate(self.sessions):
            yield session, np.flatnonzero(self.sequences == index)


def _longer(before: Float64 | None, rows: Float64) -> Float64:
    return rows if before is None else np.concatenate([before, rows])


def _seen(positions: npt.NDArray[np.int32], keys: int, sight: str, size: int) -> npt.NDArray[np.bool_]:
    """[rows, keys]: which keys the rows at ``positions`` see."""
    rows, columns = positions[:, None], np.arange(keys)[None, :]
    seen = columns <= rows
    if sight == "window":
        seen &= columns > rows - size
    elif sight == "chunk":
        seen &= columns // size == rows // size
    else:
        assert sight == "full"
    return seen


def _attention(
    q: Float64, k: Float64, v: Float64, seen: Any, scale: float, softcap: float | None, sinks: Any
) -> Float64:
    group = q.shape[1] // k.shape[1]
    out = np.empty((*q.shape[:2], v.shape[2]))
    for head in range(q.shape[1]):
        scores = scale * q[:, head] @ k[:, head // group].T
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        scores = np.where(seen, scores, -np.inf)
        most = scores.max(-1, keepdims=True)
        powers = np.exp(scores - most)
        total = powers.sum(-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(float(np.asarray(sinks)[head]) - most)
        out[:, head] = powers / total @ v[:, head // group]
    return out
