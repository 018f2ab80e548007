"""The treatment of the keys that configurations of all families share; families add theirs (families/).

Neutral keys fall into kinds: what a file says about itself, how answers are chosen (that is the caller's), what only
training sees, how transformers computes the same numbers. Refused are those by which transformers 5.24 would compute
something else: masks, layers that differ, weights from another file.
"""

from __future__ import annotations

from .settings import Setting, Settings, neutral, read, refused

_ABOUT = "says something about the file, not about what is computed"
_CHOICE = "how tokens are chosen is what the caller says"
_TRAINING = "seen in training only"
_HOW = "transformers computes the same numbers, in another way or order"
_OUTPUT = "what transformers' models return beside logits"
_HEADS = "of models that end in something else than logits over a vocabulary"
SIZE = read("a size; tensors have to fit it")
_ENCODER = "of models with an encoder, which have other architectures"


def _all(names: str, why: str) -> dict[str, Setting]:
    return dict.fromkeys(names.split(), neutral(why))


ABOUT: Settings = {
    **_all(
        "_name_or_path name_or_path _commit_hash transformers_version auto_map torch_dtype dtype tokenizer_class "
        "processor_class finetuning_task task_specific_params license model_max_length seq_length "
        "unsloth_fixed unsloth_version is_llama_config adapter_path _diffusers_version transformers.js_config "
        "_attn_implementation_autoset for_llm_compressor base_model_ep_plan base_model_tp_plan base_model_pp_plan "
        "base_model_fsdp_plan",
        _ABOUT,
    ),
    "pad_token_id": neutral("nothing is padded"),
}
CHOICE: Settings = _all(
    "max_length max_new_tokens min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty "
    "temperature top_k top_p min_p typical_p epsilon_cutoff eta_cutoff repetition_penalty encoder_repetition_penalty "
    "length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores "
    "return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values suppress_tokens "
    "begin_suppress_tokens exponential_decay_length_penalty decoder_start_token_id cache_implementation "
    "assistant_confidence_threshold assistant_lookbehind num_assistant_tokens num_assistant_tokens_schedule "
    "target_lookbehind prefix",
    _CHOICE,
)
TRAINING: Settings = {
    **_all("initializer_range gradient_checkpointing", _TRAINING),
    **_all("router_aux_loss_coef router_jitter_noise aux_loss_alpha", _TRAINING),
    "*dropout*": neutral(_TRAINING),
    "*_pdrop": neutral(_TRAINING),
}
HOW: Settings = _all(
    "use_cache pretraining_tp attn_implementation _attn_implementation experts_implementation _experts_implementation "
    "_attn_implementation_internal _experts_implementation_internal chunk_size_feed_forward torchscript use_bfloat16 "
    "tf_legacy_loss distributed_config",
    _HOW,
)
OUTPUT: Settings = _all(
    "output_attentions output_hidden_states output_router_logits return_dict use_return_dict tie_last_hidden_states",
    _OUTPUT,
)
HEADS: Settings = _all("id2label label2id num_labels problem_type classifier_dropout", _HEADS)
ENCODER: Settings = {
    "is_encoder_decoder": neutral(_ENCODER, False),
    "add_cross_attention": neutral(_ENCODER, False),
    **_all("cross_attention_hidden_size tie_encoder_decoder is_decoder sep_token_id", _ENCODER),
    "pruned_heads": neutral("heads that were taken out are not computed so", {}),
}
NOT_COMPUTED: Settings = {
    "quantization_config": neutral("packed weights of other programs are not computed; GGUF files are", {}),
    **dict.fromkeys(
        ("quantization", "compression_config"), refused("packed weights of other programs are not computed")
    ),
    "is_causal": neutral("a token sees no later one", True),
    "use_bidirectional_attention": neutral("a token sees no later one", False),
    "per_layer_config": refused("layers that differ in more than their kind are not computed"),
    "kv_sharing_modes": refused("layers that share keys and values are not computed"),
    "num_kv_shared_layers": neutral("layers that share keys and values are not computed", 0),
    "fusion_config": refused("transformers would put other layers in the place of these"),
    **dict.fromkeys(
        ("text_config", "decoder", "generator", "text_encoder"),
        refused("a configuration inside this one, which has another architecture"),
    ),
    "rope_interleaved": neutral("halves of a head rotate against each other", False),
    "use_mrope": neutral("all axes of positions are equal in text", False),
    "transformers_weights": neutral("weights are taken from model.safetensors, or its shards", "model.safetensors"),
}

# Of every configuration, also of one around a text model.
AROUND: Settings = {
    **ABOUT,
    **CHOICE,
    **TRAINING,
    **HOW,
    **OUTPUT,
    **HEADS,
    **ENCODER,
    **NOT_COMPUTED,
    "architectures": read("which family computes it"),
    "model_type": read("the same, where there is no architecture; has to fit it"),
    "tie_word_embeddings": read("whether the head is the embedding; a head that is stored is used in any case"),
    "bos_token_id": read("of text_config, too, where it has none"),
    "eos_token_id": read("ends a text; generation_config.json before it"),
}
# Of a configuration with text_config, for a model that also sees or hears.
OUTER: Settings = {
    **AROUND,
    "text_config": read("the text model's configuration"),
    **_all(
        "vision_config audio_config *_token_id *_token_index mm_tokens_per_image language_model_only "
        "projector_hidden_act vision_feature_layer multimodal_projector_bias spatial_merge_size",
        "images and sound are not computed; of text the model is the same",
    ),
}
CHOSEN = read("experts that a token goes through")
COMMON: Settings = {
    **AROUND,
    **dict.fromkeys(
        ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
        SIZE,
    ),
    "num_key_value_heads": read("heads of keys and values; null: as many as of the queries"),
    "hidden_act": read("silu; others are refused"),
    "max_position_embeddings": read("the longest text; RoPE's original length, where none is given"),
    "rms_norm_eps": read("added to the mean square in norms"),
    "attention_bias": read("whether attention's projections have biases"),
    "layer_types": read("what each layer sees; kinds that the family does not have are refused"),
    "rope_theta": read("RoPE: see below"),
    "rope_scaling": read("RoPE: see below"),
    "rope_parameters": read("RoPE: see below"),
    "partial_rotary_factor": read("RoPE: see below"),
    "original_max_position_embeddings": read("RoPE: see below"),
    **_all(
        "mtp_* num_nextn_predict_layers",
        "layers that predict further tokens; the next one is the same without, and `mtp=True` goes by the tensors",
    ),
}
GENERATION: Settings = {
    "bos_token_id": read("before that of config.json"),
    "eos_token_id": read("ends a text; before that of config.json"),
    "*": neutral(_CHOICE),
}


# Of a family all of whose layers see everything: transformers' caches would go by these.
WINDOWLESS: Settings = {
    "use_sliding_window": neutral("every layer sees all tokens before its own", False),
    "max_window_layers": neutral("of windows, which this family does not have"),
    "sliding_window": refused("every layer sees all tokens before its own"),
    "attention_chunk_size": refused("every layer sees all tokens before its own"),
}
# Of a family whose layers see ``sliding_window`` tokens, whenever that is a number.
WINDOW: Settings = {
    **_all("use_sliding_window max_window_layers", "sliding_window alone says it"),
    "sliding_window": read("tokens that a sliding layer sees, its own among them; null: it sees everything"),
    "attention_chunk_size": WINDOWLESS["attention_chunk_size"],
}
NO_CHUNKS: Settings = {"attention_chunk_size": WINDOWLESS["attention_chunk_size"]}
_SWITCHED = "of windows, which use_sliding_window switches on"
# Of a family whose windows are switched on by ``use_sliding_window``.
SWITCHED_WINDOWS: Settings = {
    "use_sliding_window": read("whether layers see windows, where sliding_window is a number"),
    "sliding_window": read("tokens that a sliding layer sees, its own among them"),
    "max_window_layers": read("where layer_types is absent, the first layers, which see everything"),
}
# Of one that has none to switch on.
NO_WINDOWS_TO_SWITCH: Settings = {
    "use_sliding_window": neutral("windows of this family are not computed", False),
    "sliding_window": neutral(_SWITCHED),
    "max_window_layers": neutral(_SWITCHED),
}


def not_read(*names: str) -> dict[str, Setting]:
    """Keys that only other families read, here and in transformers."""
    return dict.fromkeys(names, neutral("of other families; transformers does not read it here either"))
