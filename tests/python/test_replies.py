"""Text in, text out: ``model.chat`` and ``model.complete``, stop texts, finish reasons, and what a template ignores."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from kvtrie.stopping import TextUntil
from reference_llama import random_llama, save_checkpoint
from text_tokenizer import VOCAB, save_tokenizer

SEED = 11
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("text")
    save_checkpoint(folder, *random_llama(SEED, vocab=VOCAB, eos_token_id=VOCAB - 1))
    return kv.models.load(save_tokenizer(folder))


def until(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    text = TextUntil(stops)
    given = [text.feed(piece) for piece in pieces]
    return [*given, text.finish()], text.found


def test_text_ends_before_its_stop_text() -> None:
    assert until(["ab"], ["xa", "b", "c"]) == (["x", "", "", ""], "ab")
    assert until(["ab"], ["xa", "c"]) == (["x", "ac", ""], None)
    assert until(["ab"], ["xa"]) == (["x", "a"], None)
    assert until([], ["x", "y"]) == (["x", "y", ""], None)
    assert until(["abc", "b"], ["a", "b"]) == (["", "a", ""], "b")
    assert until(["ab", "abc"], ["abc"]) == (["", ""], "abc")


def test_text_until_agrees_with_looking_at_the_whole() -> None:
    draw = random.Random(3)
    for _ in range(3000):
        text = "".join(draw.choice("ab") for _ in range(draw.randrange(12)))
        stops = ["".join(draw.choice("ab") for _ in range(draw.randrange(1, 5))) for _ in range(draw.randrange(3))]
        cuts = sorted(draw.randrange(len(text) + 1) for _ in range(draw.randrange(4)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
        given, found = until(stops, pieces)
        # What is handed out stops where the first stop text to be complete begins.
        ends = [n for n in range(len(text) + 1) for stop in stops if stop in text[:n]]
        wanted = text if not ends else None
        if wanted is not None:
            assert ("".join(given), found) == (wanted, None)
            continue
        whole = "".join(given)
        assert found is not None and (whole + found) in text and text.startswith(whole + found)
        assert not any(stop in whole for stop in stops)


def test_a_reply_is_the_text_of_its_tokens(model: Any) -> None:
    reply = model.chat(HELLO, max_tokens=12, temperature=1.0, seed=2, ignore_eos=True)
    pieces = list(reply)
    prompt = model.tokenizer.apply_chat_template(HELLO, add_generation_prompt=True)
    with model.prefix_cache.begin(prompt) as session:
        tokens = list(kv.generate(model, session, 12, 1.0, seed=2, ignore_eos=True))
    assert reply.tokens == tokens
    assert reply.text == "".join(pieces) == model.tokenizer.decode(tokens, skip_special_tokens=True)
    assert all(pieces), "nothing empty is handed out"
    assert (reply.finish_reason, reply.prompt_tokens) == ("length", len(prompt))
    assert reply.message == {"role": "assistant", "content": reply.text}
    assert reply.seconds_to_first is not None and reply.seconds_to_first > 0
    assert model.prefix_cache.stats()["sessions"] == 0
    model.prefix_cache.close()


def test_either_kind_has_tokens_and_text(model: Any) -> None:
    """Of a generation and of a request; with a stop text, which is no part of the text."""
    prompt = model.tokenizer.apply_chat_template(HELLO, add_generation_prompt=True)
    options: dict[str, Any] = {"temperature": 1.0, "seed": 2, "ignore_eos": True}
    stop = model.chat(HELLO, max_tokens=12, **options).text[4:6]
    text = model.chat(HELLO, max_tokens=12, stop=stop, **options)
    with kv.Batch(model) as batch, kv.Batcher(model) as batcher:
        driven = batch.add(prompt, 12, stop, **options)
        asked, chatted = batcher.submit(prompt, 12, stop, **options), batcher.chat(HELLO, 12, stop, **options)
        alone = kv.generate(model, prompt, 12, 1.0, stop, seed=2, ignore_eos=True)
        while batch.step():
            pass
        assert list(alone) == asked.result() == driven.tokens
        assert alone.text == chatted.result() == text.text != ""
        for each in (alone, driven, asked, chatted, text):
            assert (each.tokens, each.text_so_far) == (text.tokens, text.text)
            assert (each.finish_reason, each.stopped_by, each.prompt_tokens) == ("stop", stop, len(prompt))
            assert each.message == text.message
            assert each.beginning is not None and each.reason == each.beginning.reason
            assert each.reused == each.beginning.reused
    model.prefix_cache.close()


def test_characters_stay_whole(model: Any) -> None:
    """The model writes bytes at random: pieces have U+FFFD where those are no characters, and never half of one."""
    tokenizer = model.tokenizer
    wanted = tokenizer.encode("a\u4f60b\U0001f642", add_special_tokens=False)
    forced = iter([*wanted, *wanted])

    def write(_tokens: Any, row: Any) -> None:
        row[:] = -np.inf
        row[next(forced)] = 0

    reply = model.complete("x", max_tokens=len(wanted), logits_processors=write)
    assert list(reply) == ["a", "\u4f60", "b", "\U0001f642"]
    model.prefix_cache.close()


def test_stop_texts_are_trimmed_and_added_to_the_end_tokens(model: Any) -> None:
    tokenizer = model.tokenizer
    script = [*tokenizer.encode("one STOP two", add_special_tokens=False), model.end_tokens[0]]

    def play(stop: Any, tokens: list[int] = script) -> kv.Generation[str]:
        rest = iter(tokens)

        def write(_tokens: Any, row: Any) -> None:
            row[:] = -np.inf
            row[next(rest)] = 0

        reply: kv.Generation[str] = model.complete("x", max_tokens=len(tokens), stop=stop, logits_processors=write)
        str(reply)
        return reply

    stopped = play(["STOP", "never"])
    assert (stopped.text, stopped.finish_reason) == ("one ", "stop")
    assert tokenizer.decode(stopped.tokens).endswith("STOP")
    ended = play(["never"])
    assert (ended.text, ended.finish_reason) == ("one STOP two", "stop")
    assert ended.tokens[-1] == model.end_tokens[0], "stop= is in addition to the end tokens"
    assert play(None, script[:3]).finish_reason == "length"
    assert play("ST", script[:5]).text == "one S", "what was held back comes when nothing follows"
    model.prefix_cache.close()


def test_a_special_token_as_text_stops_by_its_id(model: Any) -> None:
    token = model.tokenizer.token_id("<|im_start|>")

    def write(_tokens: Any, row: Any) -> None:
        row[token] = 1e6

    reply = model.complete("x", max_tokens=5, stop="<|im_start|>", logits_processors=write)
    assert (reply.text, reply.tokens, reply.finish_reason) == ("", [token], "stop")
    model.prefix_cache.close()


def test_conversations_share_what_they_have_in_common(model: Any) -> None:
    first = model.chat(HELLO, max_tokens=4)
    str(first)
    again = model.chat(HELLO, max_tokens=4)
    assert (first.reused, again.reused) == (0, again.prompt_tokens - 1)
    assert again.text == first.text
    other = kv.PrefixCache(model.caches(capacity=256), fingerprint=model.fingerprint)
    assert model.chat(HELLO, max_tokens=1, cache=other).reused == 0
    assert model.chat(HELLO, max_tokens=1, namespace="someone").reused == 0
    other.close()
    model.prefix_cache.close()


def test_closing_a_reply_ends_it(model: Any) -> None:
    with model.chat(HELLO, max_tokens=50, ignore_eos=True) as reply:
        piece = next(reply)
        assert model.prefix_cache.stats()["sessions"] == 1
    assert reply.text == reply.text_so_far == piece
    assert model.prefix_cache.stats()["sessions"] == 0
    model.prefix_cache.close()


def test_an_exception_ends_nothing(model: Any) -> None:
    calls = 0

    def interrupt(_tokens: Any, _row: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt

    parameters: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True}
    reference = model.chat(HELLO, **parameters)
    str(reference)
    reply = model.chat(HELLO, logits_processors=interrupt, **parameters)
    with pytest.raises(KeyboardInterrupt):
        str(reply)
    assert reply.tokens == reference.tokens[:2]
    assert reply.text == reference.text
    assert reply.tokens == reference.tokens
    model.prefix_cache.close()


def test_generate_takes_prompts(model: Any) -> None:
    ids = model.tokenizer.encode("hello")
    wanted = list(kv.generate(model, ids, 5, ignore_eos=True))
    assert list(kv.generate(model, "hello", 5, ignore_eos=True)) == wanted
    assert list(kv.generate(model, np.array(ids), 5, ignore_eos=True)) == wanted
    assert model.prefix_cache.stats()["sessions"] == 0
    for wrong in (None, 5, object(), {1, 2}):
        with pytest.raises(kv.errors.ArgumentTypeError, match="allowed a session, a text"):
            kv.generate(model, wrong)  # type: ignore[arg-type]
    without = kv.models.from_weights(*random_llama(SEED))
    with pytest.raises(kv.errors.NotSupportedError, match="tokenizer"):
        kv.generate(without, "hello")
    with pytest.raises(kv.errors.NotSupportedError, match="tokenizer"):
        without.chat(HELLO)
    model.prefix_cache.close()


def test_unknown_parameters_are_named(model: Any) -> None:
    with pytest.raises(kv.errors.ArgumentTypeError, match="temprature"):
        model.chat(HELLO, temprature=1.0)


def test_logprobs_of_a_reply(model: Any) -> None:
    reply = model.complete("x", max_tokens=4, logprobs=2, ignore_eos=True)
    str(reply)
    assert [each.token for each in reply.logprobs] == reply.tokens
    assert all(each.top[0] == (each.token, each.logprob) and len(each.top) == 2 for each in reply.logprobs)
    model.prefix_cache.close()


def test_tools_that_a_template_ignores_are_told_once(model: Any, tmp_path: Path) -> None:
    raw = model.tokenizer.raw
    deaf = kv.models.Tokenizer(raw, chat_template="{{ messages[0].content }}")
    with pytest.warns(kv.errors.IgnoredWarning, match="tools"):
        deaf.apply_chat_template(HELLO, tools=[{"name": "f"}])
    hearing = kv.models.Tokenizer(raw, chat_template="{{ messages[0].content }}{{ tools[0].name }}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        deaf.apply_chat_template(HELLO, tools=[{"name": "f"}])
        kv.models.Tokenizer(raw, chat_template="{{ messages[0].content }}").apply_chat_template(HELLO, tools=None)
        assert hearing.apply_chat_template(HELLO, tools=[{"name": "f"}], tokenize=False) == "hellof"
