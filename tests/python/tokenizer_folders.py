"""Folders with small tokenizers, and every way in which their files may say something else."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from hostile_texts import CORPUS, texts

TEXTS = ["Hello world", "<s>hi </s> there<s> x", " a  b\n c", "<|im_start|>user\nhi<|im_end|>\n \u00e9 \u2603 123"]
TEXTS += [
    "x<|endoftext|>y",
    "<extra>a<tool> b Hello",
    "<mask> <pad><new>",
    "1234 5678, I'm",
    " <extra> hello<tool>",
    "",
]
CLASSES: list[tuple[str | None, str | None]] = [  # model_type, tokenizer_class
    (None, "TokenizersBackend"),
    (None, None),
    ("llama", "LlamaTokenizerFast"),
    ("llama", "LlamaTokenizer"),
    ("llama", "PreTrainedTokenizerFast"),
    ("llama", None),
    ("llama4", "Llama4Tokenizer"),
    ("qwen2", "Qwen2Tokenizer"),
    ("qwen2", "LlamaTokenizerFast"),
    ("qwen3", None),
    ("qwen3_next", "Qwen2TokenizerFast"),
    ("qwen3_5_text", None),
    ("qwen3_5_text", "PreTrainedTokenizerFast"),
    ("gemma3_text", "GemmaTokenizerFast"),
    ("gemma3", "GemmaTokenizer"),
    ("gemma3_text", "LlamaTokenizer"),
    ("llama", "GPT2Tokenizer"),
    ("llama", "CohereTokenizer"),
]


def byte_level() -> Any:
    raw = tokenizers.Tokenizer(models.BPE())
    raw.normalizer = normalizers.NFC()
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        [CORPUS], trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    raw.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return raw


def trained_pieces(corpus: str, size: int) -> dict[str, Any]:
    """The tokenizer.json of a SentencePiece vocabulary, special tokens and bytes first, all of them added tokens."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    raw.train_from_iterator(
        corpus.split("\n"), trainers.BpeTrainer(vocab_size=size, special_tokens=first, show_progress=False)
    )
    whole: dict[str, Any] = json.loads(raw.to_str())
    whole["model"].update(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    return whole


def pieces() -> Any:
    """Llama 2's, as its tokenizer.json has it."""
    whole = trained_pieces(CORPUS, 700)
    whole["added_tokens"] = [each for each in whole["added_tokens"] if each["id"] < 3]
    raw = tokenizers.Tokenizer.from_str(json.dumps(whole))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    raw.decoder = decoders.Sequence(steps)
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return raw


RAW = {"byte-level": byte_level(), "pieces": pieces()}
SPECIAL = {"byte-level": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "pieces": ["<unk>", "<s>", "</s>"]}
SETTINGS: dict[str, dict[str, Any]] = {
    "byte-level": {"eos_token": "<|im_end|>"},
    "pieces": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
}


class Folder(NamedTuple):
    """``settings``: what tokenizer_config.json says beside ``SETTINGS``; ``files``: further ones; ``json``: what is
    changed in tokenizer.json."""

    kind: str
    model_type: str | None
    tokenizer_class: str | None
    settings: Mapping[str, Any] = {}
    files: Mapping[str, Any] = {}
    json: Mapping[str, Any] = {}

    def write(self, path: Path) -> Path:
        path.mkdir(parents=True)
        whole = {**json.loads(RAW[self.kind].to_str()), **self.json}
        named = {} if self.tokenizer_class is None else {"tokenizer_class": self.tokenizer_class}
        settings = {**SETTINGS[self.kind], **named, **self.settings}
        config = {} if self.model_type is None else {"config": {"model_type": self.model_type}}
        for name, value in {"tokenizer": whole, "tokenizer_config": settings, **config, **self.files}.items():
            (path / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
        return path


def token(text: str, **changed: Any) -> dict[str, Any]:
    fields = {"content": text, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    return {**fields, "special": True, **changed}


def folders() -> list[Folder]:
    """Each class with each change of each kind of file."""
    found = []
    for kind in RAW:
        changes = [*_settings(kind), *_tokens(kind), *_files(kind)]
        for model_type, name in CLASSES:
            if (kind, name) in (("pieces", "GPT2Tokenizer"), ("byte-level", "GemmaTokenizer")):
                continue
            found += [Folder(kind, model_type, name, *change) for change in changes]
    return found


Change = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]


def _settings(kind: str) -> Iterator[Change]:
    flags = ["add_bos_token", "add_eos_token", "add_prefix_space", "legacy", "clean_up_tokenization_spaces"]
    flags += ["split_special_tokens", "do_lower_case", "use_default_system_prompt", "spaces_between_special_tokens"]
    flags += ["clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", "from_slow", "strip_accents"]
    flags += ["fix_mistral_regex", "trim_offsets", "tokenize_chinese_chars", "use_fast", "novel"]
    for name in flags:
        yield from (({name: value}, {}, {}) for value in (True, False, None))
    others: dict[str, list[Any]] = {
        **{name: [3, None] for name in ("model_max_length", "max_length", "max_len", "stride", "pad_to_multiple_of")},
        "truncation_strategy": ["longest_first"],
        **{name: ["left", "right"] for name in ("padding_side", "truncation_side")},
        "truncation": [True],
        "padding": ["max_length"],
        "errors": ["strict"],
        "sp_model_kwargs": [{}, {"alpha": 0.1, "enable_sampling": True}],
        "init_inputs": [[], ["x"]],
        "fast_tokenizer_files": [["tokenizer.json"], ["tokenizer.4.0.0.json", "tokenizer.json"]],
        "processor_class": ["X"],
        "name_or_path": ["x"],
        "chat_control_tokens": [["hello"]],
        "dropout": [0.5],
        "model_input_names": [["input_ids"]],
    }
    yield from (({name: value}, {}, {}) for name, values in others.items() for value in values)
    yield {}, {}, {"truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}}
    pad = {"strategy": {"Fixed": 12}, "direction": "Left", "pad_id": 0, "pad_type_id": 0, "pad_token": SPECIAL[kind][0]}
    yield {}, {}, {"padding": {**pad, "pad_to_multiple_of": None}}
    yield {}, {}, {"post_processor": None}
    yield {"add_bos_token": True}, {}, {"post_processor": None}


def _tokens(kind: str) -> Iterator[Change]:
    special, size = SPECIAL[kind], RAW[kind].get_vocab_size()
    for name in ("bos_token", "eos_token", "unk_token", "pad_token", "mask_token", "cls_token", "image_token"):
        for text in (*special, "<new>", "Hello"):
            odd = token(text, lstrip=True, normalized=True, special=False)
            yield {name: text}, {}, {}
            yield {name: {"__type": "AddedToken", **odd}}, {}, {}
        yield {name: None}, {}, {}
    for name in ("additional_special_tokens", "extra_special_tokens"):
        for given in (["<extra>", "<tool>"], [special[0]], ["Hello"], [], None):
            yield {name: given}, {}, {}
        yield {name: [{"__type": "AddedToken", **token("<extra>", lstrip=True)}]}, {}, {}
    yield {"extra_special_tokens": {"tool_token": "<tool>"}}, {}, {}
    yield {"model_specific_special_tokens": {"tool_token": "<tool>"}}, {}, {}
    yield {"additional_special_tokens": ["<extra>"], "extra_special_tokens": ["<tool>"]}, {}, {}
    decoder = decoder_of(kind)
    one = str(RAW[kind].token_to_id(special[1]))
    for more in (
        {},
        {str(size): token("<extra>")},
        {str(size): token("<extra>", special=False, normalized=True)},
        {str(size): token("Hello world", special=False, single_word=True)},
        {str(size + 1): token("<tool>"), str(size): token("<extra>", rstrip=True)},
        {str(size + 3): token("<extra>")},
        {"5": token("<extra>")},
        {one: token(special[1], lstrip=True, rstrip=True)},
        {one: token(special[1], special=False)},
    ):
        yield {"added_tokens_decoder": {**decoder, **more}}, {}, {}
        yield {"added_tokens_decoder": {**decoder, **more}, "additional_special_tokens": ["<extra>", "<tool>"]}, {}, {}
    yield {"added_tokens_decoder": {}}, {}, {}


def _files(kind: str) -> Iterator[Change]:
    special, size = SPECIAL[kind], RAW[kind].get_vocab_size()
    files: list[dict[str, Any]] = [
        {"added_tokens": added}
        for added in (
            {"<extra>": size},
            {"<tool>": size + 1, "<extra>": size},
            {"<extra>": size + 2},
            {special[1]: RAW[kind].token_to_id(special[1])},
            {"Hello": size},
            {"<extra>": 3},
        )
    ]
    files += [
        {"special_tokens_map": named}
        for named in (
            {"bos_token": special[1]},
            {"bos_token": "<new>"},
            {"eos_token": token("<new>")},
            {"eos_token": {**token(special[0], lstrip=True), "special": False}},
            {"additional_special_tokens": ["<extra>", "<tool>"]},
            {"extra_special_tokens": ["<extra>"]},
            {"extra_special_tokens": {"tool_token": "<tool>"}},
            {"pad_token": special[0], "unk_token": "Hello"},
            {"image_token": "<tool>"},
        )
    ]
    files.append({"added_tokens": {"<extra>": size}, "special_tokens_map": {"additional_special_tokens": ["<extra>"]}})
    for each in files:
        yield {}, each, {}
        yield {"added_tokens_decoder": decoder_of(kind)}, each, {}


def decoder_of(kind: str) -> dict[str, Any]:
    """The added tokens of tokenizer.json, as tokenizer_config.json names them."""
    return {str(RAW[kind].token_to_id(text)): token(text) for text in SPECIAL[kind]}


def tried(seed: int) -> list[str]:
    return [*TEXTS, *random.Random(seed).sample(texts(200, 3300), 6)]
