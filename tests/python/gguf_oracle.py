"""What the keys and tensors of a GGUF file mean: llama.cpp's rules, restated to be held against what loading makes.

:func:`meaning` gives a configuration, in which the scaling of frequencies is written out as one factor for each, or
None where the file says something that these architectures do not compute, so that loading it would be a lie. Nothing
here uses what ``kvtrie.models.gguf`` thinks of a key. Sources: how llama.cpp loads models, makes contexts and graphs,
and rotates (0.3.36 of llama-cpp-python); the GGUF specification; gguf-py's constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3_text",
    "qwen3next": "qwen3_next",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
    "gpt-oss": "gpt_oss",
    "mistral3": "mistral",
    "phi3": "phi3",
}
HYBRIDS = ("qwen3next", "qwen35", "qwen35moe")
SPARSE = ("qwen3next", "qwen35moe", "gpt-oss")
DIVIDED = ("llama", "mistral3", "exaone4")  # rope_freqs.weight divides their frequencies

# Keys of the architecture that :func:`meaning` takes into account.
TAKEN = {
    *("vocab_size", "context_length", "embedding_length", "embedding_length_out", "block_count", "feed_forward_length"),
    *("nextn_predict_layers", "attention.head_count", "attention.head_count_kv", "attention.key_length"),
    *("attention.value_length", "attention.layer_norm_rms_epsilon", "attention.scale", "rope.freq_base"),
    *("rope.dimension_count", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear"),
    *("rope.scaling.attn_factor", "rope.scaling.original_context_length", "rope.scaling.yarn_ext_factor"),
    *("rope.scaling.yarn_attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
}
OWN = {
    "gemma3": {
        *("attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa"),
        *("final_logit_softcapping", "attention.key_length_swa", "attention.value_length_swa"),
        *("rope.dimension_count_swa", "rope.global.freq_base", "rope.local.freq_base"),
    },
    "gpt-oss": {
        *("attention.sliding_window", "rope.freq_base_swa", "rope.dimension_count_swa"),
        *("attention.sliding_window_pattern", "attention.key_length_swa", "attention.value_length_swa"),
        *("expert_count", "expert_used_count", "expert_feed_forward_length"),
    },
    "mistral3": {"rope.scaling.yarn_log_multiplier"},
    "phi3": {"attention.sliding_window"},
    **{
        name: {
            *("full_attention_interval", "attention.recurrent_layers", "ssm.conv_kernel", "ssm.state_size"),
            *("ssm.group_count", "ssm.time_step_rank", "ssm.inner_size"),
            *(("rope.dimension_sections",) if name != "qwen3next" else ()),
            *(("expert_count", "expert_used_count", "expert_feed_forward_length") if name in SPARSE else ()),
            *(("expert_shared_feed_forward_length",) if name in SPARSE else ()),
        }
        for name in HYBRIDS
    },
}

# Of these a file may have a list.
PER_BLOCK = {
    *("attention.head_count", "attention.head_count_kv", "feed_forward_length", "expert_used_count"),
    "expert_feed_forward_length",
}

# What has no part in the computation of these architectures, whatever it says, and why.
HARMLESS = {
    "rope.scaling.finetuned": "printed",
    "rope.dimension_sections": "a text has the same position on each axis",
    "attention.layer_norm_epsilon": "of norms that subtract the mean",
    "attention.group_norm_*": "of norms over groups",
    "attention.sliding_window_pattern": "of a window, which must be absent",
    "rope.freq_base_swa": "of a window, which must be absent",
    "rope.dimension_count_swa": "of a window, which must be absent",
    "attention.key_length_swa": "of a window, which must be absent",
    "attention.value_length_swa": "of a window, which must be absent",
    "mm.*": "of images, which take tensors",
    "vision.*": "of images, which take tensors",
    "expert_group_scale": "of groups of experts, which must be absent",
}
OF_EXPERTS = ("expert*", "moe_*", "interleave_moe_layer_step", "leading_dense_block_count")  # whose number must be 0
# Outside of the architecture's own keys; what stands for a vocabulary is tried by the tests of tokenizers.
HARMLESS_ANYWHERE = {
    "general.*": "says where the file comes from, how tokens may be drawn or how it was rounded",
    "quantize.*": "how the file was rounded",
    "mradermacher.*": "how the file was rounded",
    "tokenizer.*": "the file has no vocabulary",
}
NOT_HARMLESS = {"general.type", "general.alignment", "general.quantization_version", "tokenizer.ggml.model"}

# What means nothing with the values here, and with any other something that is not computed.
OFF: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "pooling_type": (0, 1, 2, 3),
    "tensor_data_layout": ("Meta AI original pth", "reference"),
    **dict.fromkeys(("logit_scale", "embedding_scale", "residual_scale"), (0.0, 1.0)),
    **dict.fromkeys(("attention.output_scale", "attention.value_scale", "expert_weights_scale"), (0.0, 1.0)),
    "attention.rope_pattern": (1, True),
    "full_attention_interval": (0, 1),
    "expert_weights_norm": (True,),
    "expert_gating_func": (0, 1),
    **dict.fromkeys(("expert_shared_count", "expert_group_count", "expert_group_used_count"), (0, 1)),
    **dict.fromkeys(("moe_every_n_layers", "interleave_moe_layer_step"), (0, 1)),
    "general.type": ("model",),
    "general.quantization_version": (2,),
    "general.alignment": (32,),
    "tokenizer.ggml.model": ("none", "no_vocab"),
}


def meaning(architecture: str, values: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Any] | None:
    """The file as a ``config.json``; None where it must be refused. ``arrays``: the file's tensors, by name."""
    own = {key.removeprefix(f"{architecture}."): each for key, each in values.items() if _is_own(architecture, key)}
    others = {key: each for key, each in values.items() if not _is_own(architecture, key)}
    others.pop("general.architecture")
    if not all(_may_be(key, each, architecture, own=True) for key, each in own.items()):
        return None
    if not all(_may_be(key, each, architecture, own=False) for key, each in others.items()):
        return None
    try:
        return File(architecture, own, arrays).config()
    except (Refused, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None


def _is_own(architecture: str, key: str) -> bool:
    return key.startswith(f"{architecture}.")


def _may_be(key: str, value: Any, architecture: str, *, own: bool) -> bool:
    if own and (key in TAKEN or key in OWN.get(architecture, ())):
        return True
    return means_nothing(key, value, own=own, experts=architecture in SPARSE)


def means_nothing(key: str, value: Any, *, own: bool, experts: bool) -> bool:
    """``own``: of the architecture, without its name. ``experts``: whether it has any."""
    if own and not experts and _is_of_experts(key):
        return True
    if key in OFF:
        return _is_any(value, OFF[key]) or (key.endswith("_count") and _is_any(value, (0.0, False)))
    harmless = HARMLESS if own else {} if key in NOT_HARMLESS else HARMLESS_ANYWHERE
    if any(fnmatchcase(key, pattern) for pattern in harmless):
        return True
    return own and _is_any(value, (0, 0.0, False))


def _is_of_experts(key: str) -> bool:
    """But for how many there are, and how many groups of them."""
    counts = ("expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count")
    return key not in counts and any(fnmatchcase(key, pattern) for pattern in OF_EXPERTS)


def _is_any(value: Any, allowed: tuple[Any, ...]) -> bool:
    return isinstance(value, (bool, int, float, str)) and any(
        type(value) is type(each) and value == each for each in allowed
    )


class Refused(Exception):
    pass


class File:
    """Reads one file's own keys."""

    def __init__(self, architecture: str, own: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        self.architecture = architecture
        self.own = own
        self.arrays = arrays

    def config(self) -> dict[str, Any]:
        hidden, heads = self.whole("embedding_length"), self.whole("attention.head_count")
        size = self.whole("attention.key_length", hidden // heads)
        layers, rows = self.layers(), len(self.arrays["token_embd.weight"])
        self.equal("attention.value_length", size)
        self.equal("vocab_size", rows)
        if self.whole("embedding_length_out", 0) not in (0, hidden):
            raise Refused
        raw = {
            "model_type": MODEL_TYPES[self.architecture],
            "vocab_size": rows,
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": self.whole("attention.head_count_kv", heads),
            "head_dim": size,
            "intermediate_size": self.whole("feed_forward_length", 1 if self.architecture in SPARSE else None),
            "max_position_embeddings": self.whole("context_length"),
            "rms_norm_eps": self.real("attention.layer_norm_rms_epsilon"),
            "rope_theta": self.theta("rope.freq_base", "rope.global.freq_base"),
            "tie_word_embeddings": "output.weight" not in self.arrays,
            "attention_bias": "blk.0.attn_output.bias" in self.arrays,
            "mlp_bias": "blk.0.ffn_gate.bias" in self.arrays,
        }
        rotated = self.whole("rope.dimension_count", size)
        scale = size
        if self.architecture in HYBRIDS:
            raw |= self.hybrid(layers, rotated)
            raw["partial_rotary_factor"] = rotated / size
        elif self.architecture == "phi3" and 2 <= rotated <= size and rotated % 2 == 0:
            raw["partial_rotary_factor"] = rotated / size
        elif rotated != size:
            raise Refused
        if self.architecture == "gemma3":
            scale = hidden // heads if layers == 62 else size
            raw |= {**self.gemma(layers, size), "query_pre_attn_scalar": scale}
        if self.architecture == "mistral3":
            raw["sliding_window"] = None
        if self.architecture == "phi3":
            raw["sliding_window"] = self.whole("attention.sliding_window", 0) or None
        if self.architecture == "gpt-oss":
            raw |= self.gpt_oss(layers, size, raw["rope_theta"])
        if not math.isclose(self.real("attention.scale", 0.0) or scale**-0.5, scale**-0.5, rel_tol=1e-6):
            raise Refused
        scaling = self.scaling(rotated, raw["rope_theta"], raw["max_position_embeddings"])
        if self.architecture == "gpt-oss" and scaling is None:  # else its configuration would be yarn
            raw["rope_parameters"] = {"rope_type": "default"}
        return raw if scaling is None else {**raw, "rope_scaling": scaling}

    # -- values --------------------------------------------------------------------------------------------------------

    def value(self, key: str, default: Any) -> Any:
        found = self.own.get(key, default)
        if found is None:
            raise Refused
        return found

    def whole(self, key: str, default: int | None = None) -> int:
        """Of a list with one for each block, what all its entries are."""
        found = self.value(key, default)
        if isinstance(found, np.ndarray) and found.dtype.kind in "iu" and key in PER_BLOCK:
            if len(found) != self.own["block_count"] or len(set(found.tolist())) > 1:
                raise Refused
            found = int(found[0])
        if type(found) is not int or found < 0:
            raise Refused
        return found

    def real(self, key: str, default: float | None = None) -> float:
        found = self.value(key, default)
        if type(found) not in (int, float) or not math.isfinite(found):
            raise Refused
        return float(found)

    def theta(self, key: str, other: str) -> float:
        """``other``: what ollama's converter calls it in Gemma 3."""
        other = other if self.architecture == "gemma3" else key
        found = [self.real(each, 0.0) for each in (key, other) if each in self.own]
        if len(set(found)) > 1:
            raise Refused
        return found[0] if found else 10000.0

    def equal(self, key: str, wanted: int) -> None:
        if self.whole(key, wanted) != wanted:
            raise Refused

    # -- layers --------------------------------------------------------------------------------------------------------

    def layers(self) -> int:
        """Blocks without those that predict further tokens, which are known by a tensor; all tensors are of a block."""
        total, further = self.whole("block_count"), self.whole("nextn_predict_layers", 0)
        stored = {int(name.split(".")[1]) for name in self.arrays if name.startswith("blk.")}
        if stored != set(range(total)) or further >= total:
            raise Refused
        if further and self.architecture not in HYBRIDS:
            raise Refused
        if not all(f"blk.{block}.nextn.eh_proj.weight" in self.arrays for block in range(total - further, total)):
            raise Refused
        return total - further

    def hybrid(self, layers: int, rotated: int) -> dict[str, Any]:
        values, inner = self.whole("ssm.time_step_rank"), self.whole("ssm.inner_size")
        interval = self.whole("full_attention_interval", 4)
        recurrent = [(layer + 1) % interval != 0 for layer in range(layers)]
        given = self.own.get("attention.recurrent_layers")
        if given is not None:
            whole = isinstance(given, np.ndarray) and given.dtype.kind in "biu"
            if not whole or len(given) != self.whole("block_count"):
                raise Refused
            recurrent = [bool(each) for each in given[:layers]]
        if inner % values or values % self.whole("ssm.group_count"):
            raise Refused
        self.sections(rotated)
        return {
            "layer_types": ["linear_attention" if each else "full_attention" for each in recurrent],
            "linear_conv_kernel_dim": self.whole("ssm.conv_kernel"),
            "linear_key_head_dim": self.whole("ssm.state_size"),
            "linear_value_head_dim": inner // values,
            "linear_num_key_heads": self.whole("ssm.group_count"),
            "linear_num_value_heads": values,
            **(self.experts(layers) if self.architecture in SPARSE else {}),
        }

    def sections(self, rotated: int) -> None:
        """Interleaved axes: of pairs that no axis of a text has, ggml takes the fourth position, which is 0."""
        given = self.own.get("rope.dimension_sections")
        if given is None or self.architecture == "qwen3next":
            return
        if not isinstance(given, np.ndarray) or given.dtype.kind not in "iu" or len(given) != 4:
            raise Refused
        sections = [int(each) for each in given]
        if min(sections) < 0 or sum(sections) == 0:
            raise Refused
        for pair in range(rotated // 2):
            place = pair % sum(sections)
            if not place < 3 * sections[place % 3]:
                raise Refused

    def experts(self, layers: int) -> dict[str, Any]:
        dense = [layer for layer in range(layers) if f"blk.{layer}.ffn_gate.weight" in self.arrays]
        count = len(self.arrays[f"blk.{min(set(range(layers)) - set(dense))}.ffn_gate_inp.weight"])
        self.equal("expert_count", count)
        used = self.whole("expert_used_count")
        if not 1 <= used <= count:
            raise Refused
        return {
            "mlp_only_layers": dense,
            "num_experts": count,
            "num_experts_per_tok": used,
            "moe_intermediate_size": self.whole("expert_feed_forward_length"),
            "shared_expert_intermediate_size": self.whole("expert_shared_feed_forward_length"),
        }

    def gpt_oss(self, layers: int, size: int, theta: float) -> dict[str, Any]:
        """Every second layer slides, from the first on; all rotate alike."""
        for key in ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"):
            self.equal(key, size)
        self.equal("attention.sliding_window_pattern", 2)
        window, local = self.whole("attention.sliding_window"), self.real("rope.freq_base_swa", theta)
        count, used = len(self.arrays["blk.0.ffn_gate_inp.weight"]), self.whole("expert_used_count")
        self.equal("expert_count", count)
        if window < 1 or local != theta or not 1 <= used <= count:
            raise Refused
        return {
            "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)],
            "sliding_window": window,
            "num_local_experts": count,
            "num_experts_per_tok": used,
            "intermediate_size": self.whole("expert_feed_forward_length"),
        }

    def gemma(self, layers: int, size: int) -> dict[str, Any]:
        window, cap = self.whole("attention.sliding_window", 0), self.real("final_logit_softcapping", 0.0)
        for key in ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"):
            self.equal(key, size)
        pattern = self.own.get("attention.sliding_window_pattern", 6)
        if isinstance(pattern, np.ndarray):
            if len(pattern) != layers or pattern.dtype.kind not in "biu":
                raise Refused
            slides = [bool(each) for each in pattern]
        else:
            every = self.whole("attention.sliding_window_pattern", 6)
            slides = [every == 0 or layer % every < every - 1 for layer in range(layers)]
        if not window:
            slides = [False] * layers
        local = self.theta("rope.freq_base_swa", "rope.local.freq_base")
        if cap < 0 or local <= 0:
            raise Refused
        return {
            "hidden_activation": "gelu_pytorch_tanh",
            "layer_types": ["sliding_attention" if each else "full_attention" for each in slides],
            **({"sliding_window": window} if window else {}),
            "rope_local_base_freq": local,
            **({"final_logit_softcapping": cap} if cap else {}),
        }

    # -- frequencies ---------------------------------------------------------------------------------------------------

    def scaling(self, rotated: int, theta: float, context: int) -> dict[str, Any] | None:
        """ggml's rotation: position * theta^(-2i/n) / factor of the tensor, of which a part is divided again."""
        kind = self.value("rope.scaling.type", "linear")
        if kind not in ("none", "linear", "yarn") or theta <= 0:
            raise Refused
        factor = self.factor() if kind != "none" else 1.0
        if self.architecture == "phi3" and (kind == "yarn" or factor != 1):
            raise Refused
        mixed = self.real("rope.scaling.yarn_ext_factor", -1.0)
        mixed = mixed if mixed >= 0 else float(kind == "yarn")
        if mixed != float(kind == "yarn") or self.real("rope.scaling.attn_factor", 1.0) != 1.0:
            raise Refused
        attention = 1.0 + 0.1 * math.log(factor) if kind == "yarn" and factor > 1 else 1.0
        if self.architecture == "mistral3":
            attention /= self.temperature(kind, factor)
        # Ignored, or in place of what attention is multiplied by, or times that: the file may mean any of the three.
        stated = self.real("rope.scaling.yarn_attn_factor", attention)
        if not math.isclose(stated, attention, rel_tol=1e-6):
            raise Refused
        divided = self.divisors(rotated)
        keep = self.kept(rotated, theta, context) if kind == "yarn" else np.zeros(rotated // 2)
        factors = divided / ((1 - keep) / factor + keep)
        if (factors == 1).all() and attention == 1:
            return None
        return {
            "rope_type": "longrope",
            "short_factor": factors.tolist(),
            "long_factor": factors.tolist(),
            "attention_factor": attention,
            "original_max_position_embeddings": context,
        }

    def temperature(self, kind: str, factor: float) -> float:
        """What attention is divided by: of a mscale_all_dim beside an mscale of 1."""
        share = self.real("rope.scaling.yarn_log_multiplier", 0.0)
        if share < 0 or (share and kind == "yarn" and "rope.scaling.yarn_attn_factor" in self.own):
            raise Refused
        return 1.0 + 0.1 * share * math.log(factor) if kind == "yarn" and factor > 1 else 1.0

    def factor(self) -> float:
        new, old = self.own.get("rope.scaling.factor"), self.own.get("rope.scale_linear")
        found = self.real("rope.scaling.factor" if new is not None else "rope.scale_linear", 0.0)
        if found < 0 or (new is not None and old is not None and new != old):
            raise Refused
        return found or 1.0

    def divisors(self, rotated: int) -> Any:
        found = self.arrays.get("rope_freqs.weight")
        if found is None:
            return np.ones(rotated // 2)
        if self.architecture not in DIVIDED or found.shape != (rotated // 2,) or not (found > 0).all():
            raise Refused
        return found.astype(np.float64)

    def kept(self, rotated: int, theta: float, context: int) -> Any:
        """The share of each frequency that yarn leaves as it is: 1 where it turns often in the original length."""
        original = self.whole("rope.scaling.original_context_length", 0) or context
        fast, slow = (
            self.real(f"rope.scaling.yarn_beta_{name}", beta) for name, beta in (("fast", 32.0), ("slow", 1.0))
        )

        if theta <= 1:
            raise Refused

        def pair_that_turns(times: float) -> float:
            return rotated * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

        low = max(0, math.floor(pair_that_turns(fast)))
        high = min(rotated - 1, math.ceil(pair_that_turns(slow)))
        if high < low:  # transformers scales other frequencies then
            raise Refused
        return 1 - np.clip((np.arange(rotated // 2) - low) / max(0.001, high - low), 0, 1)
