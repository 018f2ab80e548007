"""The treatment of every key of a GGUF file: the lists behind :class:`GgufForm.settings` and docs/gguf.md.

Keys that begin with a dot stand behind the name of the architecture: ".block_count" is "llama.block_count". Each family
lays its own list over :data:`ARCHITECTURE`. Sources: the constants of the ``gguf`` package, and what llama.cpp's loader
(0.3.36 of llama-cpp-python) does with each key in the architectures that are computed here.

"Off" is how llama.cpp writes that a feature is not there: 0 or false.
"""

from __future__ import annotations

from collections.abc import Mapping

from .gguf_form import GgufForm
from .settings import Setting, Settings, neutral, read, refused

OFF = (0, 0.0, False)


def _off(why: str) -> Setting:
    return neutral(why, *OFF)


GENERAL: Settings = {
    "general.architecture": read("which family computes the file"),
    "general.type": read("what the file is; only models are computed"),
    "general.alignment": read("where tensors begin"),
    "general.quantization_version": neutral("the layout of blocks that the gguf package reads", 2),
    "general.file_type": neutral("each tensor has a type of its own"),
    "general.tensor_extra.*": neutral("how the file was quantised"),
    "general.sampling.*": neutral("how to draw tokens is the caller's choice"),
    **{
        f"general.{name}": neutral("says where the file comes from")
        for name in (
            *("name", "author", "version", "organization", "finetune", "basename", "description", "quantized_by"),
            *("size_label", "url", "doi", "uuid", "repo_url", "tags", "languages", "datasets", "license", "license.*"),
            *("source.*", "base_model.*", "dataset.*"),
        )
    },
    **{
        f"split.{name}": read("all parts of a split file are read, and must belong together")
        for name in ("no", "count", "tensors.count")
    },
    "quantize.*": neutral("how the file was quantised"),
    "mradermacher.*": neutral("how the file was quantised"),
    "adapter.*": refused("the file is an adapter"),
    "imatrix.*": refused("the file is an importance matrix"),
    "clip.*": refused("images and sound are not computed"),
    "diffusion.*": refused("texts are computed from left to right"),
    "xielu.*": refused("this activation is not computed"),
}

_MODEL = read("the kind of vocabulary: gpt2, llama, gemma4, or none")
_VOCABULARY: Settings = {
    "tokenizer.ggml.model": _MODEL,
    "tokenizer.ggml.tokens": read("the vocabulary; of equal texts the last is used in encoding, or the special one"),
    "tokenizer.ggml.token_type": read("which tokens are special"),
    **{
        f"tokenizer.ggml.{name}_token_id": read("the token of this role; -1 and 2^32 - 1: there is none")
        for name in ("bos", "eos", "eot", "eom", "unknown", "padding")
    },
    **{
        f"tokenizer.ggml.add_{name}_token": read("whether a text begins with bos, and ends with eos")
        for name in ("bos", "eos")
    },
    "tokenizer.chat_template": read("how messages are laid out"),
    "tokenizer.chat_templates": read("the names of further templates"),
    "tokenizer.chat_template.*": read("a further template: tool_use where there are tools, others by name"),
    "tokenizer.ggml.suppress_tokens": read("tokens that are never drawn: allowed if there are none"),
    "tokenizer.huggingface.json": read("a whole tokenizer, which then wins over the vocabulary"),
    **{
        f"tokenizer.ggml.{name}_token_id": neutral("no text has a token of this role unless somebody writes it")
        for name in ("seperator", "mask", "cls", "fim_*", "prefix", "suffix", "middle")
    },
    "tokenizer.ggml.token_type_count": neutral("of encoders"),
    "tokenizer.ggml.add_sep_token": neutral("nothing here puts a separator behind a text", False),
    "tokenizer.ggml.remove_extra_whitespaces": neutral("texts are read as they are", False),
    "tokenizer.ggml.normalizer.*": neutral("texts are read as they are", False),
    "tokenizer.ggml.precompiled_charsmap": refused("texts are read as they are"),
    "tokenizer.rwkv.world": refused("this kind of vocabulary is not read"),
}
_OTHER_KIND = "of the other kind of vocabulary"

_MERGED: Settings = {
    **_VOCABULARY,
    "tokenizer.ggml.merges": read("which tokens become one, the first of them first"),
    "tokenizer.ggml.scores": neutral(_OTHER_KIND),
    "tokenizer.ggml.add_space_prefix": neutral(_OTHER_KIND),
}

# By tokenizer.ggml.model.
TOKENIZERS: Mapping[str, Settings] = {
    "gpt2": {**_MERGED, "tokenizer.ggml.pre": read("how texts are cut before merges apply")},
    "gemma4": {**_MERGED, "tokenizer.ggml.pre": neutral("the kind of vocabulary says it")},
    "llama": {
        **_VOCABULARY,
        "tokenizer.ggml.scores": read("which pieces become one, the best of them first; in Gemma ids say it"),
        "tokenizer.ggml.add_space_prefix": read("whether a text begins with a space"),
        "tokenizer.ggml.merges": neutral(_OTHER_KIND),
        "tokenizer.ggml.pre": neutral(_OTHER_KIND),
    },
    "none": {"tokenizer.ggml.model": _MODEL, "tokenizer.*": neutral("there is no vocabulary")},
}
_WHOLE: Settings = {
    f"tokenizer.ggml.{name}": neutral("tokenizer.huggingface.json says it")
    for name in ("pre", "merges", "scores", "add_space_prefix", "add_eos_token")
}

_ROPE: Settings = {
    ".rope.freq_base": read("theta"),
    ".rope.dimension_count": read("rotated numbers of each head: all of them but in hybrids"),
    ".rope.dimension_sections": neutral("axes of positions; those of a text are equal"),
    ".rope.scaling.type": read("none, linear or yarn; linear if absent"),
    ".rope.scaling.factor": read("0: 1; of no effect where the type is none"),
    ".rope.scale_linear": read("the same under its old name"),
    ".rope.scaling.attn_factor": read("allowed if it is 1"),
    ".rope.scaling.original_context_length": read("of yarn; the context length if absent"),
    ".rope.scaling.finetuned": neutral("says how the model was trained"),
    ".rope.scaling.alpha": _off("frequencies do not depend on it"),
    ".rope.scaling.yarn_ext_factor": read("allowed if it is 1 with yarn, 0 with others, or below 0, which is the same"),
    ".rope.scaling.yarn_attn_factor": read(
        "allowed if all read it alike: 0.1 ln(factor) + 1 with yarn, 1 with others; converters write two things into it"
    ),
    ".rope.scaling.yarn_beta_fast": read("of yarn; 32 and 1 if absent"),
    ".rope.scaling.yarn_beta_slow": read("of yarn; 32 and 1 if absent"),
    ".rope.scaling.yarn_log_multiplier": _off("attention is not scaled by it"),
}
_NO_WINDOW = "no layer has a window"
_WINDOW: Settings = {
    ".attention.sliding_window": neutral("every layer of this architecture sees everything", 0),
    ".attention.sliding_window_pattern": neutral(_NO_WINDOW),
    ".rope.freq_base_swa": neutral(_NO_WINDOW),
    ".rope.dimension_count_swa": neutral(_NO_WINDOW),
    ".attention.key_length_swa": neutral(_NO_WINDOW),
    ".attention.value_length_swa": neutral(_NO_WINDOW),
}
_NOT_COMPUTED = {
    ".attention.max_alibi_bias": "positions are rotated",
    ".attention.clamp_kqv": "q, k and v are not clamped",
    ".attention.temperature_length": "attention is not sharpened with the position",
    ".attention.temperature_scale": "attention is not sharpened with the position",
    ".attention.relative_buckets_count": "positions are rotated",
    ".attention.shared_kv_layers": "each layer has keys and values of its own",
    ".attention.*_lora_rank*": "projections are whole matrices",
    ".attention.*_mla*": "keys and values are not compressed",
    ".attention.indexer.*": "every key is attended to",
    ".attention.compress_*": "keys and values are not compressed",
    ".attention.output_group_count": "projections are whole matrices",
    ".attn_logit_softcapping": "scores are not capped",
    ".router_logit_softcapping": "scores are not capped",
    ".final_logit_softcapping": "logits of this architecture are not capped",
    ".use_parallel_residual": "attention and MLP come one after the other",
    ".swin_norm": "norms come before layers",
    ".rescale_every_n_layers": "layers are not rescaled",
    ".time_mix_extra_dim": "of RWKV",
    ".time_decay_extra_dim": "of RWKV",
    ".wkv.*": "of RWKV",
    ".kda.*": "of Kimi",
    ".hyper_connection.*": "layers have one residual stream",
    ".hash_layer_count": "layers do not hash",
    ".hrm.*": "layers run once",
    ".num_loops": "layers run once",
    ".skip_loop_final_norm": "layers run once",
    ".ple.*": "layers have no embeddings of their own",
    ".embedding_length_per_layer_input": "layers have no embeddings of their own",
    ".altup.*": "layers have one residual stream",
    ".activation_sparsity_scale": "activations are dense",
    ".swiglu_clamp_*": "activations are not clamped",
    ".activation.*": "this activation is not computed",
    ".hidden_activation": "the architecture has its own",
    ".attn_res.*": "layers have one residual stream",
    ".shortconv.*": "there are no such layers",
    ".posnet.*": "sound is not computed",
    ".convnext.*": "sound is not computed",
    ".features_length": "sound is not computed",
    ".n_deepstack_layers": "images are not computed",
    ".deepstack_mapping": "images are not computed",
    ".decoder_block_count": "there is no encoder",
    ".decoder_start_token_id": "there is no encoder",
    ".classifier.*": "texts are continued, not judged",
    ".dense_*": "texts are continued, not judged",
    ".adapters.*": "there are no adapters inside",
    ".token_shift_count": "of RWKV",
    ".target_layers": "the file is a draft model",
    ".target_hidden_size": "the file is a draft model",
    ".norm_before_*": "the file is a draft model",
}

_UNSCALED = neutral("nothing is scaled but as the architecture does it anyway", 0.0, 1.0)

# Of every architecture; its own list lies over it.
ARCHITECTURE: Settings = {
    ".vocab_size": read("allowed if it is the rows of token_embd"),
    ".context_length": read("tokens that the model takes"),
    ".embedding_length": read("hidden size"),
    ".embedding_length_out": read("allowed if it is 0 or embedding_length"),
    ".block_count": read("layers, with those that predict further tokens"),
    ".nextn_predict_layers": read(
        "last blocks, which predict further tokens: read with `mtp=True` where there is one, else left out"
    ),
    ".feed_forward_length": read("width of the MLPs"),
    ".attention.head_count": read("heads; a list if all are equal"),
    ".attention.head_count_kv": read("heads of k and v; a list if all are equal"),
    ".attention.key_length": read("size of a head; embedding_length / head_count if absent"),
    ".attention.value_length": read("allowed if it is key_length"),
    ".attention.layer_norm_rms_epsilon": read("epsilon of the norms"),
    ".attention.scale": read("allowed if it is 0, or what the architecture scales by anyway"),
    ".attention.output_scale": _UNSCALED,
    ".attention.value_scale": _UNSCALED,
    ".attention.causal": neutral("a token sees none behind it", True),
    ".attention.rope_pattern": neutral("every layer rotates", 1, True),
    ".attention.layer_norm_epsilon": neutral("there are no such norms"),
    ".attention.group_norm_*": neutral("there are no such norms"),
    ".pooling_type": neutral("of embeddings, which are not computed", 0, 1, 2, 3),
    ".tensor_data_layout": neutral("the layout that llama.cpp takes", "Meta AI original pth", "reference"),
    ".logit_scale": _UNSCALED,
    ".embedding_scale": _UNSCALED,
    ".residual_scale": _UNSCALED,
    ".full_attention_interval": neutral("every layer attends", 0, 1),
    ".attention.recurrent_layers": _off("every layer attends"),
    ".ssm.*": _off("every layer attends"),
    ".mm.*": neutral("of images; the file has no tensors for them, or is refused"),
    ".vision.*": neutral("of images; the file has no tensors for them, or is refused"),
    **_ROPE,
    **_WINDOW,
    **{key: _off(why) for key, why in _NOT_COMPUTED.items()},
}

_NO_EXPERTS = "there are no experts"
DENSE: Settings = {
    ".expert_count": _off("experts of this architecture are not computed"),
    ".expert_used_count": _off(_NO_EXPERTS),
    ".expert_group*_count": _off(_NO_EXPERTS),
    **{
        key: neutral(_NO_EXPERTS)
        for key in (".expert*", ".moe_*", ".interleave_moe_layer_step", ".leading_dense_block_count")
    },
}
SLIDING_SIZES = (".rope.dimension_count_swa", ".attention.key_length_swa", ".attention.value_length_swa")
WINDOWED: Settings = {
    ".attention.sliding_window": read("keys that a sliding layer sees; 0: no layer slides"),
    ".attention.sliding_window_pattern": read("each n-th layer sees everything; 6 if absent. Or a list, one by one"),
    ".rope.freq_base_swa": read("theta of layers that slide"),
    ".rope.global.freq_base": read("what some converters call rope.freq_base and rope.freq_base_swa"),
    ".rope.local.freq_base": read("what some converters call rope.freq_base and rope.freq_base_swa"),
    **{key: read("allowed if layers that slide are like the others") for key in SLIDING_SIZES},
    ".final_logit_softcapping": read("0: logits are not capped"),
}
HYBRID: Settings = {
    ".full_attention_interval": read("each n-th layer attends; 4 if absent"),
    ".attention.recurrent_layers": read("which layers do not attend; wins over full_attention_interval"),
    ".ssm.conv_kernel": read("tokens that the convolution sees"),
    ".ssm.state_size": read("size of a key head"),
    ".ssm.group_count": read("key heads"),
    ".ssm.time_step_rank": read("value heads"),
    ".ssm.inner_size": read("all value heads together"),
}
SECTIONS: Settings = {
    ".rope.dimension_sections": read("allowed if each rotated pair belongs to an axis that a text has"),
}
ROUTED: Settings = {
    ".expert_count": read("allowed if it is the experts of the tensors"),
    ".expert_used_count": read("experts that a row goes to"),
    ".expert_feed_forward_length": read("width of an expert"),
    ".expert_shared_feed_forward_length": _off("no expert is shared"),
    ".expert_shared_count": _off("no expert is shared"),
    ".expert_weights_norm": neutral("weights are normalised", True),
    ".expert_weights_scale": neutral("weights are not scaled", 0.0, 1.0),
    ".expert_gating_func": neutral("softmax", 0, 1),
    ".expert_group_count": neutral("experts are not in groups", 0, 1),
    ".expert_group_used_count": neutral("experts are not in groups", 0, 1),
    ".expert_group_scale": neutral("experts are not in groups"),
    ".experts_per_group": _off("experts are not in groups"),
    ".expert_chunk_feed_forward_length": _off("experts are not in chunks"),
    ".expert_latent_length": _off("experts see rows as they are"),
    ".moe_latent_size": _off("experts see rows as they are"),
    ".moe_every_n_layers": neutral("the tensors say which layers have experts", 0, 1),
    ".interleave_moe_layer_step": neutral("the tensors say which layers have experts", 0, 1),
    ".leading_dense_block_count": _off("the tensors say which layers have experts"),
}
EXPERTS: Settings = {
    **ROUTED,
    ".expert_shared_feed_forward_length": read("width of the shared expert"),
    ".expert_shared_count": neutral("there is one", 0, 1),
}
ROUTED_WITHOUT_WIDTH: Settings = {
    **ROUTED,
    ".expert_feed_forward_length": _off("an expert is as wide as feed_forward_length says"),
}
SCORED: Settings = {  # of experts that are chosen with a bias, and of which several widths may be shared
    **ROUTED,
    ".expert_shared_count": read("experts that every row goes through: so wide is the shared one"),
    ".expert_weights_norm": read("whether an expert's sigmoid is divided by those of all that were chosen"),
    ".expert_weights_scale": read("what routed experts give is multiplied by it; 0: it is not"),
    ".expert_gating_func": neutral("sigmoid", 0, 2),
    ".expert_group_count": read("groups of experts"),
    ".expert_group_used_count": read("groups that are looked at, by their two best experts"),
    ".leading_dense_block_count": read("allowed if it is the layers whose tensors are those of an MLP"),
}
_NOT_NORMED = neutral("weights are not normalised", False)
LATENT: Settings = {
    ".attention.kv_lora_rank": read("rank of the latent"),
    ".attention.q_lora_rank": read("rank of queries; 0: they are made of the layer's input itself"),
    ".attention.key_length_mla": read("size of a head's key, rotated or not"),
    ".attention.value_length_mla": read("size of a head's value"),
    ".attention.key_length": read("allowed if it is what a cell keeps; of older files, as key_length_mla"),
    ".attention.value_length": read("allowed if it is the latent's rank; of older files, as value_length_mla"),
    ".attention.head_count_kv": read("allowed if it is 1; of older files, head_count"),
    ".rope.dimension_count": read("size of the rotated key"),
    ".expert_gating_func": read("0, 1: experts' shares, DeepSeek-V2; 2: their sigmoid, DeepSeek-V3"),
    ".rope.scaling.yarn_log_multiplier": read("a tenth of mscale and mscale_all_dim, which scale scores"),
}
INDEXED: Settings = {
    ".attention.indexer.head_count": read("heads of the index"),
    ".attention.indexer.key_length": read("size of an index key"),
    ".attention.indexer.top_k": read("keys that a row attends to"),
    ".expert_gating_func": neutral("sigmoid", 0, 2),
}
SHARES: Settings = {  # of experts in groups that are chosen by their shares
    **SCORED,
    ".expert_weights_norm": _NOT_NORMED,
    ".expert_group_used_count": read("groups that are looked at, by their best expert"),
}
NOT_NORMED: Settings = {".expert_weights_norm": _NOT_NORMED}


def architecture_settings(form: GgufForm) -> Settings:
    """Of one architecture's own keys, each with its dot. Exact keys of ``form`` win over patterns of all."""
    return {**form.settings, **{key: each for key, each in ARCHITECTURE.items() if key not in form.settings}}


def tokenizer_settings(kind: str, whole: bool) -> Settings:
    """``kind``: tokenizer.ggml.model. ``whole``: whether the file has tokenizer.huggingface.json."""
    own = TOKENIZERS["none" if kind == "no_vocab" else kind]
    return {**own, **_WHOLE} if whole and kind in TOKENIZERS.keys() - {"none"} else own


def file_settings(architecture: str, form: GgufForm, kind: str, whole: bool) -> Settings:
    """Of every key of a file, under its full name."""
    own = {f"{architecture}{key}": setting for key, setting in architecture_settings(form).items()}
    return {**GENERAL, **tokenizer_settings(kind, whole), **own}
