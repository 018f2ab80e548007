"""A tokenizer from a GGUF file's keys, built with the ``tokenizers`` library: byte-level BPE and SentencePiece's BPE.

Where a file has the whole of ``tokenizer.json`` in ``tokenizer.huggingface.json``, that is it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from ...errors import Error, FormatError, IgnoredWarning
from ..tokenizer import Tokenizer
from .keys import Keys
from .pre_tokenizers import RULES, Rule, normalizer, pre_tokenizer

_MODELS, _NONE = ("gpt2", "llama", "gemma4"), ("none", "no_vocab")
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # tokenizer.ggml.token_type; 5: unused, 6: a byte
_SPECIAL = (_UNKNOWN, _CONTROL, _USER_DEFINED)  # looked for before a text is cut
_LONGEST_PIECE = 256  # characters; SentencePiece makes none longer than this
_SPACE = "\u2581"
_TWIN = "\U0010ffff"  # no character: it is in no text, and no merge makes it
_NO_TOKEN = 2**32 - 1  # -1 in 32 bits
_UNUSED = ("padding",)  # a role without a part in any text: nothing is at stake where its token is not there
_LETTERS = (decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse())  # from pieces to a text
_HUGGING_FACE = "tokenizer.huggingface.json"
# Control tokens that end an answer, whichever of them the file names: templates use one, training texts another.
_TURN_ENDS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>"),
    *("<turn|>", "<EOT>", "<end_of_utterance>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
)
_ENDS = (*_TURN_ENDS, "<eos>", "</s>", "[EOS]")


class Vocabulary(NamedTuple):
    """``tokens`` and ``types``, one for each id.

    Texts may be equal, as some of Gemma's are. The last id of a text is the one that encoding gives, as in llama.cpp,
    unless another is a special token, which is looked for before anything else. ``twins``: the ids that encoding never
    gives, and the one that it gives instead.
    """

    tokens: list[str]
    written: list[str]  # as merges have them
    types: list[int]
    twins: dict[int, int]

    def ids(self) -> dict[str, int]:
        """By what merges have. Twins have names that no text leads to."""
        names = (f"{token}{_TWIN}{index}" if index in self.twins else token for index, token in enumerate(self.written))
        return {name: index for index, name in enumerate(names)}

    @classmethod
    def read(cls, keys: Keys, kind: str) -> Vocabulary:
        tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(keys.texts("tokenizer.ggml.tokens"))]
        if not tokens:
            raise keys.error("tokenizer.ggml.tokens", tokens, "one token or more")
        types = [_NORMAL] * len(tokens)
        if keys.has("tokenizer.ggml.token_type"):
            types = keys.numbers("tokenizer.ggml.token_type", len(tokens), "token").tolist()
        types = _with_ends_of_turns(tokens, types)
        # Converters write pieces of spaces alone as spaces; to the merges they are what the normaliser makes of them.
        spaces = kind == "llama"
        written = [_SPACE * len(token) if spaces and not token.strip(" ") else token for token in tokens]
        return cls(tokens, written, types, _twins(written, types))


def _with_ends_of_turns(tokens: Sequence[str], types: Sequence[int]) -> list[int]:
    """A token that ends turns is a control token, also where a converter took it for a word, as llama.cpp has it."""
    known = {token for token, kind in zip(tokens, types) if kind == _CONTROL}
    others = {token for token in _TURN_ENDS if token not in known}
    return [_CONTROL if token in others else kind for token, kind in zip(tokens, types)]


def _twins(tokens: Sequence[str], types: Sequence[int]) -> dict[int, int]:
    if len(set(tokens)) == len(tokens):
        return {}
    found: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if types[index] in _SPECIAL or types[found.get(token, index)] not in _SPECIAL:
            found[token] = index
    return {index: found[token] for index, token in enumerate(tokens) if found[token] != index}


class Text(NamedTuple):
    """How a file's model reads and ends text."""

    tokenizer: Tokenizer
    bos_id: int | None
    end_ids: list[int]


def vocabulary_kind(keys: Keys) -> tuple[str, bool]:
    """The kind of vocabulary, and whether a whole tokenizer stands beside it."""
    kind = keys.text("tokenizer.ggml.model", "none")
    if kind not in (*_MODELS, *_NONE):
        raise keys.error("tokenizer.ggml.model", kind, ", ".join(_MODELS))
    return kind, keys.has(_HUGGING_FACE)


def _refuse_suppressed(keys: Keys) -> None:
    key = "tokenizer.ggml.suppress_tokens"
    if keys.has(key):
        keys.numbers(key, 0)


def read_text(keys: Keys) -> Text | None:
    """None where the file has no vocabulary. Raises ``kv.errors.FormatError`` naming the key that is wrong."""
    kind, whole = vocabulary_kind(keys)
    if kind in _NONE:
        return None
    _refuse_suppressed(keys)
    vocabulary = Vocabulary.read(keys, kind)
    ids = {name: _token_id(keys, name, vocabulary) for name in ("bos", "eos", "unknown", "padding", "eot", "eom")}
    shorter = {"unknown": "unk", "padding": "pad"}
    special = {
        f"{shorter.get(name, name)}_token": vocabulary.tokens[index] for name, index in ids.items() if index is not None
    }
    try:
        raw = _whole(keys) or (_sentence_piece if kind == "llama" else _byte_pairs)(keys, vocabulary)
    except Error:
        raise
    except Exception as error:  # the library raises bare Exception for whatever it is given
        raise FormatError(f"[models.load] {keys.path}: tokenizer.ggml: not a tokenizer: {error}") from error
    twins = {} if whole else vocabulary.twins
    _tell_twins(keys, twins)
    begins = _begins_chats(keys, ids["bos"])
    templates = _chat_templates(keys)
    tokenizer = Tokenizer(raw, special=special, chat_template=templates, begins_chats=begins, twins=twins)
    return Text(tokenizer, ids["bos"], _end_ids(vocabulary, [ids["eos"], ids["eot"], ids["eom"]]))


def _tell_twins(keys: Keys, twins: Mapping[int, int]) -> None:
    if twins:
        one, other = next(iter(twins.items()))
        text = f"got {len(twins)} with the text of another, as {one} and {other}; encoding gives {other}"
        warnings.warn(f"[models.load] {keys.path}: tokenizer.ggml.tokens: {text}", IgnoredWarning, stacklevel=2)


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
    if not keys.has(key) or keys.integer(key, -1, _NO_TOKEN) in (-1, _NO_TOKEN):
        return None
    if name in _UNUSED and keys.integer(key, -1, _NO_TOKEN) >= len(vocabulary.tokens):
        text = (
            f"got {keys.integer(key, -1, _NO_TOKEN)}, and there are {len(vocabulary.tokens)} tokens: none has this role"
        )
        warnings.warn(f"[models.load] {keys.path}: {key}: {text}", IgnoredWarning, stacklevel=2)
        return None
    return keys.integer(key, 0, len(vocabulary.tokens) - 1)


def _whole(keys: Keys) -> Any:
    return tokenizers.Tokenizer.from_str(keys.text(_HUGGING_FACE)) if keys.has(_HUGGING_FACE) else None


def _byte_pairs(keys: Keys, vocabulary: Vocabulary) -> Any:
    """GPT-2's: merges apply within words. Tokens are written in characters that stand for bytes, or as they are.

    Gemma 4's are of a kind of their own, which says how texts are cut.
    """
    kind = keys.text("tokenizer.ggml.model")
    name = kind if kind in RULES else keys.text("tokenizer.ggml.pre", "default")
    if name not in RULES:
        raise keys.error("tokenizer.ggml.pre", name, ", ".join(sorted(RULES)))
    rule: Rule = RULES[name]
    merges = [_pair(keys, merge) for merge in keys.texts("tokenizer.ggml.merges")]
    model = models.BPE(
        vocabulary.ids(),
        merges,
        ignore_merges=rule.whole,
        byte_fallback=rule.raw,
        **_unknown(keys, vocabulary, rule.raw),
    )
    raw = tokenizers.Tokenizer(model)
    steps = normalizer(rule)
    if steps is not None:
        raw.normalizer = steps
    raw.pre_tokenizer = pre_tokenizer(rule)
    raw.decoder = decoders.Sequence(list(_LETTERS)) if rule.raw else decoders.ByteLevel()
    _add_tokens(raw, vocabulary)
    _add_ends(raw, keys, vocabulary, rule.bos)
    return raw


def _unknown(keys: Keys, vocabulary: Vocabulary, wanted: bool) -> dict[str, object]:
    """The token for letters that no other token has, where bytes do not stand for them."""
    index = _token_id(keys, "unknown", vocabulary) if wanted else None
    return {} if index is None else {"unk_token": vocabulary.written[index], "fuse_unk": True}


def _pair(keys: Keys, merge: str) -> tuple[str, str]:
    """A merge is two tokens with a space between; only the first may begin with one."""
    middle = merge.find(" ", 1)
    if middle < 0:
        raise keys.error("tokenizer.ggml.merges", merge, "two tokens with a space between")
    return merge[:middle], merge[middle + 1 :]


def _sentence_piece(keys: Keys, vocabulary: Vocabulary) -> Any:
    """SentencePiece's BPE: spaces are written as U+2581, merges apply to whole texts, bytes stand in for the rest."""
    prefix = keys.flag("tokenizer.ggml.add_space_prefix", True)
    ids = vocabulary.ids()
    merges = _merges(keys, vocabulary, ids)
    raw = tokenizers.Tokenizer(models.BPE(ids, merges, byte_fallback=True, **_unknown(keys, vocabulary, True)))
    steps = [normalizers.Prepend(_SPACE)] if prefix else []
    raw.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    ends = [decoders.Strip(" ", 1, 0)] if prefix else []
    raw.decoder = decoders.Sequence([*_LETTERS, *ends])
    _add_tokens(raw, vocabulary)
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


def _add_tokens(raw: Any, vocabulary: Vocabulary) -> None:
    """Both are found in a text as they are; control tokens are also left out where special tokens are."""
    each = [
        (token, kind, own)
        for index, (token, kind, own) in enumerate(zip(vocabulary.tokens, vocabulary.types, vocabulary.written))
        if index not in vocabulary.twins
    ]
    raw.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind, _ in each if kind in (_CONTROL, _UNKNOWN)]
    )
    raw.add_tokens(
        [
            AddedToken(token, special=False, normalized=False)
            for token, kind, own in each
            if kind == _USER_DEFINED and token == own
        ]
    )


def _add_ends(raw: Any, keys: Keys, vocabulary: Vocabulary, bos: bool) -> None:
    """Adds the tokens before and after every text."""
    before = _end(keys, "bos", bos, vocabulary)
    after = _end(keys, "eos", False, vocabulary)
    if not before and not after:
        return
    ids = [(token, vocabulary.tokens.index(token)) for token in {*before, *after}]
    raw.post_processor = processors.TemplateProcessing(single=[*before, "$A", *after], special_tokens=ids)


def _begins_chats(keys: Keys, bos: int | None) -> bool | None:
    """The file's own setting, which holds for chats also where a whole ``tokenizer.json`` in it says nothing."""
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
