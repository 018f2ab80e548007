"""Nemotron-H (NemotronHForCausalLM): layers of one part each: Mamba-2, attention, an MLP, or experts.

Nothing rotates; MLPs and experts have no gates, but ReLU squared. Experts are chosen by their sigmoid and a bias.
Source: NVIDIA 2025 (arXiv 2504.03624, arXiv 2512.20848) and the Hugging Face configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ...errors import FormatError
from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig
from ..common_settings import CHOSEN, COMMON, SIZE, WINDOWLESS, not_read
from ..config import ModelConfig, layer_kinds, refuse_activation
from ..decoder import LayerPlan, NormNames, PlainMlpPlan
from ..experts_config import SHARED_LEAVES, Fields, groups_from_gguf
from ..gguf_form import GgufForm
from ..mamba2 import Mamba2Plan, mamba2_states
from ..mamba_config import LINEAR, MAMBA_KEYS, MAMBA_LEAVES, divisor, kinds_by_name, mamba_from_gguf
from ..moe import ExpertsPlan, Ranking
from ..reader import Raw, Reader, changed
from ..recurrent import RecurrentConfig, RecurrentModel
from ..rope_config import FULL, SLIDING, RopeFields
from ..settings import Settings, neutral, read, refused
from ..states import States
from ..stored import FURTHER
from ..weights import WeightSource, text_name
from .glm4_moe import group_choice

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_MOST = 2**31 - 1
_SIZES = 2**20
MLP, MOE = "mlp", "moe"
_LETTERS = {"M": LINEAR, "E": MOE, "*": FULL, "-": MLP}
_PLACES = {LINEAR: "mamba", FULL: "self_attn", MLP: "mlp", MOE: "mlp"}  # of a layer's part, among names of tensors
_MIXER = NormNames("norm", None, None, None)
_MLP = NormNames(None, None, "norm", None)
# Keys that hold before others, as files of the first release have them.
_BEFORE = {"n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv", "use_conv_bias": "mamba_conv_bias"}
_STILL = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "original_max_position_embeddings")
_RECURRENT: Settings = {
    **dict.fromkeys(("ssm_state_size", "mamba_num_heads", "mamba_head_dim", "n_groups", "mamba_n_groups"), SIZE),
    **dict.fromkeys(("conv_kernel", "mamba_d_conv"), SIZE),
    **dict.fromkeys(("use_conv_bias", "mamba_conv_bias"), read("whether convolutions have biases")),
    **dict.fromkeys(("time_step_min", "mamba_dt_min"), read("the least that a step is")),
    "use_bias": read("whether the projections of recurrent layers have biases"),
    "mamba_hidden_act": read("silu; others are refused"),
    "mamba_ssm_cache_dtype": neutral("recurrent states are float32"),
    "number_of_conv_states": neutral("recurrent layers have one convolution", 1),
    **not_read("expand", "mamba_expand", "mamba_proj_bias", "time_step_max", "mamba_dt_max", "time_step_floor"),
    **not_read("mamba_dt_init_floor", "time_step_limit", "mamba_dt_limit", "time_step_rank", "mamba_d_head"),
    **dict.fromkeys(
        ("chunk_size", "mamba_chunk_size", "use_mamba_kernels"),
        neutral("transformers computes the same numbers, in another way or order"),
    ),
}
_EXPERTS: Settings = {
    **dict.fromkeys(("n_routed_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size"), SIZE),
    "num_experts_per_tok": CHOSEN,
    "n_group": read("groups of experts"),
    "topk_group": read("groups that are looked at, by their two best experts"),
    "routed_scaling_factor": read("what routed experts give is multiplied by it"),
    "norm_topk_prob": read("whether an expert's sigmoid is divided by those of all that were chosen"),
    "moe_latent_size": refused("experts of an input that is not the layer's own are not computed"),
    **not_read("n_shared_experts", "moe_shared_expert_overlap", "num_local_experts"),
}

_GGUF: Settings = {
    **{key: neutral("no layer rotates") for key in gguf_settings.ARCHITECTURE if key.startswith(".rope.")},
    **MAMBA_KEYS,
    ".attention.head_count_kv": read("heads of k and v of each layer; 0: it does not attend"),
    ".feed_forward_length": read("width of each layer's MLP or experts; 0: it has none"),
}
_GGUF_EXPERTS: Settings = {
    **gguf_settings.SCORED,
    **_GGUF,
    ".expert_shared_feed_forward_length": read("width of the expert that every row goes through"),
    ".expert_shared_count": neutral("expert_shared_feed_forward_length says how wide it is"),
    ".leading_dense_block_count": neutral("feed_forward_length says it", 0),
}


def _from_gguf(d: Description) -> dict[str, object]:
    """The least step of recurrent layers is in no key: it is 0.001, as in all published checkpoints."""
    sizes, mamba, kinds = d.still(), mamba_from_gguf(d), _kinds_from_gguf(d)
    widths = {width for width, kind in zip(d.each(".feed_forward_length"), kinds) if kind == MLP}
    if len(widths) > 1:
        raise d.keys.error(".feed_forward_length", sorted(widths), "the same number in all layers with an MLP")
    return {
        **sizes,
        "layers_block_type": kinds,
        "layer_norm_epsilon": sizes["rms_norm_eps"],
        "intermediate_size": widths.pop() if widths else 1,
        "mlp_bias": d.in_any_layer("ffn_up.bias"),
        "mamba_num_heads": mamba["mamba_n_heads"],
        "mamba_head_dim": mamba["mamba_d_head"],
        "n_groups": mamba["mamba_n_groups"],
        "ssm_state_size": mamba["mamba_d_state"],
        "conv_kernel": mamba["mamba_d_conv"],
        "use_conv_bias": mamba["mamba_conv_bias"],
        "use_bias": mamba["mamba_proj_bias"],
        **(_experts_from_gguf(d, kinds.index(MOE)) if MOE in kinds else {}),
    }


def _kinds_from_gguf(d: Description) -> list[str]:
    found = []
    for layer, (attends, width) in enumerate(zip(d.attends(), d.each(".feed_forward_length"))):
        if attends and width:
            raise d.keys.error(".feed_forward_length", width, f"0 in layer {layer}, which attends")
        mlp = MOE if d.has(f"blk.{layer}.ffn_gate_inp.weight") else MLP
        found.append(FULL if attends else mlp if width else LINEAR)
    return found


def _experts_from_gguf(d: Description, layer: int) -> dict[str, object]:
    keys, count = d.keys, d.rows_of(f"blk.{layer}.ffn_gate_inp.weight")
    scale, used = keys.number(".expert_weights_scale", 1.0), keys.integer(".expert_used_count", 1, count)
    return {
        "n_routed_experts": keys.integer(".expert_count", count, count),
        "num_experts_per_tok": used,
        "moe_intermediate_size": keys.integer(".expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": keys.integer(".expert_shared_feed_forward_length"),
        "routed_scaling_factor": scale or 1.0,
        "norm_topk_prob": keys.flag(".expert_weights_norm", False),
        **groups_from_gguf(d, count, used),
    }


def _form(settings: Settings) -> GgufForm:
    return GgufForm(_from_gguf, {**SHARED_LEAVES, **MAMBA_LEAVES, "norm": "attn_norm"}, settings)


class NemotronH(RecurrentModel):
    family = "nemotron_h"
    architectures = ("NemotronHForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **COMMON,
        **WINDOWLESS,
        **_RECURRENT,
        **_EXPERTS,
        **dict.fromkeys(_STILL, neutral("no layer rotates")),
        **not_read("attention_bias", "rms_norm_eps"),
        "num_hidden_layers": neutral("there are as many layers as layers_block_type says"),
        "layers_block_type": read("what each layer is"),
        "layer_types": read("as layers_block_type, and before it"),
        "hybrid_override_pattern": read("as layers_block_type, where that is absent: M, E, * and -"),
        "layer_norm_epsilon": read("added to the mean square in norms"),
        "mlp_hidden_act": read("relu2; others are refused"),
        "mlp_bias": read("whether the MLPs have biases"),
        "residual_in_fp32": neutral("what is added up is float32"),
        "rescale_prenorm_residual": neutral("seen in training only"),
        "num_logits_to_keep": neutral("what transformers' models return beside logits"),
    }
    gguf: ClassVar[dict[str, GgufForm]] = {
        "nemotron_h": _form({**gguf_settings.DENSE, **_GGUF}),
        "nemotron_h_moe": _form(_GGUF_EXPERTS),
    }
    ignored = FURTHER
    defaults: ClassVar[dict[str, object]] = {
        "max_position_embeddings": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 21_504,
        "rms_norm_eps": 1e-5,
    }
    fixed: ClassVar[dict[str, object]] = {"attention_bias": False}

    @classmethod
    def in_common_keys(cls, raw: Raw, where: str) -> Raw:
        refuse_activation(raw, where, "mlp_hidden_act", ("relu2",))
        refuse_activation(raw, where, "mamba_hidden_act")
        kinds = _kinds(raw, where)
        own = {key: raw[other] for key, other in _BEFORE.items() if other in raw}
        least = {"time_step_min": raw["mamba_dt_min"]} if "mamba_dt_min" in raw else {}
        common = {"layer_types": kinds, "num_hidden_layers": len(kinds), "rms_norm_eps": raw.get("layer_norm_epsilon")}
        return changed(raw, {**own, **least, **common})

    @classmethod
    def read_ropes(cls, raw: Raw, where: str) -> dict[str, RopeFields]:  # noqa: ARG003 (no layer rotates)
        return dict.fromkeys((FULL, SLIDING), RopeFields(cls.theta, None))

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        kinds = layer_kinds(raw, reader.layers(), tuple(_PLACES), (), where)
        bias = reader.flag("use_bias")
        heads = reader.within("mamba_num_heads", 1, _SIZES, 128)
        count = reader.within("n_routed_experts", 1, _SIZES, 8)
        return {
            "layer_types": kinds,
            "still_layers": tuple(range(len(kinds))),
            "mamba_heads": heads,
            "mamba_head_dim": reader.within("mamba_head_dim", 1, _SIZES, 64),
            "mamba_groups": divisor(
                reader.within("n_groups", 1, _SIZES, 8), heads, "n_groups", "mamba_num_heads", where
            ),
            "mamba_state": reader.within("ssm_state_size", 1, _SIZES, 128),
            "conv_width": reader.within("conv_kernel", 2, _SIZES, 4),
            "conv_bias": reader.flag("use_conv_bias", True),
            "mamba_bias": bias,
            "mamba_out_bias": bias,
            "step_least": max(reader.number("time_step_min", 0.001), 0.0),
            "expert_layers": tuple(index for index, kind in enumerate(kinds) if kind == MOE),
            "num_experts": count,
            **group_choice(reader, count, 2, where),
            "moe_intermediate_size": reader.within("moe_intermediate_size", 1, _MOST, 7688),
            "shared_expert_intermediate_size": reader.within("moe_shared_expert_intermediate_size", 1, _MOST, 7688),
            "routed_scale": reader.number("routed_scaling_factor", 1.0),
            "norm_topk_prob": reader.flag("norm_topk_prob", True),
        }

    @classmethod
    def layer_plan(cls, config: ModelConfig, index: int) -> LayerPlan:
        assert isinstance(config, RecurrentConfig)
        kind = config.layer_types[index]
        if kind in (FULL, LINEAR):
            return LayerPlan(AttentionPlan() if kind == FULL else Mamba2Plan(config), None, _MIXER)
        return LayerPlan(
            None, cls.experts(config) if kind == MOE else PlainMlpPlan(config.intermediate_size, config.mlp_bias), _MLP
        )

    @classmethod
    def experts(cls, config: CausalConfig) -> ExpertsPlan:
        c = config
        ranking = Ranking(
            "gate.e_score_correction_bias", (c.num_experts,), c.expert_groups, c.kept_groups, c.routed_scale
        )
        return ExpertsPlan(
            c.num_experts,
            c.num_experts_per_tok,
            c.moe_intermediate_size,
            "sigmoid_normed" if c.norm_topk_prob else "sigmoid",
            c.shared_expert_intermediate_size,
            shared="shared_experts",
            ranking=ranking,
            gated=False,
            shared_bias=c.mlp_bias,
        )

    @classmethod
    def states(cls, config: ModelConfig) -> States:
        assert isinstance(config, RecurrentConfig)
        layers = tuple(index for index, kind in enumerate(config.layer_types) if kind == LINEAR)
        return mamba2_states(layers, config)

    @staticmethod
    def name_in_transformers(name: str) -> str:
        return _plain(text_name(name))

    @classmethod
    def adapt(cls, config: ModelConfig, sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
        """A layer's part is its mixer, whatever it is; some files call the model a backbone."""
        assert isinstance(config, CausalConfig)
        found = {_plain(name): source for name, source in sources.items()}
        for index, kind in enumerate(config.layer_types):
            old, new = (f"model.layers.{index}.{part}." for part in ("mixer", _PLACES[kind]))
            found = {name.replace(old, new) if name.startswith(old) else name: each for name, each in found.items()}
        return super().adapt(config, found)


def _plain(name: str) -> str:
    for old, new in (
        ("backbone.", "model."),
        ("model.embeddings.", "model.embed_tokens."),
        ("model.norm_f.", "model.norm."),
    ):
        name = new + name[len(old) :] if name.startswith(old) else name
    return name


def _kinds(raw: Raw, where: str) -> list[object]:
    """Of all layers, by whichever key says it."""
    pattern, blocks, kinds = (raw.get(k) for k in ("hybrid_override_pattern", "layers_block_type", "layer_types"))
    kinds = blocks if kinds is None else kinds
    if kinds is None and pattern is not None:
        if not isinstance(pattern, str) or set(pattern) - set(_LETTERS):
            raise FormatError(
                f"[models.config] {where}: hybrid_override_pattern: got {pattern!r}, allowed a text of M, E, * and -"
            )
        return [_LETTERS[letter] for letter in pattern]
    if kinds is None:
        return [LINEAR, MOE, FULL, MLP]
    named = kinds_by_name(kinds)
    if not isinstance(named, list):
        raise FormatError(f"[models.config] {where}: layers_block_type: got {kinds!r}, allowed a list of kinds")
    return named
