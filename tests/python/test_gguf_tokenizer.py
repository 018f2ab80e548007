"""Tokenizers from GGUF files against the same vocabularies as their ``tokenizer.json`` has them, on hostile strings.

The other side is what transformers' fast tokenizers are: the ``tokenizers`` library, with the steps of a published
model of each family. ``transformers_tokenizers.py`` compares real files with transformers itself.
"""

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
from circles import CIRCLE
from gguf_files import checkpoint, rewrite, write
from hostile_texts import CORPUS, PLAIN, SPECIAL, texts
from kvtrie import cli
from kvtrie.models.gguf.pre_tokenizers import RULES, normalizer, pre_tokenizer

# What one tokenizer is tried on; the seed of a failure is in its message.
COUNT = {"test": 200, "ci": 1_000, "soak": 10_000}[CIRCLE]
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


def loaded(path: Path, vocab: int, tokenizer: Any, name: str = "llama-gqa-tied", **changes: Any) -> Any:
    """The model of a file with this vocabulary."""
    config, weights = checkpoint(name, **changes)
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


def check_equal(ours: Any, reference: Any, seed: int, count: int = COUNT) -> None:
    """Ids of texts, the texts of these ids, and those of random ids, with special tokens and without.

    What the reference puts before a text that has it already is there once.
    """
    dice, tried = random.Random(seed), texts(count, seed)
    before = reference.encode("").ids
    every = [found.ids for found in reference.encode_batch(tried)]
    every = [ids[len(before) :] if ids[: 2 * len(before)] == 2 * before else ids for ids in every]
    for index, (text, ids) in enumerate(zip(tried, every)):
        assert ours.encode(text) == ids, f"seed {seed}, text {index}: {text!r}"
    every += [dice.choices(range(reference.get_vocab_size()), k=dice.randrange(1, 8)) for _ in tried]
    for skip in (False, True):
        for ids, wanted in zip(every, reference.decode_batch(every, skip_special_tokens=skip)):
            assert ours.decode(ids, skip_special_tokens=skip) == wanted, f"seed {seed}: {ids}"


def test_the_texts_are_hostile() -> None:
    """Every category of Unicode but surrogates, long runs, and marks that NFC puts into order."""
    tried = texts(10_000, seed=11)
    found = {unicodedata.category(character) for text in tried for character in text}
    assert len(found) == 29 and "Cs" not in found
    assert max(map(len, tried)) > 1000
    assert sum(unicodedata.normalize("NFC", text) != text for text in tried) > 2000


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_byte_level(name: str, tmp_path: Path) -> None:
    reference = trained(name)
    bos = {"add_add_bos_token": False} if RULES[name].bos else {}
    model = loaded(tmp_path / "model.gguf", reference.get_vocab_size(), byte_level_keys(name, reference, **bos))
    ours = model.tokenizer
    check_equal(ours, reference, seed=11)
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
    assert out.getvalue().count("| first token ") == 2 and "error" not in out.getvalue()


@pytest.mark.parametrize("name", {rule: name for name, rule in RULES.items()}.values())
def test_every_pre_tokenizer_loses_nothing(name: str, tmp_path: Path) -> None:
    """Whatever it cuts, the bytes come back; NFC only where the name stands for it. (Python's table of it and the
    library's may be of different versions of Unicode, which do not order each mark alike.)"""
    rule = RULES[name]
    nfc = normalizers.NFC()
    alike = [each for each in texts(300, seed=5) if nfc.normalize_str(each) == unicodedata.normalize("NFC", each)]
    assert len(alike) > 290
    for text in alike if rule.nfc else texts(300, seed=5):
        normal = unicodedata.normalize("NFC", text) if rule.nfc else text.replace(" ", "\u2581") if rule.raw else text
        assert (normalizer(rule).normalize_str(text) if rule.nfc or rule.raw else text) == normal
        pieces = [piece for piece, _ in pre_tokenizer(rule).pre_tokenize_str(normal)]
        assert ("".join(pieces) if rule.raw else decoders.ByteLevel().decode(pieces)) == normal


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


def sentence_piece(prefix: bool, own: Sequence[str] = ("<unk>", "<s>", "</s>")) -> Any:
    """A tokenizer as Llama 2 (or, without ``prefix``, Gemma) has it, and its pieces in the order of their scores."""
    raw = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [normalizers.Prepend("\u2581")] if prefix else []
    raw.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "\u2581")])
    first = [*own, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=first, show_progress=False)
    raw.train_from_iterator(CORPUS.split("\n"), trainer)
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
    check_equal(ours, reference, seed=12)
    assert ours.encode("a", add_special_tokens=False) == reference.encode("a", add_special_tokens=False).ids


def test_gemma(tmp_path: Path) -> None:
    """Merges in the order of ids, whatever scores say; turns and runs of newlines are tokens wherever they stand."""
    own = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "\n\n", "\n\n\n"]
    trainer = sentence_piece(False, own)
    content = json.loads(trainer.to_str())
    reference = tokenizers.Tokenizer.from_str(trainer.to_str())
    tokens = tokens_of(reference)
    model = {**content["model"], "merges": _ways(tokens, len(own) + 256)}
    reference = tokenizers.Tokenizer.from_str(json.dumps({**content, "model": model, "added_tokens": []}))
    reference.add_special_tokens([AddedToken(token, normalized=False) for token in own[:6]])
    reference.add_tokens([AddedToken(token, normalized=False) for token in own[6:]])
    reference.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    reference.post_processor = processors.TemplateProcessing(single=["<bos>", "$A"], special_tokens=[("<bos>", 2)])

    def keys(writer: Any) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(
            [token.replace("\u2581", " ") if token.strip("\u2581") == "" else token for token in tokens]
        )
        writer.add_token_scores([float(index) for index in range(len(tokens))])
        writer.add_token_types([*[3] * 6, 4, 4, *[6] * 256, *[1] * (len(tokens) - 264)])
        writer.add_unk_token_id(3)
        writer.add_bos_token_id(2)
        writer.add_eos_token_id(1)
        writer.add_add_space_prefix(False)

    path = tmp_path / "model.gguf"
    ours = loaded(path, len(tokens), keys, "gemma3-window-softcap", query_pre_attn_scalar=12).tokenizer
    check_equal(ours, reference, seed=14)


def _ways(tokens: Sequence[str], first: int) -> list[list[str]]:
    """Every way to make a piece of two, as a converted tokenizer.json lists them: pieces by id, then parts by id."""
    ids = {token: index for index, token in enumerate(tokens)}
    ways = []
    for piece in tokens[first:]:
        cuts = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        found = [(left, right) for left, right in cuts if left in ids and right in ids]
        ways += [list(pair) for pair in sorted(found, key=lambda pair: (ids[pair[0]], ids[pair[1]]))]
    return ways


def test_a_whole_tokenizer_in_the_file_wins(tmp_path: Path) -> None:
    reference = trained("smollm")
    vocab = reference.get_vocab_size()
    keys = byte_level_keys("default", reference, add_add_eos_token=True)

    def with_json(writer: Any) -> None:
        keys(writer)
        writer.add_string("tokenizer.huggingface.json", reference.to_str())

    check_equal(loaded(tmp_path / "model.gguf", vocab, with_json).tokenizer, reference, seed=13, count=200)


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
    with pytest.raises(kv.errors.FormatError) as error:
        kv.models.load(path)
    assert message in str(error.value) and str(path) in str(error.value)
