"""What tokens stand for byte by byte: streams of text as it comes, and log-probabilities of parts of characters."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers

import kvtrie as kv
import tokenizer_folders
from kvtrie.models.tokenizer import Tokenizer
from processes import PATIENCE
from serving import TINY, Served, served

TEXTS = ["Hello world  x", " a", "  b", "\u65e5\u672c \U0001f980\u00e9", "a\ufffdb\ufffd", "\r\n\t", ""]


def plain(kind: str) -> Tokenizer:
    return Tokenizer(tokenizer_folders.RAW[kind])


def streamed(tokenizer: Tokenizer, tokens: list[int], **options: bool) -> list[str]:
    stream = tokenizer.stream(**options)
    return [*map(stream.feed, tokens), stream.finish()]


@pytest.fixture(params=list(tokenizer_folders.RAW))
def tokenizer(request: Any) -> Tokenizer:
    return plain(request.param)


def test_streams_say_what_decoding_says(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes.add_up
    for text in TEXTS:
        tokens = tokenizer.encode(text, add_special_tokens=False)
        assert "".join(streamed(tokenizer, tokens)) == tokenizer.decode(tokens) == text
    draw = random.Random(3)
    for _ in range(300):
        tokens = [draw.randrange(tokenizer.vocab_size) for _ in range(6)]
        whole = tokenizer.decode(tokens)
        if "\ufffd" not in whole:
            assert "".join(streamed(tokenizer, tokens, skip_special_tokens=False)) == whole


def test_bytes_that_are_no_character_are_shown_as_python_shows_them(tokenizer: Tokenizer) -> None:
    draw = random.Random(5)
    parts = [token for token in range(tokenizer.vocab_size) if not is_text(tokenizer.token_bytes.of(token))]
    assert len(parts) >= 128
    for _ in range(200):
        tokens = draw.choices(parts, k=12)
        spelled = b"".join(map(tokenizer.token_bytes.of, tokens))
        assert "".join(streamed(tokenizer, tokens)) == spelled.decode("utf-8", "replace")


def is_text(spelled: bytes) -> bool:
    return "\ufffd" not in spelled.decode("utf-8", "replace")


def test_a_stream_holds_three_bytes_at_most(tokenizer: Tokenizer) -> None:
    table = tokenizer.token_bytes
    parts = [
        token for token in range(tokenizer.vocab_size) if len(table.of(token)) == 1 and not is_text(table.of(token))
    ]
    stream, draw, given = tokenizer.stream(), random.Random(7), 0
    for fed in range(1, 2000):
        given += len(stream.feed(draw.choice(parts)))
        assert given >= fed / 4 - 1  # a character has four bytes at most
    lone = next(token for token in parts if table.of(token) == b"\x80")  # can begin none
    assert [len(stream.feed(lone)) for _ in range(600)][1:] == [1] * 599


def test_what_a_stream_costs_does_not_grow(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer) -> None:
    """Counted in tokens that are decoded."""
    tokens = tokenizer.encode("\U0001f980")[-2:-1] * 3000
    decoded, real = [0], tokenizer.token_bytes.decode

    def counted(ids: list[int], skip_special_tokens: bool = False) -> str:
        decoded[0] += len(ids)
        return real(ids, skip_special_tokens)

    monkeypatch.setattr(tokenizer.token_bytes, "decode", counted)
    assert len("".join(streamed(tokenizer, tokens))) == 3000
    assert decoded[0] < 300


def test_a_replacement_character_that_is_meant_is_shown_at_once() -> None:
    for tokenizer in (plain("byte-level"), plain("pieces"), words()):
        tokens = tokenizer.encode("hug \ufffd", add_special_tokens=False)
        *pieces, rest = streamed(tokenizer, tokens)
        assert pieces[-1].endswith("\ufffd") and rest == ""


def words() -> Tokenizer:
    """One whose tokens depend on their neighbours."""
    known = {"[UNK]": 0, "a": 1, "hug": 2, "##s": 3, ".": 4, "do": 5, "not": 6, "\ufffd": 7}
    raw = tokenizers.Tokenizer(tokenizers.models.WordPiece(known, unk_token="[UNK]"))
    raw.pre_tokenizer, raw.decoder = tokenizers.pre_tokenizers.Whitespace(), tokenizers.decoders.WordPiece()
    return Tokenizer(raw)


def test_tokens_that_depend_on_their_neighbours_are_decoded_with_them() -> None:
    tokenizer = words()
    assert not tokenizer.token_bytes.add_up
    tokens = [2, 3, 4, 7, 5, 6, 7, 1]
    assert "".join(streamed(tokenizer, tokens)) == tokenizer.decode(tokens)


def test_what_goes_on_behind_a_text_keeps_its_first_space() -> None:
    tokenizer = plain("pieces")
    tokens = tokenizer.encode("Hello", add_special_tokens=False)
    assert "".join(streamed(tokenizer, tokens)) == "Hello"
    assert "".join(streamed(tokenizer, tokens, begins=False)) == " Hello"
    with pytest.raises(kv.errors.ArgumentTypeError, match=r"^\[tokenizer.stream\] begins: got "):
        tokenizer.stream(begins="no")  # type: ignore[arg-type]


# --- log-probabilities ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/tiny with a template; its decoder takes a text's first space off, as SentencePiece's do."""
    place = tmp_path_factory.mktemp("stripping") / "tiny"
    shutil.copytree(TINY, place)
    whole = json.loads((place / "tokenizer.json").read_text())
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    whole["decoder"] = {"type": "Sequence", "decoders": [whole["decoder"], strip]}
    (place / "tokenizer.json").write_text(json.dumps(whole))
    return place


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with served(kv.models.load(folder), temperature=0.0) as running:
        yield running


def asked(server: Served, path: str, body: Any) -> Any:
    response = httpx.post(server.url + path, json=body, timeout=PATIENCE)
    assert response.status_code == 200, response.text
    return response.json()


CRAB = "\U0001f980\u65e5 \ufffd x"


def of_a_chat(server: Served, text: str) -> tuple[str, list[Any]]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": text}}}
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 60, "response_format": form}
    choice = asked(server, "/v1/chat/completions", {**body, "logprobs": True, "top_logprobs": 5})["choices"][0]
    return choice["message"]["content"], choice["logprobs"]["content"]


def test_the_bytes_of_all_tokens_of_a_chat_are_those_of_its_text(server: Served) -> None:
    content, entries = of_a_chat(server, CRAB)
    assert json.loads(content) == CRAB
    said = [bytes(each["bytes"]) for each in entries if each["bytes"] and not each["token"].startswith("<|")]
    assert b"".join(said) == content.encode()
    assert any(not is_text(each) for each in said)  # parts of characters are among them
    for each in entries:
        assert each["token"] == bytes(each["bytes"]).decode("utf-8", "replace")
        assert len(each["top_logprobs"]) == 5


@pytest.mark.parametrize("stream", [False, True])
def test_names_of_tokens_are_apart_and_their_offsets_fit(server: Served, stream: bool) -> None:
    tokens = server.engine.model.tokenizer.encode("\U0001f980", add_special_tokens=False)
    body = {"prompt": tokens[:1], "max_tokens": 8, "logprobs": 20, "logit_bias": {str(tokens[1]): 3.0}}
    for choice in completions(server, body, stream):
        for likely in choice["logprobs"]["top_logprobs"]:
            assert len(likely) == 20


def test_completions_keep_the_space_of_a_word(server: Served) -> None:
    body = {"prompt": "The python", "max_tokens": 8, "logprobs": 1}
    choice = next(completions(server, body, False))
    told = choice["logprobs"]
    assert "".join(told["tokens"]) == choice["text"]
    places = [choice["text"].find(token, at) for token, at in zip(told["tokens"], told["text_offset"])]
    assert places == told["text_offset"]
    whole = "".join(each["text"] for each in completions(server, body, True))
    assert whole == choice["text"]


def completions(server: Served, body: Any, stream: bool) -> Iterator[Any]:
    if not stream:
        yield from asked(server, "/v1/completions", body)["choices"]
        return
    with httpx.stream("POST", server.url + "/v1/completions", json={**body, "stream": True}, timeout=PATIENCE) as got:
        for line in got.iter_lines():
            choice = json.loads(line[6:])["choices"][0] if line.startswith("data: {") else None
            if choice is not None and (choice["text"] or choice["logprobs"]):
                yield choice


@pytest.mark.parametrize("begins", [True, False])
def test_a_run_of_parts_of_characters_comes_as_it_is_made(server: Served, begins: bool) -> None:
    """Of bytes that begin a character, and of those that only go on with one."""
    table, size = server.engine.model.tokenizer.token_bytes, server.engine.model.tokenizer.vocab_size
    token = next(each for each in range(size) if table.of(each) == (b"\xc3" if begins else b"\x80"))
    body = {"prompt": "a", "max_tokens": 100, "ignore_eos": True, "logit_bias": {str(token): 100}}
    texts = [each["text"] for each in completions(server, {**body, "temperature": 0, "return_token_ids": True}, True)]
    assert len(texts) >= 99 and max(map(len, texts)) == 1
