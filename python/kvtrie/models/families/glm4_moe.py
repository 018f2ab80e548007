"""GLM-4.5 and dots.llm1 (Glm4MoeForCausalLM, Dots1ForCausalLM): many experts, chosen by their sigmoid and a bias.

Experts may lie in groups, of which the best are looked at; one of several widths is shared; the first layers have none.
In GLM-4.5 half of each head rotates. Source: Zhipu AI 2025 (arXiv 2508.06471), rednote-hilab 2025 (arXiv 2506.05767),
and the Hugging Face configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ...errors import FormatError
from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel, no_windows, some_windows, windows_behind
from ..common_settings import CHOSEN, COMMON, SIZE, SWITCHED_WINDOWS, WINDOW, WINDOWLESS, not_read
from ..config import ModelConfig
from ..experts_config import SHARED_LEAVES, Fields, count_of, scored_from_gguf
from ..gguf_form import GgufForm
from ..moe import ExpertsPlan, Ranking
from ..mtp import named_as_head
from ..reader import Raw, Reader
from ..rope_config import FULL
from ..settings import Settings, read
from ..stored import FURTHER
from ..weights import WeightSource

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_MOST = 2**31 - 1
EXPERTS: Settings = {
    **dict.fromkeys(("n_routed_experts", "num_local_experts", "n_shared_experts", "moe_intermediate_size"), SIZE),
    "num_experts_per_tok": CHOSEN,
    "n_group": read("groups of experts"),
    "topk_group": read("groups that are looked at, by their two best experts"),
    "routed_scaling_factor": read("what routed experts give is multiplied by it"),
    "norm_topk_prob": read("whether an expert's sigmoid is divided by those of all that were chosen"),
    "first_k_dense_replace": read("the first layers, which have no experts"),
}


_GLM_GGUF: Settings = {
    **gguf_settings.SCORED,
    ".rope.dimension_sections": read("axes of positions; pairs of a fourth, which a text does not turn, are refused"),
}


def _glm_from_gguf(d: Description) -> dict[str, object]:
    axes = d.axes()
    if axes is not None and axes[3]:
        raise d.keys.error(".rope.dimension_sections", axes, "0 as the fourth: a text has position 0 there")
    return {
        **d.common(),
        **scored_from_gguf(d),
        "partial_rotary_factor": d.rotated() / d.head_dim(),
        "attention_bias": d.in_any_layer("attn_q.bias"),
        "use_qk_norm": d.in_any_layer("attn_q_norm.weight"),
    }


class Dots1(CausalModel):
    family = "dots1"
    architectures: ClassVar[tuple[str, ...]] = ("Dots1ForCausalLM",)
    settings: ClassVar[Settings] = {
        **COMMON,
        **EXPERTS,
        **WINDOW,
        **not_read("mlp_bias"),
        "max_window_layers": SWITCHED_WINDOWS["max_window_layers"],
    }
    gguf: ClassVar[Mapping[str, GgufForm]] = {
        "dots1": GgufForm(
            lambda d: {**d.attending(), **scored_from_gguf(d), "sliding_window": None},
            SHARED_LEAVES,
            settings=gguf_settings.SCORED,
        )
    }
    defaults: ClassVar[Mapping[str, object]] = {
        "max_position_embeddings": 2048,
        "num_key_value_heads": 32,
        "intermediate_size": 10_944,
    }
    shared = "shared_experts"
    experts_where_silent: Mapping[str, int] = {}  # sizes, where a file has none
    experts_alias: ClassVar[str] = "num_local_experts"  # another name of n_routed_experts
    dense_where_silent = 0
    norm_where_silent = False

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        silent = cls.experts_where_silent
        count = count_of(raw, reader, "n_routed_experts", cls.experts_alias, 1, silent.get("n_routed_experts"))
        inner = reader.within("moe_intermediate_size", 1, _MOST, 1408)
        return {
            "num_experts": count,
            **group_choice(reader, count, silent.get("num_experts_per_tok"), where),
            "moe_intermediate_size": inner,
            "shared_expert_intermediate_size": inner
            * reader.within("n_shared_experts", 1, 2**10, silent.get("n_shared_experts")),
            "routed_scale": reader.number("routed_scaling_factor", 1.0),
            "norm_topk_prob": cls.normed(reader),
            "expert_layers": cls.sparse_layers(raw, reader, where),
            **cls.windows(raw, reader, where),
        }

    @classmethod
    def windows(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        """What layers see."""
        none = reader.null("sliding_window")
        kinds = [FULL] * reader.layers() if none else windows_behind(reader, 62)
        return some_windows(raw, reader, where, kinds, 4096)

    @classmethod
    def normed(cls, reader: Reader) -> bool:
        """Whether an expert's score is divided by those of all that were chosen."""
        return not reader.null("norm_topk_prob") and reader.flag("norm_topk_prob", cls.norm_where_silent)

    @classmethod
    def sparse_layers(cls, raw: Raw, reader: Reader, where: str) -> tuple[int, ...]:  # noqa: ARG003 (others look at them)
        """The layers with experts."""
        dense = reader.within("first_k_dense_replace", 0, _MOST, cls.dense_where_silent)
        return tuple(range(dense, reader.layers()))

    @classmethod
    def experts(cls, config: CausalConfig) -> ExpertsPlan:
        c = config
        ranking = Ranking(
            "gate.e_score_correction_bias", (c.num_experts,), c.expert_groups, c.kept_groups, c.routed_scale
        )
        scores, shared = "sigmoid_normed" if c.norm_topk_prob else "sigmoid", c.shared_expert_intermediate_size
        sizes = (c.num_experts, c.num_experts_per_tok, c.moe_intermediate_size)
        return ExpertsPlan(*sizes, scores, shared, shared=cls.shared, ranking=ranking)

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(config.attention_bias, config.attention_bias, norms=True)


class Glm4Moe(Dots1):
    family = "glm4_moe"
    architectures = ("Glm4MoeForCausalLM",)
    ignored = FURTHER
    brings_head = True
    settings: ClassVar[Settings] = {
        **Dots1.settings,
        **WINDOWLESS,
        "use_qk_norm": read("whether each head of q and k is normed"),
        "num_mtp_layers": COMMON["mtp_*"],
    }
    gguf: ClassVar[Mapping[str, GgufForm]] = {
        "glm4moe": GgufForm(
            _glm_from_gguf,
            {**SHARED_LEAVES, "post_attention_layernorm": "post_attention_norm"},
            settings=_GLM_GGUF,
        )
    }
    defaults: ClassVar[Mapping[str, object]] = {
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
        "intermediate_size": 10_944,
        "rms_norm_eps": 1e-5,
    }
    partial = 0.5
    whole = False
    experts_where_silent = {"n_routed_experts": 128, "num_experts_per_tok": 8, "n_shared_experts": 1}  # noqa: RUF012 (the same)
    dense_where_silent = 1
    norm_where_silent = True

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        return {**super().own_fields(raw, reader, where), "head_norms": reader.flag("use_qk_norm")}

    @classmethod
    def windows(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        return no_windows(raw, reader, where)

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(config.attention_bias, norms=config.head_norms)

    @classmethod
    def adapt(cls, config: ModelConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        return named_as_head(config, super().adapt(config, sources))


def group_choice(reader: Reader, count: int, silent: int | None, where: str) -> Fields:
    """How many of ``count`` experts a token goes through, and of which groups. ``silent``: where the file has none."""
    groups, kept = reader.integer("n_group", 1), reader.integer("topk_group", 1)
    chosen = reader.integer("num_experts_per_tok", silent)
    size = count // groups if groups > 0 and count % groups == 0 else 0
    if not (size >= (1 if groups == 1 else 2) and 1 <= kept <= groups and 1 <= chosen <= kept * size):
        raise FormatError(
            f"[models.config] {where}: n_group: got {groups}, topk_group: got {kept}, num_experts_per_tok: got "
            f"{chosen}, allowed groups of two or more of {count} experts (n_routed_experts, num_experts, "
            "num_local_experts), and as many experts as there are in the groups that are looked at"
        )
    return {"num_experts_per_tok": chosen, "expert_groups": groups, "kept_groups": kept}
