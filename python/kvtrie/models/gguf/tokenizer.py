"""A tokenizer from a GGUF file's keys, built with the ``tokenizers`` library: byte-level BPE and SentencePiece's BPE.

Where a file has the whole of ``tokenizer.json`` in ``tokenizer.huggingface.json``, that is it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from ...errors import Error, FormatError
from ..tokenizer import Tokenizer
from .keys import Keys
from .pre_tokenizers import RULES, Rule, normalizer, pre_tokenizer

_MODELS = ("gpt2", "llama")
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # tokenizer.ggml.token_type; 5: unused, 6: a byte
_LONGEST_PIECE = 256  # characters; SentencePiece makes none longer than this
_SPACE = "\u2581"
# Control tokens that end an answer, whichever of them the file names: templates use one, training texts another.
_ENDS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>"),
    *("<eos>", "</s>", "<EOT>", "[EOS]", "<end_of_utterance>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
)


class Vocabulary(NamedTuple):
    """``tokens``, no two alike, and ``types``, one for each."""

    tokens: list[str]
    types: list[int]

    @classmethod
    def read(cls, keys: Keys) -> Vocabulary:
        tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(keys.texts("tokenizer.ggml.tokens"))]
        if not tokens:
            raise keys.error("tokenizer.ggml.tokens", tokens, "one token or more")
        if len(set(tokens)) < len(tokens):
            twice = next(token for token, count in Counter(tokens).items() if count > 1)
            raise keys.error("tokenizer.ggml.tokens", f"{twice[:40]} twice", "each token once")
        types = [_NORMAL] * len(tokens)
        if keys.has("tokenizer.ggml.token_type"):
            types = keys.numbers("tokenizer.ggml.token_type", len(tokens), "token").tolist()
        return cls(tokens, types)


class Text(NamedTuple):
    """How a file's model reads and ends text."""

    tokenizer: Tokenizer
    bos_id: int | None
    end_ids: list[int]


def read_text(keys: Keys) -> Text | None:
    """None where the file has no vocabulary. Raises ``kv.FormatError`` naming the key that is wrong."""
    kind = keys.text("tokenizer.ggml.model", "none")
    if kind in ("none", "no_vocab"):
        return None
    if kind not in _MODELS:
        raise keys.error("tokenizer.ggml.model", kind, ", ".join(_MODELS))
    vocabulary = Vocabulary.read(keys)
    ids = {name: _token_id(keys, name, vocabulary) for name in ("bos", "eos", "unknown", "padding", "eot", "eom")}
    shorter = {"unknown": "unk", "padding": "pad"}
    special = {
        f"{shorter.get(name, name)}_token": vocabulary.tokens[index] for name, index in ids.items() if index is not None
    }
    try:
        raw = _whole(keys) or (_byte_level if kind == "gpt2" else _sentence_piece)(keys, vocabulary)
    except Error:
        raise
    except Exception as error:  # the library raises bare Exception for whatever it is given
        raise FormatError(f"[models.load] {keys.path}: tokenizer.ggml: not a tokenizer: {error}") from error
    begins = _begins_chats(keys, ids["bos"])
    tokenizer = Tokenizer(raw, special=special, chat_template=_chat_templates(keys), begins_chats=begins)
    return Text(tokenizer, ids["bos"], _end_ids(vocabulary, [ids["eos"], ids["eot"], ids["eom"]]))


def _chat_templates(keys: Keys) -> dict[str, str]:
    """By name: the default one under a key of its own, others below it, as ``tokenizer.chat_templates`` may list."""
    key = "tokenizer.chat_template"
    names = keys.texts(f"{key}s") if keys.has(f"{key}s") else []
    names = [*names, *(each.removeprefix(f"{key}.") for each in keys.beginning(f"{key}."))]
    found = {"default": keys.text(key, ""), **{name: keys.text(f"{key}.{name}") for name in names}}
    return {name: text for name, text in found.items() if text}


def _end_ids(vocabulary: Vocabulary, named: list[int | None]) -> list[int]:
    """The tokens that end a text, the file's eos first."""
    places = {token: index for index, token in enumerate(vocabulary.tokens) if vocabulary.types[index] == _CONTROL}
    return list(dict.fromkeys(each for each in [*named, *map(places.get, _ENDS)] if each is not None))


def _token_id(keys: Keys, name: str, vocabulary: Vocabulary) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    return keys.integer(key, 0, len(vocabulary.tokens) - 1) if keys.has(key) else None


def _whole(keys: Keys) -> Any:
    key = "tokenizer.huggingface.json"
    return tokenizers.Tokenizer.from_str(keys.text(key)) if keys.has(key) else None


def _byte_level(keys: Keys, vocabulary: Vocabulary) -> Any:
    """GPT-2's: tokens are written in characters that stand for bytes, and merges apply within words."""
    name = keys.text("tokenizer.ggml.pre", "default")
    if name not in RULES:
        raise keys.error("tokenizer.ggml.pre", name, ", ".join(sorted(RULES)))
    rule: Rule = RULES[name]
    merges = [_pair(keys, merge) for merge in keys.texts("tokenizer.ggml.merges")]
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    raw = tokenizers.Tokenizer(models.BPE(ids, merges, ignore_merges=rule.whole))
    if rule.nfc:
        raw.normalizer = normalizer(rule)
    raw.pre_tokenizer = pre_tokenizer(rule)
    raw.decoder = decoders.ByteLevel()
    _add_tokens(raw, vocabulary, vocabulary.tokens)
    _add_ends(raw, keys, vocabulary, rule.bos)
    return raw


def _pair(keys: Keys, merge: str) -> tuple[str, str]:
    """A merge is two tokens with a space between; only the first may begin with one."""
    middle = merge.find(" ", 1)
    if middle < 0:
        raise keys.error("tokenizer.ggml.merges", merge, "two tokens with a space between")
    return merge[:middle], merge[middle + 1 :]


def _sentence_piece(keys: Keys, vocabulary: Vocabulary) -> Any:
    """SentencePiece's BPE: spaces are written as U+2581, merges apply to whole texts, bytes stand in for the rest."""
    prefix = keys.flag("tokenizer.ggml.add_space_prefix", True)
    # Converters write pieces of spaces alone as spaces; to the merges they are what the normaliser makes of them.
    tokens = [_SPACE * len(token) if token.strip(" ") == "" else token for token in vocabulary.tokens]
    ids = {token: index for index, token in enumerate(tokens)}
    unknown = _token_id(keys, "unknown", vocabulary)
    model = models.BPE(
        ids,
        _merges(keys, vocabulary, ids),
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown is None else tokens[unknown],
    )
    raw = tokenizers.Tokenizer(model)
    steps = [normalizers.Prepend(_SPACE)] if prefix else []
    raw.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    ends = [decoders.Strip(" ", 1, 0)] if prefix else []
    raw.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *ends],
    )
    _add_tokens(raw, vocabulary, tokens)
    _add_ends(raw, keys, vocabulary, True)
    return raw


def _merges(keys: Keys, vocabulary: Vocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, best first: by score, and by id for Gemma, whose scores are no order."""
    ranks = np.arange(len(ids), dtype=np.float64)
    if not keys.architecture.startswith("gemma"):
        ranks = -np.asarray(keys.numbers("tokenizer.ggml.scores", len(ids), "token"), np.float64)
    mergeable = {_NORMAL, _USER_DEFINED}
    found: list[tuple[float, int, int, int, tuple[str, str]]] = []
    for piece, index in ids.items():
        if vocabulary.types[index] not in mergeable or len(piece) < 2:
            continue
        if len(piece) > _LONGEST_PIECE and vocabulary.types[index] == _NORMAL:
            raise keys.error(
                "tokenizer.ggml.tokens", f"a piece of {len(piece)} characters", f"up to {_LONGEST_PIECE} of them"
            )
        for cut in range(1, min(len(piece), _LONGEST_PIECE)):
            left, right = ids.get(piece[:cut]), ids.get(piece[cut:])
            if left is not None and right is not None:
                found.append((float(ranks[index]), index, left, right, (piece[:cut], piece[cut:])))
    return [pair for *_, pair in sorted(found)]


def _add_tokens(raw: Any, vocabulary: Vocabulary, written: list[str]) -> None:
    """Both are found in a text as they are; control tokens are also left out where special tokens are."""
    special = [
        AddedToken(token, special=True, normalized=False)
        for token, kind in zip(vocabulary.tokens, vocabulary.types)
        if kind in (_CONTROL, _UNKNOWN)
    ]
    raw.add_special_tokens(special)
    raw.add_tokens(
        [
            AddedToken(token, special=False, normalized=False)
            for token, kind, own in zip(vocabulary.tokens, vocabulary.types, written)
            if kind == _USER_DEFINED and token == own
        ]
    )


def _add_ends(raw: Any, keys: Keys, vocabulary: Vocabulary, bos: bool) -> None:
    """What stands before and after every text."""
    before = _end(keys, "bos", bos, vocabulary)
    after = _end(keys, "eos", False, vocabulary)
    if not before and not after:
        return
    ids = [(token, vocabulary.tokens.index(token)) for token in {*before, *after}]
    raw.post_processor = processors.TemplateProcessing(single=[*before, "$A", *after], special_tokens=ids)


def _begins_chats(keys: Keys, bos: int | None) -> bool | None:
    """What the file says, which goes for chats also where a whole ``tokenizer.json`` in it says nothing."""
    key = "tokenizer.ggml.add_bos_token"
    begins = keys.flag(key, False) if keys.has(key) else None
    if begins and bos is None:
        raise keys.error(key, True, "false where there is no bos_token_id")
    return begins


def _end(keys: Keys, name: str, default: bool, vocabulary: Vocabulary) -> list[str]:
    if not keys.flag(f"tokenizer.ggml.add_{name}_token", default):
        return []
    index = _token_id(keys, name, vocabulary)
    if index is None:
        if keys.has(f"tokenizer.ggml.add_{name}_token"):
            raise keys.error(f"tokenizer.ggml.add_{name}_token", True, f"false where there is no {name}_token_id")
        return []
    return [vocabulary.tokens[index]]
