"""DeepSeek-V2, DeepSeek-V3 and Kimi K2 (DeepseekV2ForCausalLM, DeepseekV3ForCausalLM): latent attention, many experts.

Experts lie in groups, of which the best are looked at: in V2 by the best expert of each and its share of all, in V3 by
the two best sigmoids with a bias. One of several widths is shared; the first layers have none. Source: DeepSeek-AI 2024
(arXiv 2405.04434, 2412.19437) and the Hugging Face configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ...errors import NotSupportedError
from .. import gguf_settings
from ..causal import CausalConfig
from ..common_settings import COMMON, SIZE, WINDOWLESS
from ..experts_config import scored_from_gguf
from ..gguf_form import GgufForm
from ..latent_config import INTERLEAVE, LATENT, LatentModel
from ..latent_gguf import LATENT_LEAVES, latent_from_gguf
from ..moe import ExpertsPlan, Ranking
from ..reader import Raw, Reader, changed
from ..settings import Settings, neutral, read
from ..stored import FURTHER, IMAGES
from .glm4_moe import EXPERTS, Dots1

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_GREEDY, _LIMITED = "greedy", "group_limited_greedy"
ABOUT_EXPERTS: Settings = {
    "moe_layer_freq": neutral("every layer behind the first ones has experts", 1),
    "seq_aux": neutral("seen in training only"),
    "ep_size": neutral("how experts are spread over devices, which changes no number"),
}


def _sigmoids_from_gguf(d: Description) -> dict[str, object]:
    d.keys.integer(".expert_gating_func", 2, 2)
    return scored_from_gguf(d)


def _shares_from_gguf(d: Description) -> dict[str, object]:
    found = scored_from_gguf(d, norm=False)
    return {**found, "topk_method": _LIMITED if found["n_group"] != 1 else _GREEDY}


class DeepseekV3(LatentModel, Dots1):
    family = "deepseek_v3"
    architectures: ClassVar[tuple[str, ...]] = ("DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration")
    also: ClassVar[tuple[str, ...]] = ("kimi_k2",)
    outer = "kimi_k25"
    ignored: ClassVar[Mapping[str, str]] = {
        **FURTHER,
        **IMAGES,
        "mm_projector.*": IMAGES["multi_modal_projector.*"],
    }
    brings_head: ClassVar[bool] = True
    settings: ClassVar[Settings] = {
        **COMMON,
        **EXPERTS,
        **WINDOWLESS,
        **LATENT,
        **ABOUT_EXPERTS,
        "rope_interleave": INTERLEAVE,
        "num_mtp_layers": COMMON["mtp_*"],
        "scoring_func": neutral("experts are scored by their sigmoid", "sigmoid"),
        "topk_method": neutral("experts are chosen with a bias", "noaux_tc"),
    }
    gguf: ClassVar[Mapping[str, GgufForm]] = {
        "deepseek2": GgufForm(
            lambda d: {**latent_from_gguf(d), **_sigmoids_from_gguf(d)},
            LATENT_LEAVES,
            {**gguf_settings.SCORED, **gguf_settings.LATENT},
        )
    }
    defaults: ClassVar[Mapping[str, object]] = {
        "max_position_embeddings": 4096,
        "intermediate_size": 18_432,
        "num_key_value_heads": 128,
        "moe_intermediate_size": 2048,
        "n_shared_experts": 1,
        "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 128,
        "n_group": 8,
        "topk_group": 4,
        "num_experts_per_tok": 8,
    }
    experts_where_silent = {"n_routed_experts": 256}  # noqa: RUF012 (the same)
    dense_where_silent = 3
    norm_where_silent = True


class DeepseekV2(LatentModel, Dots1):
    family = "deepseek_v2"
    architectures = ("DeepseekV2ForCausalLM",)
    settings: ClassVar[Settings] = {
        **COMMON,
        **{key: setting for key, setting in EXPERTS.items() if key != "num_local_experts"},
        "num_experts": SIZE,
        **WINDOWLESS,
        **LATENT,
        **ABOUT_EXPERTS,
        "mlp_bias": neutral("MLPs with biases are not computed", False),
        "norm_topk_prob": neutral("an expert's factor is its share of all", False),
        "scoring_func": neutral("experts are scored by their share of all", "softmax"),
        "topk_method": read("greedy, or group_limited_greedy: by the best expert of each group"),
        "topk_group": read("groups that are looked at, by their best expert; with group_limited_greedy"),
        "n_group": read("groups of experts, with group_limited_greedy"),
    }
    gguf: ClassVar[Mapping[str, GgufForm]] = {
        "deepseek2/softmax": GgufForm(
            lambda d: {**latent_from_gguf(d), **_shares_from_gguf(d)},
            LATENT_LEAVES,
            {**gguf_settings.SHARES, **gguf_settings.LATENT},
        )
    }
    defaults: ClassVar[Mapping[str, object]] = {
        "max_position_embeddings": 2048,
        "intermediate_size": 11_008,
        "moe_intermediate_size": 1407,
        "n_shared_experts": 2,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 128,
    }
    turns = False
    experts_alias = "num_experts"
    experts_where_silent = {"n_routed_experts": 64}  # noqa: RUF012 (the same)
    dense_where_silent = 0

    @classmethod
    def in_common_keys(cls, raw: Raw, where: str) -> Raw:
        raw = super().in_common_keys(raw, where)
        method = raw.get("topk_method") or _GREEDY
        if method not in (_GREEDY, _LIMITED):
            raise NotSupportedError(
                f"[models.config] {where}: topk_method: got {method!r}, allowed {_GREEDY!r}, {_LIMITED!r}"
            )
        return raw if method == _LIMITED else changed(raw, {"n_group": 1, "topk_group": 1})

    @classmethod
    def normed(cls, reader: Reader) -> bool:  # noqa: ARG003 (it never is)
        return False

    @classmethod
    def experts(cls, config: CausalConfig) -> ExpertsPlan:
        c = config
        ranking = Ranking(None, (), c.expert_groups, c.kept_groups, c.routed_scale, summed=1)
        sizes = (c.num_experts, c.num_experts_per_tok, c.moe_intermediate_size)
        shared = c.shared_expert_intermediate_size
        return ExpertsPlan(*sizes, "softmax", shared, shared=cls.shared, ranking=ranking)
