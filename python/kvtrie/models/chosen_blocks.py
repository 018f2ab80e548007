"""Grouped-query attention whose rows choose blocks of keys by an index (QSA of Qwen4-Exp).

    h --index_qk_proj--> index queries [heads, dim], normed and rotated       and one index key [dim] of each token

    tokens      0 1 2 3 | 4 5 6 7 | 8 9          ratio 4: two complete blocks and the rest
    block key   norm(mean of its index keys), rotated to the block's first token
    score       sum over heads of max(0, q . k) / sqrt(dim); the budget / ratio best blocks are read, of ties the first
    row 9       attends to the tokens of the blocks it chose, and to 8 and 9, which are in no complete block

Index keys are kept token by token, neither normed nor rotated, as keys without values of layers behind the model's. So
a path is shared, cut and moved at any token, which means of whole blocks would not allow, for ``dim`` numbers of a
token; each step takes the means anew. A row's blocks are counted along its own path: they depend on that path alone.

Which cells are a path's is read from the step's mask, and chosen blocks become numbers of cells, both on the host: two
waits in each such layer. ``step.attend_chosen`` reads K and V where they lie, and its sums go along the list, so a hit
has the bits of a miss, whoever else is in the step. Up to budget + ratio - 1 tokens all are read. Source: the Hugging
Face model of Qwen4-Exp. Sizes in elements, budget and ratio in tokens. Activations: float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .. import ops
from .._core import Tensor, tensor
from .attention import AttentionPlan
from .config import ModelConfig
from .decoder import Mixer, Shapes, Site
from .indexed import no_values
from .linear import Linear
from .rope_arguments import RopeArguments
from .step_inputs import Positions, Rope, Rows, StepLike
from .weights import Array


class BlockSizes(NamedTuple):
    """``budget``: tokens that are read of complete blocks of ``ratio`` tokens; a multiple of it."""

    heads: int
    dim: int
    budget: int
    ratio: int

    @property
    def blocks(self) -> int:
        return self.budget // self.ratio


@dataclass(frozen=True)
class BlockPlan:
    """``attention``: of what is chosen, gated and with norms. ``rope``: of queries and keys of the index; those of
    layer n are kept for layer ``first`` + n."""

    attention: AttentionPlan
    sizes: BlockSizes
    rope: RopeArguments
    first: int

    def shapes(self, config: ModelConfig) -> Shapes:
        s, own = self.sizes, "self_attn.indexer"
        return {
            **self.attention.shapes(config),
            f"{own}.index_qk_proj.weight": ((s.heads + 1) * s.dim, config.hidden_size),
            f"{own}.q_layernorm.weight": (s.dim,),
            f"{own}.k_layernorm.weight": (s.dim,),
        }

    def build(self, site: Site) -> Mixer:
        return BlockAttention(self, site)


class BlockIndex:
    """The index of one layer: puts the rows' own keys, and says which cells each row attends to."""

    def __init__(self, plan: BlockPlan, site: Site) -> None:
        prefix, weights = f"{site.prefix}.self_attn.indexer", site.weights
        self.sizes = plan.sizes
        self.layer: int = plan.first + site.index
        self.rope = Rope(plan.sizes.dim, plan.rope, weights.device)
        self.both: Linear = weights.linear(f"{prefix}.index_qk_proj")
        self.q_norm: Tensor = weights.vector(f"{prefix}.q_layernorm.weight")
        self.k_norm: Tensor = weights.vector(f"{prefix}.k_layernorm.weight")
        self._norm = (site.config.rms_norm_eps, site.norm_offset)

    def __call__(self, step: StepLike, h: Tensor, positions: Positions) -> Tensor:
        """int32 [rows, most]: of the cells that ``step.get`` gives, ascending, -1 behind the last of a row."""
        rows, s = h.shape[0], self.sizes
        q, key = ops.split(self.both(h), [s.heads * s.dim, s.dim], axis=1)
        step.put(self.layer, key.reshape(rows, 1, s.dim), no_values(h))
        q = self.rope(ops.rms_norm(q.reshape(rows, s.heads, s.dim), self.q_norm, *self._norm), positions)
        keys, _, mask = step.get(self.layer)
        sees, sequences = np.isfinite(np.asarray(mask)), np.asarray(step.sequences)
        counts = sees.sum(axis=1)
        chosen = np.full((rows, min(sees.shape[1], s.budget + s.ratio - 1)), -1, np.int32)
        for number in np.unique(sequences):
            own = np.flatnonzero(sequences == number)
            path = np.flatnonzero(sees[own[-1]])  # the last row sees what those before it see
            blocks = self._blocks(ops.embedding(q.reshape(rows, -1), own.astype(np.int32)), keys, path, counts[own])
            for row, best in zip(own, blocks):
                cells = _cells_of(path, int(counts[row]), best, s.ratio)
                chosen[row, : cells.size] = cells
        return tensor(chosen, device=h.device)

    def _blocks(self, q: Tensor, keys: Tensor, path: Array, counts: Array) -> list[Array]:
        """The blocks of each row of a path: q [rows, heads * dim], ``counts`` [rows] the cells that it sees."""
        s, complete = self.sizes, counts // self.sizes.ratio
        most = int(complete.max())
        if most <= s.blocks:
            return [np.arange(each) for each in complete]
        mask = np.where(np.arange(most) < complete[:, None], 0, -np.inf).astype(np.float32)
        factors = np.full((q.shape[0], s.heads), s.dim**-0.5, np.float32)
        queries = q.reshape(q.shape[0], s.heads, s.dim)
        best = ops.choose_keys(queries, self._means(keys, path[: most * s.ratio]), factors, mask, s.blocks)
        return [each[each >= 0] for each in np.asarray(best)]

    def _means(self, keys: Tensor, cells: Array) -> Tensor:
        """keys [n, 1, dim] -> of each block of ``cells`` [blocks, 1, dim], normed and rotated to its first token."""
        s, count = self.sizes, cells.size // self.sizes.ratio
        own = ops.embedding(keys.reshape(keys.shape[0], s.dim), cells.astype(np.int32))
        total = ops.weighted_sum(own.reshape(count, s.ratio, s.dim))
        normed = ops.rms_norm(ops.clamp(total, scale=1 / s.ratio), self.k_norm, *self._norm)
        starts = tensor(np.arange(count, dtype=np.int32) * s.ratio, device=keys.device)
        return ops.rope(normed.reshape(count, 1, s.dim), starts, table=self.rope.table)


def _cells_of(path: Array, count: int, blocks: Array, ratio: int) -> Array:
    """The cells of ``blocks``, and of what the first ``count`` of ``path`` have behind the last complete block."""
    inside = (blocks[:, None] * ratio + np.arange(ratio)).reshape(-1)
    cells: Array = path[np.concatenate([inside, np.arange(count // ratio * ratio, count)]).astype(np.int64)]
    return cells


class BlockAttention:
    """A :class:`BlockPlan` on the device: h, x [rows, hidden] -> [wanted rows, hidden]."""

    def __init__(self, plan: BlockPlan, site: Site) -> None:
        prefix, weights, c = f"{site.prefix}.self_attn", site.weights, site.config
        assert site.rope is not None and plan.attention.gated
        self.config, self.index, self.rope = c, site.index, site.rope
        heads = np.arange(c.num_attention_heads * 2 * c.head_dim).reshape(c.num_attention_heads, 2, c.head_dim)
        parts = [heads[:, i].reshape(-1) for i in range(2)]
        self.q, self.gate = weights.linears(f"{prefix}.q_proj", parts, plan.attention.bias)
        self.kv: Linear = weights.joined([f"{prefix}.{name}_proj" for name in ("k", "v")], plan.attention.bias)
        self.o: Linear = weights.linear(f"{prefix}.o_proj", plan.attention.out_bias)
        norms = plan.attention.norm_weights(site)
        assert norms[0] is not None and norms[1] is not None
        self.q_norm: Tensor = norms[0]
        self.k_norm: Tensor = norms[1]
        self.block_index = BlockIndex(plan, site)
        self._norm = (c.rms_norm_eps, site.norm_offset)

    def __call__(self, step: StepLike, h: Tensor, positions: Positions, take: Rows | None, x: Tensor | None) -> Tensor:
        c, rows = self.config, h.shape[0]
        chosen = self.block_index(step, h, positions)
        k, v = ops.split(self.kv(h), [c.num_key_value_heads * c.head_dim] * 2, axis=1)
        step.put(self.index, self._placed(k, self.k_norm, positions), v.reshape(rows, -1, c.head_dim))
        q = self._placed(self.q(h), self.q_norm, positions)
        a = step.attend_chosen(self.index, q, chosen).reshape(rows, q.shape[1] * c.head_dim)
        if take is not None:
            a, h = take.take(a), take.take(h)
            x = None if x is None else take.take(x)
        return self.o(ops.mul(a, ops.sigmoid(self.gate(h))), x)

    def _placed(self, heads: Tensor, norm: Tensor, positions: Positions) -> Tensor:
        """[rows, heads * head_dim] -> [rows, heads, head_dim], normed and rotated."""
        heads = heads.reshape(heads.shape[0], -1, self.config.head_dim)
        return self.rope(ops.rms_norm(heads, norm, *self._norm), positions)
