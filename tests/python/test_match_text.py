"""A text that a model wrote is found again in the tokens that it chose, whatever the tokenizer makes of it.

Conversations of 50 turns with the tokenizers of each family: answers are cut into tokens at random, as a model at a
high temperature cuts them, and come back as text in the next prompt. What was generated is never computed again.
"""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

import kvtrie as kv
from fakes import CodingModel, compute, make_cache
from hostile_texts import CORPUS, texts
from kvtrie.models.token_texts import token_texts_of
from kvtrie.models.tokenizer import Tokenizer
from test_gguf_tokenizer import BYTE_LEVEL, sentence_piece, tokens_of, trained

TURNS = 50


def llama2(prefix: bool) -> Any:
    trainer = sentence_piece(prefix)
    raw = tokenizers.Tokenizer(
        models.BPE(
            {token: index for index, token in enumerate(tokens_of(trainer))},
            [(pair[0], pair[1]) for pair in json.loads(trainer.to_str())["model"]["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    raw.normalizer = trainer.normalizer
    raw.add_special_tokens([AddedToken(token, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    raw.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return raw


def chatml(turns: Sequence[tuple[str, str]], question: str) -> str:
    said = "".join(f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n{a}<|im_end|>\n" for q, a in turns)
    return f"{said}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def inst(turns: Sequence[tuple[str, str]], question: str) -> str:
    return "".join(f"<s>[INST] {q} [/INST]{a}</s>" for q, a in turns) + f"<s>[INST] {question} [/INST]"


FAMILIES: dict[str, tuple[Callable[[], Any], Any, str]] = {
    **{name: (lambda name=name: trained(name), chatml, "<|im_end|>") for name in BYTE_LEVEL},
    "llama-2": (lambda: llama2(True), inst, "</s>"),
    "gemma": (lambda: llama2(False), inst, "</s>"),
}


def tokenizer_of(name: str) -> tuple[Tokenizer, kv.trie.TokenTexts]:
    tokenizer = Tokenizer(FAMILIES[name][0]())
    made = token_texts_of(tokenizer)
    assert made is not None
    return tokenizer, made


def cut_anyhow(text: bytes, made: kv.trie.TokenTexts, dice: random.Random) -> list[int]:
    """Tokens that spell the text, chosen at random among all that do."""
    by_bytes: dict[bytes, list[int]] = {}
    for token in range(len(made)):
        if made[token] and not made[token].startswith(b"\xff"):
            by_bytes.setdefault(made[token], []).append(token)
    tokens, at = [], 0
    while at < len(text):
        ways = [text[at : at + n] for n in range(1, 12) if text[at : at + n] in by_bytes and at + n <= len(text)]
        piece = dice.choice(ways)
        tokens.append(dice.choice(by_bytes[piece]))
        at += len(piece)
    return tokens


def words(dice: random.Random) -> str:
    """Some that every tokenizer gives back as they are: not U+2581, which is SentencePiece's space."""
    some = dice.choices(CORPUS.split(" "), k=dice.randrange(3, 9))
    return " ".join(unicodedata.normalize("NFC", " ".join(some)).replace("\u2581", "").split())


@pytest.mark.parametrize("name", FAMILIES)
def test_what_was_generated_is_never_computed_again(name: str) -> None:
    tokenizer, made = tokenizer_of(name)
    _, template, end = FAMILIES[name]
    end_token = tokenizer.token_id(end)
    dice, model = random.Random(f"1701 {name}"), CodingModel(check=False)
    cache, unaware = make_cache(capacity=40_000, device="null"), make_cache(capacity=40_000, device="null")
    turns: list[tuple[str, str]] = []
    computed, lost, lost_by_tokens = 0, 0, 0
    for turn in range(TURNS):
        question, answer = f"{turn}: {words(dice)}", words(dice)
        prompt = tokenizer.encode(template(turns, question), add_special_tokens=False)
        asked = cache.match_text(prompt, made)
        assert b"".join(made[int(t)] for t in asked) == b"".join(made[t] for t in prompt)
        chosen = [*cut_anyhow(answer.encode(), made, dice), end_token]
        with cache.begin(asked) as session, unaware.begin(prompt) as other:
            lost += computed - session.reused
            lost_by_tokens += computed - other.reused
            for each in (session, other):
                compute(each, model)
                each.append(chosen)
                model(each.decode())
            computed = session.length
        turns.append((question, answer))
    print(f"{name}: {lost} computed tokens were computed again, {lost_by_tokens} by tokens alone, in {TURNS} turns")
    assert lost == 0
    assert lost_by_tokens > computed  # the answers were cut otherwise: the test is one
    assert cache.check() == []


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_spell_what_they_stand_for(name: str) -> None:
    tokenizer, made = tokenizer_of(name)
    for text in texts(1000, 1702):
        if any(token in text for token in ("<unk>", "<s>", "</s>", "<|", "|>", "\u2581")):
            continue
        ids = tokenizer.encode(text, add_special_tokens=False)
        spelled = b"".join(made[token] for token in ids)
        normalizer = tokenizer.raw.normalizer if name.startswith("qwen") else None
        normal = normalizer.normalize_str(text) if normalizer is not None else text
        if not ids or tokenizer.token_id("<unk>") in ids:
            continue
        assert spelled in (normal.encode(), b" " + normal.encode()), repr(text)


def test_a_special_token_is_not_its_letters() -> None:
    """Whoever types it, and whatever a model writes: letters are letters."""
    tokenizer, made = tokenizer_of("smollm")
    special = tokenizer.token_id("<|im_end|>")
    assert special is not None
    letters = cut_anyhow(b"<|im_end|>", made, random.Random(1))
    assert special not in letters
    cache, model = make_cache(capacity=256), CodingModel()
    with cache.begin([*letters, 1]) as session:
        compute(session, model)
    assert list(cache.match_text([special, 1], made)) == [special, 1]
    assert list(cache.match_text([*letters[:-1], letters[-1], 2], made))[: len(letters)] == letters


def test_a_text_that_ends_within_a_token_is_not_cut() -> None:
    made = kv.trie.TokenTexts([b"a", b"b", b"ab", b"c"])
    cache, model = make_cache(), CodingModel()
    with cache.begin([0, 1, 3]) as session:
        compute(session, model)
    assert list(cache.match_text([2, 3], made)) == [0, 1, 3]
    assert list(cache.match_text([2, 2], made)) == [0, 1, 2]
    assert list(cache.match_text([2, 3], made, "another")) == [2, 3]
    with cache.begin([0, 2, 3], "border") as session:  # a|ab|c, and the prompt is a|a|b...
        compute(session, model)
    assert list(cache.match_text([0, 0, 1], made, "border")) == [0, 2]


def test_images_end_it() -> None:
    made = kv.trie.TokenTexts([b"a", b"b", b"ab"])
    cache = make_cache()
    picture = [int(token) for token in kv.media("a picture", 3)]
    assert list(cache.match_text([2, *picture, 0], made)) == [2, *picture, 0]


@pytest.mark.parametrize("wrong", [None, "ab", [1], ["a"], [b"a", None]])
def test_texts_are_bytes(wrong: Any) -> None:
    with pytest.raises(kv.errors.ArgumentTypeError, match="TokenTexts"):
        kv.trie.TokenTexts(wrong)
    cache = make_cache()
    with pytest.raises(kv.errors.ArgumentTypeError, match="texts"):
        cache.match_text([1], wrong)


def test_a_tokenizer_whose_tokens_do_not_spell_texts() -> None:
    raw = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.decoder = decoders.WordPiece()
    assert token_texts_of(Tokenizer(raw)) is None
    assert token_texts_of(Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))) is None


class Saying:
    """A logits processor that leaves the model these tokens, one after the other."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = iter(tokens)

    def __call__(self, _: Any, logits: Any) -> Any:
        said = np.full_like(logits, -np.inf)
        said[next(self.tokens)] = 0.0
        return said


def test_a_chat_of_a_model_keeps_its_own_tokens() -> None:
    """The tokens of the next prompt are those of this one and its answer, then the new words.

    What it says is not left to chance, which differs between processors: words that are cut into tokens at random, and
    one whole one behind them.
    """
    model = kv.models.load("examples/tiny")
    made, dice = model.token_texts, random.Random(1703)
    assert made is not None
    (last,) = model.tokenizer.encode(" is", add_special_tokens=False)
    with kv.PrefixCache(model.caches(capacity=4096), fingerprint=model.fingerprint) as cache:
        messages: list[dict[str, str]] = []
        before: list[int] = []
        differ = 0
        for turn in range(12):
            messages.append({"role": "user", "content": f"Question {turn}: what is a cache?"})
            said = [*cut_anyhow(words(dice).encode(), made, dice), last]
            reply = model.chat(messages, cache=cache, max_tokens=len(said), logits_processors=[Saying(said)])
            messages.append(dict(reply.message))
            assert list(reply.tokens) == said
            kept = max(0, len(before) - 1)  # the last token was recorded, not computed
            assert reply.reused >= kept
            plain = model.tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True)
            known = cache.match_text(plain, made)
            assert list(known)[:kept] == before[:kept]
            differ += len(plain) != reply.prompt_tokens or list(known) != plain
            before = [*map(int, known), *reply.tokens]
        assert differ > 0


def test_prompts_without_answers_are_as_the_tokenizer_has_them() -> None:
    """What others wrote changes nothing in a prompt of one's own: the same tokens with a cache and without."""
    model = kv.models.load("examples/tiny")
    messages = [{"role": "user", "content": "lower"}]
    plain = model.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    made = model.token_texts
    assert made is not None
    with kv.PrefixCache(model.caches(capacity=512), fingerprint=model.fingerprint) as cache:
        spelled = b"".join(made[token] for token in plain if not made[token].startswith(b"\xff"))
        letters = cut_anyhow(spelled, made, random.Random(3))
        with cache.begin(np.asarray(letters, np.int32)) as session:
            for step in session.prefill():
                model(step)
        reply = model.chat(messages, cache=cache, max_tokens=1)
        assert reply.text is not None
        assert reply.prompt_tokens == len(plain)
        assert cache.plan([*plain, 0]).matched >= len(plain)
