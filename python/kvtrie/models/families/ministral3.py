"""Ministral 3 (Ministral3ForCausalLM, and the text model of Mistral3ForConditionalGeneration).

Mistral's block; q is multiplied by more the further its position lies behind the length that the model was trained
with. Source: Mistral AI 2025 and the Hugging Face configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from ...errors import FormatError
from ..attention import AttentionPlan, Temperature
from ..causal import CausalConfig, one_window
from ..config import text_part
from ..experts_config import Fields
from ..gguf_form import GgufForm
from ..reader import Raw, Reader
from ..rope_config import ORIGINAL, RopeFields
from ..settings import Settings, read
from ..step_inputs import StepLike
from ..weights import Array
from .mistral import GGUF_SETTINGS, Mistral, mistral3_from_gguf

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_BETA = "llama_4_scaling_beta"
_MOST = 262_144
_ROPE = {  # where a file has none
    "type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    ORIGINAL: 16_384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    _BETA: 0.1,
}

_GGUF: Settings = {
    **GGUF_SETTINGS,
    ".attention.temperature_scale": read("how much q grows with the position, in steps of the original length"),
    ".attention.temperature_length": read("allowed if it is the original length, or 0"),
}


def _from_gguf(d: Description) -> dict[str, object]:
    keys, found = d.keys, mistral3_from_gguf(d)
    scaling = found.get("rope_scaling")
    if not isinstance(scaling, dict) or scaling["rope_type"] != "yarn":
        kind = keys.text(".rope.scaling.type", "linear")
        raise keys.error(".rope.scaling.type", kind, "yarn beside attention.temperature_scale, which needs its length")
    steps = keys.integer(".attention.temperature_length", 0, default=0)
    if steps not in (0, scaling[ORIGINAL]):
        raise keys.error(".attention.temperature_length", steps, f"0 or {scaling[ORIGINAL]}, the original length")
    return {**found, "rope_scaling": {**scaling, _BETA: keys.number(".attention.temperature_scale", 0.0)}}


class Ministral3(Mistral):
    family = "ministral3"
    architectures = ("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration")
    gguf: ClassVar[Mapping[str, GgufForm]] = {
        "mistral3/growth": GgufForm(_from_gguf, settings=_GGUF, pairs=True, divided=True)
    }
    own_rope = {_BETA: read("how much q grows with the position")}  # noqa: RUF012 (a ClassVar of Model's)
    defaults = {  # noqa: RUF012 (the same)
        **Mistral.defaults,
        "max_position_embeddings": _MOST,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
    }

    @classmethod
    def parse_config(cls, raw: Raw, generation: Raw | None = None, where: str = "config") -> CausalConfig:
        raw = text_part(raw, where)
        if raw.get("rope_parameters") is None and not raw.get("rope_scaling"):
            raw = {**raw, "rope_parameters": _ROPE}
        return super().parse_config(raw, generation, where)

    @classmethod
    def own_fields(cls, raw: Raw, reader: Reader, where: str) -> Fields:
        key = _chosen(raw)
        chosen = raw.get(key)
        parameters = Reader(chosen if isinstance(chosen, Mapping) else {}, f"{where}: {key}")
        return {**one_window(raw, reader, where, None), "growth": parameters.number(_BETA)}

    @classmethod
    def read_ropes(cls, raw: Raw, where: str) -> dict[str, RopeFields]:
        ropes = super().read_ropes(raw, where)
        for rope in ropes.values():
            if rope.scaling is None or ORIGINAL not in rope.scaling:
                kind = "default" if rope.scaling is None else rope.scaling["rope_type"]
                raise FormatError(
                    f"[models.config] {where}: {_chosen(raw)}: rope_type: got {kind!r}, allowed yarn, longrope, "
                    f"llama3: {_BETA} needs an {ORIGINAL}"
                )
        return ropes

    @classmethod
    def attention(cls, config: CausalConfig, index: int) -> AttentionPlan:  # noqa: ARG003 (all are alike)
        return AttentionPlan(temperature=_temperature(config))

    def further_inputs(self, step: StepLike, tokens: Array) -> list[Array]:  # noqa: ARG002 (others look at them)
        return [_temperature(self.config).factors(np.asarray(step.positions))]


def _temperature(config: CausalConfig) -> Temperature:
    assert config.rope_scaling is not None
    return Temperature(config.growth, cast(int, config.rope_scaling[ORIGINAL]), first=0)


def _chosen(raw: Raw) -> str:
    """The object that holds RoPE's keys, see rope_config.py."""
    return "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
