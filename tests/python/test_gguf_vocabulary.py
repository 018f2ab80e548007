"""Vocabularies of GGUF files: equal texts, roles that no token has, and every key that may stand beside them."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

import kvtrie as kv
from circles import CIRCLE
from gguf_files import checkpoint, write
from gguf_sweep import Type, Typed, plausible
from hostile_texts import texts
from kvtrie.models.gguf.keys import Keys
from kvtrie.models.gguf.reader import read_gguf
from kvtrie.models.gguf.tokenizer import read_text
from kvtrie.models.gguf_settings import TOKENIZERS
from test_gguf_tokenizer import byte_level_keys, check_equal, loaded, merges_of, tokens_of, trained

NO_TOKEN = 2**32 - 1
SHARE = {"test": 12, "ci": 2, "soak": 1}[CIRCLE]  # one of how many is played
SAMPLES = ["hello world", " two  spaces", "a<|a|>b", "x\n\ny", "\u00e9t\u00e9 \u4f60\u597d", ""]
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
PIECES += ["\u2581", *"helowrd", "he", "ll", "hell", "hello", "\u2581w", "or", "ld", "\u2581wor", "\u2581world"]
PIECE_TYPES = [2, 3, 3, *[6] * 256, *[1] * (len(PIECES) - 259)]

Adds = Callable[[Any], None]


def pieces(tokens: list[str] = PIECES, types: list[int] = PIECE_TYPES, **keys: Any) -> Adds:
    """SentencePiece's: those in front are the better ones."""

    def add(writer: Any) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([-float(index) for index in range(len(tokens))])
        writer.add_token_types(types)
        for name, value in {"add_unk_token_id": 0, "add_bos_token_id": 1, "add_eos_token_id": 2, **keys}.items():
            getattr(writer, name)(value)

    return add


@functools.cache
def smollm() -> Any:
    return trained("smollm")


def byte_level(more: list[tuple[str, int]], **keys: Any) -> tuple[Adds, list[str]]:
    """The vocabulary of test_gguf_tokenizer.py's "smollm", and ``more`` tokens with their types behind it."""
    reference = smollm()
    tokens = [*tokens_of(reference), *(token for token, _ in more)]

    def add(writer: Any) -> None:
        byte_level_keys("smollm", reference, **keys)(writer)
        first = writer.kv_data[0]
        first["tokenizer.ggml.tokens"].value.extend(token for token, _ in more)
        first["tokenizer.ggml.token_type"].value.extend(kind for _, kind in more)

    return add, tokens


# ---- equal texts -----------------------------------------------------------------------------------------------------


def test_equal_texts_of_bytes(tmp_path: Path) -> None:
    """The last one is used in encoding, or the special one, and each decodes to its text."""
    plain = smollm()
    size, words = plain.get_vocab_size(), (each for each in tokens_of(plain) if each.isascii() and each.isalpha())
    word = next(each for each in words if len(each) > 3 and len(plain.encode(each).ids) == 1)
    keys, tokens = byte_level([(word, 1), ("<|im_end|>", 1), ("<|mark|>", 1), ("<|mark|>", 4)])
    with pytest.warns(
        kv.errors.IgnoredWarning, match=rf"got 3 with the text of another, as {tokens.index(word)} and {size};"
    ):
        ours = loaded(tmp_path / "model.gguf", len(tokens), keys).tokenizer
    first, end = tokens.index(word), tokens.index("<|im_end|>")
    assert plain.encode(word).ids == [first] and ours.encode(word) == [size]
    assert ours.encode("a<|im_end|>") == [*plain.encode("a").ids, end]
    assert ours.encode("<|mark|>") == [size + 3]
    assert [ours.decode([token]) for token in (first, size)] == [word] * 2
    assert [ours.decode([token]) for token in (end, size + 1)] == ["<|im_end|>"] * 2
    assert ours.decode([first, size + 2, size + 3, size]) == f"{word}<|mark|><|mark|>{word}"
    assert ours.vocab_size == len(tokens)
    for text in texts(100, seed=31):
        wanted = [{first: size}.get(token, token) for token in plain.encode(text).ids]
        assert ours.encode(text) == wanted, text
        assert ours.decode(wanted) == plain.decode(plain.encode(text).ids, skip_special_tokens=False)


def test_equal_texts_of_pieces(tmp_path: Path) -> None:
    """Merges lead to the last one, with its score, and no merge is lost."""
    tokens, types = [*PIECES, "hello", "ll"], [*PIECE_TYPES, 1, 1]
    with pytest.warns(kv.errors.IgnoredWarning, match="got 2 with the text of another"):
        ours = loaded(tmp_path / "model.gguf", len(tokens), pieces(tokens, types, add_add_space_prefix=False)).tokenizer
    size = len(PIECES)
    assert ours.encode("hello", add_special_tokens=False) == [size]
    assert ours.encode("ll", add_special_tokens=False) == [size + 1]
    assert ours.encode("hello world") == [1, size, PIECES.index("\u2581world")]
    assert ours.decode([PIECES.index("hello"), PIECES.index("ll"), size, size + 1]) == "hellollhelloll"
    assert ours.encode("<0x41>\U0010ffff", add_special_tokens=False)[-4:] == [3 + byte for byte in b"\xf4\x8f\xbf\xbf"]


def test_spaces_that_are_written_twice(tmp_path: Path) -> None:
    """Converters write a piece of spaces as spaces; the vocabulary may also have it as SentencePiece writes it."""
    tokens, types = [*PIECES, "\u2581\u2581", "  "], [*PIECE_TYPES, 1, 1]
    with pytest.warns(kv.errors.IgnoredWarning, match="got 1 with the text of another"):
        ours = loaded(tmp_path / "model.gguf", len(tokens), pieces(tokens, types, add_add_space_prefix=False)).tokenizer
    assert ours.encode("  ", add_special_tokens=False) == [len(PIECES) + 1]
    assert ours.decode([len(PIECES)]) == ours.decode([len(PIECES) + 1]) == "  "


def test_what_twins_spell_is_known(tmp_path: Path) -> None:
    """Matches of texts and grammars see the text of each."""
    keys, tokens = byte_level([("a", 1), ("\u0120", 1)])
    with pytest.warns(kv.errors.IgnoredWarning):
        model = loaded(tmp_path / "model.gguf", len(tokens), keys)
    spelled = model.token_texts
    for text, first in (("a", tokens.index("a")), (" ", tokens.index("\u0120"))):
        assert spelled[first] == text.encode()
    assert [spelled[len(tokens) - 2], spelled[len(tokens) - 1]] == [b"a", b" "]


def test_a_tokenizer_without_twins_warns_of_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loaded(tmp_path / "model.gguf", len(PIECES), pieces()).tokenizer.twins == {}


# ---- roles that no token has -----------------------------------------------------------------------------------------

ROLES = ("bos", "eos", "eot", "eom", "unknown", "padding", "seperator", "mask", "cls", "fim_pre")


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("none", [-1, NO_TOKEN])
def test_no_token_has_the_role(kind: str, none: int, tmp_path: Path) -> None:
    """-1, and what it is in 32 bits, as converters write it."""
    base, tokens = byte_level([]) if kind == "gpt2" else (pieces(), PIECES)

    def keys(writer: Any) -> None:
        base(writer)
        for role in ROLES:
            value = gguf.GGUFValue(value=none, type=Type.INT32 if none < 0 else Type.UINT32)
            writer.kv_data[0][f"tokenizer.ggml.{role}_token_id"] = value

    model = loaded(tmp_path / "model.gguf", len(tokens), keys)
    assert model.tokenizer.special == {} and model.config.bos_token_id is None
    text = "hello"
    plain = model.tokenizer.encode(text, add_special_tokens=False)
    assert model.tokenizer.encode(text) == plain and model.tokenizer.decode(plain).strip() == text


def test_the_role_of_a_token_outside_is_refused(tmp_path: Path) -> None:
    """But of padding, which is in no text: that is told."""
    with pytest.warns(
        kv.errors.IgnoredWarning, match=rf"padding_token_id: got 9999, and there are {len(PIECES)} tokens: none has"
    ):
        model = loaded(tmp_path / "model.gguf", len(PIECES), pieces(add_pad_token_id=9999))
    assert "pad_token" not in model.tokenizer.special
    with pytest.raises(kv.errors.FormatError, match=r"eos_token_id: got 9999, allowed an integer from 0 to"):
        loaded(tmp_path / "model.gguf", len(PIECES), pieces(add_eos_token_id=9999))


@pytest.mark.parametrize("kind", [1, 4])
def test_what_ends_turns_is_a_control_token(kind: int, tmp_path: Path) -> None:
    """Also where the file calls it a word: a prompt that has it must not have its letters, and answers end there."""
    keys, tokens = byte_level([("<|eot_id|>", kind)])
    model = loaded(tmp_path / "model.gguf", len(tokens), keys)
    end = len(tokens) - 1
    assert model.tokenizer.encode("a<|eot_id|>") == [*model.tokenizer.encode("a"), end]
    assert end in model.end_tokens and model.tokenizer.special_id("<|eot_id|>") == end


# ---- letters instead of bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), [("gpt2", "gemma4"), ("gpt2", "sarvam-moe"), ("gemma4", "")])
def test_merges_over_letters(kind: str, name: str, tmp_path: Path) -> None:
    """Spaces are written as U+2581 and lines are cut; merges are those of the file, bytes stand for other letters.

    Of the kind gemma4 that needs no name.
    """
    trainer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trainer.normalizer = normalizers.Replace(" ", "\u2581")
    own = ["<unk>", "<bos>", *(f"<0x{byte:02X}>" for byte in range(256))]
    corpus = ["hello world, hello  again\n\nand more of the same world"] * 3
    trainer.train_from_iterator(
        corpus, tokenizers.trainers.BpeTrainer(vocab_size=330, special_tokens=own, show_progress=False)
    )
    tokens, merges = tokens_of(trainer), merges_of(trainer)
    model = models.BPE(
        {token: index for index, token in enumerate(tokens)},
        [tuple(pair) for pair in json.loads(trainer.to_str())["model"]["merges"]],
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    reference = tokenizers.Tokenizer(model)
    reference.normalizer = trainer.normalizer
    reference.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"\n+"), "isolated")
    reference.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    reference.add_special_tokens([AddedToken(token, normalized=False) for token in own[:2]])

    def keys(writer: Any) -> None:
        writer.add_tokenizer_model(kind)
        writer.add_tokenizer_pre(name or "default")
        writer.add_token_list(tokens)
        writer.add_token_types([2, 3, *[6] * 256, *[1] * (len(tokens) - 258)])
        writer.add_token_merges(merges)
        writer.add_unk_token_id(0)
        writer.add_bos_token_id(1)
        writer.add_add_bos_token(False)

    check_equal(loaded(tmp_path / "model.gguf", len(tokens), keys).tokenizer, reference, seed=17, count=150)


# ---- every key -------------------------------------------------------------------------------------------------------

# Keys whose values make another vocabulary, and the tests that have them.
ELSEWHERE = {
    "tokenizer.ggml.model": "test_gguf_tokenizer.py, and the sweep has files without a vocabulary",
    "tokenizer.ggml.tokens": "here and in test_gguf_tokenizer.py",
    "tokenizer.ggml.token_type": "here and in test_gguf_tokenizer.py",
    "tokenizer.ggml.merges": "test_gguf_tokenizer.py",
    "tokenizer.ggml.scores": "test_gguf_tokenizer.py",
    "tokenizer.ggml.pre": "test_gguf_pre_tokenizers.py",
    "tokenizer.huggingface.json": "test_gguf_tokenizer.py",
    "tokenizer.chat_template": "test_gguf_tokenizer.py",
    "tokenizer.chat_templates": "below",
}


def keys_of(kind: str) -> list[str]:
    constants = [value for name, value in vars(gguf.constants.Keys.Tokenizer).items() if not name.startswith("_")]
    found = {*constants, *TOKENIZERS[kind], "tokenizer.ggml.suppress_tokens", "tokenizer.ggml.cls_token_id"}
    return sorted({key.replace("{name}", "other").replace("*", "pad") for key in found} - ELSEWHERE.keys())


class Does(NamedTuple):
    """What a vocabulary does with :data:`SAMPLES`, and which tokens have which roles."""

    encoded: list[list[int]]
    plain: list[list[int]]  # without what stands before and after each text
    decoded: list[str]
    special: dict[str, str]
    ends: set[int]
    bos: int | None


def does(parts: Any) -> Does:
    ours = parts.tokenizer
    plain = [ours.encode(text, add_special_tokens=False) for text in SAMPLES]
    decoded = [ours.decode(ids) for ids in plain]
    encoded = [ours.encode(text) for text in SAMPLES]
    return Does(encoded, plain, decoded, ours.special, set(parts.config.eos_token_ids), parts.config.bos_token_id)


SWITCHED_OFF = {
    *("add_sep_token", "remove_extra_whitespaces", "normalizer.lowercase", "normalizer.strip_accents"),
    "normalizer.pad",
}
NEVER = {"precompiled_charsmap", "tokenizer.rwkv.world", "suppress_tokens"}  # unless empty, which is not written
ROLES_READ = {"bos": "bos", "eos": "eos", "eot": "eot", "eom": "eom", "unknown": "unk", "padding": "pad"}


def expected(kind: str, key: str, value: Any, tokens: list[str], before: Does) -> Does | None:
    """What it does with the key; None where it must be refused. ``before``: what it did."""
    name = key.removeprefix("tokenizer.ggml.").removesuffix("_token_id")
    if name in NEVER:
        return None
    if name in SWITCHED_OFF:
        return before if value is False else None
    if name in ROLES_READ:
        return _with_role(name, value, tokens, before)
    if name in ("add_bos_token", "add_eos_token"):
        return _with_ends(name, value, tokens, before)
    if name == "add_space_prefix" and kind == "llama":
        return before if value is True else None
    if name.startswith("tokenizer.chat_template."):
        return before if isinstance(value, str) else None
    return before


def _with_role(name: str, value: Any, tokens: list[str], before: Does) -> Does | None:
    outside = type(value) is int and value >= len(tokens) and name == "padding"
    if type(value) is not int or not (0 <= value < len(tokens) or value in (-1, NO_TOKEN) or outside):
        return None
    token = value if 0 <= value < len(tokens) else None
    special = {role: text for role, text in before.special.items() if role != f"{ROLES_READ[name]}_token"}
    if token is not None:
        special[f"{ROLES_READ[name]}_token"] = tokens[token]
    now = before._replace(special=special)
    if name == "bos":
        begins = before.encoded != before.plain
        first = [token] if begins and token is not None else []
        return now._replace(bos=token, encoded=[[*first, *ids] for ids in before.plain])
    return now


def _with_ends(name: str, value: Any, tokens: list[str], before: Does) -> Does | None:
    if type(value) is not bool:
        return None
    begins = value if name == "add_bos_token" else before.encoded != before.plain
    first = [tokens.index(before.special["bos_token"])] if begins else []
    last = [tokens.index(before.special["eos_token"])] if value and name == "add_eos_token" else []
    return before._replace(encoded=[[*first, *ids, *last] for ids in before.plain])


@functools.cache
def _small(kind: str) -> tuple[Adds, Any, dict[str, Any]]:
    """A vocabulary of this kind, and a model of one layer."""
    base, tokens = (
        byte_level([("<|a|>", 3)]) if kind == "gpt2" else (pieces([*PIECES, "<|a|>"], [*PIECE_TYPES, 3]), None)
    )
    size = len(tokens or PIECES) + (tokens is None)
    config, weights = checkpoint("llama-gqa-tied", num_hidden_layers=1)
    table = np.random.default_rng(1).standard_normal((size, config.hidden_size)).astype(np.float32)
    return base, dataclasses.replace(config, vocab_size=size), {**weights, "model.embed_tokens.weight": table}


def stated(kind: str, path: Path, change: tuple[str, Typed | None] | None) -> Any:
    """The model of a file of this kind in which one key says something else."""
    base, config, weights = _small(kind)

    def keys(writer: Any) -> None:
        base(writer)
        if change is not None:
            key, typed = change
            writer.kv_data[0].pop(key, None)
            if typed is not None:
                writer.add_key_value(key, typed[0], typed[1], sub_type=typed[2])

    write(config, weights, path, tokenizer=keys)
    return kv.models.gguf.read(path)


def tried(kind: str, path: Path, change: tuple[str, Typed]) -> tuple[Does | None, str]:
    """What the file does, or why it is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kv.errors.IgnoredWarning)
        try:
            return does(stated(kind, path, change)), ""
        except kv.Error as error:
            return None, str(error)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_every_key_beside_a_vocabulary(kind: str, tmp_path: Path) -> None:
    """Each is read, does not matter, or is refused by name; what is read changes texts and roles as it says."""
    outcomes = {"equal": 0, "neutral": 0, "refused": 0}
    before = does(stated(kind, tmp_path / "model.gguf", None))
    tokens = [*(tokens_of(smollm()) if kind == "gpt2" else PIECES), "<|a|>"]
    every = [
        (key, typed)
        for key in keys_of(kind)
        for typed in [*plausible(key, None, 2), (NO_TOKEN, Type.UINT32, None)]
        if typed is not None
    ]
    for key, typed in random.Random(1).sample(every, len(every) // SHARE):
        wanted = expected(kind, key, typed[0], tokens, before)
        got, said = tried(kind, tmp_path / "model.gguf", (key, typed))
        if got is None:
            assert wanted is None and key in said, f"{key} {typed}: {said}"
            outcomes["refused"] += 1
            continue
        assert wanted is not None or key.endswith("add_space_prefix"), f"{key} {typed}: must be refused, but loads"
        if wanted is not None:
            ends = got.ends if key.removesuffix("_token_id")[-3:] in ("eos", "eot", "eom") else wanted.ends
            assert got == wanted._replace(ends=ends), f"{key} {typed}"
        outcomes["neutral" if got == before else "equal"] += 1
    print(kind, outcomes)
    assert min(outcomes.values()) > 0


def test_templates_of_other_names(tmp_path: Path) -> None:
    def keys(writer: Any) -> None:
        pieces()(writer)
        writer.add_chat_template(
            [{"name": "default", "template": "{{ messages }}"}, {"name": "tool_use", "template": "x"}]
        )

    model = loaded(tmp_path / "model.gguf", len(PIECES), keys)
    assert model.tokenizer.chat_templates == {"default": "{{ messages }}", "tool_use": "x"}


# ---- published vocabularies ------------------------------------------------------------------------------------------

# What llama.cpp's sources ship, once `./dev peers` has fetched them. Ids of the one below are llama.cpp's own, which
# does not compose letters and marks as transformers does.
PUBLISHED = Path(__file__).parents[2] / "build/peers/sources/llama-cpp-python"
UNCOMPOSED = ("qwen35",)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::kvtrie.errors.IgnoredWarning")  # of templates that one has under other names
def test_published_vocabularies() -> None:
    """Texts and the ids that they have, for each vocabulary of a kind that is read here."""
    found = sorted(PUBLISHED.glob("*/vendor/llama.cpp/models/ggml-vocab-*.gguf"))
    if not found:
        pytest.skip("they come with ./dev peers")
    tried = 0
    for path in found:
        file = read_gguf(path)
        texts_of, ids_of = path.with_name(f"{path.name}.inp"), path.with_name(f"{path.name}.out")
        if file.values["tokenizer.ggml.model"] not in ("gpt2", "llama") or not texts_of.exists():
            continue
        ours = read_text(Keys(file))
        assert ours is not None
        given = texts_of.read_bytes().decode().split("\n__ggml_vocab_test__\n")
        for text, line in zip(given, ids_of.read_text().split("\n")):
            if unicodedata.is_normalized("NFC", text) or not any(name in path.name for name in UNCOMPOSED):
                ids = ours.tokenizer.encode(text, add_special_tokens=False)
                assert ids == [int(each) for each in line.split()], f"{path.name}: {text!r}"
                tried += 1
    assert tried > 500
