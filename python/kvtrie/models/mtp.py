"""The prediction head that a checkpoint brings: a decoder layer that says what comes after the next token (MTP).

    hidden state of row i      --norm--.
                                       +-- fc --> decoder layer --norm--> hidden state --the model's head--> token i + 2
    embedding of token i + 1   --norm--'

The hidden state is what the model's own head reads, behind its last norm. Row i of the layer stands at position i, and
its attention has a cache of its own (:meth:`MtpHead.caches`). For the token after that, what comes out takes the place
of the hidden state. Models load the head where they are asked to (``kv.models.load(path, mtp=True)``); a drafter drives
it (_prediction_head.py).

Checkpoints have it under three sorts of names; here it has Qwen's:

    Qwen                        GLM, DeepSeek (N: layers)           GGUF
    mtp.fc                      model.layers.N.eh_proj              blk.N.nextn.eh_proj
    mtp.pre_fc_norm_embedding   model.layers.N.enorm                blk.N.nextn.enorm
    mtp.pre_fc_norm_hidden      model.layers.N.hnorm                blk.N.nextn.hnorm
    mtp.norm                    model.layers.N.shared_head.norm     blk.N.nextn.shared_head_norm
    mtp.embed_tokens            model.layers.N.embed_tokens         blk.N.nextn.embed_tokens
    mtp.lm_head                 model.layers.N.shared_head.head     blk.N.nextn.shared_head_head
    mtp.layers.0.*              model.layers.N.*                    blk.N.*

The last two tables are the model's own where they are missing or the same.

Source: DeepSeek-AI 2024 (arXiv 2412.19437, section 2.2), Qwen Team 2025, Zhipu AI 2025 (arXiv 2508.06471); the order of
what fc reads, and which norm is where, as in vLLM's model of Qwen3-Next's head and in llama.cpp's graphs of GLM's.

Threads: a built head does not change; its cache has a lock. Sizes in elements, capacities in cells (tokens).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from .. import ops
from .._core import CausalCache, Device, Tensor
from .._locks import make_lock
from .._whole import Whole
from ..errors import NotSupportedError
from ..prefix_cache import PrefixCache
from .attention_group import AttentionGroup
from .config import ModelConfig
from .decoder import DecoderLayer, LayerPlan, Shapes, Site
from .linear import Linear, Norm
from .moe import ExpertsPlan
from .step_inputs import Positions, Rope, Rows, StepLike, checked_tokens
from .stored import EMBEDDING, HEAD, ignores, same_numbers
from .weight_table import WeightTable
from .weights import Array, Progress, WeightSource, check_table

__all__ = [
    "LAYER",
    "OWN_EMBEDDING",
    "OWN_HEAD",
    "MtpHead",
    "MtpPlan",
    "WithHead",
    "build_head",
    "head_sources",
    "named_as_head",
]

LAYER = "mtp.layers.0"
OWN_EMBEDDING, OWN_HEAD = "mtp.embed_tokens.weight", "mtp.lm_head.weight"  # where they are not the model's
_NORMS = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
_NAMES = {  # below "model.layers.N.", and below "mtp."
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "shared_head.norm": "norm",
    "shared_head.head": "lm_head",
    "embed_tokens": "embed_tokens",
}
_FURTHER = re.compile(r"model\.layers\.(\d{1,9})\.(.+)")


class MtpPlan(NamedTuple):
    """A family's head as data. ``groups``: of its one attention layer, which follows the model's own by its number, and
    of what is kept beside its keys."""

    layer: LayerPlan
    groups: tuple[AttentionGroup, ...]
    experts: ExpertsPlan | None = None

    def shapes(self, config: ModelConfig) -> Shapes:
        """Every tensor of the head by its name; those of :meth:`tables` may be there, too."""
        hidden = config.hidden_size
        return {
            "mtp.fc.weight": (hidden, 2 * hidden),
            **{f"mtp.{name}.weight": (hidden,) for name in _NORMS},
            **{f"{LAYER}.{name}": shape for name, shape in self.layer.shapes(config).items()},
        }

    @staticmethod
    def tables(config: ModelConfig) -> Shapes:
        """The tables that a head may have for itself."""
        return dict.fromkeys((OWN_EMBEDDING, OWN_HEAD), (config.vocab_size, config.hidden_size))


@dataclass(frozen=True)
class _HeadSite(Site):
    @property
    def prefix(self) -> str:
        return LAYER


class MtpHead(Whole):
    """A prediction head on its model's device. ``nbytes``: of its weights; ``fingerprint``: SHA-256 (hex) of them and
    of the model's."""

    nbytes: int
    fingerprint: str

    def __init__(
        self, plan: MtpPlan, model: WithHead, sources: Mapping[str, WeightSource], progress: Progress | None
    ) -> None:
        self.config: ModelConfig = model.config
        self.device: Device = model.device
        self._groups = plan.groups
        weights = WeightTable(sources, model.device, model.dtype, progress, model.precision)
        self._embedding_norm, self._hidden_norm, self._norm = (
            Norm(weights.vector(f"mtp.{name}.weight"), self.config.rms_norm_eps, model.norm_offset) for name in _NORMS
        )
        self._fc = weights.linear("mtp.fc")
        self.embedding = weights.table(OWN_EMBEDDING) if OWN_EMBEDDING in sources else None  # None: the model's
        self.lm_head = weights.linear("mtp.lm_head") if OWN_HEAD in sources else None  # None: the model's
        own = plan.groups[0]
        turned = None if own.rope is None else Rope(own.heads_of(self.config)[1], own.rope, self.device)
        site = _HeadSite(self.config, weights, turned, own.layers[0], model.norm_offset)
        self._layer = DecoderLayer(plan.layer, site)
        self.nbytes = weights.nbytes
        self.fingerprint = hashlib.sha256(f"{model.fingerprint}\0mtp\0".encode() + weights.digest()).hexdigest()
        self._prefix_cache: PrefixCache | None = None  # guarded by the lock
        self._cache_lock = make_lock()

    def __call__(self, step: StepLike, embedded: Tensor, hidden: Tensor, rows: Rows) -> Tensor:
        """``embedded`` and ``hidden`` [rows, hidden_size] of a step of its own cache -> hidden states of ``rows``."""
        x = self._fc(ops.concat([self._embedding_norm(embedded), self._hidden_norm(hidden)], axis=1))
        return self._norm(self._layer(step, x, Positions(step, self.device), rows))

    def caches(
        self, capacity: int = 8192, dtype: str = "float16", *, device: Device | str | None = None
    ) -> list[CausalCache]:
        """New caches for the head's layer: ``capacity`` in cells, ``dtype`` of K and V; ``device``: the model's where
        it is None. A layer that chooses keys has a second one, of its index."""
        place, made = self.device if device is None else device, []
        for group in self._groups:
            made.append(
                CausalCache(
                    list(group.layers),
                    *group.heads_of(self.config),
                    capacity,
                    v_head_dim=0 if group.keys_only else None,
                    dtype=dtype,
                    device=place,
                    rope=group.shift(self.config),
                    latent_dim=group.latent_dim,
                )
            )
        return made

    @property
    def prefix_cache(self) -> PrefixCache:
        """The cache of drafts where none is given, made at first use, with room for as much as the model's own."""
        with self._cache_lock:
            if self._prefix_cache is None or self._prefix_cache.closed:
                caches = self.caches(capacity=min(8192, self.config.max_position_embeddings))
                self._prefix_cache = PrefixCache(caches, fingerprint=self.fingerprint)
            return self._prefix_cache

    def __repr__(self) -> str:
        return f"<kvtrie prediction head: {self.nbytes / 2**20:.1f} MiB on {self.device.name}>"


class WithHead(Whole):
    """A model that may have its checkpoint's prediction head."""

    family: ClassVar[str]
    norm_offset: ClassVar[float]
    config: ModelConfig
    device: Device
    dtype: str
    precision: str
    fingerprint: str
    mtp: MtpHead | None  # the prediction head, where it was loaded
    _head: Linear

    @classmethod
    def mtp_plan(cls, config: ModelConfig) -> MtpPlan | None:  # noqa: ARG003 (families look at it)
        """The prediction head that checkpoints of the family bring; None where it is not computed."""
        return None

    def embed(self, tokens: Array) -> Tensor:
        """tokens [rows] -> [rows, hidden]."""
        raise NotImplementedError

    def finish(self, logits: Tensor) -> Tensor:
        """The last change to logits [rows, vocab]."""
        raise NotImplementedError

    def further(self, step: StepLike, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [sessions, vocab] of the token after the next one, and the hidden states [sessions, hidden_size] that
        take the place of ``hidden`` for the one behind it.

        ``step``: of the prediction head's cache (``model.mtp.caches``), its tokens those that follow the rows of the
        model that ``hidden`` [rows, hidden_size] is of. Raises ``kv.errors.NotSupportedError`` for a model without a
        head, and ``kv.errors.ArgumentError`` for a token outside the vocabulary.
        """
        mtp = self.mtp
        if mtp is None:
            raise NotSupportedError("[models] further: got a model without its prediction head, allowed load(mtp=True)")
        tokens = checked_tokens(step, self.config)
        embedded = self.embed(tokens) if mtp.embedding is None else ops.embedding(mtp.embedding, tokens)
        found = mtp(step, embedded, hidden, Rows(step, False))
        return self.finish((mtp.lm_head or self._head)(found)), found


def head_sources(
    family: type[WithHead], config: ModelConfig, sources: Mapping[str, WeightSource]
) -> dict[str, WeightSource]:
    """The tensors of the head among all of a checkpoint; none of them is read.

    Raises ``kv.errors.NotSupportedError`` for a family whose head is not computed here and for a checkpoint without
    one, and ``kv.errors.FormatError`` for tensors that are missing, of another shape, or of a second layer.
    """
    plan = family.mtp_plan(config)
    if plan is None:
        raise NotSupportedError(
            f"[models.load] mtp: got {family.family}, allowed a family whose prediction head is computed: deepseek_v3, "
            "deepseek_v32, glm4_moe, glm4_moe_lite, glm_moe_dsa, qwen3_next, qwen3_5, qwen3_5_moe"
        )
    own = {name: source for name, source in sources.items() if name.startswith("mtp.")}
    if not own:
        raise NotSupportedError(
            "[models.load] mtp: got a checkpoint without mtp.* tensors, allowed one with them, with a layer of eh_proj "
            "behind the last, or with a nextn block"
        )
    if plan.experts is not None:
        own = plan.experts.separate_below(own, config, f"{LAYER}.{plan.experts.prefix}.experts")
    tables = {name: shape for name, shape in plan.tables(config).items() if name in own}
    check_table(own, {**plan.shapes(config), **tables}, ignores({}))
    return {name: source for name, source in own.items() if not _is_the_models(name, source, sources)}


def _is_the_models(name: str, source: WeightSource, sources: Mapping[str, WeightSource]) -> bool:
    """Whether it is a table that the model has, number by number, as DeepSeek and Zhipu store it."""
    if name not in (OWN_EMBEDDING, OWN_HEAD):
        return False
    other = sources.get(HEAD) if name == OWN_HEAD else None
    return same_numbers(source, sources[EMBEDDING] if other is None else other)


def named_as_head(config: ModelConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
    """``sources`` with the layers that predict further tokens, which stand behind the others and have ``eh_proj``,
    under names below "mtp."."""
    last = config.num_hidden_layers
    layers = {int(match[1]) for name in sources if (match := _FURTHER.fullmatch(name)) and match[2] == "eh_proj.weight"}
    further = sorted(layer for layer in layers if layer >= last)
    found: dict[str, WeightSource] = {}
    for name, source in sources.items():
        match = _FURTHER.fullmatch(name)
        if match is not None and int(match[1]) in further:
            name = _below_mtp(further.index(int(match[1])), match[2])
            source = replace(source, name=name)
        found[name] = source
    return found


def _below_mtp(number: int, leaf: str) -> str:
    base, _, kind = leaf.rpartition(".")
    return f"mtp.{_NAMES[base]}.{kind}" if number == 0 and base in _NAMES else f"mtp.layers.{number}.{leaf}"


def build_head(model: WithHead, own: Mapping[str, WeightSource], progress: Progress | None = None) -> MtpHead:
    """The head of ``model``. REQUIRES: ``own`` of :func:`head_sources`."""
    plan = model.mtp_plan(model.config)
    assert plan is not None
    return MtpHead(plan, model, own, progress)
