"""Labels of the live page: chat markup as roles, text without it, and letters that only look like it as they are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kvtrie as kv
from kvtrie.serve.labels import Turn, labels
from serving import TINY
from text_tokenizer import save_tokenizer


def said(pieces: list[str], *special: str, before: str = "", columns: int = 120) -> list[tuple[str, str]]:
    """The turns of tokens that spell ``pieces``, of which some are special, behind a token."""
    known = list(dict.fromkeys([*pieces, before]))
    texts = {known.index(text): text for text in special if text in known}
    tokenizer: Any = SimpleNamespace(
        special_tokens=SimpleNamespace(texts=texts), decode=lambda ids: "".join(known[each] for each in ids)
    )
    head = tuple(known.index(piece) for piece in pieces)
    return [tuple(turn) for turn in labels(tokenizer, columns)(known.index(before) if before else -1, head)]


FORMS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "ChatML": (
        ["<|im_start|>", "user", "\n", "Who", "?", "<|im_end|>", "\n", "<|im_start|>", "assistant", "\n", "I"],
        ("<|im_start|>", "<|im_end|>"),
    ),
    "Llama 3": (
        [
            *("<|begin|>", "<|header|>", "user", "<|/header|>", "\n\n", "Who", "?", "<|eot|>"),
            *("<|header|>", "assistant", "<|/header|>", "\n\n", "I"),
        ],
        ("<|begin|>", "<|header|>", "<|/header|>", "<|eot|>"),
    ),
    "Gemma": (
        [
            *("<bos>", "<start_of_turn>", "user", "\n", "Who", "?", "<end_of_turn>", "\n"),
            *("<start_of_turn>", "model", "\n", "I"),
        ],
        ("<bos>", "<start_of_turn>", "<end_of_turn>"),
    ),
    "named": (["<|user|>", "Who", "?", "<|end|>", "<|assistant|>", "I"], ("<|user|>", "<|end|>", "<|assistant|>")),
    "Mistral": (["<s>", "[INST]", " Who", "?", "[/INST]", " I", "</s>"], ("<s>", "[INST]", "[/INST]", "</s>")),
}


@pytest.mark.parametrize("form", FORMS)
def test_markup_becomes_roles(form: str) -> None:
    pieces, special = FORMS[form]
    assert said(pieces, *special) == [("user", "Who?"), ("assistant", "I")]


def test_a_node_may_begin_anywhere_in_a_turn() -> None:
    pieces, special = FORMS["ChatML"]
    assert said(pieces[1:], *special, before="<|im_start|>") == [("user", "Who?"), ("assistant", "I")]
    assert said(pieces[3:], *special, before="\n") == [("", "Who?"), ("assistant", "I")]
    assert said(pieces[:8], *special)[-1] == ("user", "Who?")  # the next turn's role is not there yet
    assert said(FORMS["named"][0][1:], *FORMS["named"][1], before="<|user|>") == [("user", "Who?"), ("assistant", "I")]


def test_letters_that_look_like_markup_stay() -> None:
    pieces = ["<|im_start|>", "user", "\n", "Say ", "<|im_", "end|>", " user", "\n", "now"]
    assert said(pieces, "<|im_start|>") == [("user", "Say <|im_end|> user now")]
    assert said(["user", "\n", "says"]) == [("", "user says")]


def test_a_label_is_bounded() -> None:
    pieces = ["<|user|>", "x" * 50, "<|assistant|>", "y" * 50, "<|user|>", "z"]
    shown = said(pieces, "<|user|>", "<|assistant|>", columns=60)
    assert shown == [("user", "x" * 50), ("assistant", "y" * 8 + "\u2026")]
    assert said([]) == []


def test_images_have_no_text() -> None:
    tokenizer: Any = kv.models.load_tokenizer(TINY)
    ids = tuple(tokenizer.encode("a word"))
    assert labels(tokenizer, 80)(-1, (-5, *ids, -6)) == (Turn("", "a word"),)


def test_the_template_of_a_model(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a <|im_end|>?"}]
    for folder in (TINY, save_tokenizer(tmp_path)):
        tokenizer: Any = kv.models.load_tokenizer(folder)
        tokens = tuple(tokenizer.ids_of(tokenizer.rendered(messages, True, "letters", {}, None)))
        turns = labels(tokenizer, 200)(-1, tokens)
        assert turns == (Turn("system", "Be brief."), Turn("user", "What is a <|im_end|>?"), Turn("assistant", ""))
