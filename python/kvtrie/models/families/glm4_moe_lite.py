"""GLM-4.7-Flash (Glm4MoeLiteForCausalLM): DeepSeek-V3's layers with other sizes, and a list of those with experts.

Source: Z.ai 2025 and the Hugging Face configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ...errors import FormatError
from ..gguf_form import GgufForm
from ..reader import Raw, Reader
from ..settings import Settings, read
from ..stored import FURTHER
from .deepseek import DeepseekV3

_DENSE, _SPARSE = "dense", "sparse"


class Glm4MoeLite(DeepseekV3):
    family = "glm4_moe_lite"
    architectures = ("Glm4MoeLiteForCausalLM",)
    also = ()
    outer = ""
    ignored: ClassVar[Mapping[str, str]] = FURTHER
    gguf: ClassVar[Mapping[str, GgufForm]] = {}  # files are DeepSeek-V3's
    settings: ClassVar[Settings] = {
        **{key: value for key, value in DeepseekV3.settings.items() if key != "first_k_dense_replace"},
        "mlp_layer_types": read("which layers have experts: dense or sparse"),
    }
    defaults: ClassVar[Mapping[str, object]] = {
        **DeepseekV3.defaults,
        "max_position_embeddings": 202_752,
        "intermediate_size": 10_240,
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 20,
        "moe_intermediate_size": 1536,
        "routed_scaling_factor": 1.8,
        "q_lora_rank": 768,
        "v_head_dim": 256,
        "qk_nope_head_dim": 192,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 4,
    }
    experts_where_silent = {"n_routed_experts": 64}  # noqa: RUF012 (a ClassVar of Model's)

    @classmethod
    def sparse_layers(cls, raw: Raw, reader: Reader, where: str) -> tuple[int, ...]:
        layers = reader.layers()
        kinds = raw.get("mlp_layer_types")
        if kinds is None:
            kinds = [_DENSE] + [_SPARSE] * (layers - 1)
        if not isinstance(kinds, (list, tuple)) or len(kinds) < layers or {*kinds[:layers]} - {_DENSE, _SPARSE}:
            raise FormatError(
                f"[models.config] {where}: mlp_layer_types: got {kinds!r}, allowed {layers} (num_hidden_layers) of "
                f"{_DENSE!r} and {_SPARSE!r}"
            )
        return tuple(index for index in range(layers) if kinds[index] == _SPARSE)
