"""Grouped-query attention whose rows choose blocks of keys by an index (QSA of Qwen4-Exp).

    h --index_qk_proj--> index queries [heads, dim], normed and rotated       and one index key [dim] of each token

    tokens      0 1 2 3 | 4 5 6 7 | 8 9          ratio 4: two complete blocks and the rest
    block key   norm(mean of its index keys), rotated to the block's first token
    score       sum over heads of max(0, q . k) / sqrt(dim); the budget / ratio best blocks are read, of ties the first
    row 9       attends to the tokens of the blocks it chose, and to 8 and 9, which are in no complete block

Index keys are kept token by token, neither normed nor rotated, as keys without values of layers behind the model's. So
a path is shared, cut and moved at any token, which means of whole blocks would not allow, for ``dim`` numbers of a
token; each step takes the means anew. A row's blocks are counted along its own path: they depend on that path alone.

``step.choose_blocks`` and ``step.attend_chosen`` read index keys, K and V where they lie. Nothing waits for the device.
Sums go along the list of what was chosen, so a hit has the bits of a miss, whoever else is in the step. Up to budget +
ratio - 1 tokens all are read. Source: the Hugging Face model of Qwen4-Exp. Sizes in elements, budget and ratio in
tokens. Activations: float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .. import ops
from .._core import Tensor
from .attention import AttentionPlan
from .config import ModelConfig
from .decoder import Mixer, Shapes, Site
from .linear import Linear
from .rope_arguments import RopeArguments
from .step_inputs import Positions, Rope, Rows, StepLike


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
    """The index of one layer: puts the rows' own keys, and says which keys each row attends to."""

    def __init__(self, plan: BlockPlan, site: Site) -> None:
        prefix, weights = f"{site.prefix}.self_attn.indexer", site.weights
        self.sizes = plan.sizes
        self.layer: int = plan.first + site.index
        self.rope = Rope(plan.sizes.dim, plan.rope, weights.device)
        self.both: Linear = weights.linear(f"{prefix}.index_qk_proj")
        self.q_norm: Tensor = weights.vector(f"{prefix}.q_layernorm.weight")
        self.k_norm: Tensor = weights.vector(f"{prefix}.k_layernorm.weight")
        self._factors: Tensor = weights.constant(np.full(plan.sizes.heads, plan.sizes.dim**-0.5))
        self._norm = (site.config.rms_norm_eps, site.norm_offset)

    def __call__(self, step: StepLike, h: Tensor, positions: Positions) -> Tensor:
        """int32 [rows, budget + ratio - 1]: as ``step.choose_blocks`` gives them."""
        rows, s = h.shape[0], self.sizes
        q, key = ops.split(self.both(h), [s.heads * s.dim, s.dim], axis=1)
        step.put(self.layer, key.reshape(rows, 1, s.dim), None)
        q = self.rope(ops.rms_norm(q.reshape(rows, s.heads, s.dim), self.q_norm, *self._norm), positions)
        return step.choose_blocks(
            self.layer, q, self._factors, s.ratio, s.blocks, self.rope.table, self.k_norm, *self._norm
        )


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
