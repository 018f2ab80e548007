"""DeepSeek Sparse Attention (DSA): latent attention (latent.py) to the keys that an index chooses for each row.

    h --wk--> LayerNorm -> index key [dim], its front rotated      a token's third part, in a cache of its own
    q's latent --wq_b--> index queries [heads, dim]                h --weights_proj--> a factor for each head

    score of a key = sum over heads of factor * max(0, q . k)      the ``most`` largest are attended to, the earlier
                                                                   of a tie; up to ``most`` keys that is all of them

A layer without an index of its own attends to the keys that the last layer with one chose (arXiv 2603.12201).

Index keys are kept as keys without values, of layers that follow the model's own by their numbers, so sharing,
branches, tiers and files treat them as they do any keys. Source: DeepSeek-AI 2025 (DeepSeek-V3.2-Exp), without the
Hadamard transform, which changes no product, and FP8, as in transformers. Sizes in elements. Activations are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .. import ops
from .._core import Tensor
from .config import ModelConfig
from .decoder import Mixer, Shapes, Site
from .latent import LatentAttention, LatentPlan
from .linear import Linear
from .rope_arguments import RopeArguments
from .step_inputs import Positions, Rope, Rows, StepLike

_EPS = 1e-6  # of the norm of index keys


class IndexSizes(NamedTuple):
    """``most``: keys that a row attends to."""

    heads: int
    dim: int
    most: int


NO_INDEX = IndexSizes(0, 0, 0)


@dataclass(frozen=True)
class IndexedPlan(LatentPlan):
    """``rope``: of index queries and keys; a layer's index keys are those of layer ``first`` + its own number.

    ``chooses``: whether the layer has an index; else it attends to what the last layer with one chose.
    """

    index: IndexSizes = NO_INDEX
    rope: RopeArguments | None = None
    first: int = 0
    chooses: bool = True

    def shapes(self, config: ModelConfig) -> Shapes:
        index, hidden = self.index, config.hidden_size
        if not self.chooses:
            return super().shapes(config)
        return {
            **super().shapes(config),
            "self_attn.indexer.wq_b.weight": (index.heads * index.dim, self.sizes.q_rank),
            "self_attn.indexer.wk.weight": (index.dim, hidden),
            "self_attn.indexer.k_norm.weight": (index.dim,),
            "self_attn.indexer.k_norm.bias": (index.dim,),
            "self_attn.indexer.weights_proj.weight": (index.heads, hidden),
        }

    def build(self, site: Site) -> Mixer:
        return IndexedAttention(self, site)


class KeyIndex:
    """The index of one layer: puts the rows' own keys, and says which keys each row attends to."""

    def __init__(self, plan: IndexedPlan, site: Site) -> None:
        prefix, weights, index = f"{site.prefix}.self_attn.indexer", site.weights, plan.index
        assert plan.rope is not None
        self.sizes = index
        self.layer: int = plan.first + site.index
        self.rope = Rope(index.dim, plan.rope, weights.device)
        self.queries: Linear = weights.linear(f"{prefix}.wq_b")
        self.keys: Linear = weights.linear(f"{prefix}.wk")
        self.factors: Linear = weights.linear(f"{prefix}.weights_proj")
        self.norm: Tensor = weights.vector(f"{prefix}.k_norm.weight")
        self.shift: Tensor = weights.vector(f"{prefix}.k_norm.bias")

    def __call__(self, step: StepLike, h: Tensor, ranked: Tensor, positions: Positions) -> Tensor:
        """int32 [rows, most]: as ``step.choose_keys`` gives them."""
        rows, s = h.shape[0], self.sizes
        keys = ops.layer_norm(self.keys(h), self.norm, self.shift, _EPS).reshape(rows, 1, s.dim)
        step.put(self.layer, self.rope(keys, positions), None)
        queries = self.rope(self.queries(ranked).reshape(rows, s.heads, s.dim), positions)
        # Both scales of the published index are above 0, so they may stand behind max(0, .).
        factors = ops.clamp(self.factors(h), scale=(s.heads * s.dim) ** -0.5)
        return step.choose_keys(self.layer, queries, factors, s.most)


class IndexedAttention(LatentAttention):
    """An :class:`IndexedPlan` on the device: h, x [rows, hidden] -> [wanted rows, hidden]."""

    def __init__(self, plan: IndexedPlan, site: Site) -> None:
        super().__init__(plan, site)
        assert site.rope is not None
        self.rope: Rope = site.rope
        self.key_index: KeyIndex | None = KeyIndex(plan, site) if plan.chooses else None

    def __call__(self, step: StepLike, h: Tensor, positions: Positions, take: Rows | None, x: Tensor | None) -> Tensor:
        rows, cell = h.shape[0], self.sizes.cell
        ranked = self._ranked(h)
        if self.key_index is not None:
            positions.chosen = self.key_index(step, h, ranked, positions)
        chosen = positions.chosen
        assert chosen is not None
        own = ops.concat([*self._cell(h)], axis=1).reshape(rows, 1, cell)
        step.put(self.index, self.rope(own, positions), None)
        q = self.rope(self._queries(ranked).reshape(rows, self.heads, cell), positions)
        a = step.attend_chosen(self.index, q, chosen, self.scale)
        return self._finish(a.reshape(rows, self.heads * self.sizes.rank), take, x)
