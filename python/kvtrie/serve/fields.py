"""The treatment of each field of a request: it is obeyed, ignored because it cannot change the answer, or refused.

Concept. A field that is dropped in silence makes an answer look like one that was never given: text without the grammar
that was asked for, another model's, one from a prefix that should not have been shared. So there are three kinds of
fields, and no fourth:

    obeyed      those of the schemas (openai_schema.py, anthropic_schema.py)
    harmless    ``HARMLESS``, with the reason why an answer means the same without them
    refused     ``REFUSED``, where a schema has no field of that name, with what to send instead, unless the value asks
                for nothing (``but``); and every name that stands nowhere, for nobody here can say what it asks for.
                ``null`` asks for nothing.

This holds for the fields of a request itself. Within messages, tools and other objects, names that the schemas do not
have are ignored: they describe what is sent, not what is wanted.

``tables`` has it all as Markdown, which docs/serve.md shows (tests/python/test_serve_fields.py compares them, and
`--write` brings the page up to date). Sources: the references of OpenAI, Anthropic, vLLM,
SGLang, llama.cpp, TGI, Mistral, OpenRouter and Ollama.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from pydantic import ConfigDict

from .failures import Refusal
from .wire import BaseModel


class Harmless(NamedTuple):
    """``why``: an answer means the same without them."""

    names: str
    why: str


class Refused(NamedTuple):
    """``instead``: what to do. ``but``: values that ask for nothing, beside null."""

    names: str
    instead: str
    but: tuple[object, ...] = ()


HARMLESS = (
    Harmless(
        "user metadata safety_identifier user_profile_id request_id rid",
        "names of who asks; nothing is made of them",
    ),
    Harmless("billing_policy workspace_id fallback_credit_token", "who pays"),
    Harmless("store", "what these routes answer is not stored; /v1/responses is another API"),
    Harmless(
        "prompt_cache_key prompt_cache_retention prompt_cache_options",
        "every prompt is found by its tokens; what is kept is the server's choice",
    ),
    Harmless(
        "service_tier speed inference_geo priority data_parallel_rank id_slot",
        "where and how soon it is computed",
    ),
    Harmless("draft_model lookahead speculative", "guesses make an answer faster, never different"),
    Harmless("keep_alive ttl", "the model stays loaded"),
    Harmless("models route provider fallbacks", "there is one model, and one server"),
    Harmless("diagnostics", "a report on what was known of a prompt, which `/explain` gives"),
    Harmless("verbosity", "a hint to the models that know it"),
    Harmless("usage timings_per_token", "usage and timings are always there"),
    Harmless("betas", "names of features that have fields of their own"),
    Harmless(
        "context_management",
        "it takes old content out to save tokens; the model sees all of it here, and no edit is reported",
    ),
    Harmless("mirostat_tau mirostat_eta mirostat_lr", "of mirostat, which is refused"),
    Harmless(
        "dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers",
        "of dry_multiplier, which is refused",
    ),
    Harmless("xtc_threshold dynatemp_exponent", "of xtc_probability and dynatemp_range, which are refused"),
    Harmless("spaces_between_special_tokens", "special tokens are not shown"),
    Harmless("n_keep n_discard cache_reuse", "nothing is ever cut out of a conversation to make room"),
)  # fmt: skip

_SCHEMA = "`response_format` with `json_schema`"
REFUSED = (
    Refused(
        "guided_regex guided_choice guided_grammar regex choice ebnf grammar grammar_lazy grammar_triggers "
        "structural_tag",
        _SCHEMA,
    ),
    Refused(
        "guided_decoding_backend guided_whitespace_pattern guided_options_request preserved_tokens chat_format",
        "nothing: schemas are compiled by llguidance, to compact JSON",
    ),
    Refused("functions function_call", "`tools` and `tool_choice`"),
    Refused("thread", "all messages of the conversation, or /v1/responses with `previous_response_id`"),
    Refused("compaction", "a message that asks for a summary"),
    Refused("prediction", "`prediction` of /v1/chat/completions"),
    Refused("best_of", "`n`", (1,)),
    Refused("echo return_full_text", "`echo` of /v1/completions", (False,)),
    Refused(
        "suffix input_prefix input_suffix input_extra",
        "the text around the gap in `prompt`, as the model was trained", ("", []),
    ),
    Refused("prompt_logprobs", "`prompt_logprobs` of /v1/completions"),
    Refused(
        "return_logprob logprob_start_len top_logprobs_num token_ids_logprob n_probs post_sampling_probs details "
        "decoder_input_details",
        "`logprobs` and `top_logprobs`", (0, -1, False),
    ),
    Refused(
        "lora lora_path lora_id lora_request adapters adapter_id adapter_source",
        "a server of a model that has the adapter merged", ([],),
    ),
    Refused("extra_key", "`cache_salt`"),
    Refused("n_predict max_new_tokens max_length num_predict max_output_tokens", "`max_tokens`", (-1,)),
    Refused("min_tokens min_new_tokens min_length", "`ignore_eos`", (0,)),
    Refused("repeat_penalty", "`repetition_penalty`", (1,)),
    Refused("repeat_last_n", "nothing: penalties look at the whole text", (-1,)),
    Refused("penalize_nl", "`logit_bias`", (True,)),
    Refused(
        "no_repeat_ngram_size dry_multiplier",
        "`repetition_penalty`, `presence_penalty`, `frequency_penalty`", (0,),
    ),
    Refused("length_penalty", "nothing: there is no beam search", (1,)),
    Refused("use_beam_search early_stopping", "`n`", (False,)),
    Refused("num_beams", "`n`", (1,)),
    Refused(
        "top_a mirostat mirostat_mode xtc_probability dynatemp_range smoothing_factor min_keep",
        "`temperature`, `top_k`, `top_p`, `min_p`, `typical_p`", (0,),
    ),
    Refused("top_n_sigma", "`min_p`", (-1, 0)),
    Refused("tfs_z", "`typical_p`", (1,)),
    Refused("samplers", "nothing: their order is fixed", ([],)),
    Refused("do_sample", "`temperature`", (True,)),
    Refused("random_seed", "`seed`"),
    Refused(
        "bad_words allowed_token_ids bad_words_ids logits_processors custom_logit_processor custom_params vllm_xargs",
        "`logit_bias`", ([], {}),
    ),
    Refused("stop_regex", "`stop`", ([],)),
    Refused("include_stop_str_in_output no_stop_trim", "nothing: a stop text is not part of the answer", (False,)),
    Refused("skip_special_tokens", "`return_token_ids` of /v1/completions", (True,)),
    Refused("detokenize", "`return_token_ids` of /v1/completions", (True,)),
    Refused(
        "return_tokens_as_token_ids return_token_strs with_pieces return_tokens return_hidden_states",
        "`return_token_ids` of /v1/completions", (False,),
    ),
    Refused("truncate truncate_prompt_tokens truncation transforms", "a shorter prompt", ("disabled", [], False)),
    Refused("t_max_predict_ms max_time n_indent", "`max_tokens`", (0, -1)),
    Refused(
        "chat_template template raw tool_prompt prompt_mode safe_prompt",
        "the template of the model, with `chat_template_kwargs`", (False,),
    ),
    Refused("add_generation_prompt", "nothing: each answer is begun as the template has it", (True,)),
    Refused("continue_final_message", "nothing: a last text of the assistant's is always gone on with", (True,)),
    Refused("enable_thinking think thinking_budget reasoning", "`reasoning_effort`, or `chat_template_kwargs`"),
    Refused(
        "include_reasoning separate_reasoning stream_reasoning parse_tool_calls",
        "nothing: reasoning and calls are told apart from text", (True,),
    ),
    Refused("reasoning_in_content thinking_forced_open", "nothing: reasoning is told apart from text", (False,)),
    Refused("reasoning_format", "nothing: reasoning is told apart from text", ("auto", "deepseek")),
    Refused("reasoning_budget", "`max_tokens`", (-1,)),
    Refused("documents image_data images video_data audio_data audio mm_processor_kwargs", "text in `messages`", ([],)),
    Refused("modalities", "text", (["text"],)),
    Refused("web_search_options mcp_servers container plugins", "`tools` that the client runs", ([],)),
    Refused(
        "input_ids input_embeds prompt_embeds sampling_params session_params options context",
        "the fields of this API",
    ),
    Refused("response_fields", "nothing: an answer has all of its fields", ([],)),
    Refused("kv_transfer_params bootstrap_host bootstrap_port bootstrap_room", "`python -m kvtrie serve --store`"),
    Refused("background", "`stream`", (False,)),
    Refused("moderation watermark", "nothing: there is none", (False,)),
)  # fmt: skip

_WHY = {name: each.why for each in HARMLESS for name in each.names.split()}
_INSTEAD = {name: each for each in REFUSED for name in each.names.split()}


class Fields(BaseModel):
    """A request's fields; those that its schema does not have are judged by ``require_known``."""

    model_config = ConfigDict(extra="allow")

    def require_known(self, ignored: Collection[str] = ()) -> None:
        """Raises ``Refusal`` (400) for a field that is neither obeyed nor harmless; ``ignored``: more that are."""
        for name, value in (self.model_extra or {}).items():
            if value is not None and name not in _WHY and name not in ignored:
                _judge(name, value)


class PromptFields(Fields):
    """The fields of a route that takes bodies meant for another one, and looks at their prompt only:
    ``about_answers``."""

    @classmethod
    def about_answers(cls) -> Collection[str]:
        """Names that mean nothing without an answer."""
        return ()

    def require_known(self, ignored: Collection[str] = ()) -> None:
        """The same."""
        super().require_known({*ignored, *self.about_answers()})


def _judge(name: str, value: object) -> None:
    known = _INSTEAD.get(name)
    if known is None:
        said = f"{name[:100]}: got a field that is not known here, allowed those of docs/serve.md"
        raise Refusal(400, said, code="unknown_parameter", param=name[:100])
    if not any(type(value) is type(asks_nothing) and value == asks_nothing for asks_nothing in _same(known.but)):
        said = f"{name}: got a field that is not obeyed here, allowed instead: {known.instead}"
        raise Refusal(400, said, code="unsupported_parameter", param=name)


def _same(values: tuple[object, ...]) -> Iterator[object]:
    """Whole numbers, also as JSON may spell them: 1 and 1.0."""
    for value in values:
        yield value
        if type(value) is int:
            yield float(value)


# ---- as Markdown -----------------------------------------------------------------------------------------------------


def tables(schemas: Mapping[str, type[BaseModel]]) -> str:
    """``schemas``: by the names of their routes."""
    obeyed = [f"| `{route}` | {_ticked(field_names(schema))} |" for route, schema in schemas.items()]
    harmless = [f"| {_ticked(each.names.split())} | {each.why} |" for each in HARMLESS]
    refused = [f"| {_ticked(each.names.split())} | {_but(each.but)} | {each.instead} |" for each in REFUSED]
    return "\n".join([
        "| route | obeyed |", "|---|---|", *obeyed, "",
        "| ignored everywhere | why it is harmless |", "|---|---|", *harmless, "",
        "| refused where it is not obeyed | but for | instead |", "|---|---|---|", *refused, "",
    ])  # fmt: skip


def field_names(schema: type[BaseModel]) -> list[str]:
    """As they stand in JSON."""
    return [field.alias or name for name, field in schema.model_fields.items()]


def _ticked(names: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _but(values: tuple[object, ...]) -> str:
    spelled = {True: "true", False: "false"}
    return ", ".join(f"`{spelled[value] if isinstance(value, bool) else repr(value)}`" for value in values).replace(
        "'", '"'
    )
