"""LFM2 (Lfm2ForCausalLM, Lfm2MoeForCausalLM): most layers are a short convolution between two gates, others attend.

In the second form MLPs behind the first layers have experts, chosen by their sigmoid and a bias. Source: Liquid AI 2025
(arXiv 2511.23404) and the Hugging Face configurations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...errors import NotSupportedError
from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig
from ..common_settings import CHOSEN, COMMON, SIZE, WINDOWLESS, not_read
from ..config import ModelConfig, layer_kinds
from ..decoder import MixerPlan
from ..experts_config import LEAVES, MOST_EXPERTS, Fields, sparse_layers
from ..gguf_form import GgufForm
from ..moe import ExpertsPlan, Ranking
from ..reader import Raw, Reader, changed
from ..recurrent import RecurrentConfig, RecurrentModel
from ..rope_config import FULL
from ..settings import Settings, neutral, read
from ..short_conv import ShortConvPlan
from ..states import States

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_MOST = 2**31 - 1
CONV = "conv"
_SETTINGS: Settings = {
    **COMMON,
    **WINDOWLESS,
    **not_read("mlp_bias", "attention_bias", "rms_norm_eps"),
    "norm_eps": read("added to the mean square in norms"),
    "tie_embedding": read("as tie_word_embeddings, and before it"),
    "conv_L_cache": SIZE,
    "number_of_conv_states": neutral("recurrent layers have one convolution", 1),
    "conv_bias": read("whether convolutions and the projections around them have biases"),
}
# Of the publisher's own code; transformers reads none of them.
_PUBLISHERS = not_read(
    "block_dim",
    "block_mlp_init_scale",
    "block_norm_eps",
    "block_out_init_scale",
    "block_use_swiglu",
    "block_use_xavier_init",
    "conv_dim",
    "conv_dim_out",
    "conv_use_xavier_init",
    "num_heads",
    "use_pos_enc",
)
_DEFAULTS = {
    "max_position_embeddings": 128_000,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
}
_LEAVES = {
    "model.norm.weight": "token_embd_norm.weight",
    "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj",
    **LEAVES,
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
}
_GGUF: Settings = {
    ".attention.head_count_kv": read("heads of k and v of each layer; 0: it is a convolution"),
    ".shortconv.l_cache": read("tokens that the convolution sees"),
}


def _described(d: Description) -> dict[str, object]:
    return {
        **d.attending(),
        "norm_eps": d.keys.positive(".attention.layer_norm_rms_epsilon"),
        "conv_L_cache": d.keys.integer(".shortconv.l_cache", 2, 2**20),
        "conv_bias": d.in_any_layer("shortconv.in_proj.bias"),
        "layer_types": [FULL if each else CONV for each in d.attends()],
    }


def _dense(d: Description) -> dict[str, object]:
    return {
        **_described(d),
        "intermediate_size": d.per_block(".feed_forward_length"),
        "block_auto_adjust_ff_dim": False,
    }


def _sparse(d: Description) -> dict[str, object]:
    _, count = sparse_layers(d)
    first = d.keys.integer(".leading_dense_block_count", 0, d.layers)
    return {
        **_described(d),
        "intermediate_size": d.per_block(".feed_forward_length"),
        "num_dense_layers": first,
        "num_experts": d.keys.integer(".expert_count", count, count),
        "num_experts_per_tok": d.per_block(".expert_used_count", 1, count),
        "moe_intermediate_size": d.per_block(".expert_feed_forward_length"),
        "use_expert_bias": d.in_any_layer("exp_probs_b.bias"),
        "norm_topk_prob": True,
    }


_SPARSE: Settings = {
    **gguf_settings.ROUTED,
    ".expert_gating_func": neutral("sigmoid", 0, 2),
    ".leading_dense_block_count": read("the first layers, which have no experts"),
    **_GGUF,
}


class Lfm2(RecurrentModel):
    family = "lfm2"
    architectures = ("Lfm2ForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **_SETTINGS,
        **_PUBLISHERS,
        "full_attn_idxs": read("where layer_types is absent, the layers that attend; null: all"),
        "block_ff_dim": read("as intermediate_size, and before it"),
        "block_auto_adjust_ff_dim": read("whether MLPs are two thirds as wide, by the next two"),
        "block_ffn_dim_multiplier": read("their width is multiplied by it"),
        "block_multiple_of": read("their width is rounded up to a multiple of it"),
    }
    defaults = {**_DEFAULTS, "intermediate_size": 12_288}  # noqa: RUF012 (the same)
    fixed = {"mlp_bias": False, "attention_bias": False}  # noqa: RUF012 (the same)
    gguf = {"lfm2": GgufForm(_dense, _LEAVES, {**gguf_settings.DENSE, **_GGUF})}  # noqa: RUF012 (the same)
    theta = 1e6
    renamed: ClassVar[tuple[tuple[str, str], ...]] = (
        (".operator_norm.", ".input_layernorm."),
        (".ffn_norm.", ".post_attention_layernorm."),
        (".self_attn.out_proj.", ".self_attn.o_proj."),
        (".q_layernorm.", ".q_norm."),
        (".k_layernorm.", ".k_norm."),
        (".feed_forward.", ".mlp."),
        (".w1.", ".gate_proj."),
        (".w2.", ".down_proj."),
        (".w3.", ".up_proj."),
        ("model.embedding_norm.", "model.norm."),
    )

    @classmethod
    def in_common_keys(cls, raw: Raw, where: str) -> Raw:
        tied = raw["tie_embedding"] if "tie_embedding" in raw else raw.get("tie_word_embeddings")
        plain = changed(raw, {"rms_norm_eps": raw.get("norm_eps"), "tie_word_embeddings": tied})
        return changed(plain, {"intermediate_size": cls.inner(raw, where)})

    @classmethod
    def inner(cls, raw: Raw, where: str) -> int:
        """The width of MLPs."""
        reader = Reader(raw, where, cls.defaults)
        inner = reader.within("intermediate_size" if raw.get("block_ff_dim") is None else "block_ff_dim", 1, _MOST)
        multiple = reader.within("block_multiple_of", 1, _MOST, 256)
        factor = None if reader.null("block_ffn_dim_multiplier") else reader.positive("block_ffn_dim_multiplier", 1.0)
        if not reader.flag("block_auto_adjust_ff_dim", True):
            return inner
        inner = int(2 * inner / 3)
        if factor is None:
            return inner
        inner = int(min(factor * inner, float(_MOST)))
        return multiple * ((inner + multiple - 1) // multiple)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        attending = reader.integers("full_attn_idxs", 0, _MOST)
        default = [FULL if attending is None or i in attending else CONV for i in range(reader.layers())]
        return conv_fields(raw, reader, default, where)

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(norms=True)

    @classmethod
    def mixer(cls, config: CausalConfig, index: int) -> MixerPlan:
        assert isinstance(config, RecurrentConfig)
        if config.layer_types[index] == FULL:
            return cls.attention(config, index)
        return ShortConvPlan(config.conv_width, config.conv_bias)

    @classmethod
    def states(cls, config: ModelConfig) -> States:
        assert isinstance(config, RecurrentConfig)
        layers = tuple(index for index, kind in enumerate(config.layer_types) if kind == CONV)
        return States(layers, config.conv_width - 1, config.hidden_size)


class Lfm2Moe(Lfm2):
    family = "lfm2_moe"
    architectures = ("Lfm2MoeForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **_SETTINGS,
        **_PUBLISHERS,
        **dict.fromkeys(("num_experts", "moe_intermediate_size"), SIZE),
        "num_experts_per_tok": CHOSEN,
        "num_dense_layers": read("the first layers, which have no experts"),
        "use_expert_bias": read("whether experts are chosen with a bias"),
        "norm_topk_prob": read("whether an expert's sigmoid is divided by those of all that were chosen"),
        "routed_scaling_factor": read("what experts give is multiplied by it"),
    }
    gguf = {"lfm2moe": GgufForm(_sparse, _LEAVES, _SPARSE)}  # noqa: RUF012 (the same)
    defaults = {**_DEFAULTS, "intermediate_size": 7168}  # noqa: RUF012 (the same)
    renamed = (*Lfm2.renamed, (".mlp.expert_bias", ".mlp.gate.e_score_correction_bias"))

    @classmethod
    def inner(cls, raw: Raw, where: str) -> int:
        return Reader(raw, where, cls.defaults).within("intermediate_size", 1, _MOST)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        count = reader.within("num_experts", 1, MOST_EXPERTS, 32)
        if raw.get("layer_types") is None:
            raise NotSupportedError(f"[models.config] {where}: layer_types: got null, allowed a list of kinds")
        return {
            **conv_fields(raw, reader, [], where),
            "num_experts": count,
            "num_experts_per_tok": reader.within("num_experts_per_tok", 1, count, 4),
            "moe_intermediate_size": reader.within("moe_intermediate_size", 1, _MOST, 1792),
            "norm_topk_prob": reader.flag("norm_topk_prob", True),
            "routed_scale": reader.number("routed_scaling_factor", 1.0),
            "routed_bias": reader.flag("use_expert_bias", True),
            "expert_layers": tuple(range(reader.within("num_dense_layers", 0, _MOST, 2), reader.layers())),
        }

    @classmethod
    def experts(cls, config: CausalConfig) -> ExpertsPlan:
        c = config
        bias = "gate.e_score_correction_bias" if c.routed_bias else None
        ranking = Ranking(bias, (c.num_experts,), scale=c.routed_scale)
        scores = "sigmoid_normed" if c.norm_topk_prob else "sigmoid"
        return ExpertsPlan(c.num_experts, c.num_experts_per_tok, c.moe_intermediate_size, scores, ranking=ranking)


def conv_fields(raw: Raw, reader: Reader, default: list[str], where: str) -> Fields:
    """The convolutions and the kinds of layers; ``default``: those of a file without ``layer_types``."""
    kinds = layer_kinds(raw, reader.layers(), (FULL, CONV), default, where)
    return {
        "layer_types": kinds,
        "conv_width": reader.within("conv_L_cache", 2, 2**20, 3),
        "conv_bias": reader.flag("conv_bias"),
    }
