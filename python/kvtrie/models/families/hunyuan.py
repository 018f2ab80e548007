"""Hunyuan (HunYuanDenseV1ForCausalLM): Llama's block with an RMS norm over each head of q and k behind the rotation.

Keys that were normed after they were rotated cannot be rotated on, so caches of this family do not shift. Source:
Tencent 2025 and the Hugging Face configuration.
"""

from __future__ import annotations

from collections.abc import Mapping

from .. import gguf_settings
from ..attention import AttentionPlan
from ..causal import CausalConfig, CausalModel
from ..common_settings import COMMON, WINDOWLESS, not_read
from ..gguf_form import GgufForm
from ..reader import Raw, Reader, changed
from ..rope_config import RopeFields
from ..settings import neutral, read

_NAMES = {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"}


class HunYuanDenseV1(CausalModel):
    family = "hunyuan_v1_dense"
    architectures = ("HunYuanDenseV1ForCausalLM",)
    settings = {  # noqa: RUF012 (a ClassVar of Model's)
        **COMMON,
        **WINDOWLESS,
        **not_read("mlp_bias"),
        "eod_token_id": neutral("no text has a token of this role unless somebody writes it"),
    }
    own_rope = {"alpha": read("makes the base larger; of type dynamic, whose factor is not read then")}  # noqa: RUF012 (the same)
    gguf = {"hunyuan-dense": GgufForm(lambda d: d.dense(), _NAMES, gguf_settings.DENSE)}  # noqa: RUF012 (the same)
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
