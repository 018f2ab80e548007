"""Tokenizers of GGUF files: chats begin with bos once, and nobody's words become control tokens.

There, control tokens are words of the vocabulary like all others, so that merges, too, might lead to one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forged_chats
import kvtrie as kv
from circles import CIRCLE
from gguf_files import checkpoint, write
from kvtrie.models.tokenizer import Tokenizer
from test_gguf_tokenizer import byte_level_keys, sentence_piece, tokens_of, trained

CHATS = {"test": 30, "ci": 300, "soak": 2_000}[CIRCLE]
WITHOUT_BOS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>")


def load(path: Path, vocab: int, keys: Callable[[Any], None]) -> Tokenizer:
    config, weights = checkpoint("llama-gqa-tied")
    table = weights["model.embed_tokens.weight"]
    embedding = table[[index % len(table) for index in range(vocab)]]
    config = config.__class__(**{**vars(config), "vocab_size": vocab})
    found = kv.models.load_tokenizer(
        write(config, {**weights, "model.embed_tokens.weight": embedding}, path, tokenizer=keys)
    )
    assert found is not None
    return found


def byte_level(path: Path, template: str = WITHOUT_BOS, **more: Any) -> Tokenizer:
    raw = trained("qwen2")
    return load(path, raw.get_vocab_size(), byte_level_keys("qwen2", raw, **{"add_chat_template": template, **more}))


def pieces(path: Path, template: str = WITHOUT_BOS, **more: Any) -> Tokenizer:
    own = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
    trainer = sentence_piece(True, own)
    tokens = tokens_of(trainer)

    def keys(writer: Any) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([-float(at) for at in range(len(tokens))])
        writer.add_token_types([2, 3, 3, 3, 3, *[6] * 256, *[1] * (len(tokens) - 261)])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_chat_template(template)
        for key, value in more.items():
            getattr(writer, key)(value)

    return load(path, len(tokens), keys)


def names(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.special_tokens.texts[token] for token in ids if token in tokenizer.special_tokens.texts]


KINDS = {"byte-level": byte_level, "pieces": pieces}


@pytest.mark.parametrize("kind", KINDS)
def test_no_word_becomes_a_control_token(kind: str, tmp_path: Path) -> None:
    tokenizer, dice = KINDS[kind](tmp_path / "model.gguf"), random.Random(3305)
    for _ in range(CHATS):
        said = "".join(
            dice.choice([*MARKS, "<|im_", "start|>", "hi ", "\n", "<x>"]) for _ in range(dice.randrange(1, 6))
        )
        messages = [{"role": "user", "content": said}, {"role": "assistant", "content": forged_chats.plain(dice)}]
        ids = tokenizer.apply_chat_template(messages)
        wanted = ["<|im_start|>", "<|im_end|>"] * 2
        assert [each for each in names(tokenizer, ids) if each not in ("<s>", "<unk>")] == wanted, said
        assert names(tokenizer, tokenizer.encode(said, False, "letters")) == []
        assert tokenizer.decode(tokenizer.encode(said, False, "letters")) == said


@pytest.mark.parametrize("written", ["", "{{ bos_token }}"])
@pytest.mark.parametrize("add", [True, False, None])
@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_begins_with_bos_as_the_file_says(kind: str, add: bool | None, written: str, tmp_path: Path) -> None:
    """Or, where it says nothing, as its vocabulary does: Gemma's files have a template without bos and no flag."""
    more = {} if add is None else {"add_add_bos_token": add}
    tokenizer = KINDS[kind](tmp_path / "model.gguf", written + WITHOUT_BOS, **more)
    adds = kind == "pieces" if add is None else add
    bos = tokenizer.token_id(tokenizer.special["bos_token"])
    ids = tokenizer.apply_chat_template([{"role": "user", "content": f"{tokenizer.special['bos_token']}hi"}])
    assert ids.count(bos) == int(adds or bool(written)) == int(ids[0] == bos)
    assert tokenizer.encode(f"{tokenizer.special['bos_token']}hi").count(bos) == 1
    assert tokenizer.encode("hi").count(bos) == int(adds)


def test_an_end_that_a_file_adds_is_not_behind_a_chat(tmp_path: Path) -> None:
    tokenizer = pieces(tmp_path / "model.gguf", add_add_eos_token=True)
    assert tokenizer.encode("hi")[-1] == 2 != tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])[-1]
    assert tokenizer.encode("hi</s>").count(2) == 1


def test_a_whole_tokenizer_begins_chats_as_the_file_says(tmp_path: Path) -> None:
    raw = trained("qwen2")
    for add in (True, False, None):
        more = {} if add is None else {"add_add_bos_token": add}
        whole = {"add_chat_template": WITHOUT_BOS, "add_string": ("tokenizer.huggingface.json", raw.to_str())}
        keys = byte_level_keys("qwen2", raw, **more)

        def with_whole(writer: Any, keys: Any = keys, whole: Any = whole) -> None:
            keys(writer)
            writer.add_string(*whole["add_string"])

        tokenizer = load(tmp_path / f"{add}.gguf", raw.get_vocab_size(), with_whole)
        ids = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
        assert ids.count(tokenizer.token_id("<|endoftext|>")) == int(bool(add))
