"""GLM-5 (GlmMoeDsaForCausalLM): DeepSeek-V3.2's layers with other sizes, of which some share another's choice of keys.

    layer           0  1  2  3  4  5       "full" layers have an index
    indexer_types   f  f  f  s  s  f       "shared" ones attend to the keys that the last full layer chose: 2, 2

The index rotates neighbouring numbers against each other, where DeepSeek-V3.2's rotates halves. Source: Z.ai 2026
(arXiv 2603.12201) and the Hugging Face configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from ...errors import FormatError
from ..gguf_form import GgufForm
from ..latent_gguf import INDEXED_LEAVES
from ..reader import Raw, Reader
from ..settings import Settings, neutral, read
from .deepseek_v32 import GGUF_SETTINGS, DeepseekV32, sizes_from_gguf

if TYPE_CHECKING:
    from ..gguf.metadata import Description

_FULL, _SHARED = "full", "shared"
_LETTERS = {"F": _FULL, "S": _SHARED}
_MOST = 2**31 - 1


class GlmMoeDsa(DeepseekV32):
    family = "glm_moe_dsa"
    architectures: ClassVar[tuple[str, ...]] = ("GlmMoeDsaForCausalLM",)
    index_interleaved: ClassVar[bool] = True
    gguf: ClassVar[Mapping[str, GgufForm]] = {
        "glm-dsa": GgufForm(
            lambda d: {**sizes_from_gguf(d), "indexer_types": _types(d)},
            INDEXED_LEAVES,
            {
                **GGUF_SETTINGS,
                ".attention.indexer.types": read(
                    "which layers choose keys; if absent all, or in files of 2^20 tokens and more the first two and "
                    "then one of four"
                ),
            },
        )
    }
    settings: ClassVar[Settings] = {
        **DeepseekV32.settings,
        "indexer_types": read("which layers choose keys: full or shared; before index_topk_pattern"),
        "index_topk_pattern": read("the same as letters, F or S, or as a list; before index_topk_freq"),
        "index_topk_freq": read("every so many layers one chooses keys"),
        "index_skip_topk_offset": read("from which layer on index_topk_freq counts; 2"),
        "indexer_rope_interleave": neutral("neighbouring numbers of what rotates in the index are pairs", True),
        "index_share_for_mtp_iteration": neutral("of the prediction head, whose drafts choose keys each for itself"),
        "moe_router_dtype": neutral("experts are scored in float32", "float32"),
    }
    defaults: ClassVar[Mapping[str, object]] = {
        **DeepseekV32.defaults,
        "max_position_embeddings": 202_752,
        "intermediate_size": 12_288,
        "num_key_value_heads": 64,
        "rms_norm_eps": 1e-5,
        "q_lora_rank": 2048,
        "v_head_dim": 256,
        "qk_nope_head_dim": 192,
        "n_group": 1,
        "topk_group": 1,
        "index_n_heads": 32,
    }

    @classmethod
    def choosing_layers(cls, raw: Raw, reader: Reader, where: str) -> tuple[int, ...]:
        layers = reader.layers()
        key, kinds = _kinds(raw, reader, layers)
        if not isinstance(kinds, (list, tuple)) or len(kinds) < layers or {*kinds[:layers]} - {_FULL, _SHARED}:
            raise FormatError(
                f"[models.config] {where}: {key}: got {kinds!r}, allowed {layers} (num_hidden_layers) of {_FULL!r} and "
                f"{_SHARED!r}"
            )
        if kinds[0] != _FULL:
            raise FormatError(
                f"[models.config] {where}: {key}: got {kinds[0]!r} for the first layer, allowed {_FULL!r}: no layer "
                "before it chooses keys"
            )
        return tuple(index for index in range(layers) if kinds[index] == _FULL)


def _types(d: Description) -> list[str]:
    """Of each layer. Files that do not say it are of GLM-5 and 5.1, or of GLM-5.2, which takes more tokens."""
    key, later = ".attention.indexer.types", d.keys.integer(".context_length") >= 2**20
    if not d.keys.has(key):
        full = [not later or layer < 2 or layer % 4 == 2 for layer in range(d.layers)]
    elif d.keys.is_list(key):
        full = d.keys.flags(key, d.layers, "layer")
    else:
        full = [d.keys.integer(key, 0, 1) == 1] * d.layers
    return [_FULL if each else _SHARED for each in full]


def _kinds(raw: Raw, reader: Reader, layers: int) -> tuple[str, object]:
    """The key that says it, and what each layer is; unchecked where a file lists it."""
    listed, pattern = raw.get("indexer_types"), raw.get("index_topk_pattern")
    if listed is not None:
        return "indexer_types", listed
    if isinstance(pattern, str):
        return "index_topk_pattern", [_LETTERS.get(letter, letter) for letter in pattern]
    if pattern is not None:
        return "index_topk_pattern", pattern
    every = max(reader.within("index_topk_freq", -_MOST, _MOST, 1), 1)
    first = reader.within("index_skip_topk_offset", -_MOST, _MOST, 2)
    return "index_topk_freq, index_skip_topk_offset", _every(every, first, layers)


def _every(every: int, first: int, layers: int) -> Sequence[str]:
    return [_SHARED if max(layer - first + 1, 0) % every else _FULL for layer in range(layers)]
