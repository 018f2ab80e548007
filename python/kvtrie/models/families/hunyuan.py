"""Hunyuan (HunYuanDenseV1ForCausalLM, HunYuanMoEV1ForCausalLM): Llama's block with norms behind the rotation.

They are RMS norms over each head of q and k. MLPs, or experts beside one that every row goes through.

Keys that were normed after they were rotated cannot be rotated on, so caches of this family do not shift. Source:
Tencent 2025 and the Hugging Face configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ...errors import FormatError, NotSupportedError
from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel
from ..common_settings import CHOSEN, COMMON, SIZE, WINDOWLESS, not_read
from ..experts_config import LEAVES, MOST_EXPERTS, Fields, count_of, experts_from_gguf
from ..gguf_form import GgufForm
from ..reader import Raw, Reader, changed
from ..rope_config import RopeFields
from ..settings import Settings, neutral, read

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_NAMES = {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"}
_SETTINGS: Settings = {
    **COMMON,
    **WINDOWLESS,
    **not_read("mlp_bias"),
    "eod_token_id": neutral("no text has a token of this role unless somebody writes it"),
}
_WIDTH = read("allowed if it is intermediate_size, of all layers")


class HunYuanDenseV1(CausalModel):
    family = "hunyuan_v1_dense"
    architectures: ClassVar[tuple[str, ...]] = ("HunYuanDenseV1ForCausalLM",)
    settings: ClassVar[Settings] = _SETTINGS
    own_rope = {"alpha": read("makes the base larger; of type dynamic, whose factor is not read then")}  # noqa: RUF012 (a ClassVar of Model's)
    gguf: ClassVar[Mapping[str, GgufForm]] = {
        "hunyuan-dense": GgufForm(lambda d: d.dense(), _NAMES, gguf_settings.DENSE)
    }
    defaults = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}  # noqa: RUF012 (the same)
    shifts = False

    @classmethod
    def read_ropes(cls, raw: Raw, where: str) -> dict[str, RopeFields]:
        """``alpha`` beside the type dynamic makes a base that does not depend on the text's length."""
        key = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
        value = raw.get(key)
        if not isinstance(value, Mapping) or cls.rope_type(value) != "dynamic" or not value.get("alpha"):
            return super().read_ropes(raw, where)
        alpha = Reader(value, f"{where}: {key}").positive("alpha")
        plain = {name: each for name, each in value.items() if name != "type"}
        ropes = super().read_ropes(changed(raw, {key: {**plain, "rope_type": "default"}}), where)
        size = Reader(raw, where).within("head_dim", 4, 2**31 - 1)
        return {kind: rope._replace(theta=rope.theta * alpha ** (size / (size - 2))) for kind, rope in ropes.items()}

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        bias, names = config.attention_bias, ("query_layernorm", "key_layernorm")
        return AttentionPlan(bias, bias, norms=True, late=True, norm_names=names)


def _from_gguf(d: Description) -> dict[str, object]:
    experts, width = experts_from_gguf(d), d.per_block(".feed_forward_length")
    for key in (".expert_feed_forward_length", ".expert_shared_feed_forward_length"):
        d.per_block(key, width, width, width)
    return {
        **d.attending(),
        "intermediate_size": width,
        "num_experts": experts["num_experts"],
        "moe_topk": experts["num_experts_per_tok"],
    }


class HunYuanMoEV1(HunYuanDenseV1):
    """Experts and the one that every row goes through are as wide as ``intermediate_size``."""

    family = "hunyuan_v1_moe"
    architectures = ("HunYuanMoEV1ForCausalLM",)
    settings: ClassVar[Settings] = {
        **_SETTINGS,
        **dict.fromkeys(("num_experts", "num_local_experts"), SIZE),
        **dict.fromkeys(("moe_topk", "num_experts_per_tok"), CHOSEN),
        "moe_intermediate_size": _WIDTH,
        "num_shared_expert": read("allowed if it is 1, of all layers"),
    }
    gguf: ClassVar[Mapping[str, GgufForm]] = {
        "hunyuan-moe": GgufForm(
            _from_gguf,
            {**_NAMES, **{key.replace("shared_expert.", "shared_mlp."): name for key, name in LEAVES.items()}},
            {
                **gguf_settings.EXPERTS,
                ".expert_feed_forward_length": read("allowed if it is feed_forward_length"),
                ".expert_shared_feed_forward_length": read("allowed if it is feed_forward_length"),
            },
        )
    }
    shared = "shared_mlp"
    renamed = ((".mlp.gate.wg.", ".mlp.gate."),)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        width, layers = reader.integer("intermediate_size"), reader.layers()
        for key, allowed in (("moe_intermediate_size", width), ("num_shared_expert", 1)):
            if raw.get(key) is not None and _of_all(raw[key], layers) != allowed:
                raise NotSupportedError(
                    f"[models.config] {where}: {key}: got {raw[key]!r}, allowed {allowed} everywhere"
                )
        count = count_of(raw, reader, "num_experts", "num_local_experts", 1, 1, MOST_EXPERTS)
        key = "num_experts_per_tok" if raw.get("num_experts_per_tok") is not None else "moe_topk"
        k = Reader(changed(raw, {key: _of_all(raw.get(key), layers)}), where).within(key, 1, MOST_EXPERTS, 1)
        if k > count:
            raise FormatError(f"[models.config] {where}: {key}: got {k}, allowed 1 to {count} (num_experts)")
        return {
            **super().own_fields(raw, reader, where),
            "num_experts": count,
            "num_experts_per_tok": k,
            "moe_intermediate_size": width,
            "shared_expert_intermediate_size": width,
            "expert_layers": tuple(range(layers)),
        }


def _of_all(value: object, layers: int) -> object:
    """What a list with one for each layer has, if that is the same for all."""
    if isinstance(value, list) and len(value) >= layers and all(each == value[0] for each in value):
        return value[0]
    return value
