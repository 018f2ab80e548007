"""Tokenizers from GGUF files against the same vocabularies as their ``tokenizer.json`` has them, on hostile strings."""

from __future__ import annotations

import dataclasses
import io
import json
import random
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

import kvtrie as kv
from gguf_files import checkpoint, rewrite, write
from kvtrie import cli
from kvtrie.models.gguf.pre_tokenizers import RULES, normalizer, pre_tokenizer

# Words of many scripts, digits of several, what contractions and NFC are about, and spaces of all kinds.
FOREIGN = (
    " Gr\u00f6\u00dfe, l'\u00e9t\u00e9 d'aujourd'hui, na\u00efve; \u041f\u0440\u0438\u0432\u0435\u0442"
    " \u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f \uff11\uff12\uff13 \uc548\ub155"
    " \u0645\u0631\u062d\u0628\u0627 42 \u0928\u092e\u0938\u094d\u0924\u0947 I'm you're WE'LL don't 3.14159 1234567"
    " x+=1; $a<b>^~|`\t\t  \r\n\r\n   e\u0301 \u212b \ufb01 \U0001f642\U0001f469\u200d\U0001f467 \u00bd \u2167"
    " \u00a0 \u2581\n"
)
CORPUS = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8") + FOREIGN * 8
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<think>", "\n\n\n"]
CHAT = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' }}{% endfor %}"

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern: str) -> Any:
    cut = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# As in the tokenizer.json of a model of each: GPT-2, SmolLM2, Llama 3, Qwen2.5 and Qwen3, Qwen3.5.
BYTE_LEVEL: dict[str, tuple[Any, Any]] = {
    "gpt-2": (None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "smollm": (
        None,
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
    ),
    "llama-bpe": (None, split(_LLAMA3)),
    "qwen2": (normalizers.NFC(), split(_LLAMA3.replace("{1,3}", ""))),
    "qwen35": (normalizers.NFC(), split(_QWEN35)),
}


def hostile(count: int, seed: int) -> list[str]:
    """Random strings of words, odd characters, special tokens and whatever Unicode has."""
    dice = random.Random(seed)
    words = CORPUS.split(" ")
    odd = [
        *SPECIAL,
        *PLAIN,
        "<|im_",
        "\r",
        "\r\n",
        "\n",
        "\t",
        "  ",
        "   ",
        "\u3000",
        "'S",
        "'ll",
        "\0",
        "\ufffd",
        "e\u0301",
    ]
    odd += [
        "<0x41>",
        "\u2581",
        "\u2581\u2581\u2581",
        "\u200d",
        "\u0f00",
        "\u0663\u0664",
        "\u216b",
        "<s>",
        "</s>",
        "<unk>",
    ]

    def part() -> str:
        kind = dice.randrange(5)
        if kind == 0:
            return dice.choice(odd)
        if kind == 1:
            return "".join(chr(_code(dice)) for _ in range(dice.randrange(1, 6)))
        if kind == 2:
            return str(dice.randrange(10 ** dice.randrange(1, 9)))
        return dice.choice(words) + " " * dice.randrange(3)

    return ["", *("".join(part() for _ in range(dice.randrange(1, 12))) for _ in range(count - 1))]


def _code(dice: random.Random) -> int:
    code = dice.choice([dice.randrange(128), dice.randrange(0x3000), dice.randrange(0x110000)])
    return code if not 0xD800 <= code < 0xE000 else 0x20AC


def trained(name: str) -> Any:
    """A byte-level tokenizer with 700 tokens, added ones last."""
    normalizer, pre_tokenizer = BYTE_LEVEL[name]
    raw = tokenizers.Tokenizer(models.BPE())
    if normalizer is not None:
        raw.normalizer = normalizer
    raw.pre_tokenizer = pre_tokenizer
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        [CORPUS], trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    )
    model = tokenizers.Tokenizer.from_str(raw.to_str())
    if RULES[name].whole:
        model.model.ignore_merges = True
    model.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    model.add_tokens([AddedToken(token, normalized=False, special=False) for token in PLAIN])
    return model


def merges_of(raw: Any) -> list[str]:
    return [" ".join(pair) for pair in json.loads(raw.to_str())["model"]["merges"]]


def tokens_of(raw: Any) -> list[str]:
    return [raw.id_to_token(index) for index in range(raw.get_vocab_size())]


def loaded(path: Path, vocab: int, tokenizer: Any) -> Any:
    """The model of a file with this vocabulary."""
    config, weights = checkpoint("llama-gqa-tied")
    config = dataclasses.replace(config, vocab_size=vocab)
    table = np.random.default_rng(1).standard_normal((vocab, config.hidden_size)).astype(np.float32)
    return kv.models.load(write(config, {**weights, "model.embed_tokens.weight": table}, path, tokenizer=tokenizer))


def byte_level_keys(name: str, raw: Any, **more: Any) -> Any:
    tokens = tokens_of(raw)

    def keys(writer: Any) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(name)
        writer.add_token_list(tokens)
        writer.add_token_types([3 if token in SPECIAL else 4 if token in PLAIN else 1 for token in tokens])
        writer.add_token_merges(merges_of(raw))
        writer.add_eos_token_id(tokens.index("<|im_end|>"))
        writer.add_bos_token_id(tokens.index("<|endoftext|>"))
        writer.add_chat_template(CHAT)
        for key, value in more.items():
            getattr(writer, key)(value)

    return keys


def check_equal(ours: Any, reference: Any, texts: Sequence[str]) -> None:
    for text in texts:
        wanted = reference.encode(text).ids
        assert ours.encode(text) == wanted, repr(text)
        for skip in (False, True):
            assert ours.decode(wanted, skip_special_tokens=skip) == reference.decode(wanted, skip_special_tokens=skip)


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_byte_level(name: str, tmp_path: Path) -> None:
    reference = trained(name)
    bos = {"add_add_bos_token": False} if RULES[name].bos else {}
    model = loaded(tmp_path / "model.gguf", reference.get_vocab_size(), byte_level_keys(name, reference, **bos))
    ours = model.tokenizer
    check_equal(ours, reference, hostile(2000, seed=11))
    assert ours.vocab_size == reference.get_vocab_size()
    assert ours.special == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    assert model.config.bos_token_id == ours.token_id("<|endoftext|>")
    assert model.config.eos_token_ids == (ours.token_id("<|im_end|>"), ours.token_id("<|endoftext|>"))
    messages = [{"role": "user", "content": "Hi"}]
    assert ours.apply_chat_template(messages, tokenize=False) == "<|im_start|>user\nHi<|im_end|>"


def test_chat_takes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = trained("smollm")
    path = tmp_path / "model.gguf"
    loaded(path, reference.get_vocab_size(), byte_level_keys("smollm", reference))
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nmore\n/quit\n"))
    out = io.StringIO()
    assert cli.main(["chat", str(path), "--max-tokens", "4", "--capacity", "512"], out) == 0
    assert out.getvalue().count("| reused") == 2 and "error" not in out.getvalue()


@pytest.mark.parametrize("name", RULES)
def test_every_pre_tokenizer_loses_nothing(name: str, tmp_path: Path) -> None:
    """Whatever it cuts, the bytes come back; NFC only where the name stands for it."""
    rule = RULES[name]
    for text in hostile(300, seed=5):
        normal = unicodedata.normalize("NFC", text) if rule.nfc else text
        assert (normalizer(rule).normalize_str(text) if rule.nfc else text) == normal
        pieces = [piece for piece, _ in pre_tokenizer(rule).pre_tokenize_str(normal)]
        assert decoders.ByteLevel().decode(pieces) == normal


@pytest.mark.parametrize("add", [True, False, None])
def test_bos(add: bool | None, tmp_path: Path) -> None:
    """The file's word, else what the name of its pre-tokenizer stands for."""
    for name in ("llama-bpe", "smollm"):
        reference = trained(name)
        more = {} if add is None else {"add_add_bos_token": add}
        keys = byte_level_keys(name, reference, **more)
        ours = loaded(tmp_path / f"{name}-{add}.gguf", reference.get_vocab_size(), keys).tokenizer
        wanted = [ours.token_id("<|endoftext|>")] if add or (add is None and name == "llama-bpe") else []
        plain = reference.encode("Some text").ids
        assert ours.encode("Some text") == [*wanted, *plain]
        assert ours.encode("Some text", add_special_tokens=False) == plain


def sentence_piece(prefix: bool) -> Any:
    """A tokenizer as Llama 2 (or, without ``prefix``, Gemma) has it, and its pieces in the order of their scores."""
    raw = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [normalizers.Prepend("\u2581")] if prefix else []
    raw.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "\u2581")])
    own = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    raw.train_from_iterator(
        CORPUS.split("\n"), trainers.BpeTrainer(vocab_size=800, special_tokens=own, show_progress=False)
    )
    return raw


@pytest.mark.parametrize("prefix", [True, False])
def test_sentence_piece(prefix: bool, tmp_path: Path) -> None:
    """Merges are found again from pieces and scores."""
    trainer = sentence_piece(prefix)
    tokens = tokens_of(trainer)
    ranks = {a + b: rank for rank, (a, b) in reversed(list(enumerate(json.loads(trainer.to_str())["model"]["merges"])))}
    reference = tokenizers.Tokenizer(
        models.BPE(
            {token: index for index, token in enumerate(tokens)},
            [tuple(pair) for pair in json.loads(trainer.to_str())["model"]["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    reference.normalizer = trainer.normalizer
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    reference.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    reference.add_special_tokens([AddedToken(token, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    reference.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 1)])

    def keys(writer: Any) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([float(-ranks.get(token, len(ranks))) for token in tokens])
        writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)])
        writer.add_unk_token_id(0)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_space_prefix(prefix)

    ours = loaded(tmp_path / "model.gguf", len(tokens), keys).tokenizer
    check_equal(ours, reference, hostile(2000, seed=12))
    assert ours.encode("a", add_special_tokens=False) == reference.encode("a", add_special_tokens=False).ids


def test_a_whole_tokenizer_in_the_file_wins(tmp_path: Path) -> None:
    reference = trained("smollm")
    vocab = reference.get_vocab_size()
    keys = byte_level_keys("default", reference, add_add_eos_token=True)

    def with_json(writer: Any) -> None:
        keys(writer)
        writer.add_string("tokenizer.huggingface.json", reference.to_str())

    check_equal(loaded(tmp_path / "model.gguf", vocab, with_json).tokenizer, reference, hostile(200, seed=13))


Values = dict[str, tuple[Any, Any]]
WRONG: dict[str, tuple[Any, str]] = {
    "unknown model": (
        lambda v: v.update({"tokenizer.ggml.model": (v["tokenizer.ggml.model"][0], "rwkv")}),
        "gpt2, llama",
    ),
    "unknown pre-tokenizer": (
        lambda v: v.update({"tokenizer.ggml.pre": (v["tokenizer.ggml.pre"][0], "new")}),
        "tokenizer.ggml.pre: got 'new', allowed ",
    ),
    "no tokens": (lambda v: v.pop("tokenizer.ggml.tokens"), "key 'tokenizer.ggml.tokens' is missing"),
    "no merges": (lambda v: v.pop("tokenizer.ggml.merges"), "key 'tokenizer.ggml.merges' is missing"),
    "a merge of one token": (lambda v: v["tokenizer.ggml.merges"][1].append("one"), "tokenizer.ggml.merges: got 'one'"),
    "a merge of unknown tokens": (lambda v: v["tokenizer.ggml.merges"][1].append("zq qz"), "not a tokenizer"),
    "a token twice": (
        lambda v: v["tokenizer.ggml.tokens"][1].__setitem__(5, v["tokenizer.ggml.tokens"][1][6]),
        "each token once",
    ),
    "more tokens than rows": (
        lambda v: (v["tokenizer.ggml.tokens"][1].append("more"), v["tokenizer.ggml.token_type"][1].append(1)),
        "the rows of token_embd",
    ),
    "too few types": (lambda v: v["tokenizer.ggml.token_type"][1].pop(), "tokenizer.ggml.token_type"),
    "eos outside": (
        lambda v: v.update({"tokenizer.ggml.eos_token_id": (v["tokenizer.ggml.eos_token_id"][0], 9999)}),
        "tokenizer.ggml.eos_token_id: got 9999, allowed an integer from 0 to",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str, tmp_path: Path) -> None:
    reference = trained("smollm")
    path = tmp_path / "model.gguf"
    loaded(path, reference.get_vocab_size(), byte_level_keys("smollm", reference))
    change, message = WRONG[name]
    rewrite(path, lambda values, _: change(values))
    with pytest.raises(kv.FormatError) as error:
        kv.models.load(path)
    assert message in str(error.value) and str(path) in str(error.value)
